"""The store of intervals: reads them, and writes what each observation of the cloud adds.

One process at a time adds to it, and each observation is one transaction that moves `Extent.until` on from where its
planner found it: a process that comes second with the same writes, after a crash or beside another process, writes
nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import date, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, Table, bindparam, delete, exists, insert, select, update

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.migrate import migrate
from gpuyard.database.times import moment, seconds
from gpuyard.database.upsert import insert_missing, insert_new
from gpuyard.usage.records import Extent, Interval, Tenure, TrackState
from gpuyard.usage.store.schema import GPUS, INTERVALS, OPEN, SCHEMA_MODULE, SEEN, TENURES

SITE = "site"
"""A database is of one site; its row of SEEN."""
TEXT = 500
"""Characters of a word, at most."""
SOME = 500
"""Values in one question; databases have limits."""
PRUNED = 20_000
"""Rows that one transaction takes away at most: others wait for it."""
GpuKey = tuple[str, str, str]
"""Host, address and pool."""
Kept = TypeVar("Kept")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Which:
    """Filter for intervals; empty is any. All of it must hold."""

    host: str = ""
    address: str = ""
    pool: str = ""
    server: str = ""
    """Id, as those of users, projects and bookings."""
    user_id: str = ""
    project_id: str = ""
    booking: str = ""
    repository: str = ""
    states: Collection[TrackState] = ()


ALL = Which()


class HistoryStore:
    """The intervals of one site. Safe to use from several threads, and from several processes on one database. Every
    method is a transaction of its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        """Make the tables, or bring older ones up to date. The caller that opened the database closes it. Raises
        StoreError."""
        migrate(database.url, SCHEMA_MODULE)
        self._database = database

    @property
    def database(self) -> Database:
        """The database, for others who keep something there."""
        return self._database

    def seen(self) -> Extent | None:
        """Return how far history goes; None before the first observation."""
        with self._database.reading() as connection:
            row = connection.execute(select(SEEN).where(SEEN.c.site == SITE)).first()
        return None if row is None else _seen(row)

    def open(self) -> list[Interval]:
        """Return the interval of every GPU that goes on as of the last observation, by host and address."""
        return self._read(_query().where(INTERVALS.c.ends == OPEN).order_by(GPUS.c.host, GPUS.c.address))

    def intervals(self, start: datetime, end: datetime, which: Which = ALL, limit: int | None = None) -> list[Interval]:
        """Return intervals that have a second in [start, end), whole and not cut to it, by start, host and address.
        `limit`: so many of the latest at most."""
        query = _query().where(INTERVALS.c.ends > seconds(start), INTERVALS.c.starts < seconds(end))
        query = _narrowed(query, which)
        if limit is not None:
            intervals = self._read(query.order_by(INTERVALS.c.starts.desc(), INTERVALS.c.id.desc()).limit(limit))
        else:
            intervals = self._read(query)
        return sorted(intervals, key=lambda interval: (interval.start, interval.host, interval.address))

    def write(
        self,
        last: datetime | None,
        look: datetime,
        settled: datetime,
        ends: Mapping[GpuKey, tuple[datetime, bool]],
        adds: Sequence[Interval],
    ) -> bool:
        """Write one observation. `last`: `Extent.until` as it was planned from. `ends`: when what goes on of a GPU
        ended, and if that is exact; where that is its start, it is taken away. `adds`: new intervals. False, and
        nothing is written, when another observation has been written since."""
        with self._database.writing() as connection:
            if not _moved(connection, last, look, settled):
                return False
            gpus = self._gpu_ids(
                connection, {(interval.host, interval.address, interval.pool) for interval in adds} | ends.keys()
            )
            _end(connection, [(gpus[gpu], seconds(end), exact) for gpu, (end, exact) in ends.items()])
            tenures = self._tenure_ids(connection, {interval.tenure for interval in adds})
            rows = [
                {
                    "gpu": gpus[interval.host, interval.address, interval.pool],
                    "tenure": tenures[interval.tenure],
                    "state": interval.state.value,
                    "starts": seconds(interval.start),
                    "ends": OPEN if interval.end is None else seconds(interval.end),
                    "exact_start": interval.exact_start,
                    "exact_end": interval.exact_end,
                }
                for interval in adds
            ]
            if rows:
                connection.execute(insert(INTERVALS), rows)
            return True

    def forget(self, before: datetime) -> int:
        """Delete intervals that ended before a moment, PRUNED at most, and what they alone were about; return how many.
        Call it again until that is 0."""
        old = select(INTERVALS.c.id, INTERVALS.c.tenure).where(INTERVALS.c.ends < seconds(before)).limit(PRUNED)
        with self._database.writing() as connection:
            connection.execute(select(SEEN.c.until).with_for_update())  # no look adds what is taken away here
            gone = connection.execute(old).all()
            for some in _some(sorted(row.id for row in gone)):
                connection.execute(delete(INTERVALS).where(INTERVALS.c.id.in_(some)))
            # Asked of each: to compare millions with millions takes PostgreSQL longer than a statement may.
            used = exists().where(INTERVALS.c.tenure == TENURES.c.id)
            for some in _some(sorted({row.tenure for row in gone})):
                connection.execute(delete(TENURES).where(TENURES.c.id.in_(some), ~used))
        return len(gone)

    def _read(self, query: Select[Any]) -> list[Interval]:
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        tenures: dict[int, Tenure] = {}
        return [_interval(row, tenures) for row in rows]

    @staticmethod
    def _gpu_ids(connection: Connection, keys: Iterable[GpuKey]) -> dict[GpuKey, int]:
        rows = [dict(zip(("host", "address", "pool"), key, strict=True)) for key in sorted(keys)]
        if not rows:
            return {}
        insert_missing(connection, GPUS, rows)
        hosts = {row["host"] for row in rows}
        ids_by_key: dict[GpuKey, int] = {}
        for some in _some(sorted(hosts)):
            for row in connection.execute(select(GPUS).where(GPUS.c.host.in_(some))):
                ids_by_key[row.host, row.address, row.pool] = row.id
        return ids_by_key

    @staticmethod
    def _tenure_ids(connection: Connection, tenures: Iterable[Tenure]) -> dict[Tenure, int]:
        return dictionary_ids(connection, TENURES, {tenure: _words(tenure) for tenure in tenures})


