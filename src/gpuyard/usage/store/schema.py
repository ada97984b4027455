"""The tables of history. Times are whole seconds since 1970 (UTC); days and months are numbers like 20261122 and
202611.

What repeats is kept once: an interval and a sum are a few numbers, however long the names of their people are.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import BigInteger, Column, Index, Table, Text
from sqlalchemy import text as sql

from gpuyard.database.columns import RISING, flag, maybe_time, new_tables, number, text, time
from gpuyard.database.schema_modules import SchemaModule
from gpuyard.database.times import seconds
from gpuyard.model.booking import FOREVER

TABLES = new_tables()
REFERENCES = {
    "history_intervals.gpu": "history_gpus.id",
    "history_intervals.tenure": "history_tenures.id",
    "history_days.slice": "history_slices.id",
    "history_pools.slice": "history_slices.id",
    "history_months.slice": "history_slices.id",
    "history_totals.slice": "history_slices.id",
}
SCHEMA_MODULE = SchemaModule("history", Path(__file__).parent / "migrations", TABLES, "history_version", REFERENCES)
OPEN = seconds(FOREVER)
"""The end of an interval that goes on: so that one index answers what reached into a time."""

SEEN = Table(
    "history_seen",
    TABLES,
    Column("site", Text, primary_key=True),
    *map(time, ("first", "until", "settled")),
    maybe_time("rolled"),  # a day
)

GPUS = Table(
    "history_gpus",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    *map(text, ("host", "address", "pool")),
    Index("history_gpus_one", "host", "address", "pool", unique=True),
)

TENURES = Table(
    "history_tenures",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("digest"),
    *map(text, ("reason", "booking", "kind", "server", "server_name", "user_id", "user", "project_id", "project")),
    *map(text, ("flavor", "repository")),
    Index("history_tenures_digest", "digest", unique=True),
    Index("history_tenures_server", "server"),
    Index("history_tenures_booking", "booking"),
    Index("history_tenures_project", "project_id"),
    Index("history_tenures_user", "user_id"),
)

INTERVALS = Table(
    "history_intervals",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    *map(number, ("gpu", "tenure")),
    text("state"),
    *map(time, ("starts", "ends")),
    *map(flag, ("exact_start", "exact_end")),
    Index("history_intervals_gpu", "gpu", "ends"),
    Index("history_intervals_tenure", "tenure"),
    Index("history_intervals_ends", "ends", "starts"),
    # A GPU has one at a time that goes on.
    Index(
        "history_intervals_open",
        "gpu",
        unique=True,
        sqlite_where=sql(f"ends = {OPEN}"),
        postgresql_where=sql(f"ends = {OPEN}"),
    ),
)

SLICES = Table(
    "history_slices",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("digest"),
    *map(text, ("tariff", "pool", "host", "project_id", "project", "user_id", "user", "repository", "state", "kind")),
    Index("history_slices_digest", "digest", unique=True),
    Index("history_slices_host", "host"),
    Index("history_slices_project", "project_id"),
)


def _sums(name: str, period: str) -> Table:
    return Table(
        name,
        TABLES,
        Column(period, BigInteger, primary_key=True, autoincrement=False),
        Column("slice", BigInteger, primary_key=True, autoincrement=False),
        number("seconds"),
    )


DAYS = _sums("history_days", "day")
POOLS = _sums("history_pools", "day")  # DAYS without hosts and people: what charts are drawn from
MONTHS = _sums("history_months", "month")
TOTALS = _sums("history_totals", "month")  # MONTHS without hosts: years of these are few rows

HOURS = Table(
    "history_hours",
    TABLES,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("pool", Text, primary_key=True),
    Column("state", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    number("seconds"),
)
