"""Reckons the utilisation of GPUs over time: uses by pool and step, and by hour of the week.

It is kept for AGAIN, and not read anew for each visitor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo

from gpuyard.usage.accounts import USED, UseKind, use_of
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.reckoning import DAY, day_span, local_day
from gpuyard.usage.records import Extent, HourSum
from gpuyard.usage.web.charts import Column
from gpuyard.web.shared import Shared

HOUR = timedelta(hours=1)
SPANS = {1: HOUR, 7: 4 * HOUR, 30: DAY, 90: DAY, 365: 7 * DAY}
"""Days that are shown -> length of a step; of a day and longer they are local days."""
WEEKS = 4
"""Weeks of which the hours of the week are the mean."""
AGAIN = timedelta(seconds=60)
"""Time for which the same answer is given."""

Week: TypeAlias = Mapping[tuple[int, int], float]
"""(weekday from Monday on, local hour) -> share of the seen time that GPUs were used."""


@dataclass(frozen=True)
class Utilisation:
    """The use of GPUs in the last days, for charts."""

    extent: Extent | None
    """None: there has been no observation yet."""
    pools: Mapping[str, Sequence[Column]]
    """By name. Steps without any observation are left out."""
    weeks: Mapping[str, Week]
    """By pool; of all pools together with no name."""


class UtilisationCache:
    """Keeps the utilisation that was read last. Safe to use from several threads."""

    def __init__(self, history: History, now: Callable[[], datetime]) -> None:
        self._shared: Shared[int, Utilisation] = Shared(lambda days, moment: read(history, days, moment), AGAIN, now)

    def of(self, days: int) -> Utilisation:
        """Return the utilisation of the last days. `days`: one of SPANS. Raises StoreError."""
        return self._shared.of(days)


def read(history: History, days: int, now: datetime) -> Utilisation:
    """Read the utilisation of the last `days` from history. Raises StoreError."""
    extent = history.extent()
    if extent is None:
        return Utilisation(None, {}, {})
    step, today = SPANS[days], local_day(now, history.zone)
    start = day_span(today - (days - 1) * DAY, history.zone)[0]
    pools = _by_days(history, extent, days, now) if step >= DAY else _by_hours(history, extent, start, now, step)
    since = day_span(today - 7 * WEEKS * DAY, history.zone)[0]
    return Utilisation(extent, pools, weeks_of(history.hours(since, now), ZoneInfo(history.zone)))


def _by_hours(
    history: History, extent: Extent, start: datetime, now: datetime, step: timedelta
) -> dict[str, list[Column]]:
    seconds_by_step: dict[tuple[str, datetime], dict[UseKind, int]] = {}
    for hour_sum in history.steps(start, now, step):
        _add(
            seconds_by_step.setdefault((hour_sum.pool, hour_sum.start), {}),
            hour_sum.state,
            hour_sum.kind,
            hour_sum.seconds,
        )
    return _columns(seconds_by_step, lambda begins: begins + step, extent)


def _by_days(history: History, extent: Extent, days: int, now: datetime) -> dict[str, list[Column]]:
    """Steps of whole local days; the last one ends today."""
    step_days = SPANS[days] // DAY
    today = local_day(now, history.zone)
    first = today - (-(-days // step_days) * step_days - 1) * DAY
    seconds_by_step: dict[tuple[str, datetime], dict[UseKind, int]] = {}
    for use_sum in history.sums(first, today + DAY, ("pool", "state", "kind"), "day").sums:
        assert use_sum.period is not None
        begins = first + (use_sum.period - first) // DAY // step_days * step_days * DAY
        key = use_sum.slice.pool, day_span(begins, history.zone)[0]
        _add(seconds_by_step.setdefault(key, {}), use_sum.slice.state, use_sum.slice.kind, use_sum.seconds)
    return _columns(
        seconds_by_step,
        lambda begins: day_span(local_day(begins, history.zone) + step_days * DAY, history.zone)[0],
        extent,
    )


def _add(seconds: dict[UseKind, int], state: str, kind: str, amount: int) -> None:
    use = use_of(state, kind)
    seconds[use] = seconds.get(use, 0) + amount


def _columns(
    seconds_by_step: Mapping[tuple[str, datetime], Mapping[UseKind, int]],
    end: Callable[[datetime], datetime],
    extent: Extent,
) -> dict[str, list[Column]]:
    """Each as long as what was seen of it."""
    pools: dict[str, list[Column]] = {}
    for (pool, begins), seconds in sorted(seconds_by_step.items()):
        column = Column(max(begins, extent.first), min(end(begins), extent.until), seconds)
        if column.start < column.end:
            pools.setdefault(pool, []).append(column)
    return pools


def weeks_of(hours: Iterable[HourSum], zone: ZoneInfo) -> dict[str, Week]:
    """Return the mean week of each pool, and of all pools together with no name."""
    used: dict[str, Counter[tuple[int, int]]] = {}
    observed: dict[str, Counter[tuple[int, int]]] = {}
    for hour in hours:
        use, local_start = use_of(hour.state, hour.kind), hour.start.astimezone(zone)
        if use is UseKind.UNSEEN:
            continue
        for pool in ("", hour.pool):
            key = local_start.weekday(), local_start.hour
            observed.setdefault(pool, Counter())[key] += hour.seconds
            used.setdefault(pool, Counter())[key] += hour.seconds if use in USED else 0
    return {
        pool: {key: used[pool][key] / amount for key, amount in all_of.items() if amount}
        for pool, all_of in observed.items()
    }


def together(pools: Iterable[Sequence[Column]]) -> list[Column]:
    """Return the columns of all pools as those of one."""
    seconds_by_span: dict[tuple[datetime, datetime], dict[UseKind, int]] = {}
    for columns in pools:
        for column in columns:
            all_of_it = seconds_by_span.setdefault((column.start, column.end), {})
            for use, amount in column.seconds.items():
                all_of_it[use] = all_of_it.get(use, 0) + amount
    return [Column(start, end, seconds) for (start, end), seconds in sorted(seconds_by_span.items())]


def coarse(columns: Sequence[Column], most: int) -> list[Column]:
    """Return the same columns in `most` steps at most."""
    group_size = max(1, -(-len(columns) // most))
    groups = [columns[at : at + group_size] for at in range(0, len(columns), group_size)]
    return [
        Column(group[0].start, group[-1].end, {
            use: amount for use in UseKind if (amount := sum(column.seconds.get(use, 0) for column in group))
        })
        for group in groups
    ]  # fmt: skip
