"""What the store of runners promises, whichever database it is in: on SQLite (tests/unit/runners/test_runner_store.py)
and on PostgreSQL (tests/integration/test_store_postgresql.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from gpuyard.database.errors import ConflictError
from gpuyard.runners.records import (
    DONE,
    Cause,
    GpuUse,
    HookDelivery,
    Job,
    JobState,
    Runner,
    RunnerEvent,
    RunnerState,
    ScaleSetState,
    ServerChoice,
    ServerSpec,
    Trust,
)
from gpuyard.runners.store import RunnerStore
from tests.contract.store import at

CHOICE = ServerChoice("v100", "gpu.v100x2", "ci-image", gpus=2, same_group=True)
WANTED = ServerSpec("gpu", (CHOICE, replace(CHOICE, gpus=1)), timedelta(hours=6), priority=-3, preemptible=True)
JOB = Job(
    "github.com/1", "acme/solver", ("self-hosted", "gpu"), JobState.QUEUED, at(0), "acme", "set", 2**40, 3, "ci",
    "test (1, 2)", "pull_request", "ada", Trust.FORK, "MEMBER", "topic", "0" * 40, "https://github.com/acme/x", WANTED,
    "r1", "success", "because", 2, at(1), at(2), at(3), at(4),
)  # fmt: skip
RUNNER = Runner(
    "r1", RunnerState.BUSY, "acme", "acme/solver", ("gpu",), WANTED, CHOICE, at(0), at(1), "acme/solver",
    "github.com/1", "github.com/1", "set", "lease", "server", 2**40, at(1), at(2), at(3), at(4), at(5),
    Cause.TIME_LIMIT, "too long", ("gpu-1/0000:01:00.0", "gpu-1/0000:02:00.0"),
)  # fmt: skip
EVERY = frozenset(JobState)
SMALL_JOB = Job("github.com/2", "acme/other", (), JobState.HELD, at(1), "acme")
SMALL_RUNNER = Runner("r2", RunnerState.REQUESTED, "acme", "", (), WANTED, CHOICE, at(2), at(2))
HOOK = HookDelivery("guid", "acme", "workflow_job", at(0), b'{"a": "\x00\xff"}')


def what_is_written_is_read(store: RunnerStore) -> None:
    jobs, runners = (JOB, SMALL_JOB), (RUNNER, SMALL_RUNNER)
    assert store.put(jobs, runners)
    assert tuple(store.jobs()) == jobs
    assert tuple(store.runners()) == runners
    assert (store.job(JOB.id), store.runner("r2")) == (JOB, SMALL_RUNNER)
    assert store.job("none") is None
    assert store.runner("none") is None


def jobs_go_only_forwards(store: RunnerStore) -> None:
    order = [JobState.HELD, JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED]
    for early, late in pairwise(order):
        assert store.put_job(replace(JOB, state=early, reason="first"))
        assert store.put_job(replace(JOB, state=early, reason="again")), "of the same state what is newer"
        assert store.put_job(replace(JOB, state=late))
        assert not store.put_job(replace(JOB, state=early), RunnerEvent(at(9), "", JOB.id, "late"))
        assert store.job(JOB.id) == replace(JOB, state=late)
    for end in DONE - {JobState.COMPLETED}:
        assert not store.put_job(replace(JOB, state=end)), "the first end stays"
    assert store.events(job=JOB.id) == [], "what came late is not told"


def runners_go_only_forwards(store: RunnerStore) -> None:
    ended = replace(RUNNER, state=RunnerState.GONE)
    assert store.put_runner(replace(RUNNER, state=RunnerState.DELETING))
    assert not store.put_runner(RUNNER, RunnerEvent(at(1), "r1", "", "late"))
    assert store.put_runner(ended, RunnerEvent(at(1), "r1", "", "gone"))
    assert not store.put_runner(replace(RUNNER, state=RunnerState.FAILED))
    assert store.runner("r1") == ended
    assert [event.text for event in store.events("r1")] == ["gone"]


def a_name_is_used_once(store: RunnerStore) -> None:
    store.add_runner(SMALL_RUNNER, RunnerEvent(at(2), "r2", "", "made"))
    with pytest.raises(ConflictError):
        store.add_runner(SMALL_RUNNER, RunnerEvent(at(2), "r2", "", "made again"))
    assert [event.text for event in store.events("r2")] == ["made"]


def jobs_are_asked_for_by_state_and_repository(store: RunnerStore) -> None:
    many = [
        replace(JOB, id=f"github.com/{number}", state=state, queued=at(number), repository=f"acme/{number % 2}")
        for number, state in enumerate(JobState)
    ]
    store.put(many[::-1])
    assert store.jobs() == [job for job in many if job.state not in DONE]
    assert store.jobs(EVERY, "acme/1") == many[1::2]
    assert store.jobs(EVERY, limit=2) == many[:2]
    assert store.latest_jobs(EVERY, limit=2) == many[:-3:-1]
    assert store.latest_jobs(EVERY, before=at(2)) == many[1::-1]
    assert store.latest_jobs() == [job for job in many[::-1] if job.state in DONE]
    assert store.repositories_with_jobs("acme", at(0)) == ["acme/1", "acme/0"], "who had the latest comes first"
    assert store.repositories_with_jobs("acme", at(5), 1) == ["acme/1"]
    assert store.repositories_with_jobs("other", at(0)) == store.repositories_with_jobs("acme", at(9)) == []


def runners_are_live_or_over(store: RunnerStore) -> None:
    live = [replace(RUNNER, name=f"l{n}", state=state, created=at(n)) for n, state in enumerate(list(RunnerState)[:6])]
    over = [replace(RUNNER, name=f"o{n}", state=state, ended=at(n)) for n, state in enumerate(list(RunnerState)[6:])]
    store.put(runners=[*over, *live[::-1]])
    assert store.runners() == live
    assert store.runners(over=True) == over[::-1]
    assert store.runners(over=True, limit=1) == over[-1:]
    assert store.runners_of("github.com/1") == sorted([*live, *over], key=lambda runner: (runner.created, runner.name))
    assert store.runners_of("github.com/2") == []


def a_timeline_is_of_a_runner_or_of_a_job(store: RunnerStore) -> None:
    lines = [
        RunnerEvent(at(0), "r1", "j1", "a"),
        RunnerEvent(at(0), "", "j1", "b"),
        RunnerEvent(at(1), "r1", "j2", "c"),
    ]
    store.put(events=lines)
    assert store.events("r1") == [lines[0], lines[2]]
    assert store.events(job="j1") == lines[:2]
    assert store.events("r1", limit=1) == [lines[2]], "the last ones"
    online = RunnerEvent(at(1), "r1", "", "online")
    store.put(events=[online, RunnerEvent(at(2), "r9", "", "x" * 5000)])
    assert store.timeline("j1", ["r1"]) == [*lines[:2], online], "not what the runner did for another job"
    assert store.timeline("j1", []) == lines[:2]
    assert len(store.events("r9")[0].text) == 2000


def a_message_is_written_with_what_it_means(store: RunnerStore) -> None:
    state = ScaleSetState("acme", "gpu", 7, 41, 2, at(1), "")
    store.put_message(state, [JOB], [RunnerEvent(at(1), "", JOB.id, "assigned")])
    later = replace(state, last_message=42, error="503")
    store.put_message(later, [replace(JOB, state=JobState.HELD), SMALL_JOB])
    assert store.scale_sets() == [later]
    assert store.jobs() == [JOB, SMALL_JOB], "what is late in a message does not keep back the rest"
    assert len(store.events(job=JOB.id)) == 1
    fresh = ScaleSetState("acme", "a")
    store.put_message(fresh)
    assert store.scale_sets() == [fresh, later]


def a_delivery_is_worked_on_until_something_has_become_of_it(store: RunnerStore) -> None:
    store.keep_delivery(HOOK)
    assert store.deliveries(at(0)) == [HOOK]
    store.delivery_failed("guid", "acme", "no route", at(2))
    assert store.deliveries(at(1)) == []
    assert store.deliveries(at(2)) == [replace(HOOK, tries=1)]
    store.delivery_failed("guid", "acme", "no sense in it")
    assert store.deliveries(at(99)) == []
    store.keep_delivery(replace(HOOK, received=at(3)))
    assert store.deliveries(at(3)) == [replace(HOOK, received=at(3))], "a redelivery of one that failed is taken anew"
    store.delivery_done("guid", "acme", "queued", [JOB], [RunnerEvent(at(3), "", JOB.id, "queued")])
    assert store.jobs() == [JOB]
    store.keep_delivery(HOOK)
    store.delivery_failed("guid", "acme", "late", at(0))
    assert store.deliveries(at(99)) == [], "a redelivery of one that is done changes nothing"


def deliveries_of_scopes_are_apart(store: RunnerStore) -> None:
    many = [replace(HOOK, id=f"d{n}", scope=scope, received=at(n)) for n in range(3) for scope in ("a", "b")]
    store.keep_deliveries(many)
    assert store.deliveries(at(9)) == many
    assert store.deliveries(at(9), limit=2) == many[:2]
    store.delivery_done("d0", "a", "ignored")
    assert store.deliveries(at(9)) == many[1:]


def use_is_counted_where_the_job_was(store: RunnerStore) -> None:
    ended = replace(RUNNER, state=RunnerState.GONE, created=at(1), ended=at(3), job="github.com/2")
    store.put([SMALL_JOB], [ended, replace(SMALL_RUNNER, for_repository="acme/solver", created=at(4))])
    live = GpuUse("acme/solver", "v100", 2, at(4), None, "gpu")
    assert store.used(at(2)) == [live, GpuUse("acme/other", "v100", 2, at(1), at(3), "gpu", at(3))]
    assert store.used(at(3)) == [live]


def what_happened_lately_can_be_counted(store: RunnerStore) -> None:
    early, late = replace(JOB, id="j1", queued=at(0), started=at(1)), replace(JOB, id="j2", queued=at(1), started=at(3))
    gone = replace(RUNNER, name="r2", state=RunnerState.FAILED, cause=Cause.GPU_CHECK, ended=at(3))
    elsewhere = replace(JOB, id="j3", started=at(3), runner="")
    store.put([early, late, elsewhere, SMALL_JOB], [replace(RUNNER, ended=None), gone])
    assert [(job.id, job.waited) for job in store.started(at(1))] == [("j2", 7200), ("j1", 3600)]
    assert [job.id for job in store.started(at(2))] == ["j2"]
    assert [(runner.name, runner.cause, runner.pool) for runner in store.ended(at(3))] == [
        ("r2", Cause.GPU_CHECK, "v100")
    ]
    assert store.ended(at(4)) == []


def the_end_of_a_log_is_kept(store: RunnerStore) -> None:
    assert store.log("r1") == ""
    store.put_log("r1", "first", at(0))
    store.put_log("r1", "x" * 70_000 + "end", at(1))
    assert (len(store.log("r1")), store.log("r1")[-4:]) == (65_536, "xend")


def values_are_remembered(store: RunnerStore) -> None:
    store.set_value("etag", "a")
    store.set_value("etag", 'W/"b"')
    assert (store.value("etag"), store.value("none")) == ('W/"b"', "")
    store.set_value("etag", "")
    assert store.value("etag") == ""


def what_no_database_takes_is_replaced(store: RunnerStore) -> None:
    """JSON may have NUL and half pairs, and so a name or a log that somebody made up."""
    bad, good = "a\x00\ud800b", "a��b"
    store.put([replace(JOB, name=bad)], [replace(RUNNER, reason=bad)], [RunnerEvent(at(0), "r1", "", bad)])
    store.put_log("r1", bad, at(0))
    store.set_value(bad, bad)
    job, runner = store.job(JOB.id), store.runner("r1")
    assert job is not None
    assert runner is not None
    assert (job.name, runner.reason, store.events("r1")[0].text) == (good,) * 3
    assert (store.log("r1"), store.value(bad)) == (good, good)
    assert store.job(bad) is None
    store.put_job(replace(JOB, labels=("\ud800",)))
    store.keep_delivery(replace(HOOK, id=bad))
    store.delivery_done(bad, "acme", bad)
    assert store.deliveries(at(9)) == []


def what_is_old_and_over_goes(store: RunnerStore) -> None:
    over = replace(JOB, state=JobState.COMPLETED)
    gone = replace(RUNNER, state=RunnerState.GONE)
    young = replace(over, id="young", queued=at(24 * 10))
    store.put([over, young, SMALL_JOB], [gone, SMALL_RUNNER], [RunnerEvent(at(0), "r1", JOB.id, "made")])
    store.put_log("r1", "text", at(0))
    store.keep_delivery(HOOK)

    store.prune(at(24 * 3))
    assert store.deliveries(at(0)) == [HOOK]
    store.prune(at(24 * 4))
    assert store.deliveries(at(0)) == []
    assert (len(store.events("r1")), store.log("r1")) == (1, "text")
    store.prune(at(24 * 90))
    assert (store.events("r1"), store.log("r1")) == ([], "")
    assert (store.job(JOB.id), store.runner("r1")) == (over, gone)
    store.prune(at(24 * 405))
    assert store.jobs(EVERY) == [SMALL_JOB, young], "what is not over stays, however old"
    assert (store.runners(), store.runner("r1")) == ([SMALL_RUNNER], None)


RULES: tuple[Callable[[RunnerStore], None], ...] = (
    what_is_written_is_read,
    jobs_go_only_forwards,
    runners_go_only_forwards,
    a_name_is_used_once,
    jobs_are_asked_for_by_state_and_repository,
    runners_are_live_or_over,
    a_timeline_is_of_a_runner_or_of_a_job,
    a_message_is_written_with_what_it_means,
    a_delivery_is_worked_on_until_something_has_become_of_it,
    deliveries_of_scopes_are_apart,
    use_is_counted_where_the_job_was,
    what_happened_lately_can_be_counted,
    the_end_of_a_log_is_kept,
    values_are_remembered,
    what_no_database_takes_is_replaced,
    what_is_old_and_over_goes,
)
