"""Runs the portal's web server: binds before anything starts, prints its address, and stops however many pages are
open.

On a signal it takes no more requests, answers those that have arrived for up to DRAIN seconds, and then gives the
loops FINISH seconds. Together that is less than the TimeoutStopSec of the systemd unit.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

import uvicorn
from fastapi import FastAPI

from gpuyard import installed_version
from gpuyard.dashboard.live import LiveFeed
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.runtime.control_loops import Driver
from gpuyard.web.connections import (
    BACKLOG,
    Connection,
    Connections,
    is_loopback,
    most_connections,
    raise_file_limit,
    tell,
)
from gpuyard.web.notify import Manager
from gpuyard.web.settings import PortalSettings

LOG = logging.getLogger(__name__)
HOST = "127.0.0.1"
PORT = 8080
PATIENCE = 1
"""Seconds that clients get to take their answers when the server stops; open pages end at once."""
DRAIN = 20
"""Seconds that requests that have arrived get to be answered when a signal ends the server."""
FINISH = 20
"""Seconds that loops get then to finish their work: a call to OpenStack, as a rule. DRAIN and FINISH together are less
than the TimeoutStopSec of the unit."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    app: FastAPI,
    driver: Driver,
    listener: socket.socket,
    about: str,
    ends: threading.Event | None = None,
    manager: Manager | None = None,
) -> bool:
    """Serve an app of `create_app`, and run the loops of the driver, until SIGINT or SIGTERM, or until `ends` is set;
    return True for `ends`. The listener stays open.

    `about` is printed at the start. The `manager` is notified that the server lives as long as it does and no loop
    is stuck.
    """
    replaced = False
    try:
        with listener.dup() as own:
            print(f"gpuyard {installed_version()}: {about}, at {url_of(own)} (Ctrl+C stops)", flush=True)
            driver.start()
            server = server_of(app, driver, ends, manager)
            server.run(sockets=[own])
            replaced = not server.should_exit
        return replaced
    finally:
        late = driver.stop(timeout=PATIENCE / 2 if replaced else FINISH)
        if late and not replaced:
            LOG.warning("these loops have not finished within %d s and are cut off: %s", FINISH, ", ".join(late))


def server_of(
    app: FastAPI, driver: Driver | None = None, ends: threading.Event | None = None, manager: Manager | None = None
) -> PortalServer:
    """Return a server that is not running yet."""
    config = uvicorn.Config(
        app,
        log_config=None,  # whoever runs us says where logs go
        log_level="warning",
        access_log=False,
        server_header=False,
        http=Connection,
        backlog=BACKLOG,
        proxy_headers=False,  # gateway.py believes only those that are named
        ws="none",
        timeout_graceful_shutdown=PATIENCE,
    )
    feed = app.state.feed
    assert isinstance(feed, LiveFeed)
    connections = Connections(most_connections(raise_file_limit()), feed.gateways)
    return PortalServer(
        config, feed, connections, driver or Driver(), ends or threading.Event(), manager or Manager({})
    )


class PortalServer(uvicorn.Server):
    """uvicorn with a stop that ends open pages; uvicorn itself would wait for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        feed: LiveFeed,
        connections: Connections,
        driver: Driver,
        ends: threading.Event,
        manager: Manager,
    ) -> None:
        """`ends` ends it as a signal does, but leaves `should_exit` as it is."""
        super().__init__(config)
        self._feed, self._driver, self._ends, self._manager = feed, driver, ends, manager
        self.server_state = self._connections = connections
        self._watchdog: asyncio.Task[None] | None = None

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._ends.is_set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tell(asyncio.get_running_loop(), self._connections.say)
        await super().startup(sockets)
        self._manager.ready(f"serves at {', '.join(map(url_of, sockets or []))}")
        if self._manager.watchdog:
            self._watchdog = asyncio.create_task(self._feed_watchdog(self._manager.watchdog / 3), name="watchdog")

    async def _feed_watchdog(self, period: float) -> None:
        """As long as this is run the loop of events lives."""
        reported: list[str] = []
        while True:
            stuck = self._driver.stuck()
            if not stuck:
                self._manager.alive()
            elif stuck != reported:
                LOG.error("loops do not go on: %s; the service manager will start this service anew", ", ".join(stuck))
            reported = stuck
            await asyncio.sleep(period)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.close()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self.should_exit:
            self._manager.stopping()
            await self._drain(sockets or [])
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # those that do not take what they were sent
            connection.transport.abort()
        await asyncio.sleep(0)

    async def _drain(self, sockets: Sequence[socket.socket]) -> None:
        """Take no more requests, and wait for the answers to those that have arrived, but for DRAIN seconds at most."""
        for listener in sockets:
            with suppress(OSError):
                # Not only closed: whoever gave it to us has it too, and it would go on to take connections that nobody
                # answers. Who comes now is refused, which a gateway knows how to take.
                listener.shutdown(socket.SHUT_RDWR)
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        until = monotonic() + DRAIN
        while self._unanswered() and monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.02)

    def _unanswered(self) -> bool:
        """Answers that have begun are left to `shutdown`: who does not take his ends nothing."""
        cycles = [getattr(connection, "cycle", None) for connection in self.server_state.connections]
        return any(cycle is not None and not cycle.response_started for cycle in cycles)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise them again afterwards: the caller cleans up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def refuse_public(host: str, login: bool = False) -> None:
    """Raise UsageError unless only programs on this machine can reach the address."""
    if not is_loopback(host):
        why = (
            "passwords would cross the network unencrypted; put it behind a gateway that speaks TLS, or pass --public"
            if login
            else "there is no login yet; put it behind a gateway that has one, or pass --public"
        )
        raise UsageError(f"{host or 'every address'} can be reached from other machines, and {why}")


def refuse_no_gateway(settings: PortalSettings) -> None:
    """Raise UsageError for a malformed public URL, or one with https and no gateway that is named."""
    url = settings.public_url
    if url and not re.match(r"https?://[^/]", url):
        raise UsageError(f"--url {url!r} is no address of pages; write one as in https://gpus.example.org")
    if url.startswith("https:") and not settings.trusted_gateways:
        raise UsageError(
            f"--url {url} needs a gateway that speaks TLS: name its address with --gateway, or everybody who comes "
            "through it counts as one address when logins fail"
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises GpuyardError that says what prevents it."""
    if not 0 <= port <= 65535:  # the resolver would silently take the rest of a division
        raise UsageError(f"{port} is not a port; pass a --port from 0 to 65535")
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise _cannot_bind(host, port, error) from None
    # Accepted sockets have it from here; asyncio leaves it off for those of a listener that it did not make itself. An
    # answer is written in pieces, and without it the last one waits up to 40 ms for the client to say that it has the
    # first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _cannot_bind(host: str, port: int, error: OSError) -> GpuyardError:
    if error.errno == errno.EADDRINUSE:
        return GpuyardError(f"port {port} of {host} is taken by another program; stop that one, or pass another --port")
    if error.errno == errno.EACCES:
        return GpuyardError(f"port {port} needs more rights than this user has; pass a --port from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(f"{host!r} is not an address of this machine; pass one that is with --host")
    return GpuyardError(f"cannot listen on port {port} of {host}: {error}")


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
