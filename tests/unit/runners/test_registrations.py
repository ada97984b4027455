"""Registrations at GitHub that are ours and belong to no runner go; all others stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.controllers.registrations import WITHOUT
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.records import ForgeRunner, JobOrder
from tests.support.simulated_runners import SimulatedRunners

SET = "gpuyard-v100"


def left_behind(world: SimulatedRunners, name: str = "", **fields: object) -> ForgeRunner:
    """A registration of which the store knows nothing, as after a restored backup."""
    forge = world.github.forge
    ours = name or world.runners.site.new_name("v100")
    registration = ForgeRunner(forge.next_id("runner"), ours, "demo", "", (SET,), 1, "secret", world.clock())
    registration = replace(registration, **fields)  # type: ignore[arg-type]
    forge.runners[registration.id] = registration
    return registration


@pytest.fixture
def world(tmp_path: Path) -> SimulatedRunners:
    world = SimulatedRunners(tmp_path)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    return world


def look(world: SimulatedRunners) -> set[int]:
    """The registrations that are there after one look that is due."""
    world.clock.now += WITHOUT
    world.runners.look_at_github()
    return {*world.github.forge.runners}


def test_what_belongs_to_no_runner_goes_when_it_was_seen_so_twice(world: SimulatedRunners) -> None:
    registration = left_behind(world)
    assert look(world) == {registration.id}, "it may be of a runner that is being written down"
    assert look(world) == set()


def test_what_is_somebody_elses_or_works_stays(world: SimulatedRunners) -> None:
    now = world.clock()
    theirs = left_behind(world, "their-runner")
    alike = left_behind(world, "gpuyard-v100")
    online = left_behind(world, session="s", connected=now, heard=now)
    stays = {theirs.id, alike.id, online.id}
    for _ in range(3):
        world.github.forge.runners[online.id].heard = world.clock() + WITHOUT
        assert look(world) == stays


def test_those_of_our_runners_stay(world: SimulatedRunners) -> None:
    world.github.forge.push("demo/science", [JobOrder((SET,), 3000)])
    world.until(lambda: any(runner.job for runner in world.github.forge.runners.values()))
    (mine,) = world.github.forge.runners
    lost = left_behind(world)
    later = world.clock() + timedelta(minutes=10)
    world.until(lambda: world.clock() >= later)
    assert {*world.github.forge.runners} == {mine}
    assert lost.id not in world.github.forge.runners


def test_a_list_that_cannot_be_had_deletes_nothing(world: SimulatedRunners) -> None:
    registration = left_behind(world)
    look(world)
    world.github.forge.faults.rates = FaultRates(broken=1.0)
    world.clock.now += WITHOUT
    world._run("github", world.runners.look_at_github)
    assert {*world.github.forge.runners} == {registration.id}
    assert any("github" in text for text in world.problems)
    world.github.forge.faults.rates = FaultRates()
    assert look(world) == set()
