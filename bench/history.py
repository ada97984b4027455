"""The history of five years, as it stands in the database under the usual rules: intervals of 400 days, sums for good.
8,000 GPUs on PostgreSQL, 200 on SQLite.

python -m bench.history [GPUs of the one [of the other]]

The rows are made up and written in bulk; what is measured are the questions that pages and reports ask, and what the
loop does with each look, each day and each hour. A GPU changes hands every 1.6 days; a host has four tenants a day.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import astuple, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, text
from sqlalchemy.dialects import sqlite
from tests.support.postgres import server

from bench.table import Measured, finish, milliseconds, show, sized
from gpuyard.database.engine import Database
from gpuyard.database.times import seconds
from gpuyard.site.history_rules import KEEP
from gpuyard.usage.accounts import Prices
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.controllers.usage import UsageQuery, usage
from gpuyard.usage.reckoning import day_span, one_tariff
from gpuyard.usage.records import Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore, Which
from gpuyard.usage.store.schema import DAYS, GPUS, HOURS, INTERVALS, MONTHS, OPEN, POOLS, SEEN, SLICES, TENURES, TOTALS
from gpuyard.usage.web.utilisation import read as utilisation

LIMIT_REPORT_MS, LIMIT_LONG_MS, LIMIT_PAGE_MS, LIMIT_LOOK_MS = 1000, 5000, 500, 500
"""Of a report of a year or less, and of five years; of a page; of a look."""
ZONE = "Europe/Rome"
A_DAY = timedelta(days=1)
FIRST, TODAY = sized(date(2021, 11, 22), date(2025, 10, 1)), date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 15, tzinfo=UTC)
GPUS_EACH, OF_POOLS, PROJECTS, USERS = 8, 6, 60, 5
KINDS = ("booking", "booking", "booking", "runner", "")
STAYS_H, IDLE_H = 30.0, 8.0
"""Hours that a tenant has a GPU, and that nobody has it then; in the mean."""
CHANGES = 40
"""GPUs that change hands in the look that is measured."""
SOME = 200_000
"""Rows that are written at once."""
PRICES = Prices(lambda pool, tariff: Decimal("1.20") if tariff else Decimal("0.60"))


class Site:
    """A made-up one, always the same."""

    def __init__(self, gpus: int) -> None:
        self.hosts = gpus // GPUS_EACH
        self.gpus = [(n + 1, f"gpu-{n // 8:04}", f"0000:{n % 8 + 1:02x}:00.0", self.pool(n // 8)) for n in range(gpus)]
        self.chance = random.Random(gpus)
        self.tenures: list[tuple[object, ...]] = []
        self.slices: dict[tuple[str, ...], int] = {}

    @staticmethod
    def pool(host: int) -> str:
        return f"pool-{host % OF_POOLS}"

    def person(self) -> tuple[str, str, str, str]:
        """Ids and names of a user and a project."""
        project = self.chance.randrange(PROJECTS)
        user = f"user-{project}-{self.chance.randrange(USERS)}"
        return f"{user:>032}", user, f"{project:032}", f"project-{project}"

    def intervals(self, since: int, until: int) -> Iterator[tuple[object, ...]]:
        """Of every GPU, as they begin; and what they are of is in `tenures` then."""
        chance = self.chance
        self.tenures.append((1, *with_digest(TENURES, astuple(Tenure()))))
        ends = [since] * len(self.gpus)
        used = [False] * len(self.gpus)
        id = 0
        for day in range(since, until, 86_400):
            for n, gpu in enumerate(self.gpus):
                while ends[n] < min(day + 86_400, until):
                    starts = ends[n]
                    used[n] = not used[n]
                    mean = STAYS_H if used[n] else IDLE_H
                    ends[n] = starts + 60 + int(chance.expovariate(1 / mean) * 3600)
                    id += 1
                    tenure = self._tenure(id) if used[n] else 1
                    state = "claimed" if used[n] else "free"
                    yield (id, gpu[0], tenure, state, starts, ends[n] if ends[n] < until else OPEN, True, True)

    def _tenure(self, id: int) -> int:
        user_id, user, project_id, project = self.person()
        kind = self.chance.choice(KINDS)
        server, booking = (str(hashlib.md5(f"{id}{what}".encode()).hexdigest()) for what in "sb")
        tenure = Tenure(
            f"{project} has it", booking if kind else "", kind, server, f"train-{id}", user_id, user, project_id,
            project, "gpu.large", "physics/detector" if kind == "runner" else "",
        )  # fmt: skip
        self.tenures.append((len(self.tenures) + 1, *with_digest(TENURES, astuple(tenure))))
        return len(self.tenures)

    def slice(self, *words: str) -> int:
        """The number of a slice, by its words in the order of `SLICES`."""
        return self.slices.setdefault(words, len(self.slices) + 1)

    def days(
        self, first: date, end: date, totals: Counter[tuple[int, int]], pools: Counter[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """Sums of each day; those of months without hosts are in `totals` then, and those of days without hosts and
        people in `pools`."""
        chance = self.chance
        tenants_by_host: list[list[tuple[str, ...]]] = [[self._tenant() for _ in range(4)] for _ in range(self.hosts)]
        day = first
        while day < end:
            number = day.year * 10_000 + day.month * 100 + day.day
            nobody = ("",) * 5
            for host, tenants in enumerate(tenants_by_host):
                tenants[chance.randrange(4)] = self._tenant()
                tenants[chance.randrange(4)] = self._tenant()
                sums: Counter[tuple[str, ...]] = Counter()
                for tenant in tenants:
                    for tariff in ("", "night"):
                        sums[tariff, *tenant[:-1], "claimed", tenant[-1]] += chance.randrange(40_000, 70_000)
                for tariff, state in (("", "free"), ("night", "free"), *([("", "held")] * (host % 20 == 0))):
                    sums[tariff, *nobody, state, ""] += chance.randrange(20_000, 90_000)
                name, pool = f"gpu-{host:04}", self.pool(host)
                for (tariff, *rest), amount in sums.items():
                    yield number, self.slice(tariff, pool, name, *rest), amount
                    totals[number // 100, self.slice(tariff, pool, "", *rest)] += amount
                    pools[number, self.slice(tariff, pool, "", *nobody, *rest[-2:])] += amount
            day += A_DAY

    def _tenant(self) -> tuple[str, ...]:
        user_id, user, project_id, project = self.person()
        kind = self.chance.choice(KINDS)
        return project_id, project, user_id, user, "physics/detector" if kind == "runner" else "", kind

    def hours(self, since: int, until: int) -> Iterator[tuple[object, ...]]:
        for hour in range(since, until, 3600):
            for pool in range(OF_POOLS):
                for state, kind in (("claimed", "booking"), ("claimed", "runner"), ("claimed", ""), ("free", "")):
                    yield hour, f"pool-{pool}", state, kind, len(self.gpus) * 150


def with_digest(table: Table, words: Iterable[str]) -> tuple[str, ...]:
    """As the store makes it, of the words of a row in order."""
    row = dict(zip([column.name for column in table.columns][2:], words, strict=True))
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest(), *row.values()


def fill(database: Database, site: Site) -> None:
    """All of it, with indexes made afterwards."""
    begins, since = seconds(day_span(FIRST, ZONE)[0]), seconds(NOW - KEEP)
    tables = (GPUS, TENURES, INTERVALS, SLICES, DAYS, POOLS, MONTHS, TOTALS, HOURS)
    indexes = [index for table in tables for index in table.indexes]
    with database.writing() as connection:
        for index in indexes:
            index.drop(connection)
    put(database, GPUS, site.gpus)
    put(database, INTERVALS, site.intervals(since, seconds(NOW)))
    put(database, TENURES, site.tenures)
    totals: Counter[tuple[int, int]] = Counter()
    pools: Counter[tuple[int, int]] = Counter()
    rolled = TODAY - 2 * A_DAY
    put(database, DAYS, site.days(FIRST, rolled + A_DAY, totals, pools))
    for table, amounts in ((TOTALS, totals), (POOLS, pools)):
        put(database, table, ((period, slice, amount) for (period, slice), amount in amounts.items()))
    put(database, SLICES, ((id, *with_digest(SLICES, words)) for words, id in site.slices.items()))
    put(database, HOURS, site.hours(begins, seconds(day_span(rolled + A_DAY, ZONE)[0])))
    number = rolled.year * 10_000 + rolled.month * 100 + rolled.day
    put(database, SEEN, [("site", begins, seconds(NOW), seconds(NOW), number)])
    with database.writing() as connection:
        unhurried(connection)
        months = select(DAYS.c.day.op("/")(100), DAYS.c.slice, func.sum(DAYS.c.seconds)).group_by(text("1, 2"))
        connection.execute(insert(MONTHS).from_select(["month", "slice", "seconds"], months))
        for index in indexes:
            index.create(connection)
        if not database.sqlite:  # numbers were given without it
            for table in (GPUS, TENURES, INTERVALS, SLICES):
                last = select(func.max(table.c.id)).scalar_subquery()
                connection.execute(select(func.setval(func.pg_get_serial_sequence(table.name, "id"), last)))
    statement(database, "analyze" if database.sqlite else "vacuum analyze")


def put(database: Database, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    with database.writing() as connection:
        unhurried(connection)
        raw: Any = connection.connection.dbapi_connection
        if database.sqlite:
            raw.executemany(str(insert(table).compile(dialect=sqlite.dialect())), rows)
            return
        with raw.cursor() as cursor, cursor.copy(f"copy {table.name} ({names}) from stdin") as copy:
            lines = []
            for row in rows:
                lines.append("\t".join(map(str, row)))
                if len(lines) == SOME:
                    copy.write("\n".join(lines) + "\n")
                    lines = []
            copy.write("".join(f"{line}\n" for line in lines))


def unhurried(connection: Connection) -> None:
    """A statement of this transaction may take as long as it does."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("set local statement_timeout = 0"))


