"""Decides what happens when a booking's GPU is not free when it should be: it moves, or somebody makes room. Pure.

Bookings are served in order of their start. Each keeps its GPU, or gets another free one like it; failing that, a lease
ends, or a server without a booking must go: first one that may not be there anyway, then the newest. A booking of a
certain GPU never moves. A server whose own booking ends in time, and one that gpuyard is deleting, is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.bookings.matching import Holder, on_now, running
from gpuyard.bookings.pool_view import SOON, PoolView
from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane

LEAVING = timedelta(minutes=5)
"""Time from the start of a booking in which its owner is not told that it waits for a runner's server, which is being
deleted."""


@dataclass(frozen=True)
class Shortage:
    """The moves, yields and delays that follow for all bookings that begin soon."""

    moves: dict[str, tuple[int, ...]]
    """Booking -> lanes that it should have instead: all of its lanes, in order."""
    yielding: tuple[str, ...]
    """Ids of servers without a booking that must make room."""
    delayed: tuple[str, ...]
    """Bookings that have begun and wait for a GPU."""
    leases: tuple[str, ...]
    """Leases that must end, because their servers are on GPUs of bookings that have begun, or that are kept free for
    them already. Nova puts a server anywhere, so it may be where its lease is not."""


def shortage(view: PoolView, now: datetime) -> Shortage:
    """Go through bookings in order of their start; each takes its GPU, or another free one like it, or is short of
    one."""
    near = list(_near(view, now))
    loans = (loan for loan in running(view.bookings) if loan.kind is BookingKind.LOAN)
    spoken_for = {lane for booking in (*near, *on_now(view.bookings), *loans) for lane in booking.lanes}
    free = {lane for lane in view.lanes if view.ready(lane)}
    moves: dict[str, tuple[int, ...]] = {}
    assigned: set[int] = set()
    victims: list[str] = []
    delayed: list[str] = []
    leases: list[str] = []
    for booking in near:
        lanes = {lane: lane for lane in booking.lanes}
        for lane in view.missing(booking):
            if lane in free or _leaves_in_time(view, booking, lane):
                continue
            for able in (free - spoken_for, free & _of_intruder(view, near, lane)):
                replacement = _other(view, booking, lane, able - set(lanes.values()) - assigned)
                if replacement is not None:
                    break
            if replacement is not None:
                lanes[lane] = replacement
                assigned.add(replacement)
                continue
            is_held = booking.ask.start - view.rules_of(booking).hold <= now
            if (gone := _leases_on(view, lane)) or _is_leaving(view, booking, lane, now):
                leases += gone if is_held else ()
                continue
            victims += _makes_room(view, booking, lane, victims)
            if booking.state is BookingState.ACTIVE:
                delayed.append(booking.id)
        hold = view.rules_of(booking).hold
        if tuple(lanes.values()) != booking.lanes and booking.ask.start - hold <= now:
            moves[booking.id] = tuple(lanes.values())
    return Shortage(moves, *(tuple(dict.fromkeys(ids)) for ids in (victims, delayed, leases)))


def _near(view: PoolView, now: datetime) -> Iterable[Booking]:
    """Bookings whose GPUs must be free now, or as soon as somebody who is warned now has gone."""
    for booking in sorted(view.bookings, key=lambda b: (b.ask.start, b.id)):
        rules = view.rules_of(booking)
        soon = booking.state in SOON and booking.ask.start - rules.hold - rules.grace <= now
        takes = booking.kind is BookingKind.BOOKING and (soon or booking.state is BookingState.ACTIVE)
        if takes and now < booking.ask.end:
            yield booking


def _leaves_in_time(view: PoolView, booking: Booking, lane: int) -> bool:
    """Return whether the lane's server has a booking of its own that is over when this one begins. Of several one is
    enough: a server cannot give back one of its GPUs."""
    for holder in view.holders:
        if lane in holder.lanes:
            own = view.matches.bookings_of.get(holder.id, ())
            return any(b.id in own and b.ask.end <= booking.ask.start for b in view.bookings)
    return False


def _leases_on(view: PoolView, lane: int) -> list[str]:
    """Leases whose servers are on a lane."""
    leases = {lease.id for lease in on_now(view.bookings)}
    own = [id for holder in view.holders if lane in holder.lanes for id in view.matches.bookings_of.get(holder.id, ())]
    return [id for id in own if id in leases]


def _is_leaving(view: PoolView, booking: Booking, lane: int, now: datetime) -> bool:
    """Return whether a server on a lane has lost its lease a moment ago, so that gpuyard is deleting it."""
    soon = now < booking.ask.start + LEAVING
    return soon and any(lane in holder.lanes for holder in view.leftover)


def _of_intruder(view: PoolView, near: Iterable[Booking], lane: int) -> set[int]:
    """Lanes of the project whose server without a booking is on a lane: limits are a project's, so it has taken what a
    colleague of its own may have, and their booking is the one to wait."""
    projects = {holder.project_id for holder in view.matches.unbooked if lane in holder.lanes}
    return {
        missing_lane
        for booking in near
        if booking.project_id in projects and booking.state is BookingState.ACTIVE and not booking.ask.gpu
        for missing_lane in view.missing(booking)
    }


def _other(view: PoolView, booking: Booking, lane: int, free: Iterable[int]) -> int | None:
    """A free lane that is as good; None for a booking that must have this very one."""
    if booking.ask.gpu:
        return None
    old = view.lanes.get(lane)

    def as_good(new: Lane) -> bool:
        same_host = not booking.ask.same_host or len(booking.lanes) == 1 or (old is not None and old.host == new.host)
        return same_host and (old is None or old.size == new.size)

    return next((candidate for candidate in sorted(free) if as_good(view.lanes[candidate])), None)


def _makes_room(view: PoolView, booking: Booking, lane: int, victims: Iterable[str]) -> list[str]:
    """The server without a booking that goes for it: the one on its lane when it must be that, else one on a lane like
    it: first those that may not be there at all and go anyway, then the newest."""
    taken, allowed = set(victims), tolerated(view)
    old = view.lanes.get(lane)

    def helps(holder: Holder) -> bool:
        if lane in holder.lanes:
            return True
        like = any(old is None or view.lanes[lane].size == old.size for lane in holder.lanes if lane in view.lanes)
        return like and not booking.ask.gpu

    able = [holder for holder in reversed(view.strays) if holder.id not in taken and helps(holder)]
    able.sort(key=lambda holder: holder.id in allowed)
    return [able[0].id] if able else []


def tolerated(view: PoolView) -> frozenset[str]:
    """Return servers without a booking that their project may have: its oldest ones, up to its number."""
    left = dict(view.unbooked)
    server_ids = []
    for holder in view.strays:
        if holder.gpus <= left.get(holder.project_id, 0):
            left[holder.project_id] -= holder.gpus
            server_ids.append(holder.id)
    return frozenset(server_ids)
