"""Counts of what happened since the process began, for metrics."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

LATE = timedelta(hours=2)
"""So late something may still be written down of which it counts when it happened."""


BOUNDS = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 14400)
"""Seconds."""


T = TypeVar("T")


class Tally(Generic[T]):
    """Adds up what happened since the process began, each thing once, from lists that are read again and again."""

    def __init__(self, now: datetime) -> None:
        self._begin = now
        self._seen: dict[Hashable, datetime] = {}

    def since(self, now: datetime) -> datetime:
        """From when on to list things."""
        return max(self._begin, now - LATE)

    def new(self, now: datetime, things: Iterable[tuple[Hashable, datetime, T]]) -> list[T]:
        """Of (id, when it happened, thing) those that were not there before."""
        found = []
        for id, at, thing in things:
            if id not in self._seen:
                self._seen[id] = at
                found.append(thing)
        # A second more than is listed, so that nothing is counted twice.
        self._seen = {id: at for id, at in self._seen.items() if at >= now - LATE - timedelta(seconds=1)}
        return found
