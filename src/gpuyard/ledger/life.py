"""The life of a booking: which states follow which, and why. Everything that changes a state goes through here."""

from __future__ import annotations

from gpuyard.model.booking import Booking, BookingState
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


HINTS = {
    (S.ACTIVE, S.CANCELLED): "it has begun: end it instead",
    (S.ACTIVE, S.ACTIVE): "it has begun already",
    (S.CONFIRMED, S.ENDED): "it has not begun: cancel it instead",
    **{(state, S.OFFERED): "nothing is offered to it that could be accepted" for state in S},
    **{(state, S.REQUESTED): "nobody asks for its approval" for state in S},
}
"""What helps more than the names of states."""


class LifeError(BlockedError):
    """A booking cannot go where it was asked to; `allowed` are the states that it can go to."""

    def __init__(self, booking: Booking, to: BookingState) -> None:
        self.booking = booking
        self.allowed = next_states(booking.state)
        hint = HINTS.get((booking.state, to), "")
        can = (
            hint or f"it can become {', '.join(state.value for state in self.allowed)}"
            if self.allowed
            else "it is over"
        )
        super().__init__(f"booking {booking.id} is {booking.state.value} and cannot become {to.value}: {can}")


def next_states(state: BookingState) -> tuple[BookingState, ...]:
    """Where a booking in a state can go."""
    return tuple(to for source, to in TRANSITIONS if source is state)


def require(booking: Booking, to: BookingState) -> None:
    """Raise LifeError unless a booking can become that."""
    if (booking.state, to) not in TRANSITIONS:
        raise LifeError(booking, to)
