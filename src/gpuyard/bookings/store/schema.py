"""The ledger's tables. Times are whole seconds since 1970 (UTC), intervals are half-open: [starts, ends).

The migrations make them (migrations); a test holds both together. What is not here, because each database says it in
its own way, is the constraint that no lane is taken twice at a time: see the first migration.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    false,
    literal,
)
from sqlalchemy import text as sql

from gpuyard.database.columns import RISING, flag, maybe_time, new_tables, number, text, time
from gpuyard.database.schema_modules import SchemaModule

TABLES = new_tables()
SCHEMA_MODULE = SchemaModule("ledger", Path(__file__).parent / "migrations", TABLES, "alembic_version")

POOLS = Table(
    "pools",
    TABLES,
    Column("name", Text, primary_key=True),
    number("generation"),
    number("lanes_generation"),
    number("log_floor"),  # the earliest generation that occupancy_log still leads on from
    number("followed"),  # the place that the newest booking got on the waitlist's order
)

LANES = Table(
    "lanes",
    TABLES,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("pool", Text, ForeignKey("pools.name"), nullable=False),
    text("host"),
    text("leader"),  # the first address: with pool and host it is what makes a lane the same one
    text("addresses"),  # separated by blanks
    text("trouble"),
    flag("gone"),
    maybe_time("back"),
    UniqueConstraint("pool", "host", "leader"),
    UniqueConstraint("id", "pool"),
    sqlite_autoincrement=True,
)

BOOKINGS = Table(
    "bookings",
    TABLES,
    Column("id", Text, primary_key=True),
    Column("pool", Text, ForeignKey("pools.name"), nullable=False),
    text("kind"),
    text("state"),
    time("starts"),
    time("ends"),
    number("gpus"),
    flag("same_group"),
    flag("same_host"),
    text("gpu"),
    text("comment"),
    text("user_id"),
    text("user_name"),
    text("project_id"),
    text("project"),
    time("created"),
    time("changed"),
    number("version"),
    text("lanes"),  # ids separated by blanks; what the past of the calendar is drawn from
    text("reason"),
    text("email"),
    text("series"),
    maybe_time("offer_until"),
    maybe_time("claimed"),
    maybe_time("open_until"),
    number("priority"),
    flag("overridden"),
    number("followed"),
    maybe_time("usable_since"),
    Column("shared", Boolean, nullable=False, server_default=false()),  # came later, as those that follow
    Column("server", Text, nullable=False, server_default=literal("")),
    Column("yields", Boolean, nullable=False, server_default=false()),
    maybe_time("empty_since"),
    CheckConstraint("ends >= starts", name="time"),
    Index("bookings_calendar", "pool", "ends", "starts"),
    Index("bookings_clock", "pool", "state", "starts"),
    Index("bookings_clock_end", "pool", "state", "ends"),
    Index("bookings_user", "user_id", "pool", "state"),
    Index("bookings_budget", "project_id", "pool", "ends", "starts", "gpus", "state", "kind", "id"),
    Index("bookings_order", "starts", "id"),
    Index("bookings_of_user", "user_id", "starts", "id"),
    Index("bookings_of_series", "series"),
    Index("bookings_of_server", "server", sqlite_where=sql("server != ''"), postgresql_where=sql("server != ''")),
    Index("bookings_yielding", "pool", sqlite_where=sql("yields = 1"), postgresql_where=sql("yields")),
)

OCCUPANCY = Table(
    "occupancy",
    TABLES,
    Column("lane", Integer, primary_key=True, autoincrement=False),
    Column("starts", BigInteger, primary_key=True, autoincrement=False),
    time("ends"),
    text("pool"),
    Column("booking", Text, ForeignKey("bookings.id"), nullable=False),
    CheckConstraint("ends > starts", name="time"),
    ForeignKeyConstraint(["lane", "pool"], ["lanes.id", "lanes.pool"]),
    Index("occupancy_booking", "booking"),
    sqlite_with_rowid=False,
)

OCCUPANCY_LOG = Table(
    "occupancy_log",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("pool"),
    number("generation"),
    text("booking"),
    Column("lane", Integer, nullable=False),
    time("starts"),
    time("ends"),
    flag("taken"),
    Index("occupancy_log_step", "pool", "generation"),
    sqlite_autoincrement=True,
)

KEYS = Table(
    "keys",
    TABLES,
    Column("user_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    text("digest"),
    text("bookings"),  # ids separated by blanks
    time("at"),
    Index("keys_at", "at"),
)

TOLD = Table(
    "told",
    TABLES,
    Column("booking", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    time("at"),
)

AUDIT = Table(
    "audit",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    time("at"),
    text("actor"),
    text("action"),
    text("target"),
    text("rule"),
    text("text"),
    Index("audit_target", "target"),
    sqlite_autoincrement=True,
)

EVENTS = Table(
    "events",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    text("kind"),
    time("at"),
    text("booking"),
    text("user_id"),
    text("email"),
    text("details"),  # JSON
    Index("events_at", "at"),
    sqlite_autoincrement=True,
)

CHANNELS = Table("channels", TABLES, Column("name", Text, primary_key=True))

DELIVERIES = Table(
    "deliveries",
    TABLES,
    Column("event", RISING, ForeignKey("events.id"), primary_key=True, autoincrement=False),
    Column("channel", Text, primary_key=True),
    Column("attempts", Integer, nullable=False),
    maybe_time("next_try"),  # none: delivered, or given up
    maybe_time("delivered"),
    Index("deliveries_next", "channel", "next_try"),
)

CASES = Table(
    "cases",
    TABLES,
    Column("server_id", Text, primary_key=True),
    Column("seen", BigInteger, primary_key=True, autoincrement=False),
    text("server"),
    text("pool"),
    text("user_id"),
    text("project_id"),
    text("rule"),
    text("action"),
    maybe_time("warned"),
    maybe_time("due"),
    maybe_time("done"),
    maybe_time("cleared"),
    flag("dry_run"),
    text("text"),
    Index("cases_open", "cleared", "seen"),
)

ENFORCEMENT = Table(
    "enforcement",
    TABLES,
    Column("pool", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    text("value"),
)
