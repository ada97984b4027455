"""Runners whose lease a booking or a hold has ended, and runners that are to go while GitHub does not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.model.booking import Ask, BookingState, Person
from gpuyard.openstack.servers import ServerError, ServerProblem
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.records import Cause, Runner, RunnerState
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.wire import ForgeAnswer
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
SECONDS = timedelta(seconds=30)
"""Of which Nova takes ten to delete a server."""
ADA = Person("u-a", "ada", "p-physics", "physics", frozenset({"member"}))
ROOT = Person("u-r", "root", "p-admin", "admin", frozenset({"admin"}))
SET: dict[str, Any] = {"flavors": ["gpu_tiny"], "images": ["tiny"]}
EndsLeases = Callable[[SimulatedRunners], None]


def with_set(folder: Path, **rules: Any) -> SimulatedRunners:
    world = SimulatedRunners(folder, runners_rules={"sets": {"gpuyard-v100": {**SET, **rules}}})
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    return world


def in_state(world: SimulatedRunners, state: RunnerState) -> list[Runner]:
    return [runner for runner in world.store.runners() if runner.state is state]


def takes(world: SimulatedRunners) -> timedelta:
    """How long until Nova has none of the servers of now any more."""
    began, servers = world.clock(), {*world.nova.servers}
    world.until(lambda: not servers & {*world.nova.servers}, hours=0.5)
    return world.clock() - began


def book_all(world: SimulatedRunners) -> None:
    """One by one: the others of the pool are peers."""
    now, lanes = world.clock(), world.ledger.lanes("v100")
    world.ledger.create(Ask("v100", now, now + 8 * HOUR, len(lanes)), ADA)


def hold_all(world: SimulatedRunners) -> None:
    gpus = [f"{lane.host}/{gpu}" for lane in world.ledger.lanes("v100") for gpu in lane.addresses]
    world.ledger.hold(gpus, world.clock(), world.clock() + 8 * HOUR, ROOT, "a new power supply")


def offer_all(world: SimulatedRunners) -> None:
    """What others have booked comes free, and is offered, with what runners have, to somebody who waits for all."""
    now, lanes = world.clock(), world.ledger.lanes("v100")
    free = len(lanes) - len(world.ledger.leases.current())
    (booked,) = world.ledger.create(Ask("v100", now, now + 8 * HOUR, free), ROOT)
    (waiting,) = world.ledger.create(Ask("v100", now, now + 8 * HOUR, len(lanes)), ADA, wait=True)
    assert world.ledger.leases.current(), "who waits needs none of them yet"
    world.ledger.cancel(booked.id, ROOT)
    world.ledger.upkeep.advance()
    assert world.ledger.get(waiting.id).state is BookingState.OFFERED


def lack_gpus(world: SimulatedRunners) -> None:
    """As the loop of bookings does where a server has landed on a GPU that a booking must have."""
    for lease in world.ledger.leases.current():
        world.ledger.leases.end(lease.id, MADE_WAY)


def silence(world: SimulatedRunners) -> None:
    """GitHub answers nobody from now on."""
    world.github.handle = lambda request: ForgeAnswer(503, {"message": "unavailable"})  # type: ignore[method-assign]


@pytest.mark.parametrize("end_leases", [book_all, hold_all, offer_all, lack_gpus])
@pytest.mark.parametrize(("github", "limit"), [(True, SECONDS), (False, 2 * MINUTE)])
def test_an_idle_runner_that_has_lost_its_lease_goes(
    tmp_path: Path, end_leases: EndsLeases, github: bool, limit: timedelta
) -> None:
    world = with_set(tmp_path, idle=[{"count": 2}])
    world.until(lambda: len(in_state(world, RunnerState.IDLE)) == 2)
    end_leases(world)
    assert not world.ledger.leases.current()
    if not github:
        silence(world)
    assert takes(world) <= limit
    ended = [
        runner for runner in [*world.store.runners(), *world.store.runners(over=True)] if runner.cause is Cause.BOOKING
    ]
    assert {runner.reason for runner in ended} == {MADE_WAY}
    assert len(ended) == 2


def unreadable(_server: str) -> str:
    """A console, where the cloud's policy forbids it."""
    raise ServerError("POST action: 403 Policy does not allow os-console-output", 403, ServerProblem.REFUSED)


