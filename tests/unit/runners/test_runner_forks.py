"""Whose code may run: what the site's `forks` lets in, by what GitHub really says of pull requests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.github.answers import RunnerSet, Statistics
from gpuyard.runners.github.messages import JobNotice, NoticeKind, SetMessage, job_updates
from gpuyard.runners.records import Job, JobState, RunnerState
from gpuyard_lab.github.records import COMPLETED, ForgeRun, JobOrder
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRequest
from tests.support.simulated_runners import CIRUN, SimulatedRunners, cirun_repository, hook

LABELS = {"set": "gpuyard-v100", "label": "cirun-gpu"}
ACCESS = """\
policies:
  - id: staff
    repo: science
    roles: [write]
    pull_request: false
access_control:
  - resource: gpu
    policies: [staff]
"""


def world_of(folder: Path, forks: str = "never") -> SimulatedRunners:
    world = SimulatedRunners(folder, runners_rules={"forks": forks})
    cirun_repository(world)
    hook(world)
    world.until(lambda: bool(world.github.forge.sets))
    return world


def pull_request(world: SimulatedRunners, kind: str, *, head: str = "", association: str = "NONE") -> ForgeRun:
    return world.github.forge.push(
        "demo/science", [JobOrder((LABELS[kind],), 60)], event="pull_request", actor="mallory", branch="fix",
        head_repository=head, association=association,
    )  # fmt: skip


def our_only_job(world: SimulatedRunners) -> Job:
    jobs = [*world.store.jobs(), *world.store.jobs({JobState.REFUSED, JobState.COMPLETED})]
    return max(jobs, key=lambda job: job.queued)


def refuse(world: SimulatedRunners, part: str, answer: ForgeAnswer) -> list[str]:
    """From now on requests whose path has `part` get this answer; the paths of those that did."""
    handle, refused = world.github.handle, []

    def refusing(request: ForgeRequest) -> ForgeAnswer:
        if part in request.path:
            refused.append(request.path)
            return answer
        return handle(request)

    world.github.handle = refusing  # type: ignore[method-assign]
    return refused


def forbidden(permission: str) -> ForgeAnswer:
    """https://docs.github.com/rest/using-the-rest-api/troubleshooting-the-rest-api, "Resource not accessible"."""
    message = {"message": "Resource not accessible by integration"}
    return ForgeAnswer(403, message, {"x-accepted-github-permissions": permission})


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    ("forks", "association", "conclusion"),
    [("contributors", "CONTRIBUTOR", "success"), ("contributors", "FIRST_TIME_CONTRIBUTOR", "cancelled")],
)
def test_forks_get_runners_by_their_author(
    tmp_path: Path, kind: str, forks: str, association: str, conclusion: str
) -> None:
    world = world_of(tmp_path, forks)
    (id,) = pull_request(world, kind, head="mallory/science", association=association).jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=1)
    assert world.job(id).conclusion == conclusion


def test_a_branch_is_read_from_branches_alone() -> None:
    """The refs are those of ARC 0.13's cmd/ghalistener/metrics/metrics_integration_test.go."""
    branches = {
        "actions/runner/.github/workflows/build.yml@refs/heads/main": "main",
        "myorg/myrepo/.github/workflows/ci-cd-pipeline.yml@refs/heads/feature/new-metrics": "feature/new-metrics",
        "actions/runner/.github/workflows/pr-checks.yml@refs/pull/123/merge": "",
        "actions/runner/.github/workflows/release.yml@refs/tags/v1.2.3": "",
    }
    for ref, branch in branches.items():
        notice = JobNotice(NoticeKind.ASSIGNED, 7, "actions/runner", workflow_ref=ref)
        (update,) = job_updates(SetMessage(1, Statistics(), (notice,)), RunnerSet(1, "gpu", 1), "actions")
        assert update.head_branch == branch


@pytest.mark.parametrize("kind", LABELS)
def test_nobody_asks_about_pull_requests_of_the_repositorys_own_branches(tmp_path: Path, kind: str) -> None:
    """Private ones may be read with 'Pull requests: read' alone, which nobody needs for this."""
    world = world_of(tmp_path)
    paths = refuse(world, "/pulls", forbidden("pull_requests=read"))
    (id,) = pull_request(world, kind).jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=1)
    assert world.job(id).conclusion == "success"
    assert paths == []


