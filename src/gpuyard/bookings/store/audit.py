"""The store's records besides bookings: audit log, overstays, enforcement's memory."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, insert, or_, select, update

from gpuyard.bookings.records import AuditEntry, AuditQuery, Overstay
from gpuyard.bookings.store.schema import AUDIT, BOOKINGS, CASES, DELIVERIES, ENFORCEMENT, EVENTS, KEYS
from gpuyard.database.engine import Database
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new, put
from gpuyard.model.booking import ReclaimAction

_AUDIT = insert(AUDIT)


def insert_audit(connection: Connection, entry: AuditEntry) -> None:
    row = {
        "at": seconds(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "rule": entry.rule,
        "text": entry.text,
    }
    connection.execute(_AUDIT, row)


class Records:
    """The part of `Store` that keeps the audit log, overstays and enforcement's memory."""

    _database: Database

    def audit(self, limit: int = 100, before: int | None = None, query: AuditQuery | None = None) -> list[AuditEntry]:
        """Return audit entries, the newest first; `before`: only those with a smaller id."""
        statement = select(AUDIT).where(*_audited(query or AuditQuery())).order_by(AUDIT.c.id.desc()).limit(limit)
        if before is not None:
            statement = statement.where(AUDIT.c.id < before)
        with self._database.reading() as connection:
            return [
                AuditEntry(moment(row.at), row.actor, row.action, row.target, row.rule, row.text, row.id)
                for row in connection.execute(statement)
            ]

    def write_audit(self, entry: AuditEntry) -> None:
        """Write an audit entry that is not part of a change of bookings."""
        with self._database.writing() as connection:
            insert_audit(connection, entry)

    def put_overstay(self, overstay: Overstay) -> None:
        """Write an overstay, new or in place of the one with its server and `seen`."""
        row = {
            "server_id": overstay.server_id,
            "seen": seconds(overstay.seen),
            "server": overstay.server,
            "pool": overstay.pool,
            "user_id": overstay.user_id,
            "project_id": overstay.project_id,
            "rule": overstay.rule,
            "action": overstay.action.value,
            "warned": maybe_seconds(overstay.warned),
            "due": maybe_seconds(overstay.due),
            "done": maybe_seconds(overstay.done),
            "cleared": maybe_seconds(overstay.cleared),
            "dry_run": overstay.dry_run,
            "text": overstay.text,
        }
        with self._database.writing() as connection:
            put(connection, CASES, row)

    def open_overstays(self) -> list[Overstay]:
        """Return overstays that are not cleared, by `seen`."""
        query = select(CASES).where(CASES.c.cleared.is_(None)).order_by(CASES.c.seen, CASES.c.server_id)
        with self._database.reading() as connection:
            return [_case(row) for row in connection.execute(query)]

    def overstays(self, limit: int = 100) -> list[Overstay]:
        """Return overstays, the newest first, also those that are over."""
        query = select(CASES).order_by(CASES.c.seen.desc(), CASES.c.server_id).limit(limit)
        with self._database.reading() as connection:
            return [_case(row) for row in connection.execute(query)]

    def value(self, pool: str, key: str) -> str | None:
        """Return one value that enforcement remembers of a pool."""
        return self.values(pool).get(key)

    def values(self, pool: str) -> dict[str, str]:
        """Return all values that enforcement remembers of a pool."""
        query = select(ENFORCEMENT.c.key, ENFORCEMENT.c.value).where(ENFORCEMENT.c.pool == pool)
        with self._database.reading() as connection:
            return {row.key: row.value for row in connection.execute(query)}

    def set_value(self, pool: str, key: str, value: str | None) -> None:
        """Remember a value; None forgets it."""
        with self._database.writing() as connection:
            if value is None:
                conditions = (ENFORCEMENT.c.pool == pool, ENFORCEMENT.c.key == key)
                connection.execute(delete(ENFORCEMENT).where(*conditions))
            else:
                put(connection, ENFORCEMENT, {"pool": pool, "key": key, "value": value})

    def swap_value(self, pool: str, key: str, old: str | None, new: str | None) -> bool:
        """Remember `new` in place of `old`; None is nothing. False, and nothing changed, when it is not `old` (any
        more)."""
        mine = (ENFORCEMENT.c.pool == pool, ENFORCEMENT.c.key == key)
        with self._database.writing() as connection:
            if old is None and new is None:
                return connection.execute(select(ENFORCEMENT.c.key).where(*mine)).first() is None
            if old is None:
                return insert_new(connection, ENFORCEMENT, {"pool": pool, "key": key, "value": new})
            conditions = (*mine, ENFORCEMENT.c.value == old)
            change = delete(ENFORCEMENT) if new is None else update(ENFORCEMENT).values(value=new)
            return connection.execute(change.where(*conditions)).rowcount == 1

    def prune(self, before: datetime) -> None:
        """Forget idempotency keys, and events that no channel has still to deliver, of before that time. Bookings and
        the audit log stay."""
        old = EVENTS.c.at < seconds(before)
        waits = exists().where(DELIVERIES.c.event == EVENTS.c.id, DELIVERIES.c.next_try.is_not(None))
        over = select(EVENTS.c.id).where(old, ~waits)
        with self._database.writing() as connection:
            connection.execute(delete(KEYS).where(KEYS.c.at < seconds(before)))
            ids = list(connection.execute(over).scalars())
            for first in range(0, len(ids), 500):
                some = ids[first : first + 500]
                connection.execute(delete(DELIVERIES).where(DELIVERIES.c.event.in_(some)))
                connection.execute(delete(EVENTS).where(EVENTS.c.id.in_(some)))


def _case(row: Row[Any]) -> Overstay:
    return Overstay(
        server_id=row.server_id,
        server=row.server,
        pool=row.pool,
        user_id=row.user_id,
        project_id=row.project_id,
        rule=row.rule,
        action=ReclaimAction(row.action),
        seen=moment(row.seen),
        warned=maybe_moment(row.warned),
        due=maybe_moment(row.due),
        done=maybe_moment(row.done),
        cleared=maybe_moment(row.cleared),
        dry_run=row.dry_run,
        text=row.text,
    )


def _audited(query: AuditQuery) -> list[ColumnElement[bool]]:
    def of(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        """About a booking that is so."""
        return AUDIT.c.target.in_(select(BOOKINGS.c.id).where(*conditions))

    conditions: list[ColumnElement[bool]] = []
    if query.user:
        conditions.append(or_(AUDIT.c.actor == query.user, of(BOOKINGS.c.user_name == query.user)))
    if query.target:
        conditions.append(AUDIT.c.target.startswith(query.target, autoescape=True))
    if query.pool:
        conditions.append(of(BOOKINGS.c.pool == query.pool))
    if query.project:
        conditions.append(of(or_(BOOKINGS.c.project == query.project, BOOKINGS.c.project_id == query.project)))
    if query.start is not None:
        conditions.append(AUDIT.c.at >= seconds(query.start))
    if query.end is not None:
        conditions.append(AUDIT.c.at < seconds(query.end))
    return conditions