def test_a_booking_waits_for_no_console_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_set(tmp_path, idle=[{"count": 2}])
    world.until(lambda: len(in_state(world, RunnerState.IDLE)) == 2)
    monkeypatch.setattr(world.nova, "console", unreadable)
    silence(world)
    book_all(world)
    assert SECONDS < takes(world) <= 2 * MINUTE


def test_a_console_that_cannot_be_read_may_say_that_there_is_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is in a hurry: neither one that was online goes, nor one that never was, for all that is known."""
    world = with_set(tmp_path, idle=[{"count": 1}])
    world.until(lambda: bool(in_state(world, RunnerState.IDLE)))
    (idle_runner,) = world.store.runners()
    executor = world.runners.controller.executor
    silence(world)
    with monkeypatch.context() as patched:
        patched.setattr(world.nova, "console", unreadable)
        for runner in (idle_runner, replace(idle_runner, online=None)):
            with pytest.raises(GitHubError):
                executor.let_go(runner, Cause.NOT_NEEDED, "no job needs it")
    assert in_state(world, RunnerState.IDLE)
    world.nova.servers[idle_runner.server_id].console += "gpuyard-runner: job started\n"
    executor.let_go(idle_runner, Cause.NOT_NEEDED, "no job needs it")
    assert in_state(world, RunnerState.BUSY)


@pytest.mark.parametrize("github", [True, False])
def test_a_preemptible_job_makes_way_at_once(tmp_path: Path, github: bool) -> None:
    world = with_set(tmp_path, preemptible=True, longest="2 h")
    world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 7000)])
    world.until(lambda: bool(in_state(world, RunnerState.BUSY)))
    book_all(world)
    if not github:
        silence(world)
    assert takes(world) <= SECONDS
    assert not world.ledger.leases.current()


def waiting_for_a_runner(folder: Path) -> SimulatedRunners:
    """With one job, whose runner's server boots."""
    world = SimulatedRunners(folder, sets=False)
    cirun_repository(world)
    hook(world)
    world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 600)])
    world.until(lambda: bool(in_state(world, RunnerState.REGISTERING)))
    return world


def test_a_runner_that_never_came_online_goes_without_github(tmp_path: Path) -> None:
    world = waiting_for_a_runner(tmp_path)
    silence(world)
    limit = world._site.register_within + world._site.boot
    assert takes(world) <= limit + SECONDS
    (runner,) = world.store.runners()
    assert runner.cause is Cause.REGISTRATION_TIMEOUT


def test_an_idle_runner_that_nobody_needs_stays_until_github_answers(tmp_path: Path) -> None:
    """GitHub may have given it a job, and we would be the last to know."""
    world = with_set(tmp_path, idle=[{"count": 1}])
    world.until(lambda: bool(in_state(world, RunnerState.IDLE)))
    (runner,) = world.store.runners()
    executor, handle = world.runners.controller.executor, world.github.handle
    silence(world)
    for _ in range(60):
        world.step(60)
        world.runners.controller._let_go(runner, Cause.NOT_NEEDED, "no job needs it", world.clock())
    assert in_state(world, RunnerState.IDLE)
    assert world.nova.servers
    world.nova.servers[runner.server_id].console += "gpuyard-runner: job started\n"
    executor.let_go(runner, Cause.NOT_NEEDED, "no job needs it")
    assert in_state(world, RunnerState.BUSY), "its console says that it has a job"
    world.github.handle = handle  # type: ignore[method-assign]
