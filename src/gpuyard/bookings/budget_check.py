"""The budget that the ledger asks before it books: an interface whose implementation counts what a project has used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class BookedTime(NamedTuple):
    """GPUs that are booked from start to end: seconds since 1970."""

    start: int
    end: int
    gpus: int


class Allowance(Protocol):
    """The budget of one project, with what it has used."""

    @property
    def counted_until(self) -> int:
        """Up to this moment (seconds) what was used counts, and from it on what is booked."""

    def objections(self, requested: BookedTime, ahead: Sequence[BookedTime]) -> list[str]:
        """Why a booking does not fit beside those that there are (`ahead`, in any order, also of before
        `counted_until`); empty when it does. Each is a sentence without its full stop."""