def dictionary_ids(
    connection: Connection, table: Table, words_by_key: Mapping[Kept, Mapping[str, str]]
) -> dict[Kept, int]:
    """Return the numbers of what is kept once, by a digest of its words; what is not there yet is added."""
    digests = {_digest(words): words for words in words_by_key.values()}
    ids_by_digest = _known(connection, table, digests)
    new = [{"digest": digest, **words} for digest, words in digests.items() if digest not in ids_by_digest]
    if new:
        insert_missing(connection, table, new)
        ids_by_digest |= _known(connection, table, [str(row["digest"]) for row in new])
    return {key: ids_by_digest[_digest(words)] for key, words in words_by_key.items()}


def _known(connection: Connection, table: Table, digests: Iterable[str]) -> dict[str, int]:
    ids_by_digest: dict[str, int] = {}
    for some in _some(sorted(digests)):
        query = select(table.c.digest, table.c.id).where(table.c.digest.in_(some))
        ids_by_digest |= {row.digest: row.id for row in connection.execute(query)}
    return ids_by_digest


def _some(values: Sequence[Value]) -> Iterable[Sequence[Value]]:
    return (values[start : start + SOME] for start in range(0, len(values), SOME))


def _digest(words: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _moved(connection: Connection, last: datetime | None, look: datetime, settled: datetime) -> bool:
    """Return whether the last look was that one still; it is this one then."""
    values = {"until": seconds(look), "settled": seconds(settled)}
    if last is None:
        return insert_new(connection, SEEN, {"site": SITE, "first": seconds(look), "rolled": None, **values})
    same = (SEEN.c.site == SITE, SEEN.c.until == seconds(last))
    return connection.execute(update(SEEN).where(*same).values(**values)).rowcount == 1


def _end(connection: Connection, ends: Sequence[tuple[int, int, bool]]) -> None:
    """What goes on of GPUs, each with its end and whether that is exact."""
    rows = [{"of": gpu, "end": end, "exact": exact} for gpu, end, exact in ends]
    if rows:
        goes_on = (INTERVALS.c.gpu == bindparam("of"), INTERVALS.c.ends == OPEN)
        connection.execute(delete(INTERVALS).where(*goes_on, INTERVALS.c.starts >= bindparam("end")), rows)
        ended = update(INTERVALS).where(*goes_on).values(ends=bindparam("end"), exact_end=bindparam("exact"))
        connection.execute(ended, rows)


def _query() -> Select[Any]:
    return (
        select(
            GPUS.c.host, GPUS.c.address, GPUS.c.pool, INTERVALS.c.state, INTERVALS.c.starts, INTERVALS.c.ends,
            INTERVALS.c.exact_start, INTERVALS.c.exact_end, INTERVALS.c.tenure,
            *(TENURES.c[field.name] for field in fields(Tenure)),
        )
        .join(GPUS, GPUS.c.id == INTERVALS.c.gpu)
        .join(TENURES, TENURES.c.id == INTERVALS.c.tenure)
    )  # fmt: skip


def _narrowed(query: Select[Any], which: Which) -> Select[Any]:
    for name in ("host", "address", "pool"):
        if value := getattr(which, name):
            query = query.where(GPUS.c[name] == storable(value))
    for name in ("server", "user_id", "project_id", "booking", "repository"):
        if value := getattr(which, name):
            query = query.where(TENURES.c[name] == storable(value))
    return query.where(INTERVALS.c.state.in_([state.value for state in which.states])) if which.states else query


def _interval(row: Row[Any], tenures: dict[int, Tenure]) -> Interval:
    """`tenures`: those that were made already; there are fewer of them than of intervals."""
    if row.tenure not in tenures:
        tenures[row.tenure] = Tenure(*row[-len(fields(Tenure)) :])
    return Interval(
        row.host, row.address, row.pool, TrackState(row.state), moment(row.starts),
        None if row.ends == OPEN else moment(row.ends), tenures[row.tenure], row.exact_start, row.exact_end,
    )  # fmt: skip


def _words(tenure: Tenure) -> dict[str, str]:
    return {field.name: storable(value)[:TEXT] for field, value in zip(fields(tenure), astuple(tenure), strict=True)}


def _seen(row: Row[Any]) -> Extent:
    return Extent(moment(row.first), moment(row.until), moment(row.settled), day_of(row.rolled))


def day_number(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day


def day_of(number: int | None) -> date | None:
    return None if number is None else date(number // 10_000, number // 100 % 100, number % 100)
