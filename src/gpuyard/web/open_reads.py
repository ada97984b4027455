"""Limits reads that need no login, by the address that they come from."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.web.connections import is_loopback
from gpuyard.web.gateway import client_address
from gpuyard.web.login_throttle import places
from gpuyard.web.problems import Refusal, response_to
from gpuyard.web.token_bucket import RateLimit


class OpenReads:
    """Limits for responses that are made once for all readers, so that a whole building may read from one address:
    1,000 requests at once and 30 a second of one place, five times as many of its network. Safe to use from threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._of_place, self._of_network = RateLimit(1000, 1 / 30, clock), RateLimit(5000, 1 / 150, clock)

    def take(self, address: str) -> int:
        """Count a read from an address and return 0, or return the whole seconds until it may read again."""
        place, network = places(address)
        return self._of_place.take(place) or self._of_network.take(network)


class OpenReadsMiddleware:
    """Counts every request of a site without login, where people are known by their address alone. This machine and
    gateways, behind which anybody can be, are not counted."""

    def __init__(self, app: ASGIApp, gateways: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.app, self._gateways, self._reads = app, gateways, OpenReads(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if scope["type"] == "http":
            address = client_address(HTTPConnection(scope), tuple(self._gateways))
            counted = address not in self._gateways and not is_loopback(address)
            if seconds := self._reads.take(address) if counted else 0:
                text = f"Too many requests; try again in {seconds} s."
                app = response_to(Refusal(429, "too_many", text, retry_after=seconds))
        await app(scope, receive, send)
