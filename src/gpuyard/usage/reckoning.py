"""Adds intervals up to GPU-seconds by slice and by hour. Pure.

A server that was not seen on a certain GPU (an interval without an address) had one all the same. So that all of it
adds up to the time that there was, such seconds are taken from those of a GPU of the same host and pool that nobody
used then, first from time in which it was not observed.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from heapq import merge
from zoneinfo import ZoneInfo

from gpuyard.usage.lives import cut, without
from gpuyard.usage.records import Extent, HourSum, Interval, Slice, TrackState

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SETTLE = timedelta(minutes=10)
"""Delay after which Nova may still tell what happened."""
UNUSED = (
    TrackState.UNSEEN,
    TrackState.FREE,
    TrackState.BOOKED,
    TrackState.STRANDED,
    TrackState.HELD,
    TrackState.BLOCKED,
    TrackState.LOST,
    TrackState.STARTING,
)
"""States from whose seconds those of servers on no certain GPU are taken, the first ones first."""
_ORDER = {state: place for place, state in enumerate(UNUSED)}
SOMEBODYS = frozenset({TrackState.CLAIMED, TrackState.STARTING, TrackState.BOOKED})
"""States whose seconds are summed by user and project."""
WITH_KIND = frozenset({TrackState.CLAIMED, TrackState.BOOKED})
"""States whose seconds are also summed by the kind of booking."""

Tariffs = Callable[[str, datetime, datetime], Iterable[tuple[str, datetime, datetime]]]
"""Splits [start, end) of a pool by the tariff of the time: parts without holes, in order, each with the name of its
tariff; empty where it is the usual one."""


def one_tariff(pool: str, start: datetime, end: datetime) -> Iterable[tuple[str, datetime, datetime]]:
    """Return the whole time as one part: the tariffs of a site that states none."""
    return (("", start, end),)


@dataclass(frozen=True)
class Reckoned:
    """GPU-seconds of a span of time."""

    slices: Mapping[Slice, int]
    hours: tuple[HourSum, ...]
    """Sums of hours from the span's start on."""


def day_span(day: date, zone: str) -> tuple[datetime, datetime]:
    """Return [start, end) of a local day in UTC: 23 or 25 hours when the clocks change."""
    zone_info = ZoneInfo(zone)
    begins, ends = (datetime.combine(boundary, time(), zone_info).astimezone(UTC) for boundary in (day, day + DAY))
    return begins, ends


def local_day(moment: datetime, zone: str) -> date:
    return moment.astimezone(ZoneInfo(zone)).date()


def due_day(extent: Extent, zone: str) -> date | None:
    """Return the next day to sum up: it is over, everything of it was observed, and Nova has nothing to add. None: none
    yet."""
    day = extent.rolled + DAY if extent.rolled else local_day(extent.first, zone)
    return day if day_span(day, zone)[1] + SETTLE <= extent.settled else None


def reckon(
    intervals: Sequence[Interval], start: datetime, end: datetime, tariffs: Tariffs = one_tariff, *, hours: bool = True
) -> Reckoned:
    """Return the GPU-seconds in [start, end) of intervals that were read of it. `end`: no later than `Extent.until`.
    `hours`: whether those are wanted, too."""
    slices: Counter[Slice] = Counter()
    by_hour: defaultdict[tuple[str, str, str], _Hours] = defaultdict(_Hours)
    for piece in laid_out([part for interval in intervals if (part := clipped(interval, start, end))]):
        last = piece.end or end
        for tariff, first, then in tariffs(piece.pool, piece.start, last):
            slices[_slice(tariff, piece)] += _seconds(first, then)
        if hours:
            kind = piece.tenure.kind if piece.state in WITH_KIND else ""
            by_hour[piece.pool, piece.state.value, kind].add(_seconds(start, piece.start), _seconds(start, last))
    return Reckoned(
        {use_slice: amount for use_slice, amount in slices.items() if amount},
        tuple(
            HourSum(start + hour * HOUR, *key, amount)
            for hour, key, amount in sorted((hour, key, n) for key, of in by_hour.items() for hour, n in of.sums())
        ),
    )


