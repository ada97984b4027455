"""Stores every attempt to accept a GPU by a server, and its state."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, Select, func, insert, select, update

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.health.acceptance import OPEN, Try, TryState
from gpuyard.health.store.schema import TRIES

_TEXTS = ("pool", "by", "by_id", "nonce", "name", "server", "loan", "cause", "driver")


class TryStore:
    """The store of attempts. Its table is one of HealthStore's, which makes it. Every method is a transaction of its
    own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, tries: Collection[Try]) -> None:
        """Write all attempts of a batch, or none."""
        rows = [_row(attempt) for attempt in tries]
        if rows:
            with self._database.writing() as connection:
                connection.execute(insert(TRIES), rows)

    def put(self, attempt: Try) -> bool:
        """Write an attempt that was read and changed. False, and nothing is written, when somebody else has written it
        since."""
        row = _row(attempt)
        same = (TRIES.c.id == row["id"], TRIES.c.version == attempt.version)
        with self._database.writing() as connection:
            return connection.execute(update(TRIES).where(*same).values(**row)).rowcount == 1

    def open(self) -> list[Try]:
        """Return all attempts of every batch that has an open one, the oldest first."""
        states = TRIES.c.state.in_(sorted(state.value for state in OPEN))
        batches = select(TRIES.c.batch).where(states).distinct()
        return self._read(select(TRIES).where(TRIES.c.batch.in_(batches)).order_by(TRIES.c.begun, TRIES.c.id))

    def batch(self, id: str) -> list[Try]:
        """Return the attempts of a batch in the order in which they were asked for."""
        attempts = self._read(select(TRIES).where(TRIES.c.batch == storable(id)))
        return sorted(attempts, key=lambda attempt: attempt.number)

    def latest(self, host: str = "", limit: int = 1000) -> dict[str, Try]:
        """Return the last attempt of each GPU (``host/address``), of a host or of all."""
        query = select(TRIES).order_by(TRIES.c.begun.desc(), TRIES.c.id.desc()).limit(limit)
        query = query.where(TRIES.c.host == storable(host)) if host else query
        latest_by_gpu: dict[str, Try] = {}
        for attempt in self._read(query):
            for name in attempt.names:
                latest_by_gpu.setdefault(name, attempt)
        return latest_by_gpu

    def counts(self) -> dict[TryState, int]:
        """Return how many attempts are in each state, as far back as the store goes."""
        query = select(TRIES.c.state, func.count()).group_by(TRIES.c.state)
        with self._database.reading() as connection:
            return {TryState(state): count for state, count in connection.execute(query)}

    def _read(self, query: Select[Any]) -> list[Try]:
        with self._database.reading() as connection:
            return [_try(row) for row in connection.execute(query)]


def _row(attempt: Try) -> dict[str, Any]:
    data = {name: getattr(attempt, name) for name in _TEXTS} | {
        "number": attempt.number,
        "canary": attempt.canary,
        "fine": attempt.fine,
        "fresh": attempt.fresh,
        "facts": dict(attempt.facts),
        "gpus": attempt.gpus,
        "since": seconds(attempt.since),
        "deadline": maybe_seconds(attempt.deadline),
        "outcome": attempt.outcome.value if attempt.outcome else "",
    }
    return {
        "id": attempt.id,
        "batch": attempt.batch,
        "host": storable(attempt.host),
        "state": attempt.state.value,
        "begun": seconds(attempt.begun),
        "version": attempt.version + 1,
        "data": storable(json.dumps(data, ensure_ascii=False)),
    }


def _try(row: Row[Any]) -> Try:
    data = json.loads(row.data)
    return Try(
        id=row.id,
        batch=row.batch,
        number=data["number"],
        canary=data["canary"],
        fine=data["fine"],
        fresh=data.get("fresh", False),  # older tries have neither
        facts=data.get("facts", {}),
        host=row.host,
        gpus=tuple(data["gpus"]),
        begun=moment(row.begun),
        state=TryState(row.state),
        since=moment(data["since"]),
        deadline=maybe_moment(data["deadline"]),
        outcome=TryState(data["outcome"]) if data["outcome"] else None,
        version=row.version,
        **{name: data[name] for name in _TEXTS},
    )
