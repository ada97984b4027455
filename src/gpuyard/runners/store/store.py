"""The store of runners: reads and writes jobs, runners, timelines, logs, scale sets and small values.

Retention: webhooks 4 days (GitHub redelivers for 3), their bodies only until they are processed; events and logs 90
days; jobs, runners and the visibility of repositories 400. `prune` deletes what is older.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, insert, select

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.migrate import migrate
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new, put
from gpuyard.runners.records import (
    DONE,
    OVER,
    GpuUse,
    Job,
    JobState,
    Runner,
    RunnerEvent,
    RunnerState,
    ScaleSetState,
)
from gpuyard.runners.store.deliveries import Deliveries
from gpuyard.runners.store.numbers import Numbers
from gpuyard.runners.store.rows import JOB, RUNNER, runner_row, to_job, to_runner
from gpuyard.runners.store.schema import EVENTS, JOBS, LOGS, RUNNERS, SCHEMA_MODULE, SETS, VALUES
from gpuyard.runners.store.visibility import Visibility
from gpuyard.runners.store.writing import add_events, put_all

LOG = 64 * 1024
"""Characters of a runner's log that are kept: its end."""
KEEP_EVENTS = timedelta(days=90)
KEEP_JOBS = timedelta(days=400)
_JOB, _RUNNER = [JOBS.c[name] for name in JOB], [RUNNERS.c[name] for name in RUNNER]
_LIVE = sorted(state.value for state in RunnerState if state not in OVER)
_OPEN = sorted(state.value for state in JobState if state not in DONE)


