"""Reads and writes the portal's tables: sessions, feeds and known places."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, select, update

from gpuyard.database.engine import Database
from gpuyard.database.migrate import migrate
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new, put
from gpuyard.web.store.records import Feed, Session
from gpuyard.web.store.schema import FEEDS, PLACES, SCHEMA_MODULE, SESSIONS, USED_LOGINS

PLACES_KEPT = timedelta(days=90)
"""Time for which a place is kept after the last login from it."""
MOST_PLACES = 20
"""Places of one user that are kept: those of the latest logins."""


class PortalStore:
    """The portal's tables. Safe to use from several threads, and from several processes on one database. Every method
    is a transaction of its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        """Make the tables, or bring older ones up to date. The caller that opened the database closes it. Raises
        StoreError."""
        migrate(database.url, SCHEMA_MODULE)
        self._database = database

    def put_session(self, session: Session) -> None:
        """Store a session, new or in place of the one with its digest."""
        row = {
            "digest": session.digest,
            "user_id": session.user_id,
            "user_name": session.user,
            "project_id": session.project_id,
            "csrf": session.csrf,
            "created": seconds(session.created),
            "expires": seconds(session.expires),
            "latest": seconds(session.latest),
            "sealed_token": session.sealed_token or None,
        }
        with self._database.writing() as connection:
            put(connection, SESSIONS, row)

    def put_off(self, digest: str, expires: datetime) -> bool:
        """Put off the end of a session; return whether it is still there: one that was ended is not brought back."""
        return self._change_session(digest, expires=seconds(expires))

    def switch(self, digest: str, project_id: str) -> bool:
        """Change the project of a session; return whether it is still there."""
        return self._change_session(digest, project_id=project_id)

    def _change_session(self, digest: str, **values: object) -> bool:
        with self._database.writing() as connection:
            return connection.execute(update(SESSIONS).where(SESSIONS.c.digest == digest).values(values)).rowcount == 1

    def get_session(self, digest: str, now: datetime) -> Session | None:
        """Return a session; None when there is none, or it has expired."""
        sessions = self._sessions(now, SESSIONS.c.digest == digest)
        return sessions[0] if sessions else None

    def sessions(self, now: datetime, user_id: str = "") -> list[Session]:
        """Return the sessions that have not expired, of a user or of all, by user and creation."""
        return self._sessions(now, *([SESSIONS.c.user_id == user_id] if user_id else ()))

    def _sessions(self, now: datetime, *which: ColumnElement[bool]) -> list[Session]:
        query = select(SESSIONS).where(SESSIONS.c.expires > seconds(now), *which)
        order = (SESSIONS.c.user_name, SESSIONS.c.user_id, SESSIONS.c.created, SESSIONS.c.digest)
        with self._database.reading() as connection:
            return [_session(row) for row in connection.execute(query.order_by(*order))]

    def delete_session(self, digest: str) -> bool:
        """Delete a session; return whether there was one."""
        with self._database.writing() as connection:
            return connection.execute(delete(SESSIONS).where(SESSIONS.c.digest == digest)).rowcount == 1

    def delete_sessions(self, user_id: str, until: datetime | None = None) -> int:
        """Delete all sessions of a user, or those that began until then; return how many."""
        which = [SESSIONS.c.user_id == user_id, *([SESSIONS.c.created <= seconds(until)] if until else ())]
        with self._database.writing() as connection:
            return connection.execute(delete(SESSIONS).where(*which)).rowcount

    def prune(self, now: datetime) -> None:
        """Delete the sessions, feeds and used logins that have expired, and places not logged in from for long."""
        with self._database.writing() as connection:
            for table in (SESSIONS, FEEDS, USED_LOGINS):
                connection.execute(delete(table).where(table.c.expires <= seconds(now)))
            connection.execute(delete(PLACES).where(PLACES.c.logged_in <= seconds(now - PLACES_KEPT)))

    def use_login(self, digest: str, expires: datetime) -> bool:
        """Record that a token of single sign-on has begun a session; return whether it was the first time."""
        with self._database.writing() as connection:
            return insert_new(connection, USED_LOGINS, {"digest": digest, "expires": seconds(expires)})

    def note_place(self, digest: str, user_id: str, now: datetime) -> None:
        """Record that a user has logged in from a place; the oldest of the user's places beyond MOST_PLACES are
        deleted."""
        # Of several of one second the new one stays.
        order = (PLACES.c.digest != digest, PLACES.c.logged_in.desc(), PLACES.c.digest)
        latest = select(PLACES.c.digest).where(PLACES.c.user_id == user_id).order_by(*order).limit(MOST_PLACES)
        with self._database.writing() as connection:
            put(connection, PLACES, {"digest": digest, "user_id": user_id, "logged_in": seconds(now)})
            connection.execute(delete(PLACES).where(PLACES.c.user_id == user_id, PLACES.c.digest.not_in(latest)))

    def knows_place(self, digest: str, now: datetime) -> bool:
        """Return whether somebody has logged in with that digest within PLACES_KEPT."""
        query = select(PLACES.c.digest).where(
            PLACES.c.digest == digest, PLACES.c.logged_in > seconds(now - PLACES_KEPT)
        )
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def put_feed(self, feed: Feed) -> None:
        """Store a feed, new or in place of the one with its digest."""
        row = {
            "digest": feed.digest,
            "scope": feed.scope,
            "target": feed.target,
            "owner": feed.owner,
            "created": seconds(feed.created),
            "expires": seconds(feed.expires),
            "used": maybe_seconds(feed.used),
        }
        with self._database.writing() as connection:
            put(connection, FEEDS, row)

    def get_feed(self, digest: str, now: datetime) -> Feed | None:
        """Return a feed; None when there is none, or it has expired."""
        query = select(FEEDS).where(FEEDS.c.digest == digest, FEEDS.c.expires > seconds(now))
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        return _feed(row) if row else None

    def note_use(self, digest: str, now: datetime) -> None:
        """Record that a feed was read."""
        with self._database.writing() as connection:
            connection.execute(update(FEEDS).where(FEEDS.c.digest == digest).values(used=seconds(now)))

    def delete_feeds(self, owner: str) -> int:
        """Delete all feeds of a user; return how many."""
        with self._database.writing() as connection:
            return connection.execute(delete(FEEDS).where(FEEDS.c.owner == owner)).rowcount

    def feeds(self, now: datetime, owner: str = "") -> list[Feed]:
        """Return the feeds that have not expired, of a user or of all, by owner and creation."""
        query = select(FEEDS).where(FEEDS.c.expires > seconds(now), *([FEEDS.c.owner == owner] if owner else ()))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(FEEDS.c.owner, FEEDS.c.created, FEEDS.c.digest))
            return [_feed(row) for row in rows]

    def delete_feed(self, digest: str) -> bool:
        """Delete a feed; return whether there was one."""
        with self._database.writing() as connection:
            return connection.execute(delete(FEEDS).where(FEEDS.c.digest == digest)).rowcount == 1


def _session(row: Row[Any]) -> Session:
    return Session(
        row.digest,
        row.user_id,
        row.user_name,
        row.project_id,
        row.csrf,
        created=moment(row.created),
        expires=moment(row.expires),
        latest=moment(row.latest),
        sealed_token=row.sealed_token or "",
    )


def _feed(row: Row[Any]) -> Feed:
    times = (moment(row.created), moment(row.expires), maybe_moment(row.used))
    return Feed(row.digest, row.scope, row.target, row.owner, *times)
