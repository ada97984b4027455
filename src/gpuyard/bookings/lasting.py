"""Forecasts how long servers that are started now could keep their GPUs. Pure.

A server on a booking of its project keeps them until that booking's end; any other until bookings need so many GPUs
that it would have to go. The newest server without a booking on a slot of the same size goes first (shortage.py), so
each server that is started now goes before those that are there. Where slots differ, or somebody has booked a certain
GPU, Nova may put the server on the worst of them: that worst case is what is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane

AHEAD = timedelta(days=31)
"""Bookings that begin later are not looked at."""


@dataclass(frozen=True)
class Span:
    """A number of the servers, and until when they keep their GPUs."""

    servers: int
    until: datetime | None
    """None: nothing is known that would end it."""
    booking: str = ""
    """Id of the booking of their project that they are on."""


@dataclass(frozen=True)
class PoolAhead:
    """A pool with its lanes, bookings and servers from now on."""

    lanes: Sequence[Lane]
    bookings: Sequence[Booking]
    """Bookings, leases, holds and loans that take lanes now or begin within AHEAD."""
    hold: Callable[[str], timedelta]
    """Project's name -> how long before the start of its bookings their GPUs are kept free."""
    busy: Collection[int]
    """Lanes that servers are on."""
    free: Collection[int]
    """Lanes that a new server could land on."""


def spans(pool: PoolAhead, project_id: str, servers: int, gpus: int, whole: bool, now: datetime) -> tuple[Span, ...]:
    """Return until when so many servers with so many GPUs each keep them, those that last longest first. `whole`: each
    takes a whole slot of its size; else each of its GPUs may be in another one."""
    result: list[Span] = []
    per_server = 1 if whole else gpus
    own = [b for b in pool.bookings if b.kind is BookingKind.BOOKING and b.state is BookingState.ACTIVE]
    for booking in sorted(own, key=lambda candidate: (candidate.ask.end, candidate.id), reverse=True):
        left = sum(lane not in pool.busy for lane in booking.lanes)
        covered = min(servers, left // per_server) if booking.project_id == project_id else 0
        if covered and (booking.ask.same_group and booking.ask.gpus > 1) == whole:
            result.append(Span(covered, booking.ask.end, booking.id))
            servers -= covered
    pinned = _pinned(pool, now)
    limits = [
        _Room.of(pool, size, now) for size in sorted({lane.size for lane in pool.lanes}) if not whole or size == gpus
    ]
    untils: dict[datetime | None, int] = {}
    for number in range(1, servers + 1):
        ends = [end for room in limits if (end := room.until(number * per_server)) is not None]
        until = min([*ends, *([pinned] if pinned else [])], default=None)
        untils[until] = untils.get(until, 0) + 1
    result += [Span(count, until) for until, count in untils.items()]
    return tuple(
        sorted(result, key=lambda span: (span.until is not None, -(span.until or now).timestamp(), span.booking))
    )


def _pinned(pool: PoolAhead, now: datetime) -> datetime | None:
    """When the first booking of a certain GPU needs one on which a new server could land."""
    later = (b for b in pool.bookings if b.ask.gpu and b.ask.start > now and set(b.lanes) & set(pool.free))
    return min((max(now, b.ask.start - pool.hold(b.project)) for b in later), default=None)


@dataclass(frozen=True)
class _Room:
    """Slots of one size."""

    spare: int
    """That neither servers without a booking nor trouble takes."""
    free: int
    """On which a new server could land now."""
    peaks: Sequence[int]
    """How many bookings take, each time when that is more than ever before; rises."""
    times: Sequence[datetime]
    """When that is so."""

    @classmethod
    def of(cls, pool: PoolAhead, size: int, now: datetime) -> _Room:
        mine = {lane.id for lane in pool.lanes if lane.size == size and not lane.trouble}
        changes: list[tuple[datetime, int]] = []
        taken_now: set[int] = set()
        for booking in pool.bookings:
            lanes = mine.intersection(booking.lanes)
            start = booking.ask.start
            if booking.state is not BookingState.ACTIVE and booking.kind is BookingKind.BOOKING:
                start -= pool.hold(booking.project)
            start = max(start, now)
            if lanes and start < booking.ask.end:
                changes += [(start, len(lanes)), (booking.ask.end, -len(lanes))]
                taken_now |= lanes if start == now else set()
        strays = len((mine & set(pool.busy)) - taken_now)
        peaks, times = _peaks(changes)
        return cls(len(mine) - strays, len(mine & set(pool.free)), peaks, times)

    def until(self, lanes: int) -> datetime | None:
        """When bookings need so many slots that this many new servers' do not fit beside them any more."""
        beside = min(lanes, self.free)
        if not beside:
            return None
        place = bisect_right(self.peaks, self.spare - beside)
        return self.times[place] if place < len(self.times) else None


def _peaks(changes: Iterable[tuple[datetime, int]]) -> tuple[list[int], list[datetime]]:
    peaks: list[int] = []
    times: list[datetime] = []
    taken = 0
    by_time: dict[datetime, int] = {}
    for time, change in changes:
        by_time[time] = by_time.get(time, 0) + change
    for time in sorted(by_time):
        taken += by_time[time]
        if taken > (peaks[-1] if peaks else 0):
            peaks.append(taken)
            times.append(time)
    return peaks, times


def begins_next(bookings: Iterable[Booking], project_id: str) -> Booking | None:
    """Return the next booking of a project that has its GPUs and has not begun."""
    soon = (
        booking
        for booking in bookings
        if booking.project_id == project_id
        and booking.kind is BookingKind.BOOKING
        and booking.state in (BookingState.CONFIRMED, BookingState.OFFERED)
    )
    return min(soon, key=lambda booking: (booking.ask.start, booking.id), default=None)
