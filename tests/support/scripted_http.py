"""A real HTTP server that answers what a test has written, down to the bytes, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ScriptedAnswer:
    """An answer: JSON, bytes, or whatever is done with the socket."""

    status: int = 200
    data: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    raw: Callable[[socket.socket], None] | None = None


Script = Callable[[Asked], ScriptedAnswer]


class ScriptedHttp:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """With `tls` it is a server of https."""
        self.asked: list[Asked] = []
        self._routes: dict[tuple[str, str], list[ScriptedAnswer | Script]] = {}
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                parts = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
                self.tell(server.told(request))

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = answer  # noqa: N815 - the names that the library calls

            def tell(self, answer: ScriptedAnswer) -> None:
                if answer.raw:
                    answer.raw(self.connection)
                    self.close_connection = True
                    return
                body = (
                    answer.body
                    if answer.body is not None
                    else b""
                    if answer.data is None
                    else json.dumps(answer.data).encode()
                )
                self.send_response(answer.status)
                for name, value in ({"content-type": "application/json"} | dict(answer.headers)).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, *answers: ScriptedAnswer | Script) -> None:
        """What comes for a path, one after the other; the last stays."""
        with self._lock:
            self._routes[method, path] = list(answers)

    def told(self, request: Asked) -> ScriptedAnswer:
        with self._lock:
            self.asked.append(request)
            queue = self._routes.get((request.method, request.path))
            if not queue:
                return ScriptedAnswer(404, {"message": "Not Found"})
            answer = queue.pop(0) if len(queue) > 1 else queue[0]
        return answer(request) if callable(answer) else answer

    def count(self, method: str, path: str) -> int:
        return sum(1 for request in self.asked if (request.method, request.path) == (method, path))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def scripted_http(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedHttp]:
    server = ScriptedHttp(tls)
    try:
        yield server
    finally:
        server.close()
