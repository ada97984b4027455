"""How what GitHub says becomes a job, whatever comes late, twice, in another order or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.database.engine import Database
from gpuyard.runners import fields
from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.jobs import JobUpdate, merge, state_of, workflow_job
from gpuyard.runners.records import Job, JobState
from gpuyard.runners.store import RunnerStore

NOW = datetime(2026, 11, 22, 6, tzinfo=UTC)
QUEUED_AT = NOW - timedelta(minutes=5)
STARTED_AT = NOW - timedelta(minutes=3)
COMPLETED_AT = NOW - timedelta(minutes=1)


def update(state: JobState, **facts: Any) -> JobUpdate:
    return JobUpdate(
        **{"id": "github.com/7", "repository": "conda-forge/pytorch", "scope": "conda-forge"} | facts, state=state
    )


HELD = update(JobState.HELD, labels=("gpu",), queued=QUEUED_AT, started=QUEUED_AT, name="test", run_id=3)
QUEUED = update(
    JobState.QUEUED, labels=("gpu",), queued=QUEUED_AT, started=QUEUED_AT, name="test", run_id=3, run_attempt=1
)
TAKEN = update(JobState.RUNNING, labels=("gpu",), started=STARTED_AT, runner="first", name="test", head_sha="abc")
AGAIN = update(
    JobState.RUNNING, labels=("gpu",), started=STARTED_AT + timedelta(minutes=1), runner="second", name="test"
)
BARE = update(JobState.RUNNING)
TRUTH = update(
    JobState.COMPLETED,
    labels=("gpu",),
    queued=QUEUED_AT,
    started=STARTED_AT + timedelta(minutes=1),
    completed=COMPLETED_AT,
    runner="second",
    conclusion="success",
    name="test",
    run_id=3,
    run_attempt=1,
    head_sha="abc",
)
CANCELLED = update(JobState.COMPLETED, started=QUEUED_AT, completed=COMPLETED_AT, conclusion="cancelled")


def after(*updates: JobUpdate, job: Job | None = None) -> Job:
    for number, job_update in enumerate(updates):
        job = merge(job, job_update, NOW + timedelta(seconds=number))
    assert job is not None
    return job


@given(st.lists(st.sampled_from([HELD, QUEUED, TAKEN, AGAIN, BARE, TRUTH])), st.data())
def test_any_order_and_number_that_has_the_truth_gives_the_same_job(some: list[JobUpdate], data: st.DataObject) -> None:
    updates = data.draw(st.permutations([*some, TRUTH]))
    job = replace(after(*updates), changed=None)
    assert job == replace(after(TRUTH), changed=None)


@given(st.lists(st.sampled_from([HELD, QUEUED, TAKEN, AGAIN, BARE, TRUTH, CANCELLED]), min_size=1), st.data())
def test_order_never_matters(told: list[JobUpdate], data: st.DataObject) -> None:
    other = data.draw(st.permutations(told))
    assert replace(after(*told), changed=None) == replace(after(*other), changed=None)


@given(st.lists(st.sampled_from([HELD, QUEUED, TAKEN, AGAIN, BARE, TRUTH, CANCELLED]), min_size=1))
def test_what_was_said_before_changes_nothing(told: list[JobUpdate]) -> None:
    job = after(*told)
    for job_update in told:
        assert merge(job, job_update, NOW + timedelta(days=1)) is job


def test_states_go_forward() -> None:
    assert after(HELD).state is JobState.HELD
    assert after(HELD, QUEUED).state is JobState.QUEUED
    assert after(QUEUED, HELD).state is JobState.QUEUED
    assert after(TAKEN, QUEUED).state is JobState.RUNNING
    assert after(TRUTH, TAKEN, QUEUED).state is JobState.COMPLETED


def test_a_job_that_its_runner_did_not_take_has_the_later_runner() -> None:
    for updates in ((TAKEN, AGAIN), (AGAIN, TAKEN)):
        job = after(QUEUED, *updates)
        assert (job.runner, job.started) == ("second", AGAIN.started)


def test_a_job_that_is_cancelled_in_the_queue_never_ran() -> None:
    job = after(QUEUED, CANCELLED)
    assert (job.state, job.runner, job.started, job.conclusion) == (JobState.COMPLETED, "", None, "cancelled")
    assert job.labels == ("gpu",), "a completed job may come without labels"


def test_the_earliest_time_is_when_it_was_queued() -> None:
    later = replace(QUEUED, queued=QUEUED_AT + timedelta(minutes=1))
    for updates in ((QUEUED, later), (later, QUEUED), (BARE, QUEUED)):
        assert after(*updates).queued == QUEUED_AT


def test_how_it_went_may_be_told_later() -> None:
    guess = update(JobState.COMPLETED, conclusion="unknown")
    for updates in ((guess, TRUTH), (TRUTH, guess)):
        assert after(QUEUED, *updates).conclusion == "success"
    assert after(guess).conclusion == "unknown"


def test_what_is_ours_stays_and_a_reason_goes_with_its_state() -> None:
    job = replace(after(QUEUED), reason="no GPU is free", tries=2, event="push")
    same = merge(job, replace(QUEUED, workflow="ci"), NOW)
    assert (same.reason, same.workflow) == ("no GPU is free", "ci")
    gone = merge(same, TAKEN, NOW)
    assert (gone.reason, gone.tries, gone.event, gone.state) == ("", 2, "push", JobState.RUNNING)


@pytest.mark.parametrize("state", [JobState.REFUSED, JobState.FAILED])
def test_a_job_that_we_are_done_with_stays_so_but_shows_who_runs_it(state: JobState) -> None:
    job = replace(after(QUEUED), state=state, reason="not allowed")
    merged = after(TAKEN, TRUTH, job=job)
    assert (merged.state, merged.reason, merged.runner, merged.conclusion) == (
        state,
        "not allowed",
        "second",
        "success",
    )


def test_a_number_of_another_repository_says_nothing_of_this_job() -> None:
    job = after(QUEUED)
    assert merge(job, replace(TRUTH, repository="mallory/pytorch"), NOW) is job
    assert merge(job, replace(TRUTH, repository="Conda-Forge/PyTorch"), NOW).state is JobState.COMPLETED


def test_changed_is_when_something_new_was_said() -> None:
    job = after(QUEUED)
    assert job.changed == NOW
    assert merge(job, TAKEN, NOW + timedelta(hours=1)).changed == NOW + timedelta(hours=1)


@pytest.mark.parametrize(
    ("action", "status", "state"),
    [
        ("queued", "queued", JobState.QUEUED),
        ("queued", "waiting", JobState.HELD),
        ("waiting", "waiting", JobState.HELD),
        ("in_progress", "queued", JobState.RUNNING),
        ("completed", "completed", JobState.COMPLETED),
        ("completed", "", JobState.COMPLETED),
        ("", "requested", JobState.HELD),
        ("approved", "in_progress", JobState.RUNNING),
        ("queued", "", None),
        ("", "a word of next year", None),
    ],
)
def test_words_of_github(action: str, status: str, state: JobState | None) -> None:
    assert state_of(action, status) is state


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["id", "run_id", "run_attempt", "status", "labels", "name", "runner_name", "conclusion", "created_at"]


@given(st.dictionaries(st.sampled_from([*KEYS, "started_at", "completed_at", "head_sha"]), JSON))
def test_a_job_of_any_shape_is_read_or_left(job: dict[str, Any]) -> None:
    job_update = workflow_job(job, "a/b", "a", "github.com", action="queued")
    assert job_update is None or merge(None, job_update, NOW).id == job_update.id


def test_what_github_says_again_is_no_news(tmp_path: Path) -> None:
    payload = {
        "id": 7,
        "created_at": "2026-11-22T05:00:00.6Z",
        "status": "completed",
        "runner_name": "one",
        "labels": [],
    }
    payload |= {"started_at": "2026-11-22T05:01:00.123Z", "completed_at": "2026-11-22T05:02:00.987Z"}
    job_update = workflow_job(payload, "a/b", "a", "github.com")
    assert job_update is not None
    with contextlib.closing(Database(f"sqlite:///{tmp_path / 'jobs.db'}")) as database:
        book = JobRepository(RunnerStore(database), lambda: NOW)
        assert [job.id for job in book.update([job_update])] == ["github.com/7"]
        assert book.update([job_update]) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2026-11-22T05:00:00Z", datetime(2026, 11, 22, 5, tzinfo=UTC)),
        ("2026-11-22T06:00:00.1234567+01:00", datetime(2026, 11, 22, 5, tzinfo=UTC)),
        ("2026-11-22T05:00:00", datetime(2026, 11, 22, 5, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("soon", None),
        (None, None),
        (5, None),
    ],
)
def test_times(value: object, found: datetime | None) -> None:
    assert fields.moment({"at": value}, "at") == found


@given(st.binary(max_size=200))
def test_any_body_is_a_document_or_a_value_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        fields.document(body)


def test_bodies_that_break_readers() -> None:
    for body in (b"[" * 100_000, b"9" * 10_000, b"\xff", b""):
        with pytest.raises(ValueError):  # noqa: PT011 - any that is one
            fields.document(body)


def test_no_field_is_longer_than_its_bound_or_has_controls() -> None:
    job = {"id": 1, "status": "queued", "name": "\x1b[2J" + "x" * 10_000, "labels": ["y" * 10_000, "", 5] * 200}
    job_update = workflow_job(job, "a/b", "a", "github.com")
    assert job_update is not None
    assert "\x1b" not in job_update.name
    assert len(job_update.name) < 300
    assert len(job_update.labels) <= fields.MOST_LABELS
    assert {len(label) for label in job_update.labels} == {fields.LONGEST_LABEL}
    assert fields.whole({"id": True}, "id") == fields.whole({"id": -1}, "id") == fields.whole({"id": 2**70}, "id") == 0
