"""What must hold for every plan of runners, in worlds made up at random."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuyard.model.booking import Lane
from gpuyard.runners.planner import plan
from gpuyard.runners.records import Job, JobState, RunnerState, ServerChoice
from gpuyard.runners.resolve import IdleRunners
from gpuyard.runners.view import ChangeLease, CreateRunner, RunnerPlan, RunnerView, SetDemand
from tests.support.runner_world import (
    HOUR,
    MINUTE,
    NOON,
    SCOPE,
    V100,
    RunnerWorld,
    job,
    lanes_of,
    site_runners,
    wanted,
)

REPOSITORIES = ("acme/a", "acme/b", "acme/c")
CHOICES = (
    (V100,),
    (V100,),
    (ServerChoice("v100", "v100.2", "ubuntu", 2),),
    (ServerChoice("v100", "v100.pair", "ubuntu", 2, same_group=True),),
    (ServerChoice("a100", "a100.1", "ubuntu"), V100),
    (ServerChoice("v100", "v100.2", "ubuntu", 2), ServerChoice("a100", "a100.1", "ubuntu")),
)
LIMITS = st.none() | st.integers(2, 5)
LENGTHS = st.integers(1, 180).map(lambda minutes: minutes * MINUTE)


@st.composite
def sites(draw: st.DrawFn) -> dict[str, Any]:
    sets = {"cuda": {"flavors": ["v100.1"], "images": ["ubuntu"]}}
    limits = {"most": draw(LIMITS), "share": draw(st.integers(1, 3))}
    return {
        "most": draw(LIMITS),
        "sets": {"cuda": {**sets["cuda"], "most": draw(LIMITS)}},
        "repositories": {"acme/a": limits} if draw(st.booleans()) else {},
    }


@st.composite
def jobs(draw: st.DrawFn, number: int) -> tuple[Job, timedelta]:
    scale_set = draw(st.sampled_from(["", "", "cuda"]))
    what = wanted(
        *(draw(st.sampled_from(CHOICES)) if not scale_set else (V100,)),
        longest=draw(st.sampled_from([HOUR, 2 * HOUR, 5 * HOUR])),
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        preemptible=draw(st.booleans()),
    )
    labels = ("cuda",) if scale_set else draw(st.sampled_from([("gpu",), ("GPU", "big"), (f"gpu--{number}",)]))
    queued_job = job(
        number,
        draw(st.sampled_from(REPOSITORIES)),
        queued=NOON + draw(st.integers(-13 * 60, 30)) * MINUTE,
        labels=labels,
        scale_set=scale_set,
        spec=what,
    )
    return queued_job, draw(LENGTHS)


@st.composite
def worlds(draw: st.DrawFn, most_jobs: int = 14) -> RunnerWorld:
    """With bookings, and jobs of which some come later."""
    hosts = draw(st.lists(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=4), min_size=1, max_size=3))
    lanes = lanes_of("v100", hosts)
    lanes += lanes_of("a100", [[1] * draw(st.integers(1, 2))], first=100)
    world = RunnerWorld(site_runners(**draw(sites())), lanes)
    for lane in lanes:
        for start, hours in draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=2)):
            world.book(lane.pool, lane.id, NOON + start * HOUR, NOON + (start + hours) * HOUR)
    for number in range(draw(st.integers(1, most_jobs))):
        world.queue(*draw(jobs(number)))
    cuda = wanted(kind="cuda")
    if draw(st.booleans()):
        world.extra["sets"] = [
            SetDemand("cuda", SCOPE, cuda, assigned=draw(st.integers(0, 12)), waiting=draw(st.integers(0, 5)))
        ]
    if draw(st.booleans()):
        world.extra["idle"] = [
            IdleRunners(SCOPE, "", "cuda", ("cuda",), cuda, draw(st.integers(0, 3))),
            IdleRunners(SCOPE, "acme/a", "", ("gpu",), wanted(CHOICES[4][0], V100), draw(st.integers(0, 3))),
        ]
    return world


def of_view(view: RunnerView, shuffle: random.Random) -> RunnerView:
    """The same, told in another order."""

    def mixed(some: Sequence[Any]) -> list[Any]:
        return shuffle.sample(list(some), len(some))

    rooms = {name: replace(room, lanes=tuple(mixed(room.lanes))) for name, room in mixed([*view.rooms.items()])}
    return replace(
        view,
        jobs=mixed(view.jobs),
        runners=mixed(view.runners),
        rooms=rooms,
        leases=dict(mixed([*view.leases.items()])),
        idle=mixed(view.idle),
        sets=mixed(view.sets),
    )


def passing(world: RunnerWorld, chance: random.Random, steps: int) -> None:
    """Time passes, and plans are made; GitHub gives jobs as it likes."""
    boots, deletes = chance.randrange(1, 20) * MINUTE, chance.randrange(1, 6) * MINUTE
    for _ in range(steps):
        world.plan()
        check_limits(world)
        world.tick(world.now + chance.randrange(1, 3) * MINUTE, boots, deletes, chance.choice)


def check_limits(world: RunnerWorld) -> None:
    gpus: Counter[str] = Counter()
    for runner in world.runners.values():
        if runner.state not in (RunnerState.GONE, RunnerState.FAILED):
            whose = world.jobs[runner.job].repository if runner.job else runner.for_repository
            for name in ("all", f"set {runner.scale_set}", whose):
                gpus[name] += runner.choice.gpus
    site = world.site
    assert site.most is None or gpus["all"] <= site.most
    most = site.sets["cuda"].most
    assert most is None or gpus["set cuda"] <= most


def check_queue(view: RunnerView, runner_plan: RunnerPlan) -> None:
    """Each queued job is in the queue once, with a reason; those that wait are numbered by pool, without gaps."""
    queued = [job.id for job in view.jobs if job.state is JobState.QUEUED]
    assert sorted(place.job for place in runner_plan.queue) == sorted(queued)
    numbers = defaultdict(list)
    for place in runner_plan.queue:
        assert place.reason
        if place.position:
            numbers[place.pool].append(place.position)
    assert all(some == list(range(1, len(some) + 1)) for some in numbers.values())


def check_creations(world: RunnerWorld, runner_plan: RunnerPlan) -> None:
    """No GPU that is not there, no job with two runners made for it by one plan, or one made while another waits."""
    made = [step for step in runner_plan.steps if isinstance(step, CreateRunner)]
    lanes: Counter[str] = Counter()
    for step in made:
        lanes[step.choice.pool] += 1 if step.choice.same_group else step.choice.gpus
    for pool, many in lanes.items():
        assert many <= len(world.lanes[pool]) - world.lanes_taken(pool)
    own = [step.for_job for step in made if step.for_job]
    waiting = {
        runner.for_job
        for runner in world.runners.values()
        if runner.state in (RunnerState.REQUESTED, RunnerState.REGISTERING, RunnerState.IDLE)
    }
    assert len(own) == len({*own})
    assert not {*own} & {job_id for job_id in waiting if job_id and world.jobs[job_id].state is JobState.QUEUED}


def _waits_for_jobs(step: object) -> bool:
    return isinstance(step, CreateRunner) and not step.for_job and not step.scale_set


@given(worlds(), st.integers(0, 2**32), st.integers(0, 80))
@settings(max_examples=60)
def test_every_plan(world: RunnerWorld, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    passing(world, chance, steps)
    view = world.view()
    runner_plan = plan(view, world.now)
    check_queue(view, runner_plan)
    check_creations(world, runner_plan)
    assert plan(of_view(view, chance), world.now) == runner_plan
    world.refused.clear()
    world.plan()
    if not world.refused:
        again = plan(world.view(), world.now).steps
        # Whether a new runner that waits for jobs may have to make way is known once it is there. And one that could
        # take a job with its labels serves that job from then on, so that another one may wait in its place.
        assert all(isinstance(step, ChangeLease) or _waits_for_jobs(step) for step in again)
        for _ in range(3):
            world.plan()
        assert world.refused or plan(world.view(), world.now).steps == ()


@given(worlds(), st.integers(0, 2**32))
@settings(max_examples=30)
def test_every_job_that_can_run_runs_once(world: RunnerWorld, seed: int) -> None:
    """Whatever GitHub does with the runners; and nothing is left over."""
    chance = random.Random(seed)
    fitting = {job.id for job in world.jobs.values() if can_run(world, job)}
    for _ in range(600):
        if all(job.state is JobState.COMPLETED for job in world.jobs.values() if job.id in fitting):
            break
        passing(world, chance, 10)
    world.extra.clear()
    assert fitting <= world.ran.keys()  # others may have got a runner that was not made for them
    assert set(world.ran.values()) <= {1}
    passing(world, chance, 12)
    assert {runner.state for runner in world.runners.values()} <= {RunnerState.GONE}
    assert world.leases == {}


@st.composite
def lines(draw: st.DrawFn) -> RunnerWorld:
    """One repository's jobs for one GPU each, so that nothing but the room decides who goes when."""
    lanes = lanes_of("v100", [[1] * draw(st.integers(1, 3))])
    world = RunnerWorld(site_runners(), lanes)
    for lane in lanes:
        for start, hours in draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=2)):
            world.book(lane.pool, lane.id, NOON + start * HOUR, NOON + (start + hours) * HOUR)
    for number in range(draw(st.integers(2, 8))):
        longest = draw(st.sampled_from([HOUR, 2 * HOUR, 5 * HOUR]))
        length = draw(st.integers(1, 400)) * MINUTE
        queued = NOON - number * MINUTE
        world.queue(job(number, queued=queued, labels=(f"gpu--{number}",), spec=wanted(longest=longest)), length)
    return world


