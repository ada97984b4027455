"""The tables. Times are whole seconds since 1970 (UTC), intervals are half-open: [starts, ends).

The migrations make them (migrations/versions); a test holds both together. What is not here, because each database says
it in its own way, is the constraint that no lane is taken twice at a time: see the first migration.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
METADATA = MetaData(naming_convention=NAMES)

RISING = BigInteger().with_variant(Integer, "sqlite")
"""A number that the database gives; SQLite gives one only to columns of exactly this type."""


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _time(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _maybe_time(name: str) -> Column[int | None]:
    return Column(name, BigInteger, nullable=True)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


POOLS = Table(
    "pools",
    METADATA,
    Column("name", Text, primary_key=True),
    _number("generation"),
    _number("lanes_generation"),
    _number("log_floor"),  # the earliest generation that occupancy_log still leads on from
    _number("followed"),  # the place that the newest booking got on the waitlist's order
)

LANES = Table(
    "lanes",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("pool", Text, ForeignKey("pools.name"), nullable=False),
    _text("host"),
    _text("leader"),  # the first address: with pool and host it is what makes a lane the same one
    _text("addresses"),  # separated by blanks
    _text("trouble"),
    _flag("gone"),
    UniqueConstraint("pool", "host", "leader"),
    UniqueConstraint("id", "pool"),
    sqlite_autoincrement=True,
)

BOOKINGS = Table(
    "bookings",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("pool", Text, ForeignKey("pools.name"), nullable=False),
    _text("kind"),
    _text("state"),
    _time("starts"),
    _time("ends"),
    _number("gpus"),
    _flag("same_group"),
    _flag("same_host"),
    _text("gpu"),
    _text("comment"),
    _text("user_id"),
    _text("user_name"),
    _text("project_id"),
    _text("project"),
    _time("created"),
    _time("changed"),
    _number("version"),
    _text("lanes"),  # ids separated by blanks; what the past of the calendar is drawn from
    _text("reason"),
    _text("email"),
    _text("series"),
    _maybe_time("offer_until"),
    _maybe_time("claimed"),
    _maybe_time("open_until"),
    _number("priority"),
    _flag("overridden"),
    _number("followed"),
    CheckConstraint("ends >= starts", name="time"),
    Index("bookings_calendar", "pool", "ends", "starts"),
    Index("bookings_clock", "pool", "state", "starts"),
    Index("bookings_clock_end", "pool", "state", "ends"),
    Index("bookings_user", "user_id", "pool", "state"),
    Index("bookings_budget", "project_id", "pool", "ends", "starts", "gpus", "state", "kind", "id"),
    Index("bookings_order", "starts", "id"),
    Index("bookings_of_user", "user_id", "starts", "id"),
    Index("bookings_of_series", "series"),
)

OCCUPANCY = Table(
    "occupancy",
    METADATA,
    Column("lane", Integer, primary_key=True, autoincrement=False),
    Column("starts", BigInteger, primary_key=True, autoincrement=False),
    _time("ends"),
    _text("pool"),
    Column("booking", Text, ForeignKey("bookings.id"), nullable=False),
    CheckConstraint("ends > starts", name="time"),
    ForeignKeyConstraint(["lane", "pool"], ["lanes.id", "lanes.pool"]),
    Index("occupancy_booking", "booking"),
    sqlite_with_rowid=False,
)

OCCUPANCY_LOG = Table(
    "occupancy_log",
    METADATA,
    Column("id", RISING, primary_key=True, autoincrement=True),
    _text("pool"),
    _number("generation"),
    _text("booking"),
    Column("lane", Integer, nullable=False),
    _time("starts"),
    _time("ends"),
    _flag("taken"),
    Index("occupancy_log_step", "pool", "generation"),
    sqlite_autoincrement=True,
)

KEYS = Table(
    "keys",
    METADATA,
    Column("user_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    _text("digest"),
    _text("bookings"),  # ids separated by blanks
    _time("at"),
    Index("keys_at", "at"),
)

TOLD = Table(
    "told",
    METADATA,
    Column("booking", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    _time("at"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", RISING, primary_key=True, autoincrement=True),
    _time("at"),
    _text("actor"),
    _text("action"),
    _text("target"),
    _text("rule"),
    _text("text"),
    Index("audit_target", "target"),
    sqlite_autoincrement=True,
)

EVENTS = Table(
    "events",
    METADATA,
    Column("id", RISING, primary_key=True, autoincrement=True),
    _text("kind"),
    _time("at"),
    _text("booking"),
    _text("user_id"),
    _text("email"),
    _text("details"),  # JSON
    Index("events_at", "at"),
    sqlite_autoincrement=True,
)

CHANNELS = Table("channels", METADATA, Column("name", Text, primary_key=True))

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("event", RISING, ForeignKey("events.id"), primary_key=True, autoincrement=False),
    Column("channel", Text, primary_key=True),
    Column("attempts", Integer, nullable=False),
    _maybe_time("next_try"),  # none: delivered, or given up
    _maybe_time("delivered"),
    Index("deliveries_next", "channel", "next_try"),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("digest", Text, primary_key=True),
    _text("user_id"),
    _text("user_name"),
    _text("project_id"),
    _text("csrf"),
    _time("created"),
    _time("expires"),
    Index("sessions_expires", "expires"),
    Index("sessions_user", "user_id"),
)

FEEDS = Table(
    "feeds",
    METADATA,
    Column("digest", Text, primary_key=True),
    _text("scope"),
    _text("target"),
    _text("owner"),
    _time("created"),
    Index("feeds_owner", "owner"),
)

CASES = Table(
    "cases",
    METADATA,
    Column("server_id", Text, primary_key=True),
    Column("seen", BigInteger, primary_key=True, autoincrement=False),
    _text("server"),
    _text("pool"),
    _text("user_id"),
    _text("project_id"),
    _text("rule"),
    _text("action"),
    _maybe_time("warned"),
    _maybe_time("due"),
    _maybe_time("done"),
    _maybe_time("cleared"),
    _flag("dry_run"),
    _text("text"),
    Index("cases_open", "cleared", "seen"),
)

ENFORCEMENT = Table(
    "enforcement",
    METADATA,
    Column("pool", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    _text("value"),
)
