"""What the clock does to bookings: begins and ends them, reminds, expires, and offers to those who wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from gpuyard.ledger.desk import GPUYARD, Desk
from gpuyard.ledger.life import require
from gpuyard.ledger.policy import spell
from gpuyard.model.booking import Booking, BookingKind, BookingState, Rules

S = BookingState
LONGEST_REMINDER = timedelta(days=366)


def advance(desk: Desk) -> int:
    """Everything in the pool that is due. Returns how many bookings changed; done twice, the second time is 0."""
    changed = 0
    for booking in desk.look.due(desk.now):
        for following in _due(booking, desk):
            booking = go(desk, booking, following.state, following.reason)
            changed += 1
    changed += offer(desk)
    remind(desk)
    return changed


def go(desk: Desk, booking: Booking, to: BookingState, reason: str = "") -> Booking:
    """Bring a booking into another state by the clock: saved, told and noted. Raises LifeError."""
    require(booking, to)
    new = replace(booking, state=to, reason=reason)
    if to is S.ACTIVE and not _rules(desk, booking).must_book:
        # From now, not from the start: after an outage that window would be over before anybody could use it.
        new = replace(new, open_until=min(desk.now + _rules(desk, booking).window, booking.ask.end))
    if to in (S.EXPIRED, S.CANCELLED):
        new = replace(new, lanes=(), offer_until=None)
    if to in (S.ENDED, S.NO_SHOW) and new.ask.end > desk.now:
        new = replace(new, ask=replace(new.ask, end=max(desk.now, new.ask.start + timedelta(seconds=1))))
    (saved,) = desk.save(new)
    if booking.kind is BookingKind.BOOKING:
        desk.tell(EVENT_OF[to], saved, **({"reason": reason} if reason else {}))
    desk.note(GPUYARD, f"booking.{to.value}", saved, reason)
    return saved


EVENT_OF = {
    S.ACTIVE: "booking.started",
    S.ENDED: "booking.ended",
    S.EXPIRED: "booking.expired",
    S.NO_SHOW: "booking.no_show",
    S.OFFERED: "booking.offered",
}


def _due(booking: Booking, desk: Desk) -> Iterator[Booking]:
    """The states that a booking comes to by now, in order: after an outage it may be several."""
    now, over = desk.now, booking.ask.end <= desk.now
    if booking.state is S.REQUESTED and over:
        yield replace(booking, state=S.EXPIRED, reason="nobody approved it in time")
    elif booking.state is S.WAITING and over:
        yield replace(booking, state=S.EXPIRED, reason="no GPU became free in time")
    elif booking.state is S.OFFERED and booking.offer_until is not None and booking.offer_until <= now:
        yield replace(booking, state=S.EXPIRED, reason=f"the offer was open until {spell(booking.offer_until)}")
    elif booking.state is S.CONFIRMED and booking.ask.start <= now:
        yield replace(booking, state=S.ACTIVE, reason="")
        if over:
            yield replace(booking, state=S.ENDED, reason="")
    elif booking.state is S.ACTIVE and over:
        yield replace(booking, state=S.ENDED, reason="")


def offer(desk: Desk) -> int:
    """Offer what is free to those who wait, in their order; returns to how many. Whoever finds no place leaves what is
    there to the next: a GPU is not kept idle for one who waits for several."""
    offered = 0
    for booking in desk.look.waiting():
        if booking.ask.end <= desk.now:
            continue
        answer = desk.find_place(booking)
        if answer is None or desk.broken(booking):
            continue
        until = min(desk.now + _rules(desk, booking).offer, booking.ask.end)
        new = replace(booking, state=S.OFFERED, lanes=answer.lanes, offer_until=until, reason="")
        saved = desk.save(new, *desk.move(answer))[0]
        desk.tell("booking.offered", saved, until=spell(until))
        desk.note(GPUYARD, "booking.offered", saved, f"until {spell(until)}")
        offered += 1
    return offered


def remind(desk: Desk) -> None:
    """Tell owners that their bookings end soon, once for each end."""
    for booking in desk.look.ending(desk.now + LONGEST_REMINDER):
        left = booking.ask.end - desk.now
        soon = _rules(desk, booking).end_soon
        # Nobody needs to be told of a booking that is shorter than the notice that it would end soon.
        if timedelta(0) < left <= soon < booking.ask.end - booking.ask.start:
            what = f"ending {int(booking.ask.end.timestamp())}"
            if desk.change.told(booking.id, what, desk.now):
                desk.tell("booking.ending", booking, end=spell(booking.ask.end))


READY = "ready"
"""Told when a booking's owner was let in for the first time."""


def no_shows(desk: Desk, ids: Collection[str], seen_for: timedelta) -> int:
    """Note that these bookings, which have no server, let their owners in now; release those that have done so for as
    long as the rules give. `seen_for`: how long the cloud has been seen without a break; before that nobody could have
    come. Returns how many were released."""
    released = 0
    for booking in desk.look.get_many(sorted(ids)).values():
        limit = _rules(desk, booking).no_show
        if booking.state is not S.ACTIVE or booking.claimed is not None:
            continue
        desk.change.told(booking.id, READY, desk.now)
        ready = desk.look.told_at(booking.id, READY) or desk.now
        if limit is not None and min(seen_for, desk.now - ready) >= limit:
            go(desk, booking, S.NO_SHOW, "no server came in time, so its GPUs are free for others")
            released += 1
    return released + (offer(desk) if released else 0)


def _rules(desk: Desk, booking: Booking) -> Rules:
    return desk.rules(booking.project)
