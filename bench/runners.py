"""The planner of runners: ten thousand queued jobs at once, and a month of bookings with jobs in their gaps.

python -m bench.runners
"""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import exp, log
from time import thread_time

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

from bench.table import Measured, finish, milliseconds, show, sized
from gpuyard.database.times import seconds
from gpuyard.runners.planner import plan
from gpuyard.runners.records import Job, JobState, Runner, RunnerState, ServerChoice, ServerSpec
from gpuyard.runners.view import RunnerView

JOBS, RUNNERS, REPOSITORIES = sized((10_000, 1_000, 400), (200, 20, 20))
POOLS = sized({"v100": 400, "a100": 500, "t4": 300, "h100": 100}, {"v100": 16, "a100": 16, "t4": 16, "h100": 8})
"""Pool -> GPUs, eight to a host."""
LONGEST = (HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR)
LIMIT_PLAN_MS = 200
RUNS = 15
MONTH_GPUS, DAYS, STEP = 8, sized(30, 2), 3 * MINUTE
"""Of the simulated month, in which a plan is made at every step."""
LEAST = 1.5
"""So many times more GPU-hours are to be used with jobs than by bookings alone."""


@dataclass(frozen=True)
class Habit:
    """How a month's GPUs are booked, for 24 to 71 hours at a time."""

    title: str
    period: int
    """Hours from the start of one booking to the start of the next on the same GPU."""
    least_used: float
    """People use a part of what they have booked that is uniformly distributed between this and 1, and end it then."""


HABITS = (
    Habit("as in bench.ledger, one in 72 h, used to their ends", 72, 1),
    Habit("as in bench.ledger, ended early: used from 0 to 100 %, as batch jobs use their limits", 72, 0),
    Habit("one in 95 h, used to their ends", 95, 1),
)
"""With the first two thirds of the time and more are used, so no jobs could make 1.5 times of it. How early people are
done with what they have booked we found no figures of, so the second is an assumption: that they use any part of it
equally often, as batch jobs roughly do of their limits (Mu'alem and Feitelson, "Utilization, Predictability, Workloads,
and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001), and end it then. Nobody
stays away altogether: the ledger would release that, too."""
MEDIAN_MINUTES, SPREAD = 12.0, log(68 / 12) / 1.2816
"""Lengths of jobs are log-normal, as a week of 2,552 CI jobs was: median 12 min, nine tenths below 68 min, the longest
18 h (alan-forbes-cp/import at GitHub, ComputeAorta/forecast/forecast_report.md). Its mean would be 30 min; theirs was
27. GPU jobs have the same form with a longer tail: Hu et al., "Characterization and Prediction of Deep Learning
Workloads in Large-Scale GPU Datacenters", SC '21."""
QUEUED = 20
"""Jobs that wait at any time: there is always something to do."""
BOOTS, DELETES = 3 * MINUTE, MINUTE


def main() -> None:
    queue()
    for habit in HABITS:
        month(habit)


