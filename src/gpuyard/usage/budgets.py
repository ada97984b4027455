"""Reckons a project's budget: what it may have in a period, what it has used, and what that leaves. Pure.

A budget is of GPU-hours of all pools together. With periods, what is left of one may be carried over into the next one
when it is over, up to a bound; a booking for a later period cannot count on that. What is used beyond a budget (nobody
stops a server that is there) is not taken off the next period. With a half-life there are no periods: what was used
counts less and less, and at no moment may what counts be more than the budget.

Use is known by days. That of one day counts as spread evenly over the observed part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from math import exp, log

from gpuyard.bookings.budget_check import BookedTime
from gpuyard.bookings.policy import spell
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import lasting
from gpuyard.site.accounting_rules import BudgetRules
from gpuyard.site.tariff_clock import TariffClock

HOUR = 3600
A_DAY = timedelta(days=1)
MOST_PERIODS = 4000
"""Periods that are gone through for what was carried over: ten years of days. What is older carries nothing."""
A_LITTLE = 1e-3
"""GPU-seconds by which sums in another order may differ."""


@dataclass(frozen=True)
class BudgetStatus:
    """The state of a budget: limit, use and bookings. Amounts are GPU-seconds."""

    project: str
    start: datetime | None
    """Start of the period; None with a half-life."""
    end: datetime | None
    """First moment of the next period."""
    limit: float
    """With what was carried over."""
    carried: float
    used: float
    """With a half-life: what it counts for now."""
    ahead: float
    """Booked from the last observation of the cloud to the end of the period; with a half-life, ever."""

    @property
    def left(self) -> float:
        """The GPU-seconds that can still be booked; never below nothing."""
        return max(0.0, self.limit - self.used - self.ahead)

    @property
    def percent(self) -> float:
        """The part of the limit that is used, in percent. Of a budget of nothing: 100 from the first second on."""
        if self.limit > 0:
            return 100 * self.used / self.limit
        return 100.0 if self.used > 0 else 0.0


@dataclass(frozen=True)
class ProjectBudget:
    """The budget of one project, with what it has used: an `Allowance`."""

    project: str
    """Name."""
    rules: BudgetRules
    clock: TariffClock
    used: Mapping[date, int]
    """Local day -> GPU-seconds that count."""
    first: date
    """The first day of the site's history."""
    until: datetime
    """Moment until which it is known what was used."""

    @property
    def counted_until(self) -> int:
        """`until`, in seconds."""
        return seconds(self.until)

    def status(self, now: datetime, ahead: Sequence[BookedTime] = ()) -> BudgetStatus:
        """Return the budget's state as of now. `ahead`: all that the project has booked."""
        if self.rules.half_life is not None:
            booked = sum(_within(booked_time, self.counted_until, None) for booked_time in ahead)
            return BudgetStatus(self.project, None, None, self._limit, 0.0, self.decayed(seconds(now)), booked)
        start, end = period_of(self.clock.day_of(now), self.rules.every)
        carried = self.carried_into(start)
        first, last = self.clock.begin(start), self.clock.begin(end)
        booked = sum(
            _within(booked_time, max(self.counted_until, seconds(first)), seconds(last)) for booked_time in ahead
        )
        used = self.used_between(start, end)
        return BudgetStatus(self.project, first, last, self._limit + carried, carried, used, booked)

    def objections(self, requested: BookedTime, ahead: Sequence[BookedTime]) -> list[str]:
        """Return why a booking does not fit: for each period, or for the half-life, with the numbers."""
        if self.rules.half_life is not None:
            return self._too_much_at_once(requested, ahead)
        return list(self._too_much_in_periods(requested, ahead))

    def used_between(self, start: date, end: date) -> int:
        """Return GPU-seconds on the days [start, end) that count."""
        start = max(start, self.begins)
        return sum(count for day, count in self.used.items() if start <= day < end)

    @cached_property
    def begins(self) -> date:
        """The first day that counts."""
        return max(self.first, self.rules.since) if self.rules.since else self.first

    @property
    def _limit(self) -> float:
        return float(self.rules.gpu_hours * HOUR)

    def carried_into(self, start: date) -> float:
        """Return what the period that begins on a day has from those before it, all of which are over."""
        most, carried = self.rules.carry_over * HOUR, 0.0
        if not most:
            return carried
        periods: list[tuple[date, date]] = []
        end = start
        while end > self.begins and len(periods) < MOST_PERIODS:
            periods.append(period_of(end - A_DAY, self.rules.every))
            end = periods[-1][0]
        for first, last in reversed(periods):
            carried = min(most, max(0.0, self._limit + carried - self.used_between(first, last)))
        return carried

    def _too_much_in_periods(self, requested: BookedTime, ahead: Sequence[BookedTime]) -> Iterator[str]:
        day, last = self.clock.day_of(moment(requested.start)), requested.end
        current = period_of(self.clock.day_of(self.until), self.rules.every)[0]
        while True:
            start, end = period_of(day, self.rules.every)
            begin, over = seconds(self.clock.begin(start)), seconds(self.clock.begin(end))
            counted = max(self.counted_until, begin)
            takes = _within(requested, counted, over)  # of one that is on, what was used before is counted already
            limit = self._limit + (self.carried_into(start) if start <= current else 0.0)
            used, booked = (
                self.used_between(start, end),
                sum(_within(booked_time, counted, over) for booked_time in ahead),
            )
            if takes and takes + used + booked > limit + A_LITTLE:
                yield (
                    f"it takes {hours(takes)} GPU-hours of the budget of project {self.project} until "
                    f"{spell(moment(over))}, and {hours(max(0, limit - used - booked))} of {hours(limit)} are left: "
                    f"{hours(used)} are used, {hours(booked)} are booked"
                )
            if over >= last:
                return
            day = end

    def decayed(self, at: int) -> float:
        """Return what all use until then counts for at a moment (seconds), in GPU-seconds."""
        total = 0.0
        for day, count in self.used.items():
            if day >= self.begins:
                start, end = seconds(self.clock.begin(day)), seconds(self.clock.begin(day + A_DAY))
                end = max(start + 1, min(end, self.counted_until))
                total += self._faded(count / (end - start), start, end, at)
        return total

    def _too_much_at_once(self, requested: BookedTime, ahead: Sequence[BookedTime]) -> list[str]:
        """What counts rises only while something is booked, so that it is highest at the end of a booking."""
        booked = [booked_time for booked_time in ahead if booked_time.end > self.counted_until]
        checked = {booked_time.end for booked_time in (*booked, requested) if booked_time.end > requested.start}
        worst, when = max((self._counts(at, [*booked, requested]), at) for at in checked)
        if worst <= self._limit + A_LITTLE:
            return []
        now, others = (
            self.decayed(self.counted_until),
            sum(_within(booked_time, self.counted_until, None) for booked_time in booked),
        )
        half_life = lasting(self.rules.half_life) if self.rules.half_life else ""
        text = (
            f"with it, what counts of the budget of project {self.project} would be {hours(worst)} GPU-hours on "
            f"{spell(moment(when))}, and may be {hours(self._limit)}: {hours(now)} count now of what was used, which "
            f"halves every {half_life}; {hours(others)} are booked, and this takes {hours(_within(requested, 0, None))}"
        )
        return [text]

    def _counts(self, at: int, booked: Sequence[BookedTime]) -> float:
        total = self.decayed(at)
        for booked_time in booked:
            start, end = max(booked_time.start, self.counted_until), min(booked_time.end, at)
            if start < end:
                total += self._faded(booked_time.gpus, start, end, at)
        return total

    def _faded(self, rate: float, start: int, end: int, at: int) -> float:
        """What use at a rate (GPUs) over [start, end) counts for at a later moment: the integral of its fading."""
        assert self.rules.half_life is not None
        decay = log(2) / self.rules.half_life.total_seconds()
        end = min(end, at)
        return rate / decay * (exp(-decay * (at - end)) - exp(-decay * (at - start))) if start < end else 0.0


def _within(window: BookedTime, start: int, end: int | None) -> int:
    last = window.end if end is None else min(window.end, end)
    return max(0, last - max(window.start, start)) * window.gpus


def hours(gpu_seconds: float) -> str:
    """Format GPU-seconds as GPU-hours for people: ``12.5``."""
    return f"{gpu_seconds / HOUR:.1f}"


def period_of(day: date, every: str) -> tuple[date, date]:
    """Return the period that a day is in: its first day, and that of the next one. Weeks begin on Monday."""
    if every == "day":
        return day, day + A_DAY
    if every == "week":
        start = day - timedelta(days=day.weekday())
        return start, start + timedelta(days=7)
    months = {"month": 1, "quarter": 3, "year": 12}[every]
    first = (day.month - 1) // months * months
    year, month = divmod(day.year * 12 + first + months, 12)
    return date(day.year, first + 1, 1), date(year, month + 1, 1)
