"""Writes jobs, runners and events, and only forwards: a stored row in a later state than the new one is left as it
is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache

from sqlalchemy import Connection, Table, case, insert, or_
from sqlalchemy.dialects import postgresql, sqlite

from gpuyard.database.columns import storable
from gpuyard.database.times import seconds
from gpuyard.database.upsert import upsert
from gpuyard.runners.records import DONE, OVER, Job, JobState, Runner, RunnerEvent, RunnerState
from gpuyard.runners.store.rows import JOB_COLUMNS, RUNNER_COLUMNS, job_row, runner_row
from gpuyard.runners.store.schema import EVENTS, JOBS, RUNNERS

TEXT = 2_000
"""Characters of an event, at most."""


def _ranks(states: type[StrEnum], last: frozenset[StrEnum]) -> Mapping[str, int]:
    """The number of each state in its life; the last ones have the same, since none follows on another."""
    order = [state.value for state in states if state not in last]
    return {**{name: place for place, name in enumerate(order)}, **{state.value: len(order) for state in last}}


_JOB_RANKS = _ranks(JobState, frozenset(DONE))
_RUNNER_RANKS = _ranks(RunnerState, frozenset(OVER))


@cache
def _statement(dialect: str, table: Table, state: str) -> postgresql.Insert | sqlite.Insert:
    """Writes a job or a runner in this state, unless the one that is there is further."""
    columns, ranks = (JOB_COLUMNS, _JOB_RANKS) if table is JOBS else (RUNNER_COLUMNS, _RUNNER_RANKS)
    before = case(dict(ranks), value=table.c.state) < ranks[state]
    return upsert(dialect, table, columns, or_(table.c.state == state, before))


def put_job(connection: Connection, job: Job) -> bool:
    statement = _statement(connection.dialect.name, JOBS, job.state.value)
    return connection.execute(statement, job_row(job)).rowcount == 1


def put_runner(connection: Connection, runner: Runner) -> bool:
    statement = _statement(connection.dialect.name, RUNNERS, runner.state.value)
    return connection.execute(statement, runner_row(runner)).rowcount == 1


def add_events(connection: Connection, events: Iterable[RunnerEvent]) -> None:
    rows = [
        {"at": seconds(event.at), "runner": event.runner, "job": event.job, "text": storable(event.text)[:TEXT]}
        for event in events
    ]
    if rows:
        connection.execute(insert(EVENTS), rows)


def put_all(
    connection: Connection, jobs: Sequence[Job], runners: Sequence[Runner], events: Sequence[RunnerEvent]
) -> bool:
    """Write jobs, runners and events. Returns whether all were written; an event of a job or a runner that was not is
    left out with it."""
    late_jobs = {job.id for job in jobs if not put_job(connection, job)}
    late_runners = {runner.name for runner in runners if not put_runner(connection, runner)}
    add_events(
        connection, [event for event in events if event.job not in late_jobs and event.runner not in late_runners]
    )
    return not late_jobs and not late_runners
