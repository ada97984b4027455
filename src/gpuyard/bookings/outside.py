"""Somebody outside who has a say in bookings. The ledger asks before it books, and never within a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from gpuyard.model.booking import Booking, Reason


class Outside(Protocol):
    """A service that is asked. What it has said yes to and what is then not done is taken back there, also after a
    crash. It learns from the ledger's events how bookings go on."""

    def making(self, bookings: Sequence[Booking], override: bool) -> AbstractContextManager[Sequence[Reason]]:
        """Ask whether these may be made; they are made within the context. Raises RefusedError, and nothing is asked
        for then. `override`: a no does not count, and is given as what was set aside."""

    def changing(
        self, changes: Sequence[tuple[Booking, Booking]], override: bool
    ) -> AbstractContextManager[Sequence[Reason]]:
        """So for bookings (as they are, as they are to be)."""


class _Nobody:
    """There is none."""

    @contextmanager
    def making(self, bookings: Sequence[Booking], override: bool) -> Iterator[Sequence[Reason]]:
        yield ()

    @contextmanager
    def changing(self, changes: Sequence[tuple[Booking, Booking]], override: bool) -> Iterator[Sequence[Reason]]:
        yield ()


NOBODY: Outside = _Nobody()
