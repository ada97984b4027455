"""Finds a portal, and sends requests to it with a user's own Keystone session, for command lines.

The token goes to one address only, which somebody has named: redirects are not followed, and nothing is guessed. It
goes to another machine unencrypted only when a person has given the address.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from keystoneauth1 import exceptions as auth_errors
from keystoneauth1.plugin import BaseAuthPlugin
from keystoneauth1.session import Session
from openstack import exceptions as sdk_errors

from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.text import cleaned, printable
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.config import find_cloud

SERVICE_TYPE = "gpu"
"""Type of the portal in Keystone's catalogue."""
NAME_IT = "--url, or GPUYARD_URL in the environment"
TIMEOUT = 60
"""Seconds to wait for one answer."""
MOST_TEXT = 1 << 20
"""Characters at the end of plain text that are used."""

LOG = logging.getLogger(__name__)
logging.getLogger("keystoneauth.identity").setLevel(logging.ERROR)


class NoPortalError(UsageError):
    """Raised when nobody has named a portal that a token may be sent to."""


class PortalUnreachableError(GpuyardError):
    """Raised when no answer came; whether the portal got the request is not known."""


@dataclass(frozen=True)
class Reply:
    """One answer of the portal, whatever its status."""

    status: int
    body: Any = None
    """Its JSON, or its plain text, without what a terminal would act upon; None when it has neither."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers; names are in lower case."""
    text: str = ""


class PortalSession:
    """JSON requests to one portal with the token of one user. Safe to use from several threads."""

    def __init__(self, session: Session, url: str, *, why: str = "", nobody: str = "") -> None:
        """`why`: where the address comes from, for errors. `nobody`: why there is no token, and what to do."""
        self.url = address(url)
        self._session = session
        self._why = why
        self._nobody = nobody

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Make one request, once. Raises PortalUnreachableError, CloudError when Keystone gives no token, and
        UsageError when the portal requires a token and there is none."""
        keywords: dict[str, Any] = {"raise_exc": False, "timeout": TIMEOUT, "redirect": False}
        if body is not None:
            keywords["json"] = dict(body)
        if query:
            keywords["params"] = {name: value for name, value in query.items() if value not in (None, "")}
        try:
            self._session.get_auth_headers()  # here, so that what Keystone does not do is not laid on the portal
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"no token for the portal at {self.url}: {_of_keystone(error)}") from None
        try:
            answer = self._session.request(
                f"{self.url}{path}",
                method,
                authenticated=True,
                headers={"Accept": "application/json", **(headers or {})},
                **keywords,
            )
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise PortalUnreachableError(
                f"the portal at {self.url}{self._why} does not answer: {_cause(error)}; is it up, and is this its "
                "address? Name it with --url or GPUYARD_URL"
            ) from None
        if self._nobody and answer.status_code == 401:
            raise UsageError(f"the portal at {self.url} shows this only to who is logged in, and {self._nobody}")
        return _reply(answer)


class Nobody(BaseAuthPlugin):
    """Authentication without an account: requests have no token."""

    def get_headers(self, session: Session) -> dict[str, str]:
        return {}


def open_public_session(url: str, why: str) -> PortalSession:
    """Return a session for what a portal shows to everybody. `why`: what keeps you from a token, and what to do. Raises
    UsageError."""
    return PortalSession(Session(Nobody()), url, nobody=why)


def open_session(cloud: str | None = None, url: str = "", clouds_file: Path | None = None) -> PortalSession:
    """Return a session for the portal as a user of clouds.yaml; None means OS_CLOUD or the OS_* variables, as for
    `openstack`.

    `url` goes before ``gpu_endpoint_override`` of clouds.yaml, and that before the catalogue. Raises UsageError.
    """
    region = find_cloud(cloud, clouds_file)
    try:
        session = region.get_session()
    except (sdk_errors.ConfigException, auth_errors.MissingRequiredOptions) as error:
        raise UsageError(f"cloud {region.name or 'of the environment'} cannot be used: {error}") from None
    endpoint = url or region.get_endpoint(SERVICE_TYPE) or ""
    interface = region.get_interface(SERVICE_TYPE) or "public"
    name = region.get_region_name(SERVICE_TYPE)
    return session_for(session, endpoint, region=name, interface=interface)


def session_for(
    session: Session, url: str = "", *, region: str | None = None, interface: str | list[str] = "public"
) -> PortalSession:
    """Return a session for the portal through a Keystone session that is there already: at `url`, or where the
    catalogue says. Raises UsageError, which is a NoPortalError when neither will do."""
    if url:
        if _is_plain(address(url)):
            LOG.warning("your token goes to %s unencrypted; https would keep it to yourself", address(url))
        return PortalSession(session, url)
    try:
        endpoint = session.get_endpoint(service_type=SERVICE_TYPE, region_name=region, interface=interface)
    except auth_errors.EndpointNotFound:
        endpoint = None  # a catalogue that has no such service says so in one of two ways
    except (auth_errors.ClientException, sdk_errors.SDKException) as error:
        raise CloudError(f"cannot log in to find the portal: {_of_keystone(error)}") from None
    if not endpoint:
        raise NoPortalError(f"the catalogue has no service of type {SERVICE_TYPE}; name the portal: {NAME_IT}")
    if _is_plain(address(str(endpoint))):
        text = f"the catalogue has the portal at {endpoint}, where your token would go unencrypted"
        raise NoPortalError(f"{text}; have it served with https, or name it if that is meant so: {NAME_IT}")
    return PortalSession(session, str(endpoint), why=", as the catalogue says,")


def address(url: str) -> str:
    """Normalize ``http://host:8080/v1/`` to ``http://host:8080``. Raises UsageError when it is no address of a
    portal."""
    base_url = url.strip().rstrip("/").removesuffix("/v1")
    if not base_url.startswith(("http://", "https://")) or not _host(base_url):
        raise UsageError(f"{url!r} is no address of a portal; write it as in 'https://gpus.example.org'")
    return base_url


def _host(url: str) -> str:
    """Empty for what is no address."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_plain(url: str) -> bool:
    """Return whether others on the network could read what is sent there."""
    if url.startswith("https://"):
        return False
    host = _host(url)
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _reply(answer: Any) -> Reply:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if answer.status_code < 300 and headers.get("content-type", "").startswith("text/plain"):
        # Not JSON even when it looks like it: a log says what a guest wants it to say.
        return Reply(answer.status_code, _lines(answer.text[-MOST_TEXT:]), headers)
    try:
        body = cleaned(answer.json()) if answer.content else None
    except ValueError:
        body = None
    return Reply(
        answer.status_code, body, headers, "" if body is not None else printable(str(answer.text)[:300].strip())
    )


def _lines(text: str) -> str:
    return "\n".join(printable(line.expandtabs()) for line in text.splitlines())


def _of_keystone(error: Exception) -> str:
    if isinstance(error, auth_errors.Unauthorized):
        return "Keystone does not accept the credentials; check clouds.yaml or ask for a new password or token"
    return f"{_cause(error)}; is Keystone up, and is the auth_url of clouds.yaml right?"


def _cause(error: Exception) -> str:
    """What is wrong, out of the onion of texts that the libraries make of it."""
    if isinstance(error, auth_errors.ConnectTimeout):
        return f"no answer within {TIMEOUT} seconds"
    match = re.search(r"\[Errno -?\d+\] ([^')\"]+)", str(error))
    return match.group(1) if match else str(error)
