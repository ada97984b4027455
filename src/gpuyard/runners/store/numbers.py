"""What happened lately, for numbers: jobs that began, runners that ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from gpuyard.runners.records import Cause
from gpuyard.runners.store.schema import JOBS, RUNNERS
from gpuyard.store.engine import Database
from gpuyard.store.times import moment, seconds

MOST = 50_000
"""Rows of one answer: the latest ones."""


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
class EndedRunner:
    name: str
    pool: str
    cause: Cause
    ended: datetime


class Numbers:
    """Part of `RunnerStore`."""

    _database: Database

    def started(self, since: datetime) -> list[StartedJob]:
        """Jobs that began since then on a runner, the latest first."""
        columns = (JOBS.c.id, JOBS.c.repository, JOBS.c.scale_set, JOBS.c.queued, JOBS.c.started)
        query = select(*columns).where(JOBS.c.started >= seconds(since), JOBS.c.runner != "")
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(JOBS.c.started.desc()).limit(MOST)).all()
        return [StartedJob(*row[:3], moment(row.queued), moment(row.started)) for row in rows]

    def ended(self, since: datetime) -> list[EndedRunner]:
        """Runners that ended since then, the latest first."""
        columns = (RUNNERS.c.name, RUNNERS.c.pool, RUNNERS.c.cause, RUNNERS.c.ended)
        query = select(*columns).where(RUNNERS.c.ended >= seconds(since), RUNNERS.c.cause != "")
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(RUNNERS.c.ended.desc()).limit(MOST)).all()
        return [EndedRunner(row.name, row.pool, Cause(row.cause), moment(row.ended)) for row in rows]
