"""Rate limiter and circuit breaker for calls to GitHub and Nova. Thread-safe."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from gpuyard.model.backoff import backoff

Clock = Callable[[], float]
"""Seconds that only go forward: ``time.monotonic``."""


class TokenBucket:
    """Token bucket: at most `rate` calls a second in the long run, and `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._level = burst
        self._at = clock()

    def take(self, cost: float = 1.0, patience: float = math.inf) -> float:
        """Take tokens and return the seconds to wait before the call; 0 when it may go at once. Later callers wait
        longer: they are served in turn. When the wait is more than `patience` seconds, nothing is taken."""
        with self._lock:
            self._fill()
            wait = max(0.0, (cost - self._level) / self._rate)
            if wait <= patience:
                self._level -= cost
            return wait

    def level(self) -> float:
        """Return how many calls may go at once; below 0 so many wait."""
        with self._lock:
            self._fill()
            return self._level

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now


class CircuitBreaker:
    """Circuit breaker: opens after so many failures in a row, so that nobody asks for a while; then one asks, and if
    that fails, it stays open twice as long.

    >>> breaker = CircuitBreaker(clock=lambda: 0.0, failures=2)
    >>> breaker.failed(), breaker.wait(), breaker.failed(), breaker.wait()
    (None, 0.0, None, 10.0)
    """

    def __init__(
        self, clock: Clock, *, failures: int = 5, pause: float = 10.0, longest: float = 300.0, trial: float = 60.0
    ) -> None:
        """`pause` and `longest` are the first and the longest time that it is open, `trial` the time that one caller
        has then before another may ask, all in seconds."""
        self._clock = clock
        self._failures = failures
        self._pause = pause
        self._longest = longest
        self._trial = trial
        self._lock = threading.Lock()
        self._count = 0
        self._until = 0.0

    def wait(self) -> float:
        """Return the seconds until somebody may ask; 0: go. A caller that gets 0 after a pause is the only one for a
        while, and must report `worked` or `failed`."""
        with self._lock:
            if self._count < self._failures:
                return 0.0
            now = self._clock()
            if now < self._until:
                return self._until - now
            self._until = now + self._trial
            return 0.0

    def is_open(self) -> bool:
        with self._lock:
            return self._count >= self._failures

    def worked(self) -> None:
        """Record that the other side answered, even with a refusal."""
        with self._lock:
            self._count = 0

    def failed(self) -> None:
        """Record that there was no answer, or that the other side cannot give one."""
        with self._lock:
            self._count += 1
            if self._count >= self._failures:
                self._until = self._clock() + backoff(self._pause, self._count - self._failures + 1, self._longest)
