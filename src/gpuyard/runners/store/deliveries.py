"""Stores GitHub's webhooks: each is kept before it is answered, until it has been processed.

A delivery that comes again replaces the one that is there, unless that was processed; so a redelivery does no work
twice.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cache

from sqlalchemy import Connection, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.database.upsert import upsert
from gpuyard.runners.records import HookDelivery, Job, RunnerEvent
from gpuyard.runners.store.schema import DELIVERIES
from gpuyard.runners.store.writing import put_all

KEEP = timedelta(days=4)
"""Retention of deliveries. GitHub redelivers for three days."""
ERROR = 2_000
"""Characters of an error that are kept."""
FASTEST = 1
"""Level of compression. A body is 30 KB, most of it addresses that begin alike: a quarter of it has to reach the disk,
before GitHub is answered."""


@cache
def _statement(dialect: str, columns: tuple[str, ...]) -> postgresql.Insert | sqlite.Insert:
    """Return a statement that stores a delivery, in place of an earlier one unless that was processed."""
    return upsert(dialect, DELIVERIES, columns, DELIVERIES.c.outcome == "")


def _unpacked(body: bytes) -> bytes:
    """Decompress a body. One that was never compressed is returned as it is: a body that cannot be read must not stop
    the others."""
    try:
        return zlib.decompress(body)
    except zlib.error:
        return body


class Deliveries:
    """The part of `RunnerStore` for webhooks. The ids of a delivery are its scope and GitHub's own."""

    _database: Database

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Connection]: ...

    def keep_delivery(self, delivery: HookDelivery) -> None:
        """Store a delivery; durable when this returns. It replaces one with the same ids, unless that was processed."""
        self.keep_deliveries([delivery])

    def keep_deliveries(self, deliveries: Sequence[HookDelivery]) -> None:
        """Store several deliveries in one transaction: a burst costs one commit."""
        rows = [
            {
                "scope": storable(delivery.scope),
                "id": storable(delivery.id),
                "event": storable(delivery.event),
                "received": seconds(delivery.received),
                "body": zlib.compress(delivery.body, FASTEST),
                "tries": delivery.tries,
                "next_try": seconds(delivery.received),
                "outcome": "",
                "error": "",
            }
            for delivery in deliveries
        ]
        if rows:
            with self._database.writing() as connection:
                connection.execute(_statement(connection.dialect.name, tuple(rows[0])), rows)

    def deliveries(self, now: datetime, limit: int = 1000) -> list[HookDelivery]:
        """Return the deliveries that may be tried now; the oldest first."""
        query = select(DELIVERIES).where(DELIVERIES.c.next_try <= seconds(now))
        order = (DELIVERIES.c.next_try, DELIVERIES.c.received, DELIVERIES.c.scope, DELIVERIES.c.id)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(*order).limit(limit)).all()
        return [
            HookDelivery(row.id, row.scope, row.event, moment(row.received), _unpacked(row.body), row.tries)
            for row in rows
        ]

    def delivery_done(
        self, id: str, scope: str, outcome: str, jobs: Sequence[Job] = (), events: Sequence[RunnerEvent] = ()
    ) -> None:
        """Store the outcome of a delivery (a word: ``queued``, ``ignored``), with the jobs and events that follow from
        it. Its body is deleted."""
        with self._changing() as connection:
            put_all(connection, jobs, (), events)
            self._change(connection, id, scope, outcome=storable(outcome), error="", next_try=None, body=b"")

    def delivery_failed(self, id: str, scope: str, error: str, retry_at: datetime | None = None) -> None:
        """Note that a delivery could not be processed, and when to try again. None: not before GitHub delivers it
        again."""
        again = None if retry_at is None else seconds(retry_at)
        with self._database.writing() as connection:
            tries = DELIVERIES.c.tries + 1
            self._change(connection, id, scope, error=storable(error)[:ERROR], next_try=again, tries=tries)

    def _change(self, connection: Connection, id: str, scope: str, **values: object) -> None:
        condition = and_(
            DELIVERIES.c.scope == storable(scope), DELIVERIES.c.id == storable(id), DELIVERIES.c.outcome == ""
        )
        connection.execute(update(DELIVERIES).where(condition).values(**values))

    def prune_deliveries(self, connection: Connection, now: datetime) -> None:
        connection.execute(delete(DELIVERIES).where(DELIVERIES.c.received <= seconds(now - KEEP)))
