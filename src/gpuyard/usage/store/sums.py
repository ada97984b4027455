"""The store of sums: GPU-seconds by local day, local month, and hour, each written once when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, Table, delete, func, insert, literal, select, update

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.database.upsert import adding, upsert
from gpuyard.model.errors import GpuyardError
from gpuyard.usage.records import DIMENSIONS, HourSum, Slice, Sum
from gpuyard.usage.store.schema import DAYS, HOURS, MONTHS, POOLS, SEEN, SLICES, TOTALS
from gpuyard.usage.store.store import SITE, day_number, day_of, dictionary_ids

BROAD = frozenset({"tariff", "pool", "state", "kind"})
"""Dimensions that POOLS is kept by."""


class TooManySumsError(GpuyardError):
    """An answer would be of more sums than were to be read."""


class SumStore:
    """Reads and writes sums. The tables are those of HistoryStore, which makes them. Every method is a transaction of
    its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_day(self, last: date | None, day: date, sums: Mapping[Slice, int], hours: Iterable[HourSum]) -> bool:
        """Write the sums of a day that is over, and of its hours. `last`: `Extent.rolled` as it was then. False, and
        nothing is written, when another day has been written since. The month's sums are those of its days."""
        rows = [hour for hour in hours if hour.seconds]
        with self._database.writing() as connection:
            before = SEEN.c.rolled.is_(None) if last is None else SEEN.c.rolled == day_number(last)
            mine = update(SEEN).where(SEEN.c.site == SITE, before).values(rolled=day_number(day))
            if connection.execute(mine).rowcount != 1:
                return False
            by_id = _by_id(connection, sums)
            number, month = day_number(day), day_number(day) // 100
            _put_totals(connection, number, sums)
            for table, seconds_by_id in ((DAYS, by_id), (POOLS, _by_id(connection, _of_pools(sums)))):
                connection.execute(delete(table).where(table.c.day == number))
                if seconds_by_id:
                    connection.execute(
                        insert(table), [{"day": number, "slice": id, "seconds": n} for id, n in seconds_by_id.items()]
                    )
            _put_month(connection, month)
            if rows:
                statement = upsert(connection.dialect.name, HOURS, [column.name for column in HOURS.columns])
                connection.execute(statement, [_hour_row(row) for row in rows])
            return True

    def sums(
        self,
        first: date,
        end: date,
        by: Collection[str] = DIMENSIONS,
        period: str = "",
        where: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> list[Sum]:
        """Return sums of the days in [first, end) that have some. `by`: dimensions of `Slice`; the others are summed up
        and empty. `period`: ``day`` or ``month`` for one sum of each, or empty. `where`: dimension -> its value. The
        tables with the fewest rows are read, so that years are quick: whole months, sums without hosts, and without
        people. `most`: of rows; raises TooManySumsError."""
        words = [name for name in DIMENSIONS if name in by]
        totals: dict[tuple[Any, ...], int] = {}
        for table, low, high in _parts(first, end, {*words, *(where or {})}, days=period == "day"):
            for row in self._rows(table, low, high, words, period, where or {}, most):
                key = tuple(row[:-1])
                totals[key] = totals.get(key, 0) + int(row[-1])
        return [
            Sum(_period(key[0], period), Slice(**dict(zip(words, key[1:], strict=True))), amount)
            for key, amount in sorted(totals.items())
        ]

    def _rows(
        self,
        table: Table,
        low: int,
        high: int,
        words: list[str],
        period: str,
        where: Mapping[str, str],
        most: int | None,
    ) -> list[Any]:
        """[period, *words, seconds] of the days or months low ... high."""
        of_days = "day" in table.c
        column = table.c.day if of_days else table.c.month
        when: Any = literal(0)
        if period:
            when = column if (period == "day") == of_days else column.op("/")(100)
        rows: Any = select(when.label("period"), table.c.slice, table.c.seconds).where(column.between(low, high))
        if table is TOTALS and not period and not where:
            # The same few slices month after month; else there are as many as rows, and this would only cost.
            rows = rows.with_only_columns(
                when.label("period"), table.c.slice, func.sum(table.c.seconds).label("seconds")
            )
            rows = rows.group_by("period", table.c.slice)
        part = rows.subquery()
        named = [SLICES.c[name] for name in words]
        query: Select[Any] = select(part.c.period, *named, func.sum(part.c.seconds))
        query = query.join(SLICES, SLICES.c.id == part.c.slice)
        for name, value in where.items():
            query = query.where(SLICES.c[name] == storable(value))
        query = query.group_by(part.c.period, *named)
        if most is not None:
            query = query.limit(most + 1)
        with self._database.reading() as connection:
            fetched = list(connection.execute(query))
        if most is not None and len(fetched) > most:
            raise TooManySumsError(f"this is of more than {most} sums")
        return fetched

    def hours(self, start: datetime, end: datetime, pool: str = "") -> list[HourSum]:
        """Return sums of the hours that begin in [start, end), of a pool or of all, by time."""
        query = select(HOURS).where(HOURS.c.hour >= seconds(start), HOURS.c.hour < seconds(end))
        if pool:
            query = query.where(HOURS.c.pool == storable(pool))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(*HOURS.primary_key)).all()
        return [HourSum(moment(row.hour), row.pool, row.state, row.kind, row.seconds) for row in rows]


