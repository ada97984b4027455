"""Figures of runners over the last days: time to start, failures by cause, GPU-hours. Computed every 30 seconds at
most, whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from gpuyard.runners.records import Cause, GpuUse
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.transitions import FAILURES
from gpuyard.web.shared import Shared

WAITS, USES = timedelta(days=7), timedelta(days=30)
"""Periods of the figures: for times to start and failures, and for GPU-hours."""
AGAIN = timedelta(seconds=30)
"""The same answer is given for this long."""
MOST_REPOSITORIES = 20


@dataclass(frozen=True)
class Figures:
    started: int
    """Jobs that got a runner in the last WAITS; the next two are seconds from GitHub's queue to there."""
    p50: float | None
    p95: float | None
    ended: int
    """Runners that ended in the last WAITS."""
    failures: Mapping[Cause, int]
    """Of these, the failed ones, the most frequent cause first."""
    gpu_hours: Sequence[tuple[str, float]]
    """Repository and GPU-hours of its runners in the last USES, the most first; at most MOST_REPOSITORIES."""
    all_gpu_hours: float


class FigureCache:
    """The latest figures. Safe to use from several threads."""

    def __init__(self, store: RunnerStore, now: Callable[[], datetime]) -> None:
        self._shared: Shared[None, Figures] = Shared(lambda _, moment: reckon(store, moment), AGAIN, now)

    def figures(self) -> Figures:
        """Return the latest figures. Raises StoreError."""
        return self._shared.of(None)


def reckon(store: RunnerStore, now: datetime) -> Figures:
    waits = sorted(job.waited for job in store.started(now - WAITS))
    causes = Counter(runner.cause for runner in store.ended(now - WAITS))
    hours = gpu_hours(store.used(now - USES), now - USES, now)
    return Figures(
        started=len(waits),
        p50=percentile(waits, 50),
        p95=percentile(waits, 95),
        ended=causes.total(),
        failures={cause: count for cause, count in causes.most_common() if cause in FAILURES},
        gpu_hours=hours[:MOST_REPOSITORIES],
        all_gpu_hours=sum(amount for _, amount in hours),
    )


def gpu_hours(used: Iterable[GpuUse], since: datetime, now: datetime) -> list[tuple[str, float]]:
    """Return repository and the GPU-hours of its runners in [since, now), the most first. Warm ones without a job count
    for the repository ""."""
    hours_by_repository: dict[str, float] = {}
    for use in used:
        hours_by_repository[use.repository] = hours_by_repository.get(use.repository, 0.0) + use.gpu_hours(since, now)
    return sorted(hours_by_repository.items(), key=lambda item: (-item[1], item[0]))


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile of sorted values by nearest rank: that much of them is not above it. None when there are no
    values."""
    return values[max(0, ceil(len(values) * percent / 100) - 1)] if values else None
