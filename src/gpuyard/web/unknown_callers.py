"""Limits wrong tokens, codes and signatures by the place that they come from. Right ones do not count, however many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from starlette.requests import HTTPConnection

from gpuyard.web.connections import is_loopback
from gpuyard.web.gateway import client_address
from gpuyard.web.login_throttle import EVERYWHERE, places
from gpuyard.web.token_bucket import RateLimit

WRONG, WRONG_EVERY = 30, 2.0
"""Wrong ones that one place may send at once, and seconds until one more; a network EVERYWHERE times as many."""


class Origin:
    """The place and network that one request comes from, with their limits."""

    def __init__(self, limits: Sequence[tuple[RateLimit, str]]) -> None:
        self._limits = limits

    def wait(self) -> int:
        """Return the whole seconds until it may come again, 0 when it may now."""
        return max((limit.wait(key) for limit, key in self._limits), default=0)

    def take(self) -> int:
        """Count it as wrong, and return the same as `wait`. A caller that counts before it knows gives back what was
        right."""
        seconds = self.wait()
        for limit, key in self._limits if not seconds else ():
            limit.take(key)
        return seconds

    def give_back(self) -> None:
        """Take back a count, after the request has turned out to be right."""
        for limit, key in self._limits:
            limit.give_back(key)


class UnknownCallerThrottle:
    """Throttle for one kind of credential, made once. Safe to use from several threads."""

    def __init__(self, gateways: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._here = RateLimit(WRONG, WRONG_EVERY, clock)
        self._near = RateLimit(WRONG * EVERYWHERE, WRONG_EVERY / EVERYWHERE, clock)

    def origin(self, request: HTTPConnection) -> Origin:
        """Return where a request comes from. Gateways and this machine, which may stand for anybody, are not
        counted."""
        address = client_address(request, self._gateways)
        if address in self._gateways or is_loopback(address):
            return Origin(())
        place, network = places(address)
        return Origin(((self._here, place), (self._near, network)))
