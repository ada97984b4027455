"""Asking no more than one may, and not again and again what does not answer. For GitHub and for Nova; thread-safe."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from gpuyard.model.backoff import backoff

Clock = Callable[[], float]
"""Seconds that only go forward: ``time.monotonic``."""


class TokenBucket:
    """At most `rate` calls a second in the long run, and `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._level = burst
        self._at = clock()

    def take(self, cost: float = 1.0, patience: float = math.inf) -> float:
        """Takes tokens and returns the seconds to wait before the call; 0 when it may go at once. Those who come
        later wait longer: they are served in turn. When that is more than `patience` seconds, nothing is taken."""
        with self._lock:
            self._fill()
            wait = max(0.0, (cost - self._level) / self._rate)
            if wait <= patience:
                self._level -= cost
            return wait

    def level(self) -> float:
        """Calls that may go at once; below 0 so many wait."""
        with self._lock:
            self._fill()
            return self._level

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now


class CircuitBreaker:
    """Open after so many failures in a row: nobody asks for a while, then one asks, and if that fails, twice as long.

    >>> breaker = CircuitBreaker(clock=lambda: 0.0, failures=2)
    >>> breaker.failed(), breaker.wait(), breaker.failed(), breaker.wait()
    (None, 0.0, None, 10.0)
    """

    def __init__(
        self, clock: Clock, *, failures: int = 5, pause: float = 10.0, longest: float = 300.0, trial: float = 60.0
    ) -> None:
        """`pause` and `longest` are the first and the longest time that it is open, `trial` how long the one that asks
        then may take before another one does, all in seconds."""
        self._clock = clock
        self._failures = failures
        self._pause = pause
        self._longest = longest
        self._trial = trial
        self._lock = threading.Lock()
        self._count = 0
        self._until = 0.0

    def wait(self) -> float:
        """Seconds until somebody may ask; 0: go. Whoever gets 0 after a pause is the only one for a while, and must
        say how it went."""
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
        """The other side answered, be it with a refusal."""
        with self._lock:
            self._count = 0

    def failed(self) -> None:
        """No answer, or that it cannot."""
        with self._lock:
            self._count += 1
            if self._count >= self._failures:
                self._until = self._clock() + backoff(self._pause, self._count - self._failures + 1, self._longest)
