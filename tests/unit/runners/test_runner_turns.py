"""A process that keeps runners is stopped for a while, and wakes when another one has taken over: what it was about to
do is left out."""

from __future__ import annotations

from pathlib import Path

from gpuyard.runners.records import Cause, RunnerState
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.transitions import become
from gpuyard_lab.github.records import JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook


def opened(folder: Path) -> SimulatedRunners:
    world = SimulatedRunners(folder, sets=False)
    cirun_repository(world)
    hook(world)
    return world


def test_nova_is_asked_for_no_server_of_a_runner_that_another_process_has_ended(tmp_path: Path) -> None:
    world = opened(tmp_path)
    other = RunnerStore(world.ledger.database)
    ended: list[str] = []

    def between(what: str) -> None:
        if what == "before put_runner" and not ended:
            (runner,) = other.runners()
            assert runner.state is RunnerState.REQUESTED
            ended.append(runner.name)
            other.put_runner(become(runner, RunnerState.DELETING, world.clock(), Cause.NOT_NEEDED, "interrupted"))

    world.between = between
    (id,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    world.until(world.at_rest)
    server_names = [server.wish.name for server in world.nova.servers.values()]
    assert ended
    assert ended[0] not in server_names
    assert len(world.nova.posts) == 1, "that of the next runner"
    assert world.job(id).conclusion == "success", world.report()
    assert not world.github.forge.runners


def test_the_rest_of_a_run_is_left_out_when_the_turn_was_lost_in_it(tmp_path: Path) -> None:
    world = opened(tmp_path)
    taken: list[str] = []

    def between(what: str) -> None:
        if what == "after take" and not taken:
            taken.append(what)
            world.ledger.upkeep.leadership.resign()

    world.between = between
    run = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60), JobOrder(("cirun-gpu",), 60)])
    world.until(lambda: bool(taken))
    assert "this process no longer leads runners; the rest of this run is left out" in world.problems[0]
    world.until(world.at_rest)
    assert [world.job(id).conclusion for id in run.jobs] == ["success", "success"], world.report()
    assert len(world.nova.posts) == 2
