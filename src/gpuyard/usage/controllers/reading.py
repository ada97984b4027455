"""Reads the history of a site for pages, reports and budgets: intervals, and sums by day, month and hour.

Sums of days that are over come from where they are kept, those of the time since from the intervals. Which days have
sums is read again after the sums: a day that was added meanwhile would count twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import NamedTuple, TypeVar

from gpuyard.usage.reckoning import DAY, Reckoned, Tariffs, day_span, local_day, one_tariff, reckon
from gpuyard.usage.records import DIMENSIONS, Extent, HourSum, Interval, Slice, Sum
from gpuyard.usage.store import HistoryStore, SumStore, Which
from gpuyard.usage.store.store import ALL

Kept = TypeVar("Kept", Sum, HourSum)


class UseSums(NamedTuple):
    """Sums, and the moment until which they go."""

    sums: list[Sum]
    until: datetime | None
    """The last observation that is in it; None before the first one. Later time that was asked for is not in it."""


class History:
    """Reads intervals and sums of one site. Safe to use from several threads. Every method raises StoreError when the
    database cannot be used."""

    def __init__(self, store: HistoryStore, zone: str, tariffs: Tariffs = one_tariff) -> None:
        """`zone`: of the days, the site's. `tariffs`: for days that have no sums yet."""
        self.store, self.zone = store, zone
        self._sums = SumStore(store.database)
        self._tariffs = tariffs
        self._reckoning = threading.Lock()
        self._recent: tuple[Extent, date, Reckoned] | None = None

    def extent(self) -> Extent | None:
        """Return how far history goes; None before the first observation."""
        return self.store.seen()

    def intervals(self, start: datetime, end: datetime, which: Which = ALL, limit: int | None = None) -> list[Interval]:
        """Return intervals as `HistoryStore.intervals` does: whole, by start. Those that go on are known until
        `Extent.until` only."""
        return self.store.intervals(start, end, which, limit)

    def sums(
        self,
        first: date,
        end: date,
        by: Collection[str] = DIMENSIONS,
        period: str = "",
        where: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> UseSums:
        """Return GPU-seconds of the local days in [first, end), until the last observation. `by`: dimensions of
        `Slice`; the others are summed up and empty. `period`: ``day`` or ``month`` for one sum of each, or empty.
        `where`: dimension -> its value. `most`: rows that are read; raises TooManySumsError when there are more."""
        extent, stored_sums = self._kept(lambda: self._sums.sums(first, end, by, period, where, most))
        if extent is None:
            return UseSums([], None)
        totals: Counter[tuple[date | None, Slice]] = Counter()
        for use_sum in stored_sums:
            totals[use_sum.period, use_sum.slice] += use_sum.seconds
        for day, low, high in self._left(extent, first, end):
            label = {"day": day, "month": day.replace(day=1)}.get(period)
            for piece, amount in self._reckon(extent, day, low, high).slices.items():
                if all(getattr(piece, name) == value for name, value in (where or {}).items()):
                    words = {name: getattr(piece, name) for name in DIMENSIONS if name in by}
                    totals[label, Slice(**words)] += amount
        order = sorted(
            totals.items(), key=lambda item: (item[0][0] or first, *(getattr(item[0][1], n) for n in DIMENSIONS))
        )
        return UseSums([Sum(label, piece, amount) for (label, piece), amount in order], extent.until)

    def hours(self, start: datetime, end: datetime, pool: str = "") -> list[HourSum]:
        """Return GPU-seconds of the hours that begin in [start, end), until the last observation, of a pool or of all,
        by time. Hours are counted from local midnight."""
        extent, hour_sums = self._kept(lambda: self._sums.hours(start, end, pool))
        if extent is None:
            return []
        for day, low, high in self._left(extent, local_day(start, self.zone), local_day(end, self.zone) + DAY):
            hours = self._reckon(extent, day, low, high).hours
            hour_sums += [hour for hour in hours if start <= hour.start < end and pool in ("", hour.pool)]
        return hour_sums

    def steps(self, start: datetime, end: datetime, step: timedelta, pool: str = "") -> list[HourSum]:
        """Return `hours`, summed up to steps of several hours from `start` on; one that is not whole has what is in
        it."""
        totals: Counter[tuple[datetime, str, str, str]] = Counter()
        for hour in self.hours(start, end, pool):
            begins = start + step * ((hour.start - start) // step)
            totals[begins, hour.pool, hour.state, hour.kind] += hour.seconds
        return [HourSum(*key, amount) for key, amount in sorted(totals.items())]

    def _kept(self, read: Callable[[], list[Kept]]) -> tuple[Extent | None, list[Kept]]:
        """What is kept of days that have sums, and which days these are: read again where one was added meanwhile,
        which would count twice."""
        extent = self.extent()
        while extent is not None:
            stored, before = read(), extent.rolled
            extent = self.extent()
            if extent is not None and extent.rolled == before:
                return extent, stored
        return None, []

    def _left(self, extent: Extent, first: date, end: date) -> Iterator[tuple[date, datetime, datetime]]:
        """Days of [first, end) without sums, each with its part that was seen."""
        day = max(first, local_day(extent.first, self.zone), extent.rolled + DAY if extent.rolled else first)
        while day < end:
            low, high = day_span(day, self.zone)
            if low >= extent.until:
                return
            yield day, low, min(high, extent.until)
            day += DAY

    def _reckon(self, extent: Extent, day: date, low: datetime, high: datetime) -> Reckoned:
        """That of the last day is kept until the next look: a page asks for it several times."""
        with self._reckoning:  # who comes meanwhile waits for that, and does not do the same
            recent = self._recent
            if recent is not None and recent[:2] == (extent, day):
                return recent[2]
            reckoned = reckon(self.store.intervals(low, high), low, high, self._tariffs)
            self._recent = (extent, day, reckoned)
            return reckoned
