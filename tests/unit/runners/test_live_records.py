"""One read of jobs and runners for all loops: never older than what this process has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.database.errors import ConflictError
from gpuyard.runners.controllers.live_records import FRESH, LiveReader, LiveRecords
from gpuyard.runners.records import HookDelivery, Job, JobState, Runner, RunnerEvent, RunnerState, ScaleSetState
from gpuyard.runners.store import RunnerStore
from tests.contract.runner_store import SMALL_JOB, SMALL_RUNNER
from tests.contract.store import at

NOW = at(10)


def job(id: str) -> Job:
    return replace(SMALL_JOB, id=id)


def runner(name: str) -> Runner:
    return replace(SMALL_RUNNER, name=name)


JOB, RUNNER = job("one"), runner("first")


class Counted(RunnerStore):
    reads = 0

    def jobs(self, *args: object, **keywords: object) -> list[Job]:
        self.reads += 1
        return super().jobs(*args, **keywords)  # type: ignore[arg-type]


class Clock:
    now = NOW


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counted]:
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        store = Counted(database)
        store.put([JOB], [RUNNER])
        yield store


def test_many_looks_are_one_read(store: Counted) -> None:
    live = LiveReader(store, lambda: NOW)
    assert live.records() == LiveRecords((RUNNER,), (JOB,))
    assert live.records() is live.records()
    assert store.reads == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put([replace(JOB, state=JobState.RUNNING)]),
        lambda store: store.put_job(job("two")),
        lambda store: store.put_runner(replace(RUNNER, state=RunnerState.BUSY)),
        lambda store: store.add_runner(runner("second"), RunnerEvent(NOW, "second", "", "made")),
        lambda store: store.put_message(ScaleSetState("demo", "gpu"), [job("two")]),
        lambda store: store.delivery_done("guid", "demo", "queued", [job("two")]),
    ],
)
def test_whatever_is_written_is_seen_at_once(store: Counted, write: Callable[[RunnerStore], object]) -> None:
    live = LiveReader(store, lambda: NOW)
    before = live.records()
    store.keep_delivery(HookDelivery("guid", "demo", "workflow_job", NOW, b"{}"))
    assert live.records() is before, "webhooks that nobody has worked on change no job"
    write(store)
    after = live.records()
    assert after != before
    assert (list(after.jobs), list(after.runners)) == (store.jobs(), store.runners())


def test_what_failed_is_looked_at_again(store: Counted) -> None:
    """Nobody knows whether it was written."""
    live = LiveReader(store, lambda: NOW)
    before = live.records()
    with pytest.raises(ConflictError):
        store.add_runner(RUNNER)
    assert live.records() is not before


def test_what_another_process_has_written(store: Counted) -> None:
    clock = Clock()
    live = LiveReader(store, lambda: clock.now)
    live.records()
    RunnerStore(store._database).put([job("two")])
    assert len(live.records().jobs) == 1
    clock.now = NOW + FRESH
    assert len(live.records().jobs) == 2
    RunnerStore(store._database).put([job("three")])
    clock.now = NOW
    assert len(live.records().jobs) == 3, "a clock that was set back keeps nothing alive"
    RunnerStore(store._database).put([job("four")])
    live.forget()
    assert len(live.records().jobs) == 4


def test_a_write_during_a_read_is_read_again(store: Counted) -> None:
    live = LiveReader(store, lambda: NOW)
    read = store.runners

    def meanwhile(*args: object, **keywords: object) -> object:
        runners = read()
        store.runners = read  # type: ignore[method-assign]
        store.put([], [runner("second")])
        return runners

    store.runners = meanwhile  # type: ignore[assignment,method-assign]
    assert len(live.records().runners) == 1
    assert len(live.records().runners) == 2
