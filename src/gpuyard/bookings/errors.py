"""The errors with which the ledger refuses a request or a change."""

from __future__ import annotations

from gpuyard.model.booking import Answer, Booking
from gpuyard.model.errors import BlockedError


class RefusedError(BlockedError):
    """The answer is no, with reasons and what would be possible."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("; ".join(reason.text for reason in answer.reasons))
        self.answer = answer


class StaleError(BlockedError):
    """Another person or process has changed the booking since it was read; `current` is what it is now."""

    def __init__(self, message: str, current: Booking) -> None:
        super().__init__(message)
        self.current = current


class NoBookingError(BlockedError):
    """There is no such booking, or it is not for this person to see."""
