"""A small JSON-over-HTTP client for the lab's own APIs: no proxy, no cache, no import worth a second."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard_lab.errors import LabError

TIMEOUT_S = 30.0
# An environment's http_proxy must not come between the lab and its services on the loopback interface.
_OPENER = build_opener(ProxyHandler({}))


@dataclass(frozen=True)
class HttpAnswer:
    """An API's answer."""

    status: int
    body: Any
    """Decoded JSON, None when there was none."""
    token: str | None = None
    """Keystone's new token, when the request was for one."""


class Unreachable(LabError):
    """No service answers at this address (yet)."""


def call(
    method: str,
    url: str,
    body: Any = None,
    *,
    token: str | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> HttpAnswer:
    """Send one request; ``body`` is sent as JSON, bytes as they are. Raises Unreachable, and LabError for 400 and
    more."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    request = Request(url, data, {"Content-Type": kind, "Accept": "application/json", **(headers or {})}, method=method)
    if token:
        request.add_header("X-Auth-Token", token)
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            return HttpAnswer(response.status, _decoded(response.read()), response.headers.get("X-Subject-Token"))
    except HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        raise LabError(f"{method} {url} was answered with {error.code}: {text[:500]}") from None
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{method} {url}: {error}") from None


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None


def answers(url: str) -> bool:
    """Return whether an API answers a request for its versions or its health; one that says 300 (choose one) does."""
    try:
        call("GET", url, timeout_s=5.0)
    except LabError:
        return False
    return True
