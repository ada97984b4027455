"""Counts events since the process began, each once, for metrics."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

LATE = timedelta(hours=2)
"""The longest time after an event in which it may still be written down, and counts."""


BOUNDS = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 14400)
"""Upper bounds of histogram buckets, in seconds."""


T = TypeVar("T")


class Tally(Generic[T]):
    """Counts events since the process began, each once, from lists that are read again and again."""

    def __init__(self, now: datetime) -> None:
        self._begin = now
        self._seen: dict[Hashable, datetime] = {}

    def since(self, now: datetime) -> datetime:
        """Return the time from which to list things."""
        return max(self._begin, now - LATE)

    def new(self, now: datetime, things: Iterable[tuple[Hashable, datetime, T]]) -> list[T]:
        """Return, of (id, when it happened, thing), the things that were not there before."""
        fresh = []
        for id, at, thing in things:
            if id not in self._seen:
                self._seen[id] = at
                fresh.append(thing)
        # A second more than is listed, so that nothing is counted twice.
        self._seen = {id: at for id, at in self._seen.items() if at >= now - LATE - timedelta(seconds=1)}
        return fresh
