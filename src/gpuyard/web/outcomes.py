"""Counts outcomes of requests that programs send, for the metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpuyard.web.problems import Refusal

TAKEN = "taken"


class Outcomes:
    """Outcomes of one kind of request since the start. Safe to use from several threads."""

    def __init__(self, what: str, refusals: Sequence[str]) -> None:
        """`what`: the thing that is sent; `refusals`: codes of problems that are counted from zero on."""
        self.what = what
        self._counts = Counter(dict.fromkeys((TAKEN, *refusals), 0))
        self._lock = threading.Lock()

    def add(self, outcome: str) -> None:
        """Count TAKEN, or the code of the problem that a request is refused with."""
        with self._lock:
            self._counts[outcome] += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one request: as taken, if no Refusal is raised."""
        try:
            yield
        except Refusal as refusal:
            self.add(refusal.code)
            raise
        self.add(TAKEN)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
