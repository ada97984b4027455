"""Finds a request's client address, scheme and public URL behind gateways. Only named gateways are believed.

X-Forwarded-For is read from the right, as long as the address so far is a named gateway: a client can write anything
to the left of what gateways add.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def client_address(request: HTTPConnection, trusted: Sequence[str]) -> str:
    """Return the address of the client: the last one before the gateways that are trusted."""
    address = request.client.host if request.client else ""
    # A client can write anything to the left of what the gateways add.
    hops = [hop.strip() for value in request.headers.getlist("x-forwarded-for") for hop in value.split(",")]
    while address in trusted and hops:
        address = _without_port(hops.pop())
    return address[:64]


def _without_port(hop: str) -> str:
    """Some gateways write ``192.0.2.1:4711``, or ``[2001:db8::1]:4711``."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def is_https(request: HTTPConnection, trusted: Sequence[str], public: str = "") -> bool:
    """Return whether the browser speaks TLS: by the `public` URL when there is one."""
    if public:
        return public.lower().startswith("https:")
    if request.client is not None and request.client.host in trusted:
        forwarded = request.headers.get("x-forwarded-proto", "").split(",")[-1].strip().lower()
        if forwarded:
            return forwarded == "https"
    return bool(request.scope.get("scheme") == "https")


def public_url(request: HTTPConnection, trusted: Sequence[str], public: str) -> str:
    """Return the URL where the browser finds the portal, without a slash at the end."""
    if public:
        return public.rstrip("/")
    return f"{'https' if is_https(request, trusted) else 'http'}://{request.headers.get('host', '')}"


def is_same_site(request: HTTPConnection, public: str) -> bool:
    """Return whether a browser sent this from a page of ours, by two headers that scripts cannot set. With a `public`
    URL only its pages are ours."""
    origin, fetched = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if fetched != "same-origin":
        return False
    if origin is None:
        return True  # no browser, or a very old one: the token in the request decides
    try:
        return origin == origin_of(public) if public else urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:  # as for http://[::1
        return False


def origin_of(url: str) -> str:
    """Return the Origin header that browsers send for pages below a URL: ``https://gpus.example.org``."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host.removesuffix(':443' if parts.scheme == 'https' else ':80')}"


def up_from(path: str) -> str:
    """Return the relative path from a path of ours to the root of the portal, which a gateway may serve under its own
    path."""
    return "../" * (path.count("/") - 1) or "./"
