"""Caches answers that are the same for many readers, and recomputes them now and then instead of for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Shared(Generic[Key, Answer]):
    """The latest answer of each key. Safe to use from several threads."""

    def __init__(self, make: Callable[[Key, datetime], Answer], lasts: timedelta, now: Callable[[], datetime]) -> None:
        """`lasts`: how long the same answer is given. Keys must be few: none is forgotten."""
        self._make, self._lasts, self._now = make, lasts, now
        self._lock = threading.Lock()
        self._known: dict[Key, tuple[datetime, Answer]] = {}

    def of(self, key: Key) -> Answer:
        """Return the answer of a key. Raises what making it raises; then the next caller tries again."""
        with self._lock:  # who comes while it is made waits for that
            now, cached = self._now(), self._known.get(key)
            if cached is None or not cached[0] <= now < cached[0] + self._lasts:  # also after the clock was set back
                cached = self._known[key] = now, self._make(key, now)
            return cached[1]
