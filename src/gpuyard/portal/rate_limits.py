"""How often somebody may do something: a bucket of tokens for each, filled at a steady pace."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable

MOST = 20_000
"""Buckets that are kept; the one that was not used for the longest time goes first."""


class RateLimit:
    """`burst` times at once, then one every `seconds`. In the memory of one process. Safe to use from threads."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Key -> (tokens, when there were so many)."""
        self._lock = threading.Lock()

    def take(self, key: str) -> int:
        """Take a token: 0, or, when there is none, whole seconds until there is one."""
        return self._look(key, 1)

    def wait(self, key: str) -> int:
        """The same, but nothing is taken."""
        return self._look(key, 0)

    def _look(self, key: str, take: int) -> int:
        with self._lock:
            now = self._clock()
            tokens, at = self._buckets.get(key, (float(self._burst), now))
            tokens = min(self._burst, tokens + (now - at) / self._seconds)
            if tokens < 1:
                self._keep(key, tokens, now)
                return math.ceil((1 - tokens) * self._seconds)
            if take:
                self._keep(key, tokens - take, now)
            return 0

    def _keep(self, key: str, tokens: float, now: float) -> None:
        self._buckets[key] = tokens, now
        self._buckets.move_to_end(key)
        while len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