@given(lines(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_nobody_is_delayed_by_who_is_behind(world: RunnerWorld, seed: int) -> None:
    """Who is first in the queue gets its runner when it was told to at the latest, though shorter ones go before."""
    chance = random.Random(seed)
    promised: dict[str, datetime] = {}
    number = 100
    while any(job.state is not JobState.COMPLETED for job in world.jobs.values() if int(job.id[11:]) < 100):
        made = world.plan()
        # What a plan says beside what it makes is of before admission, which may choose other lanes than it meant.
        creates = any(isinstance(step, CreateRunner) for step in made.steps)
        for place in made.queue:
            if place.position == 1 and place.start is not None:
                assert place.start <= promised.get(place.job, place.start) + 2 * MINUTE  # a plan is made every two
                if not creates:
                    promised.setdefault(place.job, place.start)
        if chance.random() < 0.2:
            number += 1
            what = wanted(longest=chance.choice([HOUR / 2, HOUR, 5 * HOUR]))
            world.queue(job(number, queued=world.now, labels=(f"gpu--{number}",), spec=what), HOUR / 3)
        world.tick(world.now + 2 * MINUTE, 5 * MINUTE, MINUTE, chance.choice)
        assume(not world.refused)  # admission may choose another lane for one than the plan had in mind


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=15)
def test_nobody_starves(seed: int, gpus: int) -> None:
    """Though ever new repositories that have used nothing come with ever new jobs, more than there is room for."""
    chance = random.Random(seed)
    world = RunnerWorld(site_runners(), lanes_of("v100", [[1, 1, 1]]))
    world.extra["used"] = {"acme/heavy": 10_000.0}
    big = wanted(ServerChoice("v100", "v100.n", "ubuntu", gpus))
    world.queue(job("heavy", "acme/heavy", labels=("big",), spec=big), HOUR)
    number = 0
    while not world.ran["github.com/heavy"]:
        assert world.now < NOON + 16 * HOUR
        world.plan()
        while sum(job.state is JobState.QUEUED for job in world.jobs.values()) < 6:
            number += 1
            world.queue(
                job(number, f"acme/new{number}", world.now, labels=("small",)), chance.randrange(10, 60) * MINUTE
            )
        world.tick(world.now + 3 * MINUTE, 5 * MINUTE, MINUTE, chance.choice)


def can_run(world: RunnerWorld, job: Job) -> bool:
    assert job.spec is not None
    rules = world.site.rules(job.repository, job.scale_set)
    caps = [world.site.most, world.site.sets["cuda"].most if job.scale_set else None]
    caps += [rules.most if rules.origins.get("most", "").startswith("repository") else None]
    return any(
        has_host(world.lanes[choice.pool], choice) and all(cap is None or choice.gpus <= cap for cap in caps)
        for choice in job.spec.choices
    )


def has_host(lanes: Sequence[Lane], choice: ServerChoice) -> bool:
    if choice.same_group:
        return any(lane.size == choice.gpus for lane in lanes)
    return max(Counter(lane.host for lane in lanes).values()) >= choice.gpus