def queue() -> None:
    """A thousand runners at work, nearly all GPUs taken or booked, ten thousand jobs of several shapes that wait."""
    view = full_site(random.Random(5))
    runner_plan = plan(view, NOON)
    assert len(runner_plan.queue) == JOBS
    gc.collect()
    work = []

    def once() -> None:
        began = thread_time()
        plan(view, NOON)
        work.append((thread_time() - began) * 1000)

    rows = [
        Measured("plan", "ms", milliseconds(once, RUNS), LIMIT_PLAN_MS),
        Measured("its work, whatever else the machine does", "ms", work),
        Measured("runners to make by it", "", [sum(place.position == 0 for place in runner_plan.queue)]),
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
        busy_runner = runner(
            f"busy{number}",
            RunnerState.BUSY,
            NOON - HOUR,
            job=f"github.com/busy{number}",
            spec=what,
            choice=what.choices[0],
            until=end - 10 * MINUTE,
        )
        running = job(f"busy{number}", repository(chance), NOON - HOUR, state=JobState.RUNNING, runner=busy_runner.name)
        world.jobs[running.id] = running
        world.runners[busy_runner.name] = busy_runner
        world.leases[busy_runner.lease] = lease(busy_runner, end, (lane.id,))
        world.tables[lane.pool].add(lane.id, seconds(busy_runner.created), seconds(end))
    for lane in lanes:
        begin = NOON + chance.randrange(0, 40) * HOUR
        world.book(lane.pool, lane.id, begin, begin + chance.randrange(2, 48) * HOUR)
    for number in range(JOBS):
        what = choices(chance, chance.choice(list(POOLS)))
        queued = NOON - chance.randrange(0, 18 * 3600) * timedelta(seconds=1)
        labels = (f"cirun-gpu--{number}",) if number % 2 else ("gpu",)
        world.queue(job(number, repository(chance), queued, spec=what, labels=labels))
    return world.view()


def repository(chance: random.Random) -> str:
    """A few have most of the jobs."""
    return f"acme/r{int(REPOSITORIES * chance.random() ** 3)}"


def choices(chance: random.Random, pool: str) -> ServerSpec:
    gpus = chance.choices((1, 2, 4), (90, 7, 3))[0]
    first = ServerChoice(pool, f"{pool}.{gpus}", "ubuntu", gpus)
    other = ServerChoice("t4", "t4.1", "ubuntu")
    some = (first, other) if chance.random() < 0.1 and pool != "t4" else (first,)
    return wanted(*some, longest=chance.choice(LONGEST), priority=chance.choice((0, 0, 0, 1)))


@dataclass
class Month:
    """What became of a month, in GPU-hours."""

    booked: float = 0
    used: float = 0
    """Of that."""
    jobs: float = 0
    finished: int = 0
    delayed: int = 0
    """Bookings that found the server of a job on their GPU, or in the time that is kept free before them."""


def month(habit: Habit) -> None:
    """Jobs in the gaps between bookings, with the planner, the ledger's timetable and its admission."""
    totals = simulate(random.Random(7), habit)
    whole = MONTH_GPUS * DAYS * 24
    show(
        f"A month of {MONTH_GPUS} GPUs, bookings {habit.title}",
        [
            Measured("booked", "GPU-h", [totals.booked]),
            Measured("used by those who had booked", "GPU-h", [totals.used]),
            Measured("used by jobs", "GPU-h", [totals.jobs]),
            Measured("of what bookings left", "%", [100 * totals.jobs / (whole - totals.used)]),
            Measured("used with jobs to without", "times", [(totals.used + totals.jobs) / totals.used], LEAST, True),
            Measured("at most possible", "times", [whole / totals.used]),
            Measured("jobs", "", [totals.finished]),
            Measured("bookings delayed", "", [totals.delayed], 0.5),
        ],
    )


def simulate(chance: random.Random, habit: Habit) -> Month:
    world = RunnerWorld(site_runners(), lanes_of("v100", [[1] * 8] * (MONTH_GPUS // 8)))
    totals, end = Month(), NOON + timedelta(days=DAYS)
    early: list[tuple[datetime, int, datetime, datetime]] = []
    """When a booking is ended, its lane, and its times."""
    for lane in world.lanes["v100"]:
        for number in range(-1, DAYS * 24 // habit.period + 1):
            begin = NOON + (number * habit.period + (lane.id * 5) % habit.period) * HOUR
            until = begin + (24 + (lane.id * 7919 + number * 104729) % 48) * HOUR
            if until > NOON and begin < end and world.book("v100", lane.id, begin, until):
                done = begin + chance.uniform(habit.least_used, 1) * (until - begin)
                early.append((done, lane.id, begin, until))
                totals.booked += _within(begin, until, end)
                totals.used += _within(begin, done, end)
    early.sort()
    number = 0
    while world.now < end:
        while early and early[0][0] <= world.now:
            _, lane_id, begin, until = early.pop(0)
            if world.now < until:
                world.end_booking("v100", lane_id, begin, until)
        for _ in range(QUEUED - sum(other.state is JobState.QUEUED for other in world.jobs.values())):
            number += 1
            world.queue(*next_job(chance, number, world.now))
        world.plan()
        before = dict(world.runners)
        world.tick(world.now + STEP, BOOTS, DELETES, lambda able: able[0])
        for name, previous in before.items():
            clean_up(world, name, previous, totals)
    return totals


def _within(begin: datetime, until: datetime, end: datetime) -> float:
    """Hours of the month that are in [begin, until)."""
    return max(min(until, end) - max(begin, NOON), timedelta()) / HOUR


def next_job(chance: random.Random, number: int, now: datetime) -> tuple[Job, timedelta]:
    """With its length. It states the least limit that is twice that."""
    length = min(MEDIAN_MINUTES * exp(chance.gauss(0, SPREAD)), 6 * 60) * MINUTE
    limit = next(duration for duration in LONGEST if duration >= 2 * length)
    labels = (f"cirun-gpu--{number}",)
    return job(number, repository(chance), now, spec=wanted(longest=limit), labels=labels), length


def clean_up(world: RunnerWorld, name: str, before: Runner, totals: Month) -> None:
    """Count a runner that is over, and forget it and its job."""
    current = world.runners[name]
    if current.state is not RunnerState.GONE:
        return
    kept_free = before.changed + DELETES + world.hold
    totals.delayed += sum(
        lane in world.had[name] and begin < kept_free and before.created < until
        for _, lane, begin, until in world.bookings
    )
    done = world.jobs.pop(current.job, None)
    if done is not None and current.busy is not None:
        totals.jobs += (before.changed - current.busy) / HOUR
        totals.finished += 1
    del world.runners[name]


if __name__ == "__main__":
    main()
    sys.exit(finish())