def statement(database: Database, sql: str) -> list[tuple[Any, ...]]:
    """Outside of a transaction."""
    with database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        if not database.sqlite:
            connection.execute(text("set statement_timeout = 0"))
        result = connection.execute(text(sql))
        return [tuple(row) for row in result] if result.returns_rows else []


def sizes(database: Database) -> None:
    tables = (TENURES, INTERVALS, SLICES, DAYS, POOLS, MONTHS, TOTALS, HOURS)
    print(f"\n{database.name}")
    for table in tables:
        with database.reading() as connection:
            rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
        size = ""
        if not database.sqlite:
            [(mib, of_it)] = statement(
                database,
                f"select pg_total_relation_size('{table.name}') >> 20, pg_indexes_size('{table.name}') >> 20",
            )
            size = f"{mib:>6} MiB, {of_it} of it indexes"
        print(f"  {table.name:<20} {rows:>10} rows {size}")
    whole = "select page_count * page_size >> 20 from pragma_page_count(), pragma_page_size()"
    [(mib,)] = statement(database, whole if database.sqlite else "select pg_database_size(current_database()) >> 20")
    print(f"  {'all of it':<20} {mib:>10} MiB")


def roll(store: HistoryStore) -> Iterator[Measured]:
    """First, so that only today has no sums, as it is but for ten minutes of each day."""
    began = perf_counter()
    assert sum_up(store, ZONE, one_tariff, 1) == 1
    yield Measured("the sums of a day are written", "ms", [(perf_counter() - began) * 1000], 60_000)


