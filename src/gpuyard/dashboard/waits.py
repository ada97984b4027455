"""Reckons how long bookings and jobs waited for their GPUs, by pool and over time.

It reads what the ledger and the store of runners keep anyway, and keeps the answer for AGAIN instead of reading anew
for each visitor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.web.runner_figures import percentile
from gpuyard.usage.reckoning import DAY, day_span, local_day
from gpuyard.web.shared import Shared

AGAIN = timedelta(seconds=60)
"""Time for which the same answer is given."""
LONG = 30
"""Days up to which each day is a step; of more a week is."""


class Waiter(StrEnum):
    """What waits."""

    BOOKINGS = "bookings"
    JOBS = "jobs"


@dataclass(frozen=True)
class Wait:
    """The wait of one booking or job that got its GPUs."""

    pool: str
    of: Waiter
    over: datetime
    """When it got them."""
    seconds: float


@dataclass(frozen=True)
class WaitStep:
    """Waits of all bookings or jobs of a pool that got their GPUs within [start, end)."""

    pool: str
    of: Waiter
    start: datetime
    end: datetime
    count: int
    waited: int
    """Number of those that did not get them at once, within a second."""
    p50: float
    p90: float
    """Seconds: half of them, and nine of ten, waited no longer."""


@dataclass(frozen=True)
class Waits:
    steps: Sequence[WaitStep]
    """By time, pool and what waits; those of which nothing is known are left out."""
    whole: Sequence[WaitStep]
    """The same of all steps together."""


class WaitCache:
    """Keeps the waits that were read last. Safe to use from several threads."""

    def __init__(self, ledger: Ledger, runners: RunnerStore | None, zone: str, now: Callable[[], datetime]) -> None:
        """`zone`: of the days."""
        self._ledger, self._runners, self._zone = ledger, runners, zone
        self._shared: Shared[int, Waits] = Shared(self._read, AGAIN, now)

    def of(self, days: int) -> Waits:
        """Return waits of so many local days, of which the last is today. Raises StoreError."""
        return self._shared.of(days)

    def _read(self, days: int, now: datetime) -> Waits:
        today, step_days = local_day(now, self._zone), 1 if days <= LONG else 7
        first = today - (-(-days // step_days) * step_days - 1) * DAY
        since = day_span(first, self._zone)[0]
        all_waits = [
            Wait(grant.pool, Waiter.BOOKINGS, grant.granted, (grant.granted - grant.asked).total_seconds())
            for grant in self._ledger.granted(since)
        ]
        if self._runners is not None:
            all_waits += [
                Wait(wait.pool, Waiter.JOBS, wait.started, (wait.started - wait.queued).total_seconds())
                for wait in self._runners.waits(since)
            ]
        return waits(all_waits, first, today + DAY, step_days, self._zone)


def waits(all_waits: Iterable[Wait], first: date, end: date, step_days: int, zone: str) -> Waits:
    """Sum waits up over the local days in [first, end), in steps of `step_days` days."""
    begins = [first + step * DAY for step in range(0, (end - first).days, step_days)]
    spans = {day: (day_span(day, zone)[0], day_span(min(day + step_days * DAY, end), zone)[0]) for day in begins}
    by_step: dict[tuple[date, str, Waiter], list[float]] = {}
    by_pool: dict[tuple[str, Waiter], list[float]] = {}
    for wait in all_waits:
        day = local_day(wait.over, zone)
        if first <= day < end:
            begin = first + (day - first).days // step_days * step_days * DAY
            by_step.setdefault((begin, wait.pool, wait.of), []).append(max(0.0, wait.seconds))
            by_pool.setdefault((wait.pool, wait.of), []).append(max(0.0, wait.seconds))
    whole = day_span(first, zone)[0], day_span(end, zone)[0]
    return Waits(
        steps=[_step(pool, of, spans[day], all_of) for (day, pool, of), all_of in sorted(by_step.items())],
        whole=[_step(pool, of, whole, all_of) for (pool, of), all_of in sorted(by_pool.items())],
    )


def _step(pool: str, of: Waiter, span: tuple[datetime, datetime], seconds: Iterable[float]) -> WaitStep:
    durations = sorted(seconds)
    p50, p90 = percentile(durations, 50), percentile(durations, 90)
    assert p50 is not None
    assert p90 is not None
    return WaitStep(pool, of, *span, len(durations), sum(duration >= 1 for duration in durations), p50, p90)
