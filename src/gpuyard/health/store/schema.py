"""The tables of health. Times are whole seconds since 1970 (UTC)."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import BigInteger, Column, Index, Table, Text, literal

from gpuyard.database.columns import RISING, flag, maybe_time, new_tables, number, text, time
from gpuyard.database.schema_modules import SchemaModule

TABLES = new_tables()
SCHEMA_MODULE = SchemaModule("health", Path(__file__).parent / "migrations", TABLES, "health_version")

GPUS = Table(
    "gpu_health",
    TABLES,
    Column("host", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    text("pool"),
    text("state"),
    time("since"),
    text("cause"),
    text("signal"),
    text("by"),
    text("card"),
    maybe_time("until"),
    number("relapses"),
    flag("asked"),
    text("order"),
    maybe_time("generation"),  # a number
    maybe_time("accepted"),
    text("software"),  # JSON
    text("keeper"),
    number("version"),
    Column("shown", Text, nullable=False, server_default=literal("{}")),  # JSON; these came later
    Column("baseline", Text, nullable=False, server_default=literal("")),  # JSON
    Column("trial", Text, nullable=False, server_default=literal("")),  # JSON
)

EVENTS = Table(
    "health_events",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("host"),
    text("address"),
    text("card"),
    time("at"),
    text("before"),
    text("after"),
    text("cause"),
    text("signal"),
    text("evidence"),
    text("by"),
    text("source"),  # empty: none
    Index("health_events_gpu", "host", "address", "id"),
    Index("health_events_card", "card", "id"),
    Index("health_events_after", "after", "at"),
    sqlite_autoincrement=True,
)

OBSERVATIONS = Table(
    "health_observations",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("host"),
    text("address"),
    text("code"),
    time("seen"),
    text("evidence"),
    text("by"),
    Index("health_observations_one", "host", "address", "code", "by", unique=True),
    sqlite_autoincrement=True,
)

TOKENS = Table(
    "health_tokens",
    TABLES,
    Column("digest", Text, primary_key=True),
    text("purpose"),
    text("subject"),
    time("created"),
    maybe_time("expires"),
    maybe_time("spent"),
    Index("health_tokens_subject", "purpose", "subject"),
)

HOSTS = Table(
    "health_hosts",
    TABLES,
    Column("host", Text, primary_key=True),
    time("heard"),
    text("look"),  # JSON
)

VALUES = Table(
    "health_values",
    TABLES,
    Column("key", Text, primary_key=True),
    text("value"),
)

GUESTS = Table(
    "health_guests",
    TABLES,
    Column("server", Text, primary_key=True),
    time("heard"),
    text("state"),  # JSON
)

CARDS = Table(
    "health_cards",
    TABLES,
    Column("card", Text, primary_key=True),
    text("places"),  # JSON
    time("seen"),
    text("server"),
)

HOURS = Table(
    "health_hours",
    TABLES,
    Column("server", Text, primary_key=True),
    Column("card", Text, primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    number("samples"),
    number("use"),
    number("memory"),
    number("power"),
    number("hottest"),
    Index("health_hours_hour", "hour"),
)

MAINTENANCES = Table(
    "health_maintenances",
    TABLES,
    Column("id", Text, primary_key=True),
    text("host"),
    time("start"),
    time("until"),
    text("why"),
    text("by"),
    text("state"),
    time("since"),
    time("created"),
    maybe_time("begun"),
    maybe_time("done"),
    text("done_by"),
    text("software"),  # JSON
    text("problems"),  # JSON
    flag("holds"),
    Column("open_host", Text, nullable=True, unique=True),  # its host, as long as it is not over: one at a time
    number("version"),
    Column("may_go_down", Text, nullable=False, server_default=literal("[]")),  # JSON; came later
    maybe_time("due"),
    Index("health_maintenances_host", "host", "created"),
)

TRIES = Table(
    "health_tries",
    TABLES,
    Column("id", Text, primary_key=True),
    text("batch"),
    text("host"),
    text("state"),
    time("begun"),
    number("version"),
    text("data"),  # JSON
    Index("health_tries_batch", "batch"),
    Index("health_tries_state", "state"),
    Index("health_tries_host", "host", "begun"),
)
