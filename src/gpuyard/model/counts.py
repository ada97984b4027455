"""Counters and histograms of events since the process began, for metrics. A restart begins at zero; nothing is
stored."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import Dict, Iterable, List, Sequence, Tuple

SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Histogram bounds in seconds for answers of programs."""


class Counts:
    """Counters by labels. Safe to use from several threads."""

    def __init__(self, zeros: Iterable[Tuple[str, ...]] = ()) -> None:
        """`zeros`: labels that are shown before they have been counted, since a rate needs a zero to begin from."""
        self._counts = dict.fromkeys(zeros, 0)
        self._lock = threading.Lock()

    def add(self, *what: str) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + 1

    def know(self, *what: str) -> None:
        """Show these labels from now on, also while nothing has been counted."""
        with self._lock:
            self._counts.setdefault(what, 0)

    def all(self) -> Dict[Tuple[str, ...], int]:
        with self._lock:
            return dict(self._counts)


class Durations:
    """Durations counted by bounds, as in a histogram. Safe to use from several threads."""

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        """`bounds` in seconds, rising."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._total += seconds

    def read(self) -> Tuple[List[Tuple[str, float]], float]:
        """Return buckets, each its upper bound and how many were not above it; and the sum in seconds. All of one
        moment."""
        with self._lock:
            counts, total = list(self._counts), self._total
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(counts))), total