def reports(history: History) -> Iterator[Measured]:
    year, ago = date(2025, 11, 1), date(2026, 11, 1)
    five = FIRST, TODAY
    for name, query in {
        "a year by project": UsageQuery(year, ago),
        "a year by project, user and pool": UsageQuery(year, ago, ("project", "user", "pool")),
        "five years by month": UsageQuery(*five, ("month",)),
        "five years by project": UsageQuery(*five),
        "five years by project and month": UsageQuery(*five, ("project", "month")),
        "five years of one project by user": UsageQuery(*five, ("user",), {"project": "project-7"}),
        "a month by day": UsageQuery(date(2026, 5, 1), date(2026, 6, 1), ("day",)),
        "a month by host": UsageQuery(date(2026, 5, 1), date(2026, 6, 1), ("host",)),
        "a year by host": UsageQuery(year, ago, ("host",)),
        "five years of one host by month": UsageQuery(*five, ("month",), {"host": "gpu-0007"}),
    }.items():
        limit = LIMIT_LONG_MS if query.first == FIRST else LIMIT_REPORT_MS
        yield timed(f"report: {name}", partial(usage, history, query, PRICES), limit)


def pages(history: History) -> Iterator[Measured]:
    selection = Which(host="gpu-0007", address="0000:03:00.0")
    for days, back in ((30, 0), (30, 360), (365, 0)):
        end = NOW - back * A_DAY
        name = f"page of a GPU: {days} days" + (f" that ended {back} days ago" if back else "")
        yield timed(name, partial(history.intervals, end - days * A_DAY, end, selection, 1000), LIMIT_PAGE_MS)
    by = ("pool", "project_id", "project", "user_id", "user", "state", "kind")
    mine = {"project_id": f"{7:032}"}
    for first, after in ((date(2026, 10, 1), date(2026, 11, 1)), (date(2022, 3, 1), date(2022, 4, 1))):
        run = partial(history.sums, first, after, by, "day", mine)
        yield timed(f"page of a project: {first:%Y-%m}", run, LIMIT_PAGE_MS)
    for days in (1, 30, 365):
        yield timed(f"overview: {days} days", partial(utilisation, history, days, NOW), LIMIT_PAGE_MS)
    for back in (1, 30, 300):
        start = day_span(TODAY - back * A_DAY, ZONE)[0]
        query = partial(history.intervals, start, start + A_DAY)
        yield timed(f"intervals of the day {back} days ago", query, LIMIT_REPORT_MS)


