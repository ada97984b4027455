"""HTTP client of an external service that has a say in bookings.

Its answers are not trusted: they are bounded in size and in time, and its words are cleaned before anybody reads them.
Its token goes to that address alone: no redirect is followed, no proxy asked.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import urlsplit

from gpuyard import installed_version
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.text import printable
from gpuyard.site.accounting_rules import ExternalEnforcement

LONGEST_ANSWER = 64 * 1024
LONGEST_TOKEN = 4096
MOST_AT_ONCE = 8
"""Questions under way at once; further ones wait. Each occupies the thread of a person's request, and there are only so
many."""
WORDS = 500
"""Characters of the service's reason that are shown."""
TOKEN = re.compile(r"[\x21-\x7e]+")
NO_CONTENT, FORBIDDEN, NOT_FOUND = 204, 403, 404


class DeniedError(GpuyardError):
    """The service says no; the message is its reason."""


class UnknownLeaseError(DeniedError):
    """The service does not know the lease."""


class OutageError(GpuyardError):
    """The service does not answer, or not as the protocol says. It may have taken what it was told all the same."""


class EnforcementClient:
    """Posts documents to the service. Safe to use from several threads."""

    def __init__(self, rules: ExternalEnforcement, environment: Mapping[str, str]) -> None:
        """Raises UsageError without a token."""
        parts = urlsplit(rules.url)
        self.host = parts.hostname or ""
        self._secure, self._port = parts.scheme == "https", parts.port
        self._path = parts.path.rstrip("/")
        self._rules = rules
        self._given = environment.get(rules.token_variable, "")
        self._call_slots = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._token()

    def post(self, path: str, document: Mapping[str, Any]) -> None:
        """Post a document; return when the answer is yes. `path`: ``check-create``. Raises DeniedError, OutageError."""
        timeout = self._rules.timeout
        if not self._call_slots.acquire(timeout=timeout):
            raise OutageError(f"{self.host} is too slow for all who ask: {MOST_AT_ONCE} questions wait for its answer")
        try:
            status, body = self._exchange(path, json.dumps(document).encode(), timeout)
        finally:
            self._call_slots.release()
        if status == NO_CONTENT:
            return
        if status == FORBIDDEN:
            raise DeniedError(_reason(body))
        if status == NOT_FOUND:
            raise UnknownLeaseError(f"{self.host} answers 404: it does not know the lease, or has no such address")
        raise OutageError(f"{self.host} answers {status}, and by the protocol only 204 or 403")

    def _exchange(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        connection = self._connection(timeout)
        # Time for the whole: each read alone may take `timeout`, and there may be any number of them.
        late = threading.Event()
        ends = threading.Timer(timeout, _cut, [connection, late])
        ends.daemon = True
        ends.start()
        try:
            connection.connect()
            if late.is_set():  # there was nothing to cut yet
                raise TimeoutError
            connection.request("POST", f"{self._path}/{path}", body, self._headers())
            answer = connection.getresponse()
            reply = answer.status, answer.read(LONGEST_ANSWER)
        except (OSError, http.client.HTTPException, ValueError) as error:
            slow = late.is_set() or isinstance(error, TimeoutError)
            why = f"no answer in {timeout} s" if slow else printable(str(error) or type(error).__name__)[:200]
            raise OutageError(f"{self.host}: {why}") from None
        finally:
            ends.cancel()
            connection.close()
        if late.is_set():  # what was cut off may look like an answer
            raise OutageError(f"{self.host}: no whole answer in {timeout} s")
        return reply

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._secure:
            trust = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self._port, timeout=timeout, context=trust)
        return http.client.HTTPConnection(self.host, self._port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        token = self._token()
        credits = self._rules.service == "coral-credits"
        whose = {"Authorization": f"Bearer {token}"} if credits else {"X-Auth-Token": token}
        return {"Content-Type": "application/json", "User-Agent": f"gpuyard/{installed_version()}", **whose}

    def _token(self) -> str:
        """Read anew each time: it may be replaced. Raises UsageError, without the token in it."""
        name, token = self._rules.token_variable, self._given
        if self._rules.token_file:
            name = self._rules.token_file
            try:
                with Path(name).open(encoding="utf-8") as file:
                    token = file.read(LONGEST_TOKEN + 1)
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"accounting.external: {name} cannot be read: {type(error).__name__}") from None
        token = token.strip()
        if not token:
            raise UsageError(f"accounting.external: {name} has no token for {self.host}; put it there")
        if len(token) > LONGEST_TOKEN or not TOKEN.fullmatch(token):
            raise UsageError(f"accounting.external: {name} has more in it than one token on one line")
        return token


def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(SHUT_RDWR)


def _reason(body: bytes) -> str:
    """`message` is Blazar's; coral-credits has `error`, and the library that it is made with has `detail`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    fields = document if isinstance(document, dict) else {}
    for key in ("message", "error", "detail"):
        if isinstance(fields.get(key), str) and fields[key].strip():
            return printable(fields[key].strip()[:WORDS])
    return "it gave no reason"
