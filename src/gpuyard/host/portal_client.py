"""The host's client of the portal: JSON over HTTPS, with a token that is good for this host alone.

The token goes to the address that was named and nowhere else: no redirect is followed, and no proxy is asked.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import stat
from typing import Any, Dict, Mapping, Optional
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.text import printable

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LONGEST_ANSWER = 256 * 1024
LONGEST_TOKEN = 4096
SECONDS = 15.0
MOST_PATIENCE = 300
"""Seconds that a portal may ask to wait."""


class PortalRefusedError(GpuyardError):
    """The portal does not take what was sent. The same once more would be refused too."""


class PortalAwayError(GpuyardError):
    """The portal cannot be reached, or is busy."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        """`wait`: seconds that it asks for."""
        super().__init__(message)
        self.wait = wait


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class PortalReportClient:
    """The portal at a URL, for who has the token in a file. The file is read anew each time: it may be replaced."""

    def __init__(self, url: str, token_file: str, ca_file: Optional[str] = None, seconds: float = SECONDS) -> None:
        """`ca_file`: certificates to trust instead of the system's. Raises UsageError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"--url {printable(url)}: write the portal's address, as in https://gpus.example.org")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise UsageError(f"--url {printable(url)}: the token would cross the network unencrypted; use https")
        self.url = url.rstrip("/")
        self._token_file, self._seconds = token_file, seconds
        try:
            trust = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise UsageError(f"--ca-file {ca_file}: {error.strerror or 'no certificates in it'}") from None
        self._opener = build_opener(ProxyHandler({}), _NoRedirect(), HTTPSHandler(context=trust))

    def post(self, path: str, document: Mapping[str, Any]) -> Dict[str, Any]:
        """The answer; empty when it has no body. Raises PortalRefusedError, PortalAwayError, and UsageError for a
        token that cannot be read."""
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        body = json.dumps(document, separators=(",", ":")).encode()
        request = Request(f"{self.url}{path}", body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                return _document(answer.read(LONGEST_ANSWER + 1))
        except HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PortalAwayError(f"{self.url}: {printable(str(reason))[:300]}") from None

    def _token(self) -> str:
        try:
            descriptor = os.open(self._token_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, encoding="ascii", errors="replace") as file:
                regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                token = file.read(LONGEST_TOKEN).strip() if regular else ""
        except OSError as error:
            raise UsageError(f"--token-file {self._token_file}: {error.strerror}") from None
        if not (token.isascii() and token.isprintable() and token) or " " in token:
            raise UsageError(
                f"--token-file {self._token_file}: there is no token in it; 'gpuyard host token' makes one"
            )
        return token

    def _refused(self, error: HTTPError) -> GpuyardError:
        try:
            detail = _document(error.read(LONGEST_ANSWER + 1)).get("detail")
        except (OSError, http.client.HTTPException, PortalAwayError):
            detail = None
        reason = printable(detail[:300]) if isinstance(detail, str) else str(error.reason)[:300]
        message = f"{self.url} answers {error.code}: {reason}"
        if error.code == 429 or error.code >= 500:
            return PortalAwayError(message, _wait(error.headers.get("Retry-After", "")))
        return PortalRefusedError(message)


def _document(body: bytes) -> Dict[str, Any]:
    """Raises PortalAwayError for what no portal of ours answers."""
    if not body:
        return {}
    try:
        document = json.loads(body) if len(body) <= LONGEST_ANSWER else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise PortalAwayError("what answers there is no portal of gpuyard's, or something between has changed it")
    return document


def _wait(text: str) -> float:
    return float(min(int(text), MOST_PATIENCE)) if text.isdecimal() and len(text) < 10 else 0.0
