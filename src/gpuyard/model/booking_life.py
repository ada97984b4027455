"""State machine of a booking: the allowed transitions, why each happens, and what each state means for the booking.
Pure.

`PoolTransaction.transition` is the one way to change the state of a stored booking; it asks here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Rules
from gpuyard.model.errors import BlockedError

TRANSITIONS: dict[tuple[BookingState, BookingState], str] = {
    (BookingState.REQUESTED, BookingState.CONFIRMED): "an admin approves",
    (BookingState.REQUESTED, BookingState.CANCELLED): "its owner withdraws it, or an admin declines",
    (BookingState.REQUESTED, BookingState.EXPIRED): "nobody approved it before it was to end",
    (BookingState.WAITING, BookingState.OFFERED): "its GPUs became free",
    (BookingState.WAITING, BookingState.CANCELLED): "its owner does not want to wait any more",
    (BookingState.WAITING, BookingState.EXPIRED): "no GPU became free in time",
    (BookingState.OFFERED, BookingState.CONFIRMED): "its owner accepts",
    (BookingState.OFFERED, BookingState.CANCELLED): "its owner refuses",
    (BookingState.OFFERED, BookingState.EXPIRED): "the offer was not accepted in time",
    (BookingState.CONFIRMED, BookingState.ACTIVE): "its time begins",
    (BookingState.CONFIRMED, BookingState.CANCELLED): "its owner or an admin cancels it",
    (BookingState.ACTIVE, BookingState.ENDED): "its time ends, or its owner ends it early",
    (
        BookingState.ACTIVE,
        BookingState.NO_SHOW,
    ): "no server came in time, at its start or after its last one was deleted",
}
"""(From, to) -> what causes the transition."""

OPEN = frozenset(
    {BookingState.REQUESTED, BookingState.WAITING, BookingState.OFFERED, BookingState.CONFIRMED, BookingState.ACTIVE}
)
"""States that are not final; bookings in them count as a user's active bookings."""
TAKES_LANES = frozenset({BookingState.OFFERED, BookingState.CONFIRMED, BookingState.ACTIVE})
"""States in which GPUs are kept for a booking."""
EVENTS = {
    BookingState.OFFERED: "booking.offered",
    BookingState.CONFIRMED: "booking.confirmed",
    BookingState.ACTIVE: "booking.started",
    BookingState.ENDED: "booking.ended",
    BookingState.CANCELLED: "booking.cancelled",
    BookingState.EXPIRED: "booking.expired",
    BookingState.NO_SHOW: "booking.no_show",
}
"""State -> the event that its owner gets when a booking enters it."""

HINTS = {
    (BookingState.ACTIVE, BookingState.CANCELLED): "it has begun: end it instead",
    (BookingState.ACTIVE, BookingState.ACTIVE): "it has begun already",
    (BookingState.CONFIRMED, BookingState.ENDED): "it has not begun: cancel it instead",
}
"""(From, to) -> a hint that helps more than the names of states."""


class LifeError(BlockedError):
    """Raised for a transition that is not allowed; `allowed` are the states that the booking can go to."""

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
    """Return the states that a booking in a state can go to."""
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
    """Return the booking in another state, with all that the state means for it. Raises LifeError."""
    require(booking, to)
    ask, new = booking.ask, replace(booking, state=to)
    if to is BookingState.CONFIRMED:
        return replace(new, ask=from_now(ask, now), offer_until=None)
    if to is BookingState.ACTIVE and booking.kind is BookingKind.BOOKING and not rules.must_book:
        # From now, not from the start: after an outage that window would be over before anybody could use it.
        return replace(new, open_until=min(now + rules.window, ask.end))
    if to in (BookingState.EXPIRED, BookingState.CANCELLED):
        return replace(new, lanes=(), offer_until=None)
    if to in (BookingState.ENDED, BookingState.NO_SHOW):
        over = replace(ask, end=min(ask.end, used_until(ask.start, now)))
        return replace(new, usable_since=None, empty_since=None, yields=False, ask=over)
    return new


def from_now(ask: Ask, now: datetime) -> Ask:
    """Return the rest of a request, from now on."""
    return replace(ask, start=max(ask.start, now))


def used_until(start: datetime, now: datetime) -> datetime:
    """Return the end of a time that ends now: it has at least a second."""
    return max(now, start + timedelta(seconds=1))
