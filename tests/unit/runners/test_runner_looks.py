"""Looks at Nova and at consoles, of which some fail: those of one server keep nobody from the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.openstack.servers import ServerError, ServerProblem
from gpuyard.runners.controllers.runners import RunnersError
from gpuyard.runners.records import Cause, Runner, RunnerState
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.simulated_runners import Mishaps, SimulatedRunners, cirun_repository, hook


def starting(folder: Path) -> tuple[SimulatedRunners, list[Runner]]:
    """Runners whose servers are ACTIVE, of which nobody has heard yet."""
    world = SimulatedRunners(folder, mishaps=Mishaps(boot=1, start=30))
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60) for _ in range(3)])
    world.until(lambda: [runner.state for runner in world.store.runners()] == [RunnerState.REGISTERING] * 3, seconds=1)
    return world, world.store.runners()


def test_a_server_that_is_off_says_itself_that_its_job_is_over(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    (id,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    world.until(lambda: [runner.state for runner in world.store.runners()] == [RunnerState.BUSY])
    world.github.forge.hooks.clear()  # nobody hears that it is over
    world.until(lambda: world.job(id).status == COMPLETED)
    world.until(lambda: not world.nova.servers, hours=1 / 60)
    (runner,) = world.store.runners(over=True) or world.store.runners()
    assert runner.cause is Cause.FINISHED


def dumb(world: SimulatedRunners, monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    """Hosts of these servers are down: Nova does not say anything of them."""
    for name in ("console", "get"):
        ask = getattr(world.nova, name)

        def asked(id: str, ask=ask) -> object:  # type: ignore[no-untyped-def]
            if id in ids:
                raise ServerError("504 its host does not answer", 504, ServerProblem.UNKNOWN)
            return ask(id)

        monkeypatch.setattr(world.nova, name, asked)


def test_a_console_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, runners = starting(tmp_path)
    controller = world.runners.controller
    dumb(world, monkeypatch, runners[0].server_id)
    controller.look_at_consoles()
    assert [controller.observer.of(runner, None).console is None for runner in runners] == [True, False, False]
    dumb(world, monkeypatch, *(runner.server_id for runner in runners))
    with pytest.raises(RunnersError, match="504"):
        controller.look_at_consoles()


def test_a_missing_server_that_cannot_be_asked_for_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, runners = starting(tmp_path)
    controller = world.runners.controller
    world.step(5)
    for vanished in runners[:2]:
        del world.nova.servers[vanished.server_id]
    dumb(world, monkeypatch, runners[0].server_id)
    controller.look_at_nova()
    assert [controller.observer.of(runner, None).gone for runner in runners] == [False, True, False]


def test_jobs_start_though_a_look_at_everything_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimulatedRunners(tmp_path)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    leases = world.ledger.leases.current

    def slowly() -> object:
        world.clock.now += timedelta(seconds=4)
        return leases()

    monkeypatch.setattr(world.ledger.leases, "current", slowly)
    (id,) = world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60)]).jobs
    world.until(lambda: world.job(id).conclusion == "success", hours=0.2)
