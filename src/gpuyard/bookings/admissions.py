"""Measures how long answers to requests for bookings took since the process began, for metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from gpuyard.bookings.errors import RefusedError
from gpuyard.model.counts import Durations
from gpuyard.model.errors import ForbiddenError


class Admissions:
    """Durations of the ledger's answers, by outcome. Safe to use from several threads."""

    def __init__(self, steady: Callable[[], float] = monotonic) -> None:
        """`steady`: seconds by a clock that only goes forward."""
        self._steady = steady
        self._seconds = {outcome: Durations() for outcome in ("taken", "refused", "failed")}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure one answer: taken (booked, on the waitlist, or waiting for approval) if nothing is raised."""
        began, outcome = self._steady(), "failed"
        try:
            yield
            outcome = "taken"
        except (RefusedError, ForbiddenError):
            outcome = "refused"
            raise
        finally:
            self._seconds[outcome].add(self._steady() - began)

    def seconds(self) -> Mapping[str, Durations]:
        """Return durations by outcome: ``taken``, ``refused``; ``failed``: neither, as when the database is away."""
        return self._seconds
