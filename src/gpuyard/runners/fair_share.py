"""Fair shares: orders waiting jobs so that repositories that used least of their share go first. Pure.

Use counts less with time: after one half-life it counts half. The order is priority first, then jobs that are overdue,
then use divided by share, then age.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import log
from typing import NamedTuple

from gpuyard.runners.records import GpuUse

HOUR = timedelta(hours=1)


def account(repository: str, gpus: int) -> str:
    """Return the name under which a repository's use is counted. Use without GPUs has an account of its own, since
    nobody waits for a GPU because of it."""
    return repository.lower() if gpus else f"without gpus {repository.lower()}"


def decayed(used: Iterable[GpuUse], now: datetime, half_life: timedelta) -> dict[str, float]:
    """Sum up use: `account` -> GPU-hours, or hours without GPUs, of which those of one half-life ago count half. Use
    that is not over is left out: the planner counts that with all that it may still take."""
    hours_by_account: dict[str, float] = defaultdict(float)
    scale = half_life / HOUR / log(2)
    for use in used:
        if use.end is not None and use.start < use.end <= now:
            weight = 2 ** ((use.end - now) / half_life) - 2 ** ((use.start - now) / half_life)
            hours_by_account[account(use.repository, use.gpus)] += max(use.gpus, 1) * scale * weight
    return dict(hours_by_account)


def factor(hours: float, share: int, all_hours: float, all_shares: int) -> float:
    """Return the fair-share factor, from 1 (has used nothing) over 0.5 (has used just its share of what all have used)
    down to 0: the higher goes first. Only shown to people: the order follows from ``hours / share`` alone."""
    if all_hours <= 0:
        return 1.0
    return float(2 ** -((hours / all_hours) / (share / all_shares)))


class QueueEntry(NamedTuple):
    """A job or runner that has GPUs or waits for them. Entries sort by priority, then by age."""

    rank: int
    """Its priority, negative: the least goes first."""
    queued: float
    """Seconds since the epoch."""
    id: str
    repository: str
    """Its `account`."""
    pool: str
    """The pool of its first choice."""
    share: int
    hours: float
    """GPU-hours that it takes at most."""
    waits: bool


def in_order(turns: Iterable[QueueEntry], used: Mapping[str, float], overdue: float) -> list[str]:
    """Return the ids of those that wait, in the order of their turns: by priority, then those queued before `overdue`,
    the oldest first, then by what its repository has used of its share, then by age.

    A repository's use is what it used before, and all that its own line in a pool takes before this entry: older ones,
    whether they run or wait. So repositories take turns however many jobs one of them has, and it makes no difference
    to the order whether an entry that waits has been given a runner in the meantime.
    """
    ranked: list[tuple[int, bool, float, float, str]] = []
    taken: dict[tuple[str, str], float] = {}
    for rank, queued, id, repository, pool, share, takes, waits in sorted(turns):
        line = (repository, pool)
        hours = taken.get(line)
        if hours is None:
            hours = used.get(repository, 0.0)
        if waits:
            late = queued <= overdue
            ranked.append((rank, not late, 0.0 if late else hours / share, queued, id))
        taken[line] = hours + takes
    ranked.sort()
    return [entry[-1] for entry in ranked]
