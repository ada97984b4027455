"""How often somebody may come with a wrong token, code or signature, by the place that it comes from. Those that are
right do not count, however many they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from starlette.requests import HTTPConnection

from gpuyard.web.connections import is_loopback
from gpuyard.web.gateway import client_address
from gpuyard.web.login_throttle import EVERYWHERE, places
from gpuyard.web.rate_limits import RateLimit

WRONG, WRONG_EVERY = 30, 2.0
"""Wrong ones that one place may send at once, and seconds until one more; a network EVERYWHERE times as many."""


class Origin:
    """Where one request comes from."""

    def __init__(self, limits: Sequence[tuple[RateLimit, str]]) -> None:
        self._limits = limits

    def wait(self) -> int:
        """Whole seconds until it may come again, 0 when it may now."""
        return max((limit.wait(key) for limit, key in self._limits), default=0)

    def take(self) -> int:
        """Count it as wrong, and the same. Who counts before it is known gives back what was right."""
        seconds = self.wait()
        for limit, key in self._limits if not seconds else ():
            limit.take(key)
        return seconds

    def give_back(self) -> None:
        """It was right, after it had been counted."""
        for limit, key in self._limits:
            limit.give_back(key)


class UnknownCallerThrottle:
    """Made once for one kind of right. Safe to use from several threads."""

    def __init__(self, gateways: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._here = RateLimit(WRONG, WRONG_EVERY, clock)
        self._near = RateLimit(WRONG * EVERYWHERE, WRONG_EVERY / EVERYWHERE, clock)

    def origin(self, request: HTTPConnection) -> Origin:
        """Of gateways and this machine, behind which anybody can be, nothing is counted."""
        address = client_address(request, self._gateways)
        if address in self._gateways or is_loopback(address):
            return Origin(())
        place, network = places(address)
        return Origin(((self._here, place), (self._near, network)))
