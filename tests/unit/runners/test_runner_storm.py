"""Jobs, runners, servers and leases together, with a simulated clock: nothing is lost and nothing stays behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard_lab.github.faults import STORM, FaultRates
from gpuyard_lab.github.records import JobOrder
from tests.support.runner_storm import wronged
from tests.support.simulated_runners import Killed, Mishaps, SimulatedRunners, cirun_repository, hook

SEEDS = int(os.environ.get("GPUYARD_TEST_SEEDS", "8"))
"""How many storms; the first alone is no slow test."""
MISHAPS = Mishaps(refused=0.02, reply_lost=0.02, no_host=0.03, error=0.03, silent=0.03, bad_gpu=0.01)


def test_a_job_of_a_scale_set_runs_and_leaves_nothing(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    (id,) = world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60)]).jobs
    world.until(world.at_rest)
    job = world.job(id)
    assert job.conclusion == "success", world.report()
    assert len(job.tries) == 1
    assert [runner.name for runner in world.store.runners(over=True)] == [job.tries[0].runner]
    assert f"did {id}" in world.store.log(job.tries[0].runner)


def test_a_job_of_a_webhook_runs_and_leaves_nothing(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    run = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60), JobOrder(("ubuntu-latest",), 5)])
    mine, other = run.jobs
    world.until(lambda: world.job(mine).status == "completed" and not world.left_over())
    assert world.job(mine).conclusion == "success", world.report()
    assert world.our_job(world.job(other)) is None


def storm(
    folder: Path,
    seed: int,
    jobs: int,
    rates: FaultRates = STORM,
    mishaps: Mishaps = MISHAPS,
    kills: int = 5,
    url: str = "",
) -> SimulatedRunners:
    """So many jobs, half by webhook and half for the scale set, while everything goes wrong that can; to the end."""
    world = SimulatedRunners(folder, seed, rates, mishaps, url)
    for name in ("science", "art", "music"):
        cirun_repository(world, f"demo/{name}")
    hook(world)
    killer = random.Random(f"kills {seed}")

    def between(what: str) -> None:
        if world.deaths < kills and killer.random() < kills / (jobs * 20):
            raise Killed(what)

    world.between = between
    order = random.Random(f"jobs {seed}")
    made = 0
    while made < jobs:
        many = min(order.randint(1, 8), jobs - made)
        label = order.choice(["cirun-gpu", "gpuyard-v100"])
        orders = [JobOrder((label,), order.uniform(5, 300), order.choice(["success", "failure"])) for _ in range(many)]
        world.github.forge.push(f"demo/{order.choice(['science', 'art', 'music'])}", orders)
        made += many
        for _ in range(order.randint(0, 6)):
            world.step()
    world.until(world.at_rest, hours=48, seconds=30)
    return world


def check(world: SimulatedRunners) -> None:
    """Every job ran exactly once, was cancelled or taken by others at GitHub, or is reported failed with its cause."""
    assert world.left_over() == [], world.seed
    assert wronged(world.github.forge, world.store) == [], world.seed
    for pool, most in world.nova.most.items():
        assert most <= world.nova.gpus[pool], pool


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, SEEDS))])
def test_a_storm_loses_nothing_and_leaves_nothing(tmp_path: Path, seed: int) -> None:
    check(storm(tmp_path, seed, jobs=40 if seed else 10))


def one_job(folder: Path, label: str, between: Callable[[str], None]) -> SimulatedRunners:
    folder.mkdir()
    world = SimulatedRunners(folder)
    cirun_repository(world)
    hook(world)
    world.until(lambda: bool(world.github.forge.sets))
    world.between = between
    world.github.forge.push("demo/science", [JobOrder((label,), 30)])
    world.until(world.at_rest, hours=2, seconds=15)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("label", ["gpuyard-v100", "cirun-gpu"])
def test_a_kill_at_any_call_loses_nothing_and_leaves_nothing(tmp_path: Path, label: str) -> None:
    """The way of one job, once for each call that is made on it: killed there, and begun again. Of calls that are made
    over and over the first; of a runner's states all."""
    calls: list[str] = []
    check(one_job(tmp_path / "whole", label, calls.append))
    states = ("before put_runner", "after put_runner")
    places = [place for place, what in enumerate(calls) if what in states or calls.index(what) == place]
    assert len(places) > 20
    for place in places:
        left = iter([False] * place + [True])

        def between(what: str, left: Iterator[bool] = left) -> None:
            if next(left, False):
                raise Killed(what)

        world = one_job(tmp_path / str(place), label, between)
        assert world.deaths == 1, (place, calls[place])
        check(world)
        (job,) = world.github.forge.jobs.values()
        assert job.conclusion == "success", (place, calls[place])