@pytest.mark.parametrize("kind", LABELS)
def test_a_job_is_refused_when_a_permission_stays_away(tmp_path: Path, kind: str) -> None:
    world = world_of(tmp_path, "members")
    paths = refuse(world, "/pulls", forbidden("pull_requests=read"))
    pull_request(world, kind, head="mallory/science", association="MEMBER")
    world.until(lambda: bool(paths), hours=1)
    job = our_only_job(world)
    assert job.state is JobState.QUEUED
    assert "needs one of these permissions: pull_requests=read" in job.reason
    world.until(lambda: bool(world.store.jobs({JobState.REFUSED})), hours=1)
    assert "pull_requests=read" in our_only_job(world).reason
    assert world.nova.posts == []


def test_a_job_is_stored_while_facts_cannot_be_had(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    handle = world.github.handle
    refuse(world, "/actions/runs/", ForgeAnswer(502, b""))
    (id,) = pull_request(world, "label").jobs
    for _ in range(3):
        world.step()
    job = our_only_job(world)
    assert job.state is JobState.QUEUED
    assert "GitHub did not answer" in job.reason
    world.github.handle = handle  # type: ignore[method-assign]
    world.until(lambda: world.job(id).status == COMPLETED, hours=1)


@pytest.mark.parametrize("kind", LABELS)
def test_a_second_attempt_is_judged_by_who_started_it(tmp_path: Path, kind: str) -> None:
    """A run's `actor` stays, `triggering_actor` is that of the attempt:
    https://docs.github.com/actions/reference/contexts-reference#github-context."""
    world = world_of(tmp_path)
    shared = world.github.forge.add_repository("demo/.cirun").files
    shared[".cirun.global.yml"] = CIRUN
    shared[".access.yml"] = ACCESS.replace("resource: gpu", "resource: gpuyard-v100") if kind == "set" else ACCESS
    science = world.github.forge.repositories["demo/science"]
    science.files.clear()
    science.permissions["ada"] = "write"
    run = world.github.forge.push("demo/science", [JobOrder((LABELS[kind],), 30)], actor="ada")
    world.until(lambda: world.job(run.jobs[0]).status == COMPLETED, hours=1)
    assert world.job(run.jobs[0]).conclusion == "success"
    world.github.forge.rerun(run, actor="eve")
    world.until(lambda: bool(world.store.jobs({JobState.REFUSED})), hours=1)
    assert our_only_job(world).actor == "eve"


def test_no_step_of_a_forks_job_runs_on_a_runner_that_waits_for_jobs(tmp_path: Path) -> None:
    """GitHub assigns it before gpuyard has heard of it."""
    warm = {"gpuyard-v100": {"flavors": ["gpu_tiny"], "images": ["tiny"], "idle": [{"count": 1}]}}
    world = SimulatedRunners(tmp_path, runners_rules={"sets": warm})
    world.github.forge.add_repository("demo/science")
    world.until(lambda: any(runner.state is RunnerState.IDLE for runner in world.store.runners()))
    (id,) = pull_request(world, "set", head="mallory/science").jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=1, seconds=1)
    assert world.job(id).tries, "it has taken the runner, or this test shows nothing"
    assert world.guests.ran == []


@pytest.mark.parametrize("obeys", [True, False], ids=["the server refuses it", "the server does not"])
def test_a_refused_job_that_took_anothers_runner_is_ended_without_its_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obeys: bool
) -> None:
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    for client in world.runners.ports.clients.values():  # otherwise its run is cancelled, and it takes no runner
        client.enrolment = client.enrolment.model_copy(update={"cancel_refused": False})
    if not obeys:
        monkeypatch.setattr("tests.support.simulated_runners.refused", lambda rules, job: "")
    run = world.github.forge.push(
        "demo/science", [JobOrder((LABELS["label"],), 5000)], event="pull_request", head_repository="mallory/science",
        association="NONE",
    )  # fmt: skip
    (id,) = run.jobs
    take_due = world.github.hooks.take_due
    world.github.hooks.take_due = lambda: [  # type: ignore[method-assign]
        (to, sent) for to, sent in take_due() if sent.action != "in_progress"
    ]
    world.until(lambda: bool(world.store.jobs({JobState.REFUSED})))
    (good,) = world.github.forge.push("demo/science", [JobOrder((LABELS["label"],), 60)]).jobs
    world.until(lambda: bool(world.job(id).tries), hours=1)
    began = world.clock()
    taken = world.job(id).tries[0].runner
    world.until(lambda: all(server.wish.name != taken for server in world.nova.servers.values()), hours=1)
    assert world.clock() - began < timedelta(minutes=5), "recovery asks every two minutes"
    assert (id in world.guests.ran) is not obeys
    world.until(lambda: world.job(good).status == COMPLETED, hours=2)
    assert world.job(good).conclusion == "success"
