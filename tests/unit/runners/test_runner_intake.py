"""Jobs that have a runner before anything was decided about them: GitHub gives one to any job with its labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.database.engine import Database
from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.controllers.live_records import LiveReader
from gpuyard.runners.controllers.runner_intake import JobIntake
from gpuyard.runners.records import (
    HookDelivery,
    Job,
    JobState,
    Runner,
    RunnerEvent,
    RunnerState,
    ServerChoice,
    ServerSpec,
)
from gpuyard.runners.resolve import Ruling
from gpuyard.runners.store import RunnerStore

NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)
CHOICE = ServerChoice("v100", "gpu_tiny", "runner")
RUNNER = Runner(
    name="ours", state=RunnerState.IDLE, scope="demo", repository="", labels=("self-hosted", "cirun-gpu"),
    spec=ServerSpec("gpu", (CHOICE,), timedelta(hours=1)), choice=CHOICE, created=NOW, changed=NOW,
)  # fmt: skip
ENROLMENT = SimpleNamespace(url="https://github.com", includes=lambda name: name.startswith("demo/"))


class NoForks:
    """`Repositories` of a site that runs no code of forks, and of which only the label `cirun-gpu` is."""

    def settle(self, job: Job) -> tuple[Ruling, Job]:
        if "cirun-gpu" not in job.labels:
            return Ruling.NOT_OURS, job
        return Ruling.REFUSED, replace(job, state=JobState.REFUSED, reason="it is from a fork")

    def cancelled(self, job: Job) -> str:
        return ""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunnerStore]:
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        store = RunnerStore(database)
        store.add_runner(RUNNER, RunnerEvent(NOW, "ours", "", "made"))
        yield store


def began(store: RunnerStore, labels: list[str], runner: str = "ours", repository: str = "demo/x") -> Job | None:
    """What is written of a job of which the first word is that it runs."""
    workflow_job = {"id": 1, "run_id": 7, "labels": labels, "status": "in_progress", "runner_name": runner}
    body = {"action": "in_progress", "workflow_job": workflow_job, "repository": {"full_name": repository}}
    store.keep_delivery(HookDelivery("guid", "demo", "workflow_job", NOW, json.dumps(body).encode()))
    run_intake(store)
    return store.job("github.com/1")


def run_intake(store: RunnerStore) -> None:
    site: Any = SimpleNamespace(enrolment=lambda name: ENROLMENT)
    repositories: Any = NoForks()
    with ThreadPoolExecutor(1) as executor:
        book = JobRepository(store, lambda: NOW)
        live = LiveReader(store, lambda: NOW)
        JobIntake(site, store, book, live, repositories, executor, lambda: NOW).run()


@pytest.mark.parametrize("labels", [["cirun-gpu"], ["self-hosted"]])
def test_a_fork_that_has_taken_a_runner_is_refused(store: RunnerStore, labels: list[str]) -> None:
    job = began(store, labels)
    assert job is not None
    assert (job.state, job.runner, job.reason, job.labels) == (
        JobState.REFUSED, "ours", "it is from a fork", tuple(labels),
    )  # fmt: skip


def test_a_repository_that_is_not_enrolled_and_has_taken_a_runner_is_refused(store: RunnerStore) -> None:
    job = began(store, ["cirun-gpu"], repository="other/x")
    assert job is not None
    assert (job.state, job.runner) == (JobState.REFUSED, "ours")


def test_a_job_that_runs_elsewhere_is_left_alone(store: RunnerStore) -> None:
    assert began(store, ["self-hosted"], "theirs") is None


def test_a_job_that_runs_elsewhere_is_only_written_down(store: RunnerStore) -> None:
    job = began(store, ["cirun-gpu"], "theirs")
    assert job is not None
    assert job.state is JobState.RUNNING


def test_a_job_that_got_a_runner_before_it_was_decided_is_decided(store: RunnerStore) -> None:
    store.put_job(Job("github.com/1", "demo/x", ("cirun-gpu",), JobState.QUEUED, NOW, "demo"))
    job = began(store, ["cirun-gpu"])
    assert job is not None
    assert job.state is JobState.REFUSED


def test_a_job_that_github_gave_to_a_runner_with_more_labels_is_decided_again(store: RunnerStore) -> None:
    """It may have the small runners that all have the label of; this one is for others, and not for forks."""
    small = Job("github.com/1", "demo/x", ("self-hosted",), JobState.QUEUED, NOW, "demo")
    small = replace(small, spec=replace(RUNNER.spec, kind="small"))
    store.put_job(small)
    job = began(store, ["self-hosted"])
    assert job is not None
    assert (job.state, job.reason) == (JobState.REFUSED, "it is from a fork")


def test_a_job_on_another_runner_of_its_own_kind_is_not_decided_again(store: RunnerStore) -> None:
    store.put_job(
        replace(Job("github.com/1", "demo/x", ("cirun-gpu",), JobState.QUEUED, NOW, "demo"), spec=RUNNER.spec)
    )
    job = began(store, ["cirun-gpu"])
    assert job is not None
    assert (job.state, job.spec) == (JobState.RUNNING, RUNNER.spec)


def test_a_job_that_breaks_us_keeps_nobody_from_the_others(store: RunnerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = NoForks.settle

    def fail(self: NoForks, job: Job) -> tuple[Ruling, Job]:
        if job.id == "github.com/1":
            raise ValueError("nobody thought of that")
        return settle(self, job)

    monkeypatch.setattr(NoForks, "settle", fail)
    first_job = Job("github.com/1", "demo/x", ("self-hosted", "cirun-gpu"), JobState.QUEUED, NOW, "demo")
    store.put([first_job, replace(first_job, id="github.com/2")])
    run_intake(store)
    assert [(job.id, job.state, job.reason) for job in store.latest_jobs(frozenset(JobState))] == [
        ("github.com/2", JobState.REFUSED, "it is from a fork"),
        ("github.com/1", JobState.QUEUED, "gpuyard failed (ValueError); its log says where"),
    ]


def test_nobody_takes_the_number_of_another_enrolments_job(store: RunnerStore) -> None:
    theirs = Job("github.com/1", "other/y", ("gpu",), JobState.QUEUED, NOW, "other", spec=RUNNER.spec)
    store.put_job(theirs)
    assert began(store, ["cirun-gpu"]) == theirs
    mine = store.job("github.com/demo/1")
    assert mine is not None
    assert (mine.repository, mine.state) == ("demo/x", JobState.REFUSED)