def work(store: HistoryStore) -> Iterator[Measured]:
    """What the loop does."""
    yield timed("what goes on, read after a start", store.open, LIMIT_REPORT_MS)
    extent = store.seen()
    assert extent is not None
    last = [extent.until]

    def look() -> None:
        taken, open = last[0] + timedelta(seconds=5), goes_on[:CHANGES]
        del goes_on[:CHANGES]
        ends = {(interval.host, interval.address, interval.pool): (taken, True) for interval in open}
        adds = [
            replace(
                interval,
                start=taken,
                state=TrackState.CLAIMED,
                tenure=Tenure(server=f"s{interval.host}{interval.address}{taken}"),
            )
            for interval in open
        ]
        assert store.write(last[0], taken, taken, ends, adds)
        last[0] = taken

    goes_on: list[Interval] = store.open()
    yield timed(f"a look at which {CHANGES} GPUs change hands", look, LIMIT_LOOK_MS)
    server = store.intervals(NOW - A_DAY, NOW)[0].tenure.server
    yield timed(
        "what a server had since the last look",
        lambda: store.intervals(NOW - timedelta(minutes=5), NOW, Which(server=server)),
    )
    for name, span in (("an hour", timedelta(hours=1)), ("five days", 5 * A_DAY)):
        before = extent.until - KEEP + span
        began, gone = perf_counter(), 0
        while some := store.forget(before):
            gone += some
        yield Measured(f"intervals of {name} are forgotten ({gone})", "ms", [(perf_counter() - began) * 1000], 10_000)


def tries(database: Database, history: History) -> Iterator[Measured]:
    """The intervals of an old day with indexes that PostgreSQL has for such, each in place of none."""
    start = day_span(TODAY - 300 * A_DAY, ZONE)[0]
    for name, index in (
        ("as it is", ""),
        ("with BRIN", "using brin (starts, ends) with (pages_per_range = 32)"),
        ("with a B-tree on the start", "(starts)"),
        ("as it is, again", ""),
    ):
        if index:
            statement(database, f"create index tried on history_intervals {index}")
        yield timed(f"intervals of the day 300 days ago, {name}", lambda: history.intervals(start, start + A_DAY))
        if index:
            statement(database, "drop index tried")


def timed(name: str, run: Callable[[], object], limit: float | None = None, times: int = 3) -> Measured:
    return Measured(name, "ms", milliseconds(run, times), limit)


def measure(url: str, gpus: int) -> None:
    with closing(Database(url)) as database:
        store, began = HistoryStore(database), perf_counter()
        fill(database, Site(gpus))
        print(f"\n{database.name}: filled in {perf_counter() - began:.0f} s")
        sizes(database)
        history, name = History(store, ZONE), database.url.get_backend_name()
        show(f"Five years of {gpus} GPUs, {name}", [*roll(store), *reports(history), *pages(history), *work(store)])
        if not database.sqlite:
            show("What else could be", [*tries(database, history)])


def main(large: str = sized("8000", "80"), small: str = sized("200", "16")) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        measure(f"sqlite:///{folder}/history.db", int(small))
        with server(Path(folder), durable=True) as postgres:
            measure(postgres.database(), int(large))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit(finish())
