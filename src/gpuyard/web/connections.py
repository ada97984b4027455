"""Limits connections to the portal: their number, the seconds to send a request, and the seconds to take the answer.

uvicorn on its own keeps a connection that never sends its request, or never takes the answer, until the process has
no file descriptor left. Here such a connection is dropped after REQUEST_SECONDS; and when the process has as many
connections as it can, the one that has waited longest is dropped for a new one. One place, and its network, have
limits of their own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gpuyard.web.login_throttle import EVERYWHERE, places

LOG = logging.getLogger(__name__)
REQUEST_SECONDS = 15.0
"""Seconds for a whole request, its head and its body, to arrive, and for SLOWEST bytes of an answer to be taken."""
SLOWEST = 15 * 1024
SEND_BUFFER = 64 * 1024
"""Bytes of an answer that the kernel buffers. With larger buffers it does not report for long that any were taken."""
MOST_AHEAD = 8
"""Requests in a row that a client may send before the answer to the one before has been sent."""
MOST_OF_PLACE = 250
"""Connections from one place, other than this machine and gateways. Its network may have EVERYWHERE times as many."""
MOST_CONNECTIONS = 6000
WANTED_FILES = 8192
OWN_FILES = 256
"""File descriptors that the process needs besides connections: database, cloud, logs."""
BACKLOG = 256
"""Connections that wait to be accepted. When no file is left, asyncio complains so many times a second."""
SAY_AGAIN = 60.0
"""Seconds until the same complaint is logged again."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n"
WAITING = frozenset({h11.IDLE, h11.SEND_BODY})
"""States of the other side while a request has not arrived as a whole."""


def raise_file_limit(limit: int = WANTED_FILES) -> int:
    """Let this process open so many files, or as many as it may; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limit:
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return WANTED_FILES if soft == resource.RLIM_INFINITY else soft


def most_connections(files: int) -> int:
    """Return how many connections a process may have that may open so many files."""
    return max(16, min(MOST_CONNECTIONS, files - OWN_FILES))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean another address tomorrow
        return False


class Connections(ServerState):
    """The connections of one server. Everything runs in its event loop.

    Addresses of `gateways`, and loopback ones, stand for many people, so only the limit of the whole counts for them.
    """

    def __init__(self, most: int, gateways: Collection[str] = (), of_place: int = MOST_OF_PLACE) -> None:
        super().__init__()
        self._most, self._gateways = most, frozenset(gateways)
        self._of = of_place, of_place * EVERYWHERE
        self._from: Counter[tuple[str, int]] = Counter()
        """How many there are from each place, and from each network: (either, how many it may have)."""
        self.waiting: dict[Connection, None] = {}
        """Those whose request has not arrived yet, and those that do not take the answer, longest first."""
        self.say = Sparingly()

    def admit(self, address: str) -> bool:
        """Return whether one more may come from an address; the one that has waited longest is dropped to make space
        for it."""
        limited = address not in self._gateways and not is_loopback(address)
        for place, most in zip(places(address), self._of, strict=True) if limited else ():
            if self._from[place, most] >= most:
                self.say("%s has %d connections and gets no more", place, most)
                return False
        if len(self.connections) >= self._most:
            self.say("there are %d connections, which is the most that this process can have", self._most)
            if not self.waiting:
                return False
            next(iter(self.waiting)).drop()
        return True

    def count(self, address: str, change: int) -> None:
        for key in zip(places(address), self._of, strict=True):
            self._from[key] += change
            if not self._from[key]:
                del self._from[key]


class Connection(H11Protocol):
    """A connection that has to send a request within REQUEST_SECONDS, and to take SLOWEST bytes of an answer in as
    many; between requests uvicorn's keep-alive time applies."""

    _address: str | None = None
    """The client's address; None while it does not count."""
    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    """Set while something is left that the other side has not taken."""
    _left: int = 0
    """Bytes that were left at the last check."""
    _ahead: int = 0
    """Requests in a row that arrived before the answer to the one before was sent."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, Connections)
        self._all = server_state

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        admitted = self._all.admit(address)
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        transport.set_write_buffer_limits(0)  # so that writing pauses whenever anything is left
        if not admitted:
            transport.write(BUSY)
            transport.close()
            return
        self._address = address
        self._all.count(address, 1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self._all.count(self._address, -1)
            self._address = None
        self._arrived()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(REQUEST_SECONDS, self._look)
        self._all.waiting.setdefault(self)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._ahead = self._ahead + 1 if self.conn.trailing_data[0] else 0
        if self._ahead > MOST_AHEAD:
            self.transport.close()
        super().on_response_complete()

    def drop(self) -> None:
        """Abort it at once, whatever was sent."""
        self._arrived()
        self._taken()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        if self.conn.their_state not in WAITING:
            self._arrived()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.drop)
            self._all.waiting.setdefault(self)

    def _look(self) -> None:
        """Return whether enough was taken of an answer; also of one after which it is to be closed."""
        left = self.transport.get_write_buffer_size()
        if left > self._left - SLOWEST:
            self.drop()
        else:
            self._left, self._taking = left, self.loop.call_later(REQUEST_SECONDS, self._look)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._waits_no_more()

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        self._waits_no_more()

    def _waits_no_more(self) -> None:
        if self._deadline is None and self._taking is None:
            self._all.waiting.pop(self, None)


class Sparingly:
    """Logs warnings, the same one only every SAY_AGAIN seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, text: str, *values: object) -> None:
        now = self._clock()
        if now - self._said.get(text, -SAY_AGAIN) >= SAY_AGAIN:
            self._said[text] = now
            LOG.warning(text, *values)


def tell(loop: asyncio.AbstractEventLoop, say: Sparingly) -> None:
    """Have the loop log connections that cannot be accepted sparingly: asyncio logs each attempt."""

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" in str(context.get("message", "")) and isinstance(context.get("exception"), OSError):
            say("connections cannot be accepted: %s; raise LimitNOFILE of the service", context["exception"])
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(complain)
