"""Jobs of scale sets that are refused: their runs are cancelled where that may be, and no runner is made for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import Job, JobState
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.simulated_runners import SimulatedRunners

SET = "gpuyard-v100"


def fork(world: SimulatedRunners) -> int:
    """A job of a fork's pull request, which the site does not let in."""
    run = world.github.forge.push(
        "demo/science", [JobOrder((SET,), 60)], event="pull_request", head_repository="mallory/science",
        association="NONE",
    )  # fmt: skip
    return run.jobs[0]


def begun(folder: Path, **rules: Any) -> SimulatedRunners:
    world = SimulatedRunners(folder, runners_rules=rules)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    return world


def refused(world: SimulatedRunners) -> Job:
    """The one job that is refused."""
    world.until(lambda: bool(world.store.jobs({JobState.REFUSED})))
    (job,) = world.store.jobs({JobState.REFUSED})
    return job


def test_the_run_is_cancelled(tmp_path: Path) -> None:
    world = begun(tmp_path)
    id = fork(world)
    job = refused(world)
    assert "fork" in job.reason
    assert job.reason.endswith("; its run was cancelled at GitHub")
    world.until(lambda: world.job(id).status == COMPLETED)
    assert world.job(id).conclusion == "cancelled"
    world.until(lambda: not world.store.turned_down(world.clock() - timedelta(days=1)))
    assert world.nova.posts == []


def test_a_run_that_cannot_be_cancelled_gets_no_runner_and_takes_nobodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(client: object, repository: str, id: int) -> None:
        raise GitHubError("403: Resource not accessible by integration", GitHubTrouble.REFUSED, status=403)

    monkeypatch.setattr("gpuyard.runners.github.client.GitHubClient.cancel_run", forbidden)
    world = begun(tmp_path, most=1)  # one runner at a time: GitHub must not think that the refused job has it
    fork(world)
    job = refused(world)
    assert "it could not be cancelled: 403: Resource not accessible by integration" in job.reason
    for _ in range(60):  # five minutes, in which GitHub counts it as assigned
        world.step()
    assert world.nova.posts == []
    (good,) = world.github.forge.push("demo/science", [JobOrder((SET,), 60)]).jobs
    world.until(lambda: world.job(good).status == COMPLETED)
    assert world.job(good).conclusion == "success"
    world.until(lambda: not world.left_over())
    # GitHub may give the runner to the one that is refused, which ends it; the next one is for the same job.
    assert len({job for _, job in world.nova.posts}) == 1, world.nova.posts
    assert world.nova.posts[0][1] != ""


def test_a_run_is_left_to_itself_where_the_site_says_so(tmp_path: Path) -> None:
    world = begun(tmp_path)
    for client in world.runners.ports.clients.values():
        client.enrolment = client.enrolment.model_copy(update={"cancel_refused": False})
    id = fork(world)
    assert refused(world).reason.endswith("; its run is left to itself at GitHub, as the site file says")
    assert world.job(id).status != COMPLETED


def test_a_job_that_is_over_counts_no_more(tmp_path: Path) -> None:
    world = begun(tmp_path)
    now = world.clock()
    job = Job("a/1", "demo/science", (SET,), JobState.REFUSED, now, "demo", scale_set=SET)
    over = {"conclusion": "cancelled"}, {"completed": now}, {"scale_set": ""}, {"queued": now - timedelta(days=2)}
    live = {"state": JobState.QUEUED}
    jobs = [job, replace(job, id="a/2", state=JobState.FAILED)]
    many: list[dict[str, Any]] = [*over, live]
    jobs += [replace(job, id=f"b/{number}", **what) for number, what in enumerate(many)]
    world.store.put(jobs)
    assert world.store.turned_down(now - timedelta(days=1)) == {("demo", SET): 2}