def clipped(interval: Interval, start: datetime, end: datetime) -> Interval | None:
    """Return the part of an interval in [start, end); None when it has none."""
    first, last = max(interval.start, start), end if interval.end is None else min(interval.end, end)
    if first >= last:
        return None
    return interval if (first, last) == (interval.start, interval.end) else replace(interval, start=first, end=last)


def laid_out(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the same time with nothing counted twice: what is known without an address is taken from others' unused
    time. All of them end."""
    unknown = [interval for interval in intervals if not interval.address]
    if not unknown:
        return list(intervals)
    pools = {interval.pool for interval in unknown}
    unused: dict[str, dict[str, list[Interval]]] = {pool: {} for pool in pools}
    rest = []
    for interval in sorted((interval for interval in intervals if interval.address), key=_first_taken):
        if interval.pool in pools and interval.state in UNUSED:
            unused[interval.pool].setdefault(interval.host, []).append(interval)
        else:
            rest.append(interval)
    for interval in sorted(
        unknown, key=lambda candidate: not candidate.host
    ):  # those of no known host take what the others leave
        _take(unused[interval.pool], interval)
    return [*rest, *(piece for hosts in unused.values() for mine in hosts.values() for piece in mine), *unknown]


def _first_taken(piece: Interval) -> tuple[int, datetime, str, str]:
    return _ORDER.get(piece.state, 0), piece.start, piece.host, piece.address


def _take(hosts: dict[str, list[Interval]], interval: Interval) -> None:
    """Take the seconds of one that somebody had from the pieces of its pool, which are by host and in order."""
    remaining = [(interval.start, interval.end or interval.start)]
    taken: list[tuple[Interval, list[tuple[datetime, datetime]]]] = []
    mine = [hosts.get(interval.host, [])] if interval.host else list(hosts.values())
    for piece in merge(*mine, key=_first_taken):
        parts = cut(remaining, piece.start, piece.end or piece.start)
        if parts:
            taken.append((piece, parts))
            remaining = without(remaining, parts)
            if not remaining:
                break
    for piece, parts in taken:
        pieces = hosts[piece.host]
        pieces.remove(piece)
        for low, high in without([(piece.start, piece.end or piece.start)], parts):
            insort(pieces, replace(piece, start=low, end=high), key=_first_taken)


def _slice(tariff: str, interval: Interval) -> Slice:
    if interval.state not in SOMEBODYS:
        return Slice(tariff, interval.pool, interval.host, state=interval.state.value)
    own = interval.tenure
    kind = own.kind if interval.state in WITH_KIND else ""
    return Slice(
        tariff, interval.pool, interval.host, own.project_id, own.project, own.user_id, own.user, own.repository,
        interval.state.value, kind,
    )  # fmt: skip


class _Hours:
    """Seconds by hour, counted from where the first one begins. What fills hours is noted where it begins and ends, and
    not in each of them: a GPU may have had one server all day."""

    def __init__(self) -> None:
        self._parts: Counter[int] = Counter()
        self._turns: Counter[int] = Counter()
        """Hour -> by how many more it is filled than the one before."""

    def add(self, start: int, end: int) -> None:
        """[start, end) in seconds."""
        first, last = start // 3600, end // 3600
        self._parts[first] -= start - first * 3600
        self._parts[last] += end - last * 3600
        self._turns[first] += 1
        self._turns[last] -= 1

    def sums(self) -> Iterator[tuple[int, int]]:
        """Hours that have any, each with its seconds, in order."""
        filled = 0
        hours = {*self._parts, *self._turns}
        for hour in range(min(hours, default=0), max(hours, default=-1) + 1):
            filled += self._turns[hour]
            if amount := filled * 3600 + self._parts[hour]:
                yield hour, amount


def _seconds(start: datetime, end: datetime) -> int:
    return int((end - start).total_seconds())
