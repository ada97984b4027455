"""How long GPUs idled while jobs waited for them, and how long jobs waited, after a storm.

What counts is told by the outside: GitHub's times of jobs, and the ledger's lanes (which GPU which runner or booking
had, and when). A lane idles at a moment when no job runs on it, nobody has booked it, and a job waits that it could
serve: one more than there are runners on their way, where nobody has leased it. It could serve none that needs a larger
group, or more GPUs than are free on its host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gpuyard.model.booking import Lane

SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Worked:
    """One job at GitHub."""

    pool: str
    queued: datetime
    begun: datetime | None
    """None: it never ran; `ended` is when it was over then."""
    ended: datetime
    runner: str = ""
    gpus: int = 1
    same_group: bool = False


@dataclass(frozen=True)
class Leased:
    """A lane that was somebody's."""

    lane: int
    start: datetime
    end: datetime
    runner: str = ""
    """Empty: it was booked."""


class IdleTime(NamedTuple):
    """A time that a lane idled while a job waited for it."""

    lane: int
    end: datetime
    seconds: float
    """Those of it in which a job waited: it may have begun earlier."""


def idle_times(pool: str, lanes: Sequence[Lane], leases: Iterable[Leased], jobs: Iterable[Worked]) -> list[IdleTime]:
    """Each time that a lane of a pool idled while a job waited for it."""
    mine = [job for job in jobs if job.pool == pool]
    if not mine:
        return []
    on = defaultdict(list)
    for lease in leases:
        on[lease.lane].append(lease)
    ran = {job.runner: job for job in mine if job.begun is not None}
    begin, end = min(job.queued for job in mine), max(job.ended for job in mine)
    times: list[IdleTime] = []
    idle: dict[int, int] = {}
    moment = begin
    while moment <= end:
        waiting = [job for job in mine if job.queued <= moment < (job.begun or job.ended)]
        states = {lane.id: _state(on[lane.id], ran, moment) for lane in lanes}
        coming = sum(state == "leased" for state in states.values())
        free = max(0, len(waiting) - coming)
        room = Counter(lane.host for lane in lanes if states[lane.id] == "free")
        for each in sorted(lanes, key=lambda candidate: -idle.get(candidate.id, 0)):
            lane = each.id
            counts = states[lane] == "leased" and bool(waiting)
            if states[lane] == "free" and free and sum(_fits(job, each, room) for job in waiting) > coming:
                counts, free = True, free - 1
            if counts:
                idle[lane] = idle.get(lane, 0) + 1
            elif lane in idle:
                times.append(IdleTime(lane, moment, float(idle.pop(lane))))
        moment += SECOND
    return times + [IdleTime(lane, moment, float(seconds)) for lane, seconds in idle.items()]


def _fits(job: Worked, lane: Lane, room: Mapping[str, int]) -> bool:
    """Whether a lane that is free is of use to a job; `room`: free lanes of each host."""
    return lane.size >= job.gpus if job.same_group else room[lane.host] >= job.gpus


def _state(leases: Sequence[Leased], ran: Mapping[str, Worked], moment: datetime) -> str:
    """``busy``, ``leased`` to a runner without a job, or ``free``."""
    for lease in leases:
        if lease.start <= moment < lease.end:
            job = ran.get(lease.runner)
            works = job is not None and job.begun is not None and job.begun <= moment < job.ended
            return "busy" if works or not lease.runner else "leased"
    return "free"


def part(values: Sequence[float], of: float) -> float:
    """The smallest value that `of` of all do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-of * len(ordered) // 1) - 1))] if ordered else 0.0


def spread(values: Sequence[float]) -> str:
    return f"{len(values)}: p50 {part(values, 0.5):.0f} s, p95 {part(values, 0.95):.0f} s, most {part(values, 1):.0f} s"
