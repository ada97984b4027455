"""Runners that are to wait for jobs and fail, which GPUs a runner has, and what is kept in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuyard.runners.cirun.records import CirunFile
from gpuyard.runners.controllers import repositories
from gpuyard.runners.controllers.pauses import FIRST_NO_ROOM, LONGEST_GITHUB, LONGEST_NO_ROOM, Pauses
from gpuyard.runners.records import Runner, RunnerState, ServerChoice, ServerSpec
from gpuyard_lab.github.records import JobOrder
from tests.support.runner_world import lease as leased
from tests.support.simulated_runners import Clock, Mishaps, SimulatedRunners, cirun_repository

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
SINGLE, PAIR = ServerChoice("v100", "gpu_tiny", "tiny"), ServerChoice("v100", "gpu_pair", "tiny", 2, same_group=True)
SET_ON_DEMAND = {"gpuyard-v100": {"flavors": ["gpu_tiny"], "images": ["tiny"]}}
SET = {"gpuyard-v100": {"flavors": ["gpu_tiny"], "images": ["tiny"], "idle": [{"count": 1}]}}


def test_idle_runners_that_fail_are_made_again_later_each_time(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path, mishaps=Mishaps(error=1.0), runners_rules={"sets": SET})
    world.github.forge.add_repository("demo/science")
    world.until(lambda: len(world.nova.posts) >= 5, hours=0.5)
    made = [at for at, _ in world.nova.posts]
    gaps = [(late - early).total_seconds() for early, late in pairwise(made)]
    assert gaps == sorted(gaps), gaps
    assert gaps[-1] >= 240, "30 s, 1, 2 and 4 minutes"
    world.mishaps.error = 0.0
    world.until(lambda: any(runner.online for runner in world.store.runners()), hours=0.5, seconds=20)
    assert world.runners.controller._pauses.idle == {}, "who came online has made it good"


def test_pauses_for_room_begin_with_seconds_and_are_of_one_size() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    lengths = []
    for _ in range(12):
        pauses.no_room(PAIR, "No valid host was found")
        began = clock()
        for _ in range(10):
            pauses.no_room(PAIR, "those that were asked for at the same time")
        assert pauses.crowded() == {("v100", 2, True): "No valid host was found"}, "single GPUs are not paused"
        while pauses.crowded():
            clock.now += SECOND
        lengths.append(clock() - began)
    assert lengths[:4] == [FIRST_NO_ROOM * factor for factor in (1, 2, 4, 8)]
    assert lengths[-1] == LONGEST_NO_ROOM
    pauses.has_room(PAIR)
    pauses.no_room(PAIR, "again")
    clock.now += FIRST_NO_ROOM
    assert not pauses.crowded(), "the first of a row is short"


def test_one_broken_answer_of_github_stops_an_enrolment_for_a_second() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    lengths = []
    for _ in range(8):
        pauses.github_failed("demo", "HTTP 502", None)
        began = clock()
        while pauses.stopped():
            clock.now += SECOND
        lengths.append(clock() - began)
    assert lengths == [SECOND * factor for factor in (1, 2, 4, 8, 16, 32, 60, 60)]
    clock.now += LONGEST_GITHUB
    pauses.github_failed("demo", "HTTP 502", None)
    assert pauses.stopped()
    clock.now += SECOND
    assert not pauses.stopped(), "after a minute without failures it is the first again"
    pauses.github_failed("demo", "HTTP 502", None)
    pauses.github_worked("demo")
    pauses.github_failed("demo", "HTTP 502", None)
    clock.now += SECOND
    assert not pauses.stopped(), "one answer in between, and they are not in a row"
    pauses.github_failed("demo", "limit is used up", clock() + HOUR)
    pauses.github_worked("demo")  # a call that was under way
    clock.now += HOUR - SECOND
    assert pauses.stopped(), "GitHub has said when"


def test_a_job_whose_runner_found_no_room_has_another_within_seconds(tmp_path: Path) -> None:
    """Idle GPUs: the first pause was 30 s long, of the whole pool, and of the job besides."""
    world = SimulatedRunners(tmp_path, mishaps=Mishaps(no_host=1.0), runners_rules={"sets": SET_ON_DEMAND})
    world.github.forge.add_repository("demo/science")
    (id,) = world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60)]).jobs
    world.until(lambda: len(world.nova.posts) == 1, seconds=1)
    world.mishaps.no_host = 0.0
    world.until(lambda: len(world.nova.posts) == 2, seconds=1)
    (first, _), (second, _) = world.nova.posts
    assert (second - first).total_seconds() <= 10, "the server is looked at, the pause, and the next"
    job = world.our_job(world.job(id))
    assert job is not None
    assert job.tries == 0, "it is no fault of the job's"
    world.until(lambda: world.job(id).status == "completed")


def test_a_runner_names_the_gpus_that_it_has_and_not_all_of_their_group(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path)
    controller, now = world.runners.controller, world.clock()
    lane = next(lane for lane in world.ledger.lanes("v100") if lane.size > 1)
    single = ServerChoice("v100", "gpu_tiny", "tiny")
    runner = Runner(
        "r1", RunnerState.CREATING, "demo", "", (), ServerSpec("v100", (single,), HOUR), single, now, now, lease="l1"
    )
    for choice, gpus in ((single, 1), (replace(single, gpus=lane.size, same_group=True), lane.size)):
        mine = replace(runner, choice=choice)
        lease = replace(leased(mine, now + HOUR, (lane.id,)), claimed=now)
        gpu_names = controller._with_gpus(mine, lease).gpus
        assert gpu_names == tuple(f"{lane.host}/{address}" for address in lane.addresses[:gpus])


def test_what_is_known_of_repositories_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repositories, "MOST", 3)
    world = SimulatedRunners(tmp_path, sets=False)
    (client,) = world.runners.ports.clients.values()
    cache: Any = world.runners.intake._repositories
    for number in range(5):
        cirun_repository(world, f"demo/r{number}")
    for number in (*range(5), 3):
        cache.configuration(client.enrolment.name, f"demo/r{number}")
    assert [name for _, name in cache.known()] == ["demo/r2", "demo/r3", "demo/r4"]
    for name in ("demo/r8", "demo/r9"):
        cache.configuration(client.enrolment.name, name)
    assert [name for _, name in cache.known()] == ["demo/r3", "demo/r4", "demo/r9"], "one without a file is enough"
    assert all(isinstance(configuration.own, CirunFile) for configuration in cache.known().values())


def test_a_restarted_process_registers_for_a_set_whose_listener_has_no_session(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path, runners_rules={"sets": SET})
    world.github.forge.add_repository("demo/science")
    world.until(lambda: any(runner.online for runner in world.store.runners()))
    (runner,) = world.store.runners()
    world.kill()
    assert world.runners.controller.set_ids == {}, "no listener has run in this process"
    runner = replace(runner, name=f"{runner.name}x", github_id=0)
    assert world.runners.controller.executor.tools.registrar.register(runner).id
