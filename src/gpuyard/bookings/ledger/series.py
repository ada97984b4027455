"""Changes a recurring booking as a whole: all of its bookings that can still change, or none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.editing import edit
from gpuyard.bookings.ledger.pool_transaction import PoolTransaction
from gpuyard.bookings.policy import spell
from gpuyard.model.booking import Answer, Ask, Booking, BookingState, Person, Reason
from gpuyard.model.rights import STATES, Verb

NOW = timedelta(0)


def members(transaction: PoolTransaction, booking: Booking, verb: Verb) -> list[Booking]:
    """Return the booking, and those of its series to which that can be done and which have not begun; by start, then
    id."""
    others = transaction.look.series(booking.series) if booking.series else [booking]
    return [
        member
        for member in others
        if member.id == booking.id or (member.state in STATES[verb] and member.state is not BookingState.ACTIVE)
    ]


def edit_series(
    transaction: PoolTransaction, old: Booking, ask: Ask, who: Person, override: bool, new_id: Callable[[], str]
) -> Booking:
    """Change one booking as `edit` does, and the others alike: their start and end move by as much, and of the rest
    they take what is different now. Raises RefusedError that says on which day. Returns the one."""
    changed = old
    for booking, wish in wishes(transaction, old, ask):
        try:
            new = edit(transaction, booking, wish, who, override, new_id)
        except RefusedError as refused:
            raise RefusedError(on_day(refused.answer, wish)) from None
        if booking.id == old.id:
            changed = new
    return changed


def wishes(transaction: PoolTransaction, old: Booking, ask: Ask) -> list[tuple[Booking, Ask]]:
    """Return the bookings of a series, each with what it is to be, in the order in which they can be changed."""
    later, end_later = ask.start - old.ask.start, ask.end - old.ask.end
    names = {field.name for field in fields(Ask)} - {"start", "end"}
    changes = {name: getattr(ask, name) for name in names if getattr(ask, name) != getattr(old.ask, name)}
    # The one that moves first must not meet the next one where that still is.
    in_order = sorted(
        members(transaction, old, Verb.CHANGE), key=lambda booking: booking.ask.start, reverse=later > NOW
    )
    return [
        (booking, replace(booking.ask, start=booking.ask.start + later, end=booking.ask.end + end_later, **changes))
        for booking in in_order
    ]


def same_use(old: Ask, new: Ask) -> bool:
    """Return whether both take as many GPUs for the same time."""
    return (old.start, old.end, old.gpus) == (new.start, new.end, new.gpus)


def on_day(answer: Answer, ask: Ask) -> Answer:
    """Return the answer with reasons that say which booking of several they are about."""
    reasons = tuple(Reason(reason.code, f"on {spell(ask.start)}: {reason.text}") for reason in answer.reasons)
    return replace(answer, reasons=reasons, alternatives=())
