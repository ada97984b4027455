"""The planner of runners: ten thousand queued jobs at once, and a month of bookings with jobs in their gaps.

python -m bench.runners
"""

from __future__ import annotations

import gc
import random
import sys
from datetime import timedelta

from tests.support.runner_world import (
    HOUR,
    MINUTE,
    NOON,
    RunnerWorld,
    job,
    lanes_of,
    lease,
    runner,
    site_runners,
    wanted,
)

from bench.table import Measured, finish, milliseconds, show
from gpuyard.runners.planner import plan
from gpuyard.runners.records import JobState, RunnerState, ServerChoice, Wanted
from gpuyard.runners.view import RunnerView
from gpuyard.store.times import seconds

S = RunnerState
JOBS, RUNNERS, REPOSITORIES = 10_000, 1_000, 400
POOLS = {"v100": 400, "a100": 500, "t4": 300, "h100": 100}
"""Pool -> GPUs, eight to a host."""
LONGEST = (HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR)
LIMIT_PLAN_MS = 200
RUNS = 15


def main() -> None:
    queue()


def queue() -> None:
    """A thousand runners at work, nearly all GPUs taken or booked, ten thousand jobs of several shapes that wait."""
    view = full_site(random.Random(5))
    found = plan(view, NOON)
    assert len(found.queue) == JOBS
    gc.collect()
    rows = [
        Measured("plan", "ms", milliseconds(lambda: plan(view, NOON), RUNS), LIMIT_PLAN_MS),
        Measured("runners to make by it", "", [sum(place.position == 0 for place in found.queue)]),
    ]
    show(f"{JOBS} queued jobs of {REPOSITORIES} repositories, {RUNNERS} runners, {sum(POOLS.values())} GPUs", rows)


def full_site(chance: random.Random) -> RunnerView:
    lanes = [
        lane
        for number, (pool, gpus) in enumerate(POOLS.items())
        for lane in lanes_of(pool, [[1] * 8] * (gpus // 8), first=10_000 * number)
    ]
    limits = {f"acme/r{number}": {"most": 20, "share": 1 + number % 3} for number in range(0, REPOSITORIES, 4)}
    world = RunnerWorld(site_runners(repositories=limits), lanes)
    free = list(lanes)
    chance.shuffle(free)
    for number in range(RUNNERS):
        lane = free.pop()
        end = NOON + chance.randrange(10, 700) * MINUTE
        what = choices(chance, lane.pool)
        one = runner(
            f"busy{number}",
            S.BUSY,
            NOON - HOUR,
            job=f"github.com/busy{number}",
            wanted=what,
            choice=what.choices[0],
            until=end - 10 * MINUTE,
        )
        running = job(f"busy{number}", repository(chance), NOON - HOUR, state=JobState.RUNNING, runner=one.name)
        world.jobs[running.id] = running
        world.runners[one.name] = one
        world.leases[one.lease] = lease(one, end, (lane.id,))
        world.tables[lane.pool].add(lane.id, seconds(one.created), seconds(end))
    for lane in lanes:
        begin = NOON + chance.randrange(0, 40) * HOUR
        world.book(lane.pool, lane.id, begin, begin + chance.randrange(2, 48) * HOUR)
    for number in range(JOBS):
        what = choices(chance, chance.choice(list(POOLS)))
        queued = NOON - chance.randrange(0, 18 * 3600) * timedelta(seconds=1)
        labels = (f"cirun-gpu--{number}",) if number % 2 else ("gpu",)
        world.queue(job(number, repository(chance), queued, wanted=what, labels=labels))
    return world.view()


def repository(chance: random.Random) -> str:
    """A few have most of the jobs."""
    return f"acme/r{int(REPOSITORIES * chance.random() ** 3)}"


def choices(chance: random.Random, pool: str) -> Wanted:
    gpus = chance.choices((1, 2, 4), (90, 7, 3))[0]
    first = ServerChoice(pool, f"{pool}.{gpus}", "ubuntu", gpus)
    other = ServerChoice("t4", "t4.1", "ubuntu")
    some = (first, other) if chance.random() < 0.1 and pool != "t4" else (first,)
    return wanted(*some, longest=chance.choice(LONGEST), priority=chance.choice((0, 0, 0, 1)))


if __name__ == "__main__":
    main()
    sys.exit(finish())