class RunnerStore(Deliveries, Numbers, Visibility):
    """The store. Safe to use from several threads, and from several processes on one database. Every method is a
    transaction of its own, and raises StoreError when the database cannot be used.

    Jobs and runners go only forwards: a job or a runner that is in a later state than the one that is to be written is
    left as it is, and the events that came with it are dropped; of two ends the first stays.
    """

    def __init__(self, database: Database) -> None:
        """Make the tables, or bring older ones up to date. Whoever opened the database closes it. Raises StoreError."""
        migrate(database.url, SCHEMA_MODULE)
        self._database = database
        self.version: object = object()
        """A new object after everything that this store has, or may have, changed in jobs and runners."""

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A transaction that changes jobs or runners."""
        try:
            with self._database.writing() as connection:
                yield connection
        finally:
            self.version = object()

    # Writing

    def put(self, jobs: Sequence[Job] = (), runners: Sequence[Runner] = (), events: Sequence[RunnerEvent] = ()) -> bool:
        """Write what belongs together. Returns whether all of it was written, else what is stored is further (see
        above)."""
        with self._changing() as connection:
            return put_all(connection, jobs, runners, events)

    def put_job(self, job: Job, *events: RunnerEvent) -> bool:
        """Write a job, new or in place of the one with its id; False when the stored one is further."""
        return self.put(jobs=(job,), events=events)

    def put_runner(self, runner: Runner, *events: RunnerEvent) -> bool:
        """Write a runner, new or in place of the one with its name; False when the stored one is further."""
        return self.put(runners=(runner,), events=events)

    def add_runner(self, runner: Runner, *events: RunnerEvent) -> None:
        """Write a new runner: the intent to make it. Raises ConflictError when its name has been used."""
        with self._changing() as connection:
            connection.execute(insert(RUNNERS), runner_row(runner))
            add_events(connection, events)

    def put_message(self, state: ScaleSetState, jobs: Sequence[Job] = (), events: Sequence[RunnerEvent] = ()) -> None:
        """Write the effect of a scale set's message, before it is acknowledged; with no jobs, the state alone."""
        row = {
            "scope": storable(state.scope),
            "name": storable(state.name),
            "id": state.id,
            "last_message": state.last_message,
            "assigned": state.assigned,
            "waiting": state.waiting,
            "seen": maybe_seconds(state.seen),
            "error": storable(state.error),
        }
        with self._changing() as connection:
            put_all(connection, jobs, (), events)
            put(connection, SETS, row)

    def put_log(self, runner: str, text: str, now: datetime) -> None:
        """Write the end of a runner's log, in place of the one that is stored."""
        row = {"runner": storable(runner), "at": seconds(now), "text": storable(text[-LOG:])}
        with self._database.writing() as connection:
            put(connection, LOGS, row)

    def set_value(self, key: str, value: str) -> None:
        """Write a small value, such as how far a search has come; an empty one is deleted."""
        with self._database.writing() as connection:
            if value:
                put(connection, VALUES, {"key": storable(key), "value": storable(value)})
            else:
                connection.execute(delete(VALUES).where(VALUES.c.key == storable(key)))

    def identity(self, new: str) -> str:
        """Return this database's name, which it keeps for ever; `new` when it has none yet. By it two sites of one
        name, on databases of their own, tell their servers and registrations apart."""
        with self._database.writing() as connection:
            insert_new(connection, VALUES, {"key": "identity", "value": storable(new)})
        return self.value("identity")

    def prune(self, now: datetime) -> None:
        """Delete what is older than it is kept for. Jobs and runners that are not over stay."""
        events, jobs = seconds(now - KEEP_EVENTS), seconds(now - KEEP_JOBS)
        with self._changing() as connection:
            self.prune_deliveries(connection, now)
            self.prune_repositories(connection, now)
            connection.execute(delete(EVENTS).where(EVENTS.c.at <= events))
            connection.execute(delete(LOGS).where(LOGS.c.at <= events))
            connection.execute(delete(JOBS).where(JOBS.c.queued <= jobs, JOBS.c.state.not_in(_OPEN)))
            connection.execute(delete(RUNNERS).where(RUNNERS.c.ended <= jobs, RUNNERS.c.state.not_in(_LIVE)))

    # Reading

    def job(self, id: str) -> Job | None:
        jobs = self._jobs(select(*_JOB).where(JOBS.c.id == storable(id)))
        return jobs[0] if jobs else None

    def jobs(
        self, states: Collection[JobState] = frozenset(JobState) - DONE, repository: str = "", limit: int | None = None
    ) -> list[Job]:
        """Return jobs in these states, the open ones unless others are asked for; by the time at which they were
        queued."""
        return self._jobs(_some_jobs(states, repository).order_by(JOBS.c.queued, JOBS.c.id).limit(limit))

    def latest_jobs(
        self,
        states: Collection[JobState] = DONE,
        repository: str = "",
        limit: int = 100,
        before: datetime | None = None,
    ) -> list[Job]:
        """Return jobs, the newest first; with `before` those queued before that moment."""
        query = _some_jobs(states, repository).order_by(JOBS.c.queued.desc(), JOBS.c.id.desc()).limit(limit)
        return self._jobs(query if before is None else query.where(JOBS.c.queued < seconds(before)))

    def runner(self, name: str) -> Runner | None:
        runners = self._runners(select(*_RUNNER).where(RUNNERS.c.name == storable(name)))
        return runners[0] if runners else None

    def runners(self, over: bool = False, limit: int | None = None) -> list[Runner]:
        """Return runners that are not over, by creation; or those that are, the latest first."""
        if over:
            ended = select(*_RUNNER).where(RUNNERS.c.state.not_in(_LIVE))
            return self._runners(ended.order_by(RUNNERS.c.ended.desc(), RUNNERS.c.name).limit(limit))
        live = select(*_RUNNER).where(RUNNERS.c.state.in_(_LIVE))
        return self._runners(live.order_by(RUNNERS.c.created, RUNNERS.c.name).limit(limit))

    def runners_of(self, job: str) -> list[Runner]:
        """Return the runners that a job was given or that were made for it, by creation; a hundred at most."""
        mine = (RUNNERS.c.job == storable(job)) | (RUNNERS.c.for_job == storable(job))
        return self._runners(select(*_RUNNER).where(mine).order_by(RUNNERS.c.created, RUNNERS.c.name).limit(100))

    def events(self, runner: str = "", job: str = "", limit: int = 1000) -> list[RunnerEvent]:
        """Return the timeline of a runner, or of a job; in the order in which it was written, the last events when
        there are more."""
        which = EVENTS.c.runner == storable(runner) if runner else EVENTS.c.job == storable(job)
        return self._events(which, limit)

    def _events(self, which: ColumnElement[bool], limit: int) -> list[RunnerEvent]:
        with self._database.reading() as connection:
            rows = connection.execute(select(EVENTS).where(which).order_by(EVENTS.c.id.desc()).limit(limit)).all()
        return [RunnerEvent(moment(row.at), row.runner, row.job, row.text) for row in reversed(rows)]

    def timeline(self, job: str, runners: Collection[str], limit: int = 1000) -> list[RunnerEvent]:
        """Return the events of a job, and of these runners while they were for it; in the order in which they were
        written, the last ones when there are more."""
        job = storable(job)
        theirs = EVENTS.c.runner.in_([storable(runner) for runner in runners]) & EVENTS.c.job.in_(["", job])
        return self._events((EVENTS.c.job == job) | theirs, limit)

    def scale_sets(self) -> list[ScaleSetState]:
        with self._database.reading() as connection:
            rows = connection.execute(select(SETS).order_by(SETS.c.scope, SETS.c.name)).all()
        return [
            ScaleSetState(
                row.scope,
                row.name,
                row.id,
                row.last_message,
                row.assigned,
                maybe_moment(row.seen),
                row.error,
                row.waiting,
            )
            for row in rows
        ]

    def used(self, since: datetime) -> list[GpuUse]:
        """Return the use of GPUs by runners that had them at `since` or later: from their creation to their end."""
        columns = [
            RUNNERS.c[name] for name in ("for_repository", "pool", "gpu_count", "created", "ended", "kind", "busy")
        ]
        query = select(*columns, JOBS.c.repository.label("of_job")).outerjoin(JOBS, JOBS.c.id == RUNNERS.c.job)
        live = RUNNERS.c.state.in_(_LIVE)
        lately = ~live & (RUNNERS.c.ended > seconds(since))
        with self._database.reading() as connection:
            rows = [row for which in (live, lately) for row in connection.execute(query.where(which))]
        return [
            GpuUse(
                row.of_job or row.for_repository,
                row.pool,
                row.gpu_count,
                moment(row.created),
                maybe_moment(row.ended),
                row.kind,
                maybe_moment(row.busy),
            )
            for row in rows
        ]

    def log(self, runner: str) -> str:
        """Return the log of a runner; empty when there is none."""
        return self._one(select(LOGS.c.text).where(LOGS.c.runner == storable(runner)))

    def value(self, key: str) -> str:
        """Return a small value; empty when there is none."""
        return self._one(select(VALUES.c.value).where(VALUES.c.key == storable(key)))

    def _one(self, query: Select[tuple[str]]) -> str:
        with self._database.reading() as connection:
            return connection.scalar(query) or ""

    def _jobs(self, query: Select[Any]) -> list[Job]:
        with self._database.reading() as connection:
            return [to_job(row) for row in connection.execute(query)]

    def _runners(self, query: Select[Any]) -> list[Runner]:
        with self._database.reading() as connection:
            return [to_runner(row) for row in connection.execute(query)]


def _some_jobs(states: Collection[JobState], repository: str) -> Select[Any]:
    query = select(*_JOB).where(JOBS.c.state.in_(sorted(state.value for state in states)))
    return query.where(JOBS.c.repository == storable(repository)) if repository else query
