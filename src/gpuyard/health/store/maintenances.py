"""Stores maintenances, one row each, for good. A host has at most one that is not over."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, update

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new
from gpuyard.health.maintenance import OVER, Maintenance, MaintenanceState
from gpuyard.health.records import HealthEvent, Software
from gpuyard.health.store.schema import MAINTENANCES
from gpuyard.health.store.store import TEXT, add_events


class MaintenanceStore:
    """The store of maintenances. Its table is one of HealthStore's, which makes it. Every method is a transaction of
    its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, maintenance: Maintenance, *events: HealthEvent) -> bool:
        """Write a maintenance that was read and changed, with lines of GPUs' records. A `version` of 0 is a new one.
        False, and nothing is written, when somebody else has written it since, or the host has another one that is not
        over."""
        row = {**_row(maintenance), "version": maintenance.version + 1}
        with self._database.writing() as connection:
            if maintenance.version == 0:
                written = insert_new(connection, MAINTENANCES, row)
            else:
                same = (MAINTENANCES.c.id == row["id"], MAINTENANCES.c.version == maintenance.version)
                written = connection.execute(update(MAINTENANCES).where(*same).values(**row)).rowcount == 1
            if written:
                add_events(connection, events)
            return written

    def get(self, id: str) -> Maintenance | None:
        maintenances = self._find(MAINTENANCES.c.id == storable(id))
        return maintenances[0] if maintenances else None

    def open(self) -> list[Maintenance]:
        """Return those that are not over, by start."""
        maintenances = self._find(MAINTENANCES.c.open_host.is_not(None))
        return sorted(maintenances, key=lambda maintenance: (maintenance.start, maintenance.host))

    def with_holds(self) -> list[Maintenance]:
        """Return those that are over, and of which the ledger may have holds."""
        return [maintenance for maintenance in self._find(MAINTENANCES.c.holds) if not maintenance.open]

    def past(self, host: str = "", since: datetime | None = None, limit: int = 100) -> list[Maintenance]:
        """Return those that are over, of a host or of all, the newest first. `since`: planned since then."""
        conditions: list[Any] = [MAINTENANCES.c.open_host.is_(None)]
        conditions += [MAINTENANCES.c.host == storable(host)] if host else []
        conditions += [MAINTENANCES.c.created >= seconds(since)] if since else []
        return self._find(*conditions, limit=limit)

    def _find(self, *conditions: Any, limit: int = 10_000) -> list[Maintenance]:
        """The newest first."""
        query = select(MAINTENANCES).where(*conditions).order_by(MAINTENANCES.c.created.desc(), MAINTENANCES.c.id)
        with self._database.reading() as connection:
            return [_maintenance(row) for row in connection.execute(query.limit(limit))]


def _row(maintenance: Maintenance) -> dict[str, Any]:
    return {
        "id": storable(maintenance.id),
        "host": storable(maintenance.host),
        "start": seconds(maintenance.start),
        "until": seconds(maintenance.until),
        "why": storable(maintenance.why)[:TEXT],
        "by": storable(maintenance.by),
        "state": maintenance.state.value,
        "since": seconds(maintenance.since),
        "created": seconds(maintenance.created),
        "begun": maybe_seconds(maintenance.begun),
        "done": maybe_seconds(maintenance.done),
        "done_by": storable(maintenance.done_by),
        "software": storable(json.dumps(asdict(maintenance.software), ensure_ascii=False)),
        "problems": storable(json.dumps(maintenance.problems, ensure_ascii=False)),
        "may_go_down": storable(json.dumps(maintenance.may_go_down)),
        "holds": maintenance.holds,
        "due": maybe_seconds(maintenance.due),
        "open_host": None if maintenance.state in OVER else storable(maintenance.host),
    }


def _maintenance(row: Row[Any]) -> Maintenance:
    return Maintenance(
        id=row.id,
        host=row.host,
        start=moment(row.start),
        until=moment(row.until),
        why=row.why,
        by=row.by,
        state=MaintenanceState(row.state),
        since=moment(row.since),
        created=moment(row.created),
        begun=maybe_moment(row.begun),
        done=maybe_moment(row.done),
        done_by=row.done_by,
        software=Software(**json.loads(row.software)),
        problems=tuple(json.loads(row.problems)),
        may_go_down=tuple(json.loads(row.may_go_down)),
        holds=row.holds,
        due=maybe_moment(row.due),
        version=row.version,
    )
