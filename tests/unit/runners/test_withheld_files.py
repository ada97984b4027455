"""Repositories whose files GitHub refuses to show: the app or token has no permission to read them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.controllers.runner_intake import WITHHELD
from gpuyard.runners.records import JobState
from gpuyard_lab.github.records import COMPLETED, JobOrder
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRequest
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook


@pytest.fixture
def world(tmp_path: Path) -> SimulatedRunners:
    """An app that may not read what is in repositories, one of which is private."""
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    world.github.forge.repositories["demo/science"].private = True
    del world.github.forge.permissions["contents"]
    return world


def count_questions(world: SimulatedRunners) -> list[str]:
    """The paths of those about files, as they are asked."""
    paths: list[str] = []
    handle = world.github.handle

    def count(request: ForgeRequest) -> ForgeAnswer:
        if "/contents/" in request.path:
            paths.append(request.path)
        return handle(request)

    world.github.handle = count  # type: ignore[method-assign]
    return paths


def push(world: SimulatedRunners, label: str) -> int:
    return world.github.forge.push("demo/science", [JobOrder((label,), 60)]).jobs[0]


def pass_time(world: SimulatedRunners, time: timedelta) -> None:
    until = world.clock() + time
    while world.clock() < until:
        world.step(15)


def test_a_job_that_is_likely_ours_is_kept_with_the_reason_and_refused_in_the_end(world: SimulatedRunners) -> None:
    world._due["recover"] = world.clock() + timedelta(days=9)
    paths = count_questions(world)
    push(world, "cirun-gpu")
    world.step(15)
    (job,) = world.store.jobs()
    assert job.state is JobState.QUEUED
    assert "contents=read" in job.reason
    assert not world.store.deliveries(world.clock() + timedelta(days=1))
    pass_time(world, timedelta(hours=1))
    (job,) = world.store.latest_jobs(limit=5)
    assert job.state is JobState.REFUSED
    assert "contents=read" in job.reason
    assert len(paths) == WITHHELD + 1, "once for the webhook"


def test_a_job_that_is_kept_gets_its_runner_when_the_permission_is_given(world: SimulatedRunners) -> None:
    id = push(world, "cirun-gpu")
    world.step(15)
    world.github.forge.permissions["contents"] = "read"
    world.until(lambda: world.job(id).status == COMPLETED, hours=0.5)


def test_the_webhook_of_a_job_that_is_hardly_ours_is_given_up(world: SimulatedRunners) -> None:
    world._due["recover"] = world.clock() + timedelta(days=9)
    paths = count_questions(world)
    push(world, "somebody-elses")
    world.step(15)
    (waits,) = world.store.deliveries(world.clock() + timedelta(days=1))
    assert waits.tries == 1
    pass_time(world, timedelta(hours=1))
    assert not world.store.deliveries(world.clock() + timedelta(days=1))
    assert not world.store.latest_jobs(limit=5)
    assert len(paths) == WITHHELD


def test_labels_of_the_organisations_files_say_that_a_job_is_ours(world: SimulatedRunners) -> None:
    """They can be read, as those of a public repository."""
    files = world.github.forge.repositories["demo/science"].files
    shared = files[".cirun.yml"].replace("cirun-gpu", "gpu-of-all")
    world.github.forge.add_repository("demo/.cirun").files[".cirun.global.yml"] = shared
    push(world, "gpu-of-all")
    world.step(15)
    (job,) = world.store.jobs()
    assert "contents=read" in job.reason
