"""Repositories: which are public, so that names of others stay among those who may know them, and which had jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, func, select

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import seconds
from gpuyard.database.upsert import put
from gpuyard.runners.store.schema import JOBS, REPOSITORIES

BELIEVED = timedelta(days=2)
"""What GitHub said so long ago counts no more: a repository may have become private."""
KEEP_REPOSITORIES = timedelta(days=400)


class Visibility:
    """Part of `RunnerStore`. Of an unknown repository nobody says that it is public."""

    _database: Database

    def put_visibility(self, scope: str, repository: str, private: bool, now: datetime) -> None:
        """What GitHub says of a repository (``owner/name``) of an enrolment."""
        row = {"scope": storable(scope), "name": storable(repository.lower()), "private": private, "seen": seconds(now)}
        with self._database.writing() as connection:
            put(connection, REPOSITORIES, row)

    def public_repositories(self, now: datetime) -> frozenset[str]:
        """Names (``owner/name``, in lower case) of those that every enrolment that knows them says to be public."""
        known = select(REPOSITORIES.c.name).where(REPOSITORIES.c.seen > seconds(now - BELIEVED))
        private = select(REPOSITORIES.c.name).where(REPOSITORIES.c.private)
        with self._database.reading() as connection:
            return frozenset(connection.scalars(known)) - frozenset(connection.scalars(private))

    def seen_before(self, moment: datetime, scope: str, limit: int = 100) -> list[str]:
        """Repositories of an enrolment of which GitHub last said something before then, the longest ago first."""
        query = select(REPOSITORIES.c.name).where(
            REPOSITORIES.c.scope == storable(scope), REPOSITORIES.c.seen < seconds(moment)
        )
        with self._database.reading() as connection:
            return [*connection.scalars(query.order_by(REPOSITORIES.c.seen, REPOSITORIES.c.name).limit(limit))]

    def repositories_of(self, jobs: Collection[str]) -> dict[str, str]:
        """Id of job -> its repository."""
        query = select(JOBS.c.id, JOBS.c.repository).where(JOBS.c.id.in_([storable(job) for job in jobs]))
        with self._database.reading() as connection:
            return {row.id: row.repository for row in connection.execute(query)}

    def repositories_with_jobs(self, scope: str, since: datetime, limit: int = 5000) -> list[str]:
        """Repositories (``owner/name``) of an enrolment that had jobs since then, the latest first."""
        latest = func.max(JOBS.c.queued)
        query = select(JOBS.c.repository).where(JOBS.c.scope == storable(scope), JOBS.c.queued >= seconds(since))
        query = query.group_by(JOBS.c.repository).order_by(latest.desc(), JOBS.c.repository).limit(limit)
        with self._database.reading() as connection:
            return [*connection.scalars(query)]

    @staticmethod
    def prune_repositories(connection: Connection, now: datetime) -> None:
        """Those that are asked about no more."""
        connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.seen < seconds(now - KEEP_REPOSITORIES)))
