"""Listening to a scale set, with what a killed process leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.controllers.set_listener import APART, SetListener, SetPlace, SetPlan
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.records import JobState
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import Enrolment
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.server import ForgeServer

LABEL = "gpuyard-v100"
Listen = Callable[[], SetListener]


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    server = ForgeServer(settings=ForgeSettings(poll_s=0.2))
    server.standin.forge.personal_tokens["ghp_x"] = "octocat"
    server.standin.forge.add_repository("demo/science")
    with server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunnerStore]:
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        yield RunnerStore(database)


@pytest.fixture
def room() -> list[int]:
    """What the scale set can have, as its only item."""
    return [2]


@pytest.fixture
def listen(github: ForgeServer, store: RunnerStore, tmp_path: Path, room: list[int]) -> Listen:
    """A new process that listens."""
    (tmp_path / "token").write_text("ghp_x")
    stated = {"organization": "demo", "url": github.url, "token_file": str(tmp_path / "token")}

    def now() -> datetime:
        return datetime.now(UTC)

    def begin() -> SetListener:
        client = ScaleSetClient(GitHubClient(Enrolment.model_validate(stated)))
        book = JobRepository(store, now)
        place = SetPlace("demo", LABEL, "Default", "https://github.com")
        plan = SetPlan(capacity=lambda: room[0], may=lambda: True, known=lambda number: None)
        return SetListener(place, client, store, book, plan, now)

    return begin


def test_who_comes_after_a_killed_process_listens_at_once(
    github: ForgeServer, store: RunnerStore, listen: Listen
) -> None:
    for _ in range(2):
        listen().run()  # and is killed: its session stays open
    github.standin.forge.push("demo/science", [JobOrder((LABEL,))])
    after = listen()
    for _ in range(6):
        after.run()
    assert [(job.state, job.labels) for job in store.jobs()] == [(JobState.QUEUED, (LABEL,))]
    assert store.scale_sets()[0].assigned == 1
    after.stop()
    listen().run()


def test_a_session_of_somebody_else_is_left_to_them(github: ForgeServer, store: RunnerStore, listen: Listen) -> None:
    listen().run()
    store.set_value(f"session/demo/{LABEL}", "")
    with pytest.raises(GitHubError) as error:
        listen().run()
    assert error.value.kind is GitHubTrouble.CONFLICT
    assert "already has an active session" in store.scale_sets()[0].error


def test_messages_of_another_session_may_begin_at_one_again(
    github: ForgeServer, store: RunnerStore, listen: Listen
) -> None:
    first = listen()
    github.standin.forge.push("demo/science", [JobOrder((LABEL,))])
    for _ in range(6):
        first.run()
    (scale_set,) = github.standin.forge.sets.values()
    scale_set.messages.clear()
    github.standin.forge._ids.pop("message")
    github.standin.forge.push("demo/science", [JobOrder((LABEL,))])
    first.stop()
    second = listen()
    for _ in range(6):
        second.run()
    assert len(store.jobs()) == 2


def test_a_poll_ends_when_the_capacity_that_it_told_is_not_so_any_more(
    github: ForgeServer, store: RunnerStore, listen: Listen, room: list[int]
) -> None:
    forge = github.standin.forge
    forge.settings = replace(forge.settings, poll_s=300)
    room[0] = 0
    forge.push("demo/science", [JobOrder((LABEL,))])
    listener = listen()
    listener.run()
    thread = threading.Thread(target=lambda: [*iter(listener.run, None)], daemon=True)
    began = time.monotonic()
    thread.start()
    (scale_set,) = forge.sets.values()
    wait_for(lambda: scale_set.polled and scale_set.capacity == 0 and listener._said == 0)
    assert not store.jobs(), "a set without capacity has been given a job"
    room[0] = 1
    listener.capacity_changed()
    wait_for(lambda: [job.state for job in store.jobs()] == [JobState.QUEUED])
    wait_for(lambda: store.scale_sets()[0].assigned == 1)
    # All the set may have is assigned: what comes free now is for the next job.
    forge.push("demo/science", [JobOrder((LABEL,))])
    room[0] = 2
    listener.capacity_changed()
    wait_for(lambda: store.scale_sets()[0].assigned == 2)
    room[0] = 0
    listener.capacity_changed()
    wait_for(lambda: scale_set.capacity == 0)
    assert time.monotonic() - began < 200
    listener.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert len({job.id for job in store.jobs()}) == 2


def test_how_many_jobs_wait_beyond_the_capacity_is_asked_for(
    github: ForgeServer, store: RunnerStore, listen: Listen, room: list[int]
) -> None:
    """GitHub sends no message of a job that it does not assign, nor of its end."""
    forge = github.standin.forge
    room[0] = 0
    listener = listen()
    for _ in range(2):
        listener.run()
    jobs = forge.push("demo/science", [JobOrder((LABEL,))] * 3).jobs
    listener.run()
    assert not store.jobs()
    assert (store.scale_sets()[0].assigned, store.scale_sets()[0].waiting) == (0, 3)
    room[0] = 1
    for _ in range(4):
        listener.run()
    assert (store.scale_sets()[0].assigned, store.scale_sets()[0].waiting) == (1, 2)
    for id in jobs:
        forge.cancel(forge.jobs[id])
    for _ in range(4):
        listener.run()
    assert (store.scale_sets()[0].assigned, store.scale_sets()[0].waiting) == (0, 0)


def test_a_capacity_that_grows_does_not_disturb_a_set_that_may_have_more_jobs(
    github: ForgeServer, listen: Listen, room: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen()
    listener.run()
    listener.run()
    session = listener._session
    assert session is not None
    broken: list[int] = []
    monkeypatch.setattr(session, "interrupt", lambda: broken.append(room[0]))
    for room[0] in (2, 3, 9, 2, 1, 0):
        listener.capacity_changed()
    assert broken == [1, 0]


def test_polls_that_are_broken_off_are_apart(
    github: ForgeServer, store: RunnerStore, listen: Listen, room: list[int]
) -> None:
    listener = listen()
    listener.run()
    listener.run()
    room[0] = 0
    listener.capacity_changed()  # between two polls: the next one has not begun
    wait = listener.run()
    assert wait is not None
    assert 0.5 < wait <= APART
    assert listener.run() == 0.0
    assert store.scale_sets()[0].error == ""
    (scale_set,) = github.standin.forge.sets.values()
    assert scale_set.capacity == 0


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
