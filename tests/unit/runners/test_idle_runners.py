"""How long a runner that nobody needs keeps a GPU: what GitHub lost is asked for, and a restart begins nothing anew.

That a runner which idles for a minute is a sign: GitHub gives a job to a runner that is online and idle, and queues it
again when that one does not pick it up within 60 s (github/docs, content/actions/reference/runners/
self-hosted-runners.md, on routing).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.planner import SPARE
from gpuyard.runners.records import RunnerState
from gpuyard_lab.github.records import JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook


def deaf(world: SimulatedRunners) -> None:
    """No webhook arrives any more."""
    world._deliver = lambda: world.github.hooks.take_due() and None  # type: ignore[method-assign,assignment]


def state_of(world: SimulatedRunners) -> list[RunnerState]:
    return [runner.state for runner in world.store.runners()]


def cancelled_unheard(folder: Path) -> SimulatedRunners:
    """A runner boots for a job that is cancelled, and nobody tells us."""
    world = SimulatedRunners(folder, sets=False)
    cirun_repository(world)
    hook(world)
    (job,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 600)]).jobs
    world.until(lambda: RunnerState.REGISTERING in state_of(world))
    deaf(world)
    with world.github.forge.lock:
        world.github.forge.cancel(world.job(job))
    world.until(lambda: RunnerState.IDLE in state_of(world))
    return world


def test_a_job_for_which_a_runner_idles_is_asked_for_after_a_minute(tmp_path: Path) -> None:
    world = cancelled_unheard(tmp_path)
    online, limit = world.clock(), timedelta(minutes=1, seconds=30)
    world.until(lambda: not world.store.jobs())
    assert world.clock() - online <= limit
    world.until(lambda: not world.ledger.leases.current())
    assert world.clock() - online <= limit + SPARE + timedelta(seconds=20)


def test_a_job_that_github_still_has_is_asked_for_again_and_loses_nothing(tmp_path: Path) -> None:
    """Its webhook was not lost: GitHub just gives it to nobody yet."""
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    (job,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    forge, give = world.github.forge, world.github.forge.job_for
    forge.job_for = lambda runner: None  # type: ignore[method-assign]
    world.until(lambda: RunnerState.IDLE in state_of(world))
    for _ in range(60):
        world.step()
    assert state_of(world) == [RunnerState.IDLE]
    forge.job_for = give  # type: ignore[method-assign]
    world.until(world.at_rest)
    assert world.job(job).conclusion == "success"
    assert len(world.nova.posts) == 1


@pytest.mark.parametrize("after", [30, 90])
def test_a_restart_does_not_give_a_spare_runner_its_time_again(tmp_path: Path, after: float) -> None:
    world = cancelled_unheard(tmp_path)
    world.until(lambda: not world.store.jobs())
    spare = world.clock()
    world.step(after)
    world.kill()
    world.until(lambda: not world.ledger.leases.current())
    assert world.clock() - spare <= SPARE + timedelta(seconds=20)
