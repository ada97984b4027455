"""Serves the stand-in on a socket of the loopback interface: in a thread of a test, or as a process of its own."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import ForgeHook, HookSending
from gpuyard_lab.github.standin import StandIn, utc_now
from gpuyard_lab.github.webhooks import headers_of
from gpuyard_lab.github.wire import LARGEST_BODY, ForgeAnswer, ForgeRequest

ADDRESS = "127.0.0.1"
TICK_S = 0.1
HOOK_TIMEOUT_S = 10.0
SENDERS = 8
_OPENER = build_opener(ProxyHandler({}))


class ForgeHandler(BaseHTTPRequestHandler):
    """Handler of one connection. Keeps it open, as GitHub does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's word that it has the headers
    server: ForgeServer

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= LARGEST_BODY:
            self._send(ForgeAnswer(413))
            self.close_connection = True
            return
        body = self.rfile.read(length)
        request = ForgeRequest.of(self.command, self.path, dict(self.headers.items()), body)
        answer = self.server.standin.handle(replace(request, gone=self._gone))
        if answer.delay_s:
            time.sleep(answer.delay_s)
        self._send(answer)

    def _gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815

    def _send(self, answer: ForgeAnswer) -> None:
        if answer.cut == "all":
            self._break()
            return
        data = answer.encoded()
        self.send_response(answer.status)
        headers = {"content-type": "application/json; charset=utf-8", **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if answer.cut == "half":
            self.wfile.write(data[: len(data) // 2])
            self._break()
            return
        self.wfile.write(data)

    def _break(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the journal of faults has what people need."""


class ForgeServer(ThreadingHTTPServer):
    """Serves a stand-in, ticks, and sends its webhooks. As a context manager it does so until the end of it."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self,
        port: int = 0,
        *,
        now: Callable[[], datetime] = utc_now,
        faults: Faults | None = None,
        settings: ForgeSettings | None = None,
        runner_url: str = "",
        address: str = ADDRESS,
    ) -> None:
        """Listen on a port; 0 for a free one. Raises OSError when the port is taken."""
        super().__init__((address, port), ForgeHandler)
        self.url = f"http://{address}:{self.server_address[1]}"
        self.standin = StandIn(now, faults, settings, self.url, runner_url)
        self._ended = threading.Event()
        self._senders = ThreadPoolExecutor(SENDERS, "webhooks")
        self._loops = [
            threading.Thread(target=self.serve_forever, args=(0.05,), name="github", daemon=True),
            threading.Thread(target=self._live, name="github-clock", daemon=True),
        ]

    def start(self) -> ForgeServer:
        for thread in self._loops:
            thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()
        self.standin.close()
        self.shutdown()
        self._senders.shutdown(wait=False, cancel_futures=True)
        self.server_close()

    def __enter__(self) -> ForgeServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that went away; anything else is a defect of ours and shown."""
        import sys

        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def _live(self) -> None:
        while not self._ended.wait(TICK_S):
            self.standin.tick()
            with self.standin.forge.lock:
                due = self.standin.hooks.take_due()
            for hook, delivery in due:
                self._senders.submit(self._send, hook, delivery)

    def _send(self, hook: ForgeHook, delivery: HookSending) -> None:
        request = Request(hook.url, delivery.body, headers_of(hook, delivery), method="POST")
        status = 0
        try:
            with _OPENER.open(request, timeout=HOOK_TIMEOUT_S) as answer:
                status = answer.status
        except HTTPError as error:
            with error:
                status = error.code
        except (OSError, HTTPException):
            pass
        with self.standin.forge.lock:
            self.standin.hooks.answered(delivery, status)
