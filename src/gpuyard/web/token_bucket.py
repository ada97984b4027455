"""Rate limiter: a token bucket per key, filled at a steady pace."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable

MOST = 200_000
"""Buckets that are kept. Only full ones are forgotten; when so many others are there, new keys are refused."""


class RateLimit:
    """Allows `burst` requests at once, then one every `seconds`. In the memory of one process. Safe to use from
    threads."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Key -> (tokens, when there were so many)."""
        self._lock = threading.Lock()

    def take(self, key: str) -> int:
        """Take a token and return 0, or, when there is none, return the whole seconds until there is one."""
        return self._look(key, 1)

    def wait(self, key: str) -> int:
        """Return the same as `take`, but take nothing."""
        return self._look(key, 0)

    def give_back(self, key: str) -> None:
        """Give back a token that was taken."""
        with self._lock:
            now = self._clock()
            tokens = self._tokens(key, now) + 1
            if tokens < self._burst:
                self._buckets[key] = tokens, now
            else:
                self._buckets.pop(key, None)

    def _look(self, key: str, take: int) -> int:
        with self._lock:
            now = self._clock()
            self._forget(now)
            if key not in self._buckets and len(self._buckets) >= MOST:
                return math.ceil(self._seconds)
            tokens = self._tokens(key, now)
            if tokens < 1:
                return math.ceil((1 - tokens) * self._seconds)
            if take:
                self._buckets[key] = tokens - take, now
                self._buckets.move_to_end(key)
            return 0

    def _tokens(self, key: str, now: float) -> float:
        tokens, at = self._buckets.get(key, (float(self._burst), now))
        return min(self._burst, tokens + (now - at) / self._seconds)

    def _forget(self, now: float) -> None:
        """Full buckets, from the one that was used first: none needs longer to fill than from empty."""
        while self._buckets and self._tokens(key := next(iter(self._buckets)), now) >= self._burst:
            del self._buckets[key]
