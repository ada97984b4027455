"""Jobs, runners and events are written here, and only forwards: what is further than what comes is left as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, Table, case, insert, or_

from gpuyard.runners.records import DONE, OVER, Job, JobState, Runner, RunnerEvent, RunnerState
from gpuyard.runners.store.rows import job_row, runner_row, storable
from gpuyard.runners.store.schema import EVENTS, JOBS, RUNNERS
from gpuyard.store.times import seconds
from gpuyard.store.upsert import put

TEXT = 2_000
"""Characters of an event, at most."""


def _ranks(states: type[StrEnum], last: frozenset[StrEnum]) -> Mapping[str, int]:
    """The number of each state in its life; the last ones have the same, since none follows on another."""
    order = [one.value for one in states if one not in last]
    return {**{name: place for place, name in enumerate(order)}, **{one.value: len(order) for one in last}}


_JOB_RANKS = _ranks(JobState, frozenset(DONE))
_RUNNER_RANKS = _ranks(RunnerState, frozenset(OVER))


def _not_further(table: Table, ranks: Mapping[str, int], state: str) -> ColumnElement[bool]:
    """Of the row that is there: it has this state, or one that comes before it."""
    return or_(table.c.state == state, case(dict(ranks), value=table.c.state) < ranks[state])


def put_job(connection: Connection, job: Job) -> bool:
    return put(connection, JOBS, job_row(job), _not_further(JOBS, _JOB_RANKS, job.state.value))


def put_runner(connection: Connection, runner: Runner) -> bool:
    return put(connection, RUNNERS, runner_row(runner), _not_further(RUNNERS, _RUNNER_RANKS, runner.state.value))


def add_events(connection: Connection, events: Iterable[RunnerEvent]) -> None:
    rows = [
        {"at": seconds(one.at), "runner": one.runner, "job": one.job, "text": storable(one.text)[:TEXT]}
        for one in events
    ]
    if rows:
        connection.execute(insert(EVENTS), rows)


def put_all(
    connection: Connection, jobs: Sequence[Job], runners: Sequence[Runner], events: Sequence[RunnerEvent]
) -> bool:
    """Whether all were written. An event of a job or a runner that was not is left out with it."""
    late_jobs = {one.id for one in jobs if not put_job(connection, one)}
    late_runners = {one.name for one in runners if not put_runner(connection, one)}
    add_events(connection, [one for one in events if one.job not in late_jobs and one.runner not in late_runners])
    return not late_jobs and not late_runners
