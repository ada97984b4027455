"""A Nova that has a bad day: a proxy before the real one, which refuses, answers late, half or not at all, and sends
servers where there is no room, all drawn from one seed."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import urlsplit

HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
"""Headers that are between two only."""


@dataclass(frozen=True)
class NovaFaults:
    """How often each happens, from 0 to 1."""

    refused: float = 0.0
    """500, 502 or 503, and nothing was done."""
    limited: float = 0.0
    """429, and nothing was done."""
    reply_lost: float = 0.0
    """It was done, and the connection breaks."""
    reply_half: float = 0.0
    """It was done, and the connection breaks in the middle of the answer."""
    broken_after: float = 0.0
    """It was done, and a 500 comes."""
    slow: float = 0.0
    """The answer takes up to `slow_s`."""
    nowhere: float = 0.0
    """A server is asked for with a flavor for which no host has room."""
    slow_s: float = 2.0


@dataclass
class _Day:
    nova: tuple[str, int]
    faults: NovaFaults
    rng: Random
    nowhere: str
    """Id of a flavor for which no host has room."""
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)

    def strikes(self, fault: str) -> bool:
        with self.lock:
            struck = not self.over and self.rng.random() < getattr(self.faults, fault)
            self.counts[fault] += struck
            return struck


class BadNova:
    """As a context manager it serves; ``url`` is where."""

    def __init__(self, nova: str, faults: NovaFaults, seed: int = 0, nowhere: str = "") -> None:
        """``nova``: URL of the endpoint of the real one."""
        split = urlsplit(nova)
        assert split.hostname is not None
        self.day = _Day((split.hostname, split.port or 80), faults, Random(f"nova {seed}"), nowhere)
        handler = type("Handler", (_Handler,), {"day": self.day})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{split.path}"

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self.day.counts.items()))

    def begin(self) -> None:
        """The bad day; it has begun when this serves."""
        self.day.over = False

    def recover(self) -> None:
        """From now on all goes well."""
        self.day.over = True

    @contextmanager
    def serving(self) -> Iterator[BadNova]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news; anything else is a defect of ours and shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    day: _Day

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.day.counts["requests"] += 1
        if self.day.strikes("refused"):
            self._say(self.day.rng.choice([500, 502, 503]), b"<html><body>Out of order</body></html>", "text/html")
            return
        if self.day.strikes("limited"):
            self._say(429, b'{"overLimit": {"code": 429, "message": "This request was rate-limited."}}')
            return
        if self.command == "POST" and self.path.endswith("/servers") and self.day.strikes("nowhere"):
            document = json.loads(body)
            document["server"]["flavorRef"] = self.day.nowhere
            body = json.dumps(document).encode()
        try:
            status, headers, data = self._ask(body)
        except (OSError, HTTPException) as error:
            self._say(502, f"no Nova: {error}".encode(), "text/plain")
            return
        self._answer(status, headers, data)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(*self.day.nova, timeout=120)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            answer_headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
            return answer.status, answer_headers, answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        if self.day.strikes("slow"):
            time.sleep(self.day.rng.random() * self.day.faults.slow_s)
        if self.day.strikes("reply_lost"):
            self._break()
            return
        if self.day.strikes("broken_after"):
            self._say(500, b'{"computeFault": {"code": 500, "message": "Unexpected API Error."}}')
            return
        half = bool(data) and self.day.strikes("reply_half")
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("date", "server"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self._break()

    def _say(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _break(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
