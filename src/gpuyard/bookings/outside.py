"""The interface of a service outside that has a say in bookings. The ledger asks it before it books, never within a
transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from gpuyard.model.booking import Booking, Reason


class Outside(Protocol):
    """A service that is asked before bookings are made or changed. What it has said yes to and what is then not done is
    taken back there, also after a crash. It learns from the ledger's events how bookings go on."""

    def making(self, bookings: Sequence[Booking], override: bool) -> AbstractContextManager[Sequence[Reason]]:
        """Ask whether these may be made; they are made within the context. Raises RefusedError, and what the service
        has said yes to by then is taken back. `override`: a no does not count, and is given as what was set aside."""

    def changing(
        self, changes: Sequence[tuple[Booking, Booking]], override: bool
    ) -> AbstractContextManager[Sequence[Reason]]:
        """Ask as `making` does about changes of bookings (as they are, as they are to be)."""


class _Nobody:
    """There is none."""

    @contextmanager
    def making(self, bookings: Sequence[Booking], override: bool) -> Iterator[Sequence[Reason]]:
        yield ()

    @contextmanager
    def changing(self, changes: Sequence[tuple[Booking, Booking]], override: bool) -> Iterator[Sequence[Reason]]:
        yield ()


NOBODY: Outside = _Nobody()
