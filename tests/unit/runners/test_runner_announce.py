"""What is said at the commit of a job that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.runners.announce import (
    AT_ONCE,
    EVERY,
    PENDING,
    Announcement,
    Announcer,
    announcement,
    job_link,
    read_said,
    write_said,
)
from gpuyard.runners.github.api import RestApi
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.records import Job, JobState
from gpuyard.runners.view import QueuePlace
from gpuyard.site.runner_rules import Enrolment
from tests.support.scripted_http import ScriptedAnswer, ScriptedHttp, scripted_http

NOW = datetime(2026, 11, 22, 6, 2, tzinfo=UTC)
SHA = "a" * 40
JOB = Job(
    "github.com/7",
    "demo/science",
    ("gpu",),
    JobState.QUEUED,
    NOW - timedelta(minutes=3),
    "demo",
    workflow="CI",
    name="test",
    head_sha=SHA,
)
PLACE = QueuePlace(JOB.id, "v100", 3, "no GPU is free", NOW + timedelta(minutes=41))


def say(
    job: Job, place: QueuePlace | None = None, previous: Announcement | None = None, now: datetime = NOW
) -> str | None:
    commit_status = announcement(job, place, previous, now)
    return f"{commit_status.state}: {commit_status.text}" if commit_status else None


def first() -> Announcement:
    commit_status = announcement(JOB, PLACE, None, NOW)
    assert commit_status is not None
    return commit_status


def test_a_job_that_waits() -> None:
    assert say(JOB, PLACE) == "pending: Place 3 for v100, by 22 Nov 06:45 UTC: no GPU is free"
    assert first().context == "gpuyard: CI / test"
    assert say(JOB, PLACE._replace(position=0, reason="")) == "pending: A server is being made"
    assert say(JOB, PLACE._replace(start=None, pool="")) == "pending: Place 3: no GPU is free"
    long = announcement(JOB, PLACE._replace(reason="x" * 500), None, NOW)
    assert long is not None
    assert (len(long.text), long.text[-1]) == (140, "…")


def test_what_is_not_worth_a_word() -> None:
    assert say(replace(JOB, queued=NOW - timedelta(seconds=59)), PLACE) is None
    assert say(replace(JOB, head_sha=""), PLACE) is None
    assert say(JOB, None) is None
    for state in (JobState.HELD, JobState.RUNNING, JobState.COMPLETED):
        assert say(replace(JOB, state=state)) is None


def test_only_what_is_new_and_not_too_often() -> None:
    previous = first()
    nearer = PLACE._replace(position=2)
    assert say(JOB, PLACE, previous, NOW + timedelta(hours=1)) is None
    assert say(JOB, nearer, previous, NOW + EVERY - timedelta(seconds=1)) is None
    assert say(JOB, nearer, previous, NOW + EVERY) is not None
    assert say(JOB, PLACE._replace(start=NOW + timedelta(minutes=43)), previous, NOW + EVERY) is None, (
        "the same five minutes"
    )


def test_the_end_is_said_at_once() -> None:
    previous = first()
    taken = replace(JOB, state=JobState.RUNNING, runner="one", started=NOW + timedelta(minutes=9))
    assert say(taken, None, previous) == "success: It waited 12 min"
    assert say(replace(taken, state=JobState.COMPLETED), None, previous) == "success: It waited 12 min"
    assert say(replace(JOB, state=JobState.COMPLETED), None, previous) == "success: It left the queue before it ran"
    refused = replace(JOB, state=JobState.REFUSED, reason="ada is in no team that may use this", changed=NOW)
    assert say(refused, None, previous) == say(refused) == "error: ada is in no team that may use this"
    assert say(replace(refused, changed=NOW - timedelta(hours=2))) is None


def test_memory_is_text() -> None:
    announcements = {"github.com/7": first()}
    assert read_said(write_said(announcements)) == announcements
    for text in ("", "[]", "{", '{"a": 5}', '{"a": [1]}', '{"a": [1, 2, 3, 4, 5, "soon"]}', "[" * 100_000):
        assert read_said(text) == {}


@given(st.text(max_size=100))
def test_any_text_is_a_memory(text: str) -> None:
    read_said(text)


def test_where_more_is_said() -> None:
    assert job_link("https://gpus.example.org/", JOB) == "https://gpus.example.org/job?id=github.com%2F7"
    assert job_link("", JOB) == ""


# On the wire


class World:
    """One enrolment, and what is remembered."""

    def __init__(self, server: ScriptedHttp, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("ghp_x")
        stated = {"organization": "demo", "url": server.url, "token_file": str(tmp_path / "token")}
        enrolled = Enrolment.model_validate(stated)
        self.at, self.memory, self.server = NOW, "", server
        self.client = GitHubClient(enrolled, RestApi(enrolled, sleep=lambda seconds: None, burst=1e6))
        self.begin()
        self.permit(ScriptedAnswer(201, {}))

    def begin(self) -> None:
        """Another process."""
        self.announcer = Announcer(
            {"demo": self.client}, lambda: self.memory, self.save, lambda: self.at, lambda job: "https://x/jobs"
        )

    def save(self, text: str) -> None:
        self.memory = text

    def permit(self, answer: ScriptedAnswer) -> None:
        self.server.on("POST", f"/api/v3/repos/demo/science/statuses/{SHA}", answer)

    def run(
        self, *jobs: Job, places: Sequence[QueuePlace] = (PLACE,), later: float = 0, known_job: Job | None = None
    ) -> int:
        self.at += timedelta(minutes=later)
        return self.announcer.run(jobs, places, lambda id: known_job)

    @property
    def said(self) -> list[str]:
        return [request.json["state"] for request in self.server.asked if request.method == "POST"]


@pytest.fixture
def world(tmp_path: Path):  # type: ignore[no-untyped-def]
    with scripted_http() as server:
        yield World(server, tmp_path)


def test_a_job_from_the_queue_to_its_end(world: World) -> None:
    assert world.run(JOB) == 1
    body = world.server.asked[-1].json
    assert (body["context"], body["target_url"]) == ("gpuyard: CI / test", "https://x/jobs")
    assert world.run(JOB) == 0
    world.begin()
    assert world.run(JOB) == 0, "what was said is known to the next process"
    over = replace(JOB, state=JobState.COMPLETED, runner="one", started=NOW)
    assert world.run(known_job=over) == 1, "it is not among those that are not over"
    assert world.said == [PENDING, "success"]
    assert world.run(known_job=over, later=10) == 0
    world.run(known_job=over, later=200)
    assert read_said(world.memory) == {}


def test_the_commit_of_a_scale_sets_job_is_asked_once(world: World) -> None:
    world.server.on("GET", "/api/v3/repos/demo/science/actions/runs/5", ScriptedAnswer(200, {"id": 5, "head_sha": SHA}))
    jobs = [replace(JOB, id=f"github.com/set/1/{n}", head_sha="", run_id=5, name=f"{n}") for n in range(3)]
    places = [PLACE._replace(job=job.id) for job in jobs]
    assert world.run(*jobs, places=places) == 3
    assert world.server.count("GET", "/api/v3/repos/demo/science/actions/runs/5") == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_where_it_is_not_permitted_it_is_not_tried_all_the_time(world: World, status: int) -> None:
    world.permit(ScriptedAnswer(status, {"message": "Resource not accessible by integration"}))
    other = replace(JOB, id="github.com/8")
    places = [PLACE, PLACE._replace(job=other.id)]
    world.run(JOB, other, places=places)
    request_count = len(world.server.asked)
    world.run(JOB, other, places=places, later=59)
    assert len(world.server.asked) == request_count
    world.permit(ScriptedAnswer(201, {}))
    assert world.run(JOB, other, places=places, later=2) == 2


def test_a_commit_that_github_does_not_know_is_left_alone(world: World) -> None:
    world.permit(ScriptedAnswer(422, {"message": "No commit found for SHA"}))
    world.run(JOB)
    assert world.run(JOB, later=1) == 0


def test_so_many_at_once_and_none_when_calls_are_few(world: World) -> None:
    jobs = [replace(JOB, id=f"github.com/{n}") for n in range(50)]
    places = [PLACE._replace(job=job.id) for job in jobs]
    assert world.run(*jobs, places=places) == AT_ONCE
    assert world.run(*jobs, places=places) == AT_ONCE
    few = {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "1000", "x-ratelimit-reset": "1795999999"}
    world.permit(ScriptedAnswer(201, {}, few))
    assert world.run(*jobs, places=places) == 1, "then it is known that there are few"