def take_back_days(connection: Connection, days: Iterable[int]) -> None:
    """Delete sums of days, as if they had never been summed up. `days`: their numbers."""
    numbers = sorted(days)
    for number in numbers:
        _put_totals(connection, number, {})
        for table in (DAYS, POOLS):
            connection.execute(delete(table).where(table.c.day == number))
    connection.execute(delete(TOTALS).where(TOTALS.c.seconds == 0))
    for month in sorted({number // 100 for number in numbers}):
        _put_month(connection, month)


def _put_month(connection: Connection, month: int) -> None:
    """The sums of its days, in place of what is there."""
    connection.execute(delete(MONTHS).where(MONTHS.c.month == month))
    whole = (
        select(literal(month), DAYS.c.slice, func.sum(DAYS.c.seconds))
        .where(DAYS.c.day.between(month * 100, month * 100 + 99))
        .group_by(DAYS.c.slice)
    )
    connection.execute(insert(MONTHS).from_select(["month", "slice", "seconds"], whole))


def _put_totals(connection: Connection, day: int, sums: Mapping[Slice, int]) -> None:
    """Add a day to the totals of its month, in place of what was written of it before, if anything was."""
    words = [SLICES.c[name] for name in DIMENSIONS]
    old = select(*words, DAYS.c.seconds).join(DAYS, DAYS.c.slice == SLICES.c.id).where(DAYS.c.day == day)
    totals: Counter[Slice] = Counter()
    for *values, amount in connection.execute(old):
        totals[replace(Slice(*values), host="")] -= int(amount)
    for use_slice, amount in sums.items():
        totals[replace(use_slice, host="")] += amount
    rows = [{"month": day // 100, "slice": id, "seconds": n} for id, n in _by_id(connection, totals).items() if n]
    if rows:
        connection.execute(adding(connection.dialect.name, TOTALS, "seconds"), rows)


def _of_pools(sums: Mapping[Slice, int]) -> Mapping[Slice, int]:
    totals: Counter[Slice] = Counter()
    for use_slice, amount in sums.items():
        totals[Slice(use_slice.tariff, use_slice.pool, state=use_slice.state, kind=use_slice.kind)] += amount
    return totals


def _by_id(connection: Connection, sums: Mapping[Slice, int]) -> dict[int, int]:
    """The number of each slice -> its seconds; two may be stored alike."""
    ids = dictionary_ids(connection, SLICES, {use_slice: _words(use_slice) for use_slice in sums})
    seconds_by_id: dict[int, int] = {}
    for use_slice, amount in sums.items():
        seconds_by_id[ids[use_slice]] = seconds_by_id.get(ids[use_slice], 0) + amount
    return seconds_by_id


def _parts(first: date, end: date, dimensions: Collection[str], *, days: bool) -> Iterable[tuple[Table, int, int]]:
    """Tables that are [first, end) together, with the first and the last number of each. `dimensions`: those that are
    asked for."""
    if first >= end:
        return
    last = end - timedelta(days=1)
    begins = first if first.day == 1 else _next_month(first)
    ends = end.replace(day=1)
    if BROAD.issuperset(dimensions):
        yield POOLS, day_number(first), day_number(last)
        return
    if days or begins >= ends:
        yield DAYS, day_number(first), day_number(last)
        return
    if first < begins:
        yield DAYS, day_number(first), day_number(begins - timedelta(days=1))
    yield (
        MONTHS if "host" in dimensions else TOTALS,
        day_number(begins) // 100,
        day_number(ends - timedelta(days=1)) // 100,
    )
    if ends < end:
        yield DAYS, day_number(ends), day_number(last)


def _next_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def _period(number: int, period: str) -> date | None:
    if not period:
        return None
    return day_of(number if period == "day" else number * 100 + 1)


def _words(use_slice: Slice) -> dict[str, str]:
    return {field.name: storable(getattr(use_slice, field.name))[:500] for field in fields(use_slice)}


def _hour_row(hour: HourSum) -> dict[str, Any]:
    return {
        "hour": seconds(hour.start), "pool": storable(hour.pool), "state": hour.state, "kind": hour.kind,
        "seconds": hour.seconds,
    }  # fmt: skip
