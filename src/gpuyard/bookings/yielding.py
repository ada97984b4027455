"""Chooses the leases that end to make way for a booking that finds no room. Pure.

First the booking is decided with all leases in place. Only when it is refused for want of room alone are leases taken
off the timetable: as few as possible, and of those the ones that would end soonest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuyard.bookings.admission import NO_ROOM, PoolLanes, place
from gpuyard.bookings.timetable import Taken
from gpuyard.database.times import seconds
from gpuyard.model.booking import Answer, Ask, Booking, Reason

MADE_WAY = "a booking needs its GPU"
"""The reason that such a lease ends with."""


@dataclass(frozen=True)
class Placing:
    """A request to place, as `admission.place` takes it."""

    ask: Ask
    keep: Sequence[int] = ()
    stay: bool = False


def with_way_made(
    wish: Placing, pool: PoolLanes, decide: Callable[[PoolLanes], Answer], leases: Callable[[], Iterable[Booking]]
) -> Answer:
    """Return what `decide` says; where it says no for want of room alone, what it says when leases end for it: as few
    as possible, those first that would end soonest. `leases`: returns those that would; called only when it matters."""
    answer = decide(pool)
    if answer.yes or any(reason.code not in NO_ROOM for reason in answer.reasons):
        return answer
    able = [lease for lease in leases() if lease.ask.start < wish.ask.end and wish.ask.start < lease.ask.end]
    able.sort(key=lambda lease: (lease.ask.end, lease.id))
    # One that is more counts more than any order among them.
    cost = {lane: len(able) ** 2 + rank for rank, lease in enumerate(able) for lane in lease.lanes}
    priced = replace(pool, cost=cost)
    gone = _fewest(wish, priced, able) if able else None
    if gone is None:
        return answer
    with pool.timetable.without(_taken(gone)):
        better = decide(priced)
    return (
        replace(better, ends=tuple(lease.id for lease in _ended(wish, priced, gone, better))) if better.yes else answer
    )


def _fewest(wish: Placing, pool: PoolLanes, leases: Sequence[Booking]) -> Sequence[Booking] | None:
    """Those without which it has a place, and none of them is left out in vain; None when it has none in any case."""
    gone = _needed(wish, pool, leases)
    if gone is None:
        return None
    fewer: Sequence[Booking] | None = gone
    while fewer is not None:
        gone = fewer
        tries = (_needed(wish, pool, [lease for lease in gone if lease is not spared]) for spared in reversed(gone))
        fewer = next((attempt for attempt in tries if attempt is not None), None)
    return gone


def _needed(wish: Placing, pool: PoolLanes, leases: Sequence[Booking]) -> Sequence[Booking] | None:
    """Without these leases: which of them are in the way where it is placed then. None when it has no place."""
    with pool.timetable.without(_taken(leases)):
        placement = place(wish.ask, pool, wish.keep, wish.stay)
    if isinstance(placement, Reason):
        return None
    return _ended(wish, pool, leases, Answer(lanes=placement[0], moves=placement[1]))


def _ended(wish: Placing, pool: PoolLanes, leases: Iterable[Booking], answer: Answer) -> list[Booking]:
    """Those of the leases whose time something else gets their lanes in."""
    taken = list(_wanted(wish.ask, pool, answer.lanes, answer.moves))
    return [
        lease
        for lease in leases
        if any(
            lane == mine and start < until and since < end
            for lane, start, end in taken
            for mine, since, until in _taken([lease])
        )
    ]


def _wanted(ask: Ask, pool: PoolLanes, lanes: Sequence[int], moves: Mapping[str, Sequence[int]]) -> Iterator[Taken]:
    start, end = seconds(ask.start), seconds(ask.end)
    yield from ((lane, start, end) for lane in lanes)
    moving = pool.movable(start, end) if moves else ()
    for movable in moving:
        yield from ((lane, seconds(movable.ask.start), seconds(movable.ask.end)) for lane in moves.get(movable.id, ()))


def _taken(leases: Iterable[Booking]) -> list[Taken]:
    return [(lane, seconds(lease.ask.start), seconds(lease.ask.end)) for lease in leases for lane in lease.lanes]
