"""Reads what metrics, figures and plans count: jobs that began, runners that ended, jobs that were turned down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.runners.records import Cause, JobState
from gpuyard.runners.store.schema import JOBS, RUNNERS

MOST = 50_000
"""Rows of one answer: the latest ones."""
MOST_WAITS = 500_000


@dataclass(frozen=True)
class StartedJob:
    id: str
    repository: str
    scale_set: str
    queued: datetime
    started: datetime

    @property
    def waited(self) -> float:
        """Seconds from GitHub's queue to its runner."""
        return max(0.0, (self.started - self.queued).total_seconds())


@dataclass(frozen=True)
class JobWait:
    pool: str
    queued: datetime
    started: datetime


@dataclass(frozen=True)
class EndedRunner:
    name: str
    pool: str
    cause: Cause
    ended: datetime


class Numbers:
    """The part of `RunnerStore` for counts."""

    _database: Database

    def started(self, since: datetime) -> list[StartedJob]:
        """Return jobs that began since then on a runner, the latest first."""
        columns = (JOBS.c.id, JOBS.c.repository, JOBS.c.scale_set, JOBS.c.queued, JOBS.c.started)
        query = select(*columns).where(JOBS.c.started >= seconds(since), JOBS.c.runner != "")
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(JOBS.c.started.desc()).limit(MOST)).all()
        return [StartedJob(*row[:3], moment(row.queued), moment(row.started)) for row in rows]

    def waits(self, since: datetime) -> list[JobWait]:
        """Return the waits of jobs that began since then on a runner of ours, the latest first."""
        columns = (RUNNERS.c.pool, JOBS.c.queued, JOBS.c.started)
        query = select(*columns).join(RUNNERS, RUNNERS.c.name == JOBS.c.runner).where(JOBS.c.started >= seconds(since))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(JOBS.c.started.desc()).limit(MOST_WAITS)).all()
        return [JobWait(row.pool, moment(row.queued), moment(row.started)) for row in rows]

    def turned_down(self, since: datetime) -> dict[tuple[str, str], int]:
        """Count, by (enrolment, scale set), the jobs queued since then that gpuyard has refused or given up, and that
        are not over at GitHub."""
        states = (JobState.REFUSED.value, JobState.FAILED.value)
        mine = (JOBS.c.scale_set != "", JOBS.c.conclusion == "", JOBS.c.completed.is_(None))
        query = select(JOBS.c.scope, JOBS.c.scale_set, func.count().label("jobs"))
        query = query.where(JOBS.c.state.in_(states), JOBS.c.queued >= seconds(since), *mine)
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(JOBS.c.scope, JOBS.c.scale_set)).all()
        return {(row.scope, row.scale_set): row.jobs for row in rows}

    def ended(self, since: datetime) -> list[EndedRunner]:
        """Return runners that ended since then, the latest first."""
        columns = (RUNNERS.c.name, RUNNERS.c.pool, RUNNERS.c.cause, RUNNERS.c.ended)
        query = select(*columns).where(RUNNERS.c.ended >= seconds(since), RUNNERS.c.cause != "")
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(RUNNERS.c.ended.desc()).limit(MOST)).all()
        return [EndedRunner(row.name, row.pool, Cause(row.cause), moment(row.ended)) for row in rows]
