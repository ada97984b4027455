"""Stores whether repositories are private, so that their names stay among people who may know them, and which had
jobs."""

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
"""An older report of GitHub's does not count: a repository may have become private."""
KEEP_REPOSITORIES = timedelta(days=400)


class Visibility:
    """The part of `RunnerStore` for repositories. A repository that is unknown does not count as public."""

    _database: Database

    def put_visibility(self, scope: str, repository: str, private: bool, now: datetime) -> None:
        """Store whether GitHub says that a repository (``owner/name``) of an enrolment is private."""
        row = {"scope": storable(scope), "name": storable(repository.lower()), "private": private, "seen": seconds(now)}
        with self._database.writing() as connection:
            put(connection, REPOSITORIES, row)

    def public_repositories(self, now: datetime) -> frozenset[str]:
        """Return the names (``owner/name``, in lower case) of repositories that are public for every enrolment that
        knows them."""
        recent = select(REPOSITORIES.c.name).where(REPOSITORIES.c.seen > seconds(now - BELIEVED))
        private = select(REPOSITORIES.c.name).where(REPOSITORIES.c.private)
        with self._database.reading() as connection:
            return frozenset(connection.scalars(recent)) - frozenset(connection.scalars(private))

    def seen_before(self, moment: datetime, scope: str, limit: int = 100) -> list[str]:
        """Return repositories of an enrolment whose visibility GitHub last reported before `moment`, the longest ago
        first."""
        query = select(REPOSITORIES.c.name).where(
            REPOSITORIES.c.scope == storable(scope), REPOSITORIES.c.seen < seconds(moment)
        )
        with self._database.reading() as connection:
            return [*connection.scalars(query.order_by(REPOSITORIES.c.seen, REPOSITORIES.c.name).limit(limit))]

    def repositories_of(self, jobs: Collection[str]) -> dict[str, str]:
        """Return id of job -> its repository."""
        query = select(JOBS.c.id, JOBS.c.repository).where(JOBS.c.id.in_([storable(job) for job in jobs]))
        with self._database.reading() as connection:
            return {row.id: row.repository for row in connection.execute(query)}

    def repositories_with_jobs(self, scope: str, since: datetime, limit: int = 5000) -> list[str]:
        """Return repositories (``owner/name``) of an enrolment that had jobs since then, the latest first."""
        latest = func.max(JOBS.c.queued)
        query = select(JOBS.c.repository).where(JOBS.c.scope == storable(scope), JOBS.c.queued >= seconds(since))
        query = query.group_by(JOBS.c.repository).order_by(latest.desc(), JOBS.c.repository).limit(limit)
        with self._database.reading() as connection:
            return [*connection.scalars(query)]

    @staticmethod
    def prune_repositories(connection: Connection, now: datetime) -> None:
        """Delete repositories that nobody has asked about for a long time."""
        connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.seen < seconds(now - KEEP_REPOSITORIES)))
