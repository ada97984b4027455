"""What the clock does to bookings: begins and ends them, reminds, expires, and offers to those who wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.ledger.desk import GPUYARD, Desk
from gpuyard.ledger.policy import spell
from gpuyard.model.booking import Booking, BookingState, Rules

S = BookingState
LONGEST_REMINDER = timedelta(days=366)


def advance(desk: Desk) -> int:
    """Everything in the pool that is due. Returns how many bookings changed; done twice, the second time is 0."""
    changed = 0
    for booking in desk.look.due(desk.now):
        for state, reason in _due(booking, desk.now):
            booking = desk.transition(replace(booking, reason=reason), state, note=reason, reason=reason)
            changed += 1
    changed += shorten_windows(desk) + offer(desk)
    remind(desk)
    return changed


def _due(booking: Booking, now: datetime) -> Iterator[tuple[BookingState, str]]:
    """The states that a booking comes to by now, in order, each with why: after an outage it may be several."""
    over = booking.ask.end <= now
    if booking.state is S.REQUESTED and over:
        yield S.EXPIRED, "nobody approved it in time"
    elif booking.state is S.WAITING and over:
        yield S.EXPIRED, "no GPU became free in time"
    elif booking.state is S.OFFERED and booking.offer_until is not None and booking.offer_until <= now:
        yield S.EXPIRED, f"the offer was open until {spell(booking.offer_until)}"
    elif booking.state is S.CONFIRMED and booking.ask.start <= now:
        yield S.ACTIVE, ""
        if over:
            yield S.ENDED, ""
    elif booking.state is S.ACTIVE and over:
        yield S.ENDED, ""


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
        new = replace(booking, lanes=answer.lanes, offer_until=until, reason="")
        text = spell(until)
        desk.transition(new, S.OFFERED, moved=desk.move(answer), note=f"until {text}", until=text)
        offered += 1
    return offered


def too_long(booking: Booking, rules: Rules, now: datetime) -> bool:
    """Whether a booking's window ends later than one that is asked for now: the clock has gone back since."""
    return booking.open_until is not None and booking.open_until > now + rules.window


def shorten_windows(desk: Desk) -> int:
    """Let no window be longer than the rules give, whatever the clock was when it was asked for. Returns how many."""
    found = [one for one in desk.look.ending(desk.now + LONGEST_REMINDER) if too_long(one, _rules(desk, one), desk.now)]
    for booking in found:
        saved = desk.save(replace(booking, open_until=desk.now + _rules(desk, booking).window))[0]
        desk.note(GPUYARD, "booking.window", saved, "its window would have been longer than the rules give")
    return len(found)


def remind(desk: Desk) -> None:
    """Tell owners that their bookings end soon, once for each end."""
    for booking in desk.look.ending(desk.now + LONGEST_REMINDER):
        left = booking.ask.end - desk.now
        soon = _rules(desk, booking).end_soon
        # Nobody needs to be told of a booking that is shorter than the notice that it would end soon.
        if timedelta(0) < left <= soon < booking.ask.end - booking.ask.start:
            what = f"ending {int(booking.ask.end.timestamp())}"
            if desk.change.mark_told(booking.id, what, desk.now):
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
        desk.change.mark_told(booking.id, READY, desk.now)
        ready = desk.look.told_at(booking.id, READY) or desk.now
        if limit is not None and min(seen_for, desk.now - ready) >= limit:
            why = "no server came in time, so its GPUs are free for others"
            desk.transition(replace(booking, reason=why), S.NO_SHOW, note=why, reason=why)
            released += 1
    return released + (offer(desk) if released else 0)


def _rules(desk: Desk, booking: Booking) -> Rules:
    return desk.rules(booking.project)
