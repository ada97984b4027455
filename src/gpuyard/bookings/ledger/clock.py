"""Applies the clock to bookings: begins and ends them, reminds, expires, and offers GPUs to those who wait.

All within one transaction. What ends or expires comes first and offers after it, so that a GPU that becomes free is
offered in the same pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.bookings.ledger.pool_transaction import GPUYARD, PoolTransaction
from gpuyard.bookings.policy import spell
from gpuyard.model.booking import Booking, BookingState, Rules

LONGEST_REMINDER = timedelta(days=366)


def advance(transaction: PoolTransaction) -> int:
    """Do everything in the pool that is due. Returns how many bookings changed; done twice, the second time is 0."""
    changed = 0
    for booking in transaction.look.due(transaction.now):
        for state, reason in _due(booking, transaction.now):
            booking = transaction.transition(replace(booking, reason=reason), state, note=reason, reason=reason)
            changed += 1
    changed += shorten_windows(transaction) + offer(transaction)
    remind(transaction)
    return changed


def _due(booking: Booking, now: datetime) -> Iterator[tuple[BookingState, str]]:
    """The states that a booking comes to by now, in order, each with why: after an outage it may be several."""
    over = booking.ask.end <= now
    if booking.state is BookingState.REQUESTED and over:
        yield BookingState.EXPIRED, "nobody approved it in time"
    elif booking.state is BookingState.WAITING and over:
        yield BookingState.EXPIRED, "no GPU became free in time"
    elif booking.state is BookingState.OFFERED and booking.offer_until is not None and booking.offer_until <= now:
        yield BookingState.EXPIRED, f"the offer was open until {spell(booking.offer_until)}"
    elif booking.state is BookingState.CONFIRMED and booking.ask.start <= now:
        yield BookingState.ACTIVE, ""
        if over:
            yield BookingState.ENDED, ""
    elif booking.state is BookingState.ACTIVE and over:
        yield BookingState.ENDED, ""


def offer(transaction: PoolTransaction) -> int:
    """Offer free GPUs to those who wait, in their order; returns to how many. One who finds no place leaves what is
    there to the next: a GPU is not kept idle for one who waits for several."""
    offered = 0
    for booking in transaction.look.waiting():
        if booking.ask.end <= transaction.now:
            continue
        answer = transaction.find_place(booking)
        if answer is None or transaction.broken(booking):
            continue
        until = min(transaction.now + _rules(transaction, booking).offer, booking.ask.end)
        new = replace(booking, lanes=answer.lanes, offer_until=until, reason="")
        text = spell(until)
        transaction.transition(
            new, BookingState.OFFERED, moved=transaction.move(answer), note=f"until {text}", until=text
        )
        offered += 1
    return offered


def too_long(booking: Booking, rules: Rules, now: datetime) -> bool:
    """Return whether a booking's window ends later than one that is asked for now: the clock has gone back since."""
    return booking.open_until is not None and booking.open_until > now + rules.window


def shorten_windows(transaction: PoolTransaction) -> int:
    """Let no window be longer than the rules give, whatever the clock was when it was asked for. Returns how many."""
    bookings = [
        booking
        for booking in transaction.look.ending(transaction.now + LONGEST_REMINDER)
        if too_long(booking, _rules(transaction, booking), transaction.now)
    ]
    for booking in bookings:
        saved = transaction.save(replace(booking, open_until=transaction.now + _rules(transaction, booking).window))[0]
        transaction.note(GPUYARD, "booking.window", saved, "its window would have been longer than the rules give")
    return len(bookings)


def remind(transaction: PoolTransaction) -> None:
    """Tell owners that their bookings end soon, once for each end."""
    for booking in transaction.look.ending(transaction.now + LONGEST_REMINDER):
        left = booking.ask.end - transaction.now
        soon = _rules(transaction, booking).end_soon
        # Nobody needs to be told of a booking that is shorter than the notice that it would end soon.
        if timedelta(0) < left <= soon < booking.ask.end - booking.ask.start:
            what = f"ending {int(booking.ask.end.timestamp())}"
            if transaction.change.mark_told(booking.id, what, transaction.now):
                transaction.tell("booking.ending", booking, end=spell(booking.ask.end))


READY = "ready"
"""Marked as told when a booking's owner was let in for the first time."""


def no_shows(transaction: PoolTransaction, ids: Collection[str], seen_for: timedelta) -> int:
    """Note that these bookings, which have no server, let their owners in now; release those that have done so for as
    long as the rules give since then, or since their last server went. `seen_for`: how long the cloud has been seen
    without a break; before that nobody could have come. Returns how many were released."""
    released = 0
    for booking in transaction.look.get_many(sorted(ids)).values():
        limit = _rules(transaction, booking).no_show
        if booking.state is not BookingState.ACTIVE:
            continue
        if booking.claimed is None:
            transaction.change.mark_told(booking.id, READY, transaction.now)
            since, why = transaction.look.told_at(booking.id, READY), "no server came in time"
        else:
            since, why = booking.empty_since, "its server is gone, and no other one came in time"
        if limit is not None and min(seen_for, transaction.now - (since or transaction.now)) >= limit:
            why = f"{why}, so its GPUs are free for others"
            transaction.transition(replace(booking, reason=why), BookingState.NO_SHOW, note=why, reason=why)
            released += 1
    return released + (offer(transaction) if released else 0)


def _rules(transaction: PoolTransaction, booking: Booking) -> Rules:
    return transaction.rules(booking.project)
