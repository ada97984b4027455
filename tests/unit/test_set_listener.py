"""Listening to a scale set, with what a killed process leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard.keeper.job_book import JobBook
from gpuyard.keeper.set_listener import SetListener
from gpuyard.lab.github.forge import ForgeSettings
from gpuyard.lab.github.records import JobOrder
from gpuyard.lab.github.server import ForgeServer
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.records import JobState
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import Enrolment
from gpuyard.store.engine import Database

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
def listen(github: ForgeServer, store: RunnerStore, tmp_path: Path) -> Listen:
    """A new process that listens."""
    (tmp_path / "token").write_text("ghp_x")
    stated = {"organization": "demo", "url": github.url, "token_file": str(tmp_path / "token")}

    def now() -> datetime:
        return datetime.now(UTC)

    def begin() -> SetListener:
        client = ScaleSetClient(GitHubClient(Enrolment.model_validate(stated)))
        book = JobBook(store, now)
        return SetListener(
            "demo", LABEL, "Default", "github.com", client, store, book,
            capacity=lambda: 2, known=lambda number: None, now=now, may=lambda: True,
        )  # fmt: skip

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
    (one,) = github.standin.forge.sets.values()
    one.messages.clear()
    github.standin.forge._ids.pop("message")
    github.standin.forge.push("demo/science", [JobOrder((LABEL,))])
    first.stop()
    second = listen()
    for _ in range(6):
        second.run()
    assert len(store.jobs()) == 2
