"""The life of a booking: which states follow which, why, and what each means for the booking. Pure.

`Desk.transition` is the one way to change the state of a booking that is there; it asks here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Rules
from gpuyard.model.errors import BlockedError

S = BookingState

TRANSITIONS: dict[tuple[BookingState, BookingState], str] = {
    (S.REQUESTED, S.CONFIRMED): "an admin approves",
    (S.REQUESTED, S.CANCELLED): "its owner withdraws it, or an admin declines",
    (S.REQUESTED, S.EXPIRED): "nobody approved it before it was to end",
    (S.WAITING, S.OFFERED): "its GPUs became free",
    (S.WAITING, S.CANCELLED): "its owner does not want to wait any more",
    (S.WAITING, S.EXPIRED): "no GPU became free in time",
    (S.OFFERED, S.CONFIRMED): "its owner accepts",
    (S.OFFERED, S.CANCELLED): "its owner refuses",
    (S.OFFERED, S.EXPIRED): "the offer was not accepted in time",
    (S.CONFIRMED, S.ACTIVE): "its time begins",
    (S.CONFIRMED, S.CANCELLED): "its owner or an admin cancels it",
    (S.ACTIVE, S.ENDED): "its time ends, or its owner ends it early",
    (S.ACTIVE, S.NO_SHOW): "no server came in time",
}
"""From, to: what makes it happen."""

OPEN = frozenset({S.REQUESTED, S.WAITING, S.OFFERED, S.CONFIRMED, S.ACTIVE})
"""States from which a booking still goes somewhere; these count as a user's active bookings."""
TAKES_LANES = frozenset({S.OFFERED, S.CONFIRMED, S.ACTIVE})
"""States in which GPUs are kept for a booking."""
EVENTS = {
    S.OFFERED: "booking.offered",
    S.CONFIRMED: "booking.confirmed",
    S.ACTIVE: "booking.started",
    S.ENDED: "booking.ended",
    S.CANCELLED: "booking.cancelled",
    S.EXPIRED: "booking.expired",
    S.NO_SHOW: "booking.no_show",
}
"""What its owner is told when a booking comes to a state."""

HINTS = {
    (S.ACTIVE, S.CANCELLED): "it has begun: end it instead",
    (S.ACTIVE, S.ACTIVE): "it has begun already",
    (S.CONFIRMED, S.ENDED): "it has not begun: cancel it instead",
}
"""What helps more than the names of states."""


class LifeError(BlockedError):
    """A booking cannot go where it was asked to; `allowed` are the states that it can go to."""

    def __init__(self, booking: Booking, wrong: str, hint: str = "") -> None:
        self.booking = booking
        self.allowed = next_states(booking.state)
        can = (
            hint or f"it can become {', '.join(state.value for state in self.allowed)}"
            if self.allowed
            else "it is over"
        )
        super().__init__(f"booking {booking.id} is {booking.state.value} and {wrong}: {can}")


def next_states(state: BookingState) -> tuple[BookingState, ...]:
    """Where a booking in a state can go."""
    return tuple(to for source, to in TRANSITIONS if source is state)


def require(booking: Booking, to: BookingState) -> None:
    """Raise LifeError unless a booking can become that."""
    if (booking.state, to) not in TRANSITIONS:
        raise LifeError(booking, f"cannot become {to.value}", HINTS.get((booking.state, to), ""))


def require_state(booking: Booking, state: BookingState, verb: str) -> None:
    """Raise LifeError unless a booking is in the one state in which it can be `verb`: approved, accepted."""
    if booking.state is not state:
        raise LifeError(booking, f"cannot be {verb}", f"only one that is {state.value} can be")


def become(booking: Booking, to: BookingState, now: datetime, rules: Rules) -> Booking:
    """The booking in another state, with all that the state means for it. Raises LifeError."""
    require(booking, to)
    ask, new = booking.ask, replace(booking, state=to)
    if to is S.CONFIRMED:
        return replace(new, ask=from_now(ask, now), offer_until=None)
    if to is S.ACTIVE and booking.kind is BookingKind.BOOKING and not rules.must_book:
        # From now, not from the start: after an outage that window would be over before anybody could use it.
        return replace(new, open_until=min(now + rules.window, ask.end))
    if to in (S.EXPIRED, S.CANCELLED):
        return replace(new, lanes=(), offer_until=None)
    if to in (S.ENDED, S.NO_SHOW):
        return replace(
            new, usable_since=None, yields=False, ask=replace(ask, end=min(ask.end, used_until(ask.start, now)))
        )
    return new


def from_now(ask: Ask, now: datetime) -> Ask:
    """What is left of it."""
    return replace(ask, start=max(ask.start, now))


def used_until(start: datetime, now: datetime) -> datetime:
    """The end of what ends now: a time has at least a second."""
    return max(now, start + timedelta(seconds=1))
