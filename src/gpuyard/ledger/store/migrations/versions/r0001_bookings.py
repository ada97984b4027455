"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

RISING = sa.BigInteger().with_variant(sa.Integer, "sqlite")

EXCLUSION = """
alter table occupancy add constraint occupancy_once
exclude using gist (int4range(lane, lane, '[]') with &&, int8range(starts, ends) with &&)
"""
"""PostgreSQL. The lane is a range of one number, because GiST compares plain numbers only with an extension."""

TRIGGER = """
create trigger occupancy_once_{event} before {event} on occupancy
when exists (
    select 1 from occupancy
    where lane = new.lane and starts < new.ends and ends > new.starts
    {but}
)
begin select raise(abort, 'a lane is taken twice'); end
"""
"""SQLite. Whoever makes the table anew in a later step makes these anew too."""

INSERT_TRIGGER = """
create trigger occupancy_once_insert before insert on occupancy
when (
    select ends from occupancy where lane = new.lane and starts < new.ends order by starts desc limit 1
) > new.starts
begin select raise(abort, 'a lane is taken twice'); end
"""
"""The last one that starts before the new one ends is the only one that can be in its way, as those that are there do
not overlap: one step in the index."""


def upgrade() -> None:
    _bookings()
    _occupancy()
    _messages()
    _portal()
    _enforcement()


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _maybe(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=True)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def _bookings() -> None:
    op.create_table(
        "pools",
        _text("name"),
        *map(_number, ("generation", "lanes_generation", "log_floor", "followed")),
        sa.PrimaryKeyConstraint("name", name="pools_pkey"),
    )
    op.create_table(
        "lanes",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        *map(_text, ("pool", "host", "leader", "addresses", "trouble")),
        _flag("gone"),
        sa.PrimaryKeyConstraint("id", name="lanes_pkey"),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name="lanes_pool_fkey"),
        sa.UniqueConstraint("pool", "host", "leader", name="lanes_pool_host_leader_key"),
        sa.UniqueConstraint("id", "pool", name="lanes_id_pool_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "bookings",
        *map(_text, ("id", "pool", "kind", "state")),
        *map(_number, ("starts", "ends", "gpus")),
        *map(_flag, ("same_group", "same_host")),
        *map(_text, ("gpu", "comment", "user_id", "user_name", "project_id", "project")),
        *map(_number, ("created", "changed", "version")),
        *map(_text, ("lanes", "reason", "email", "series")),
        *map(_maybe, ("offer_until", "claimed", "open_until")),
        _number("priority"),
        _flag("overridden"),
        _number("followed"),
        sa.PrimaryKeyConstraint("id", name="bookings_pkey"),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name="bookings_pool_fkey"),
        sa.CheckConstraint("ends >= starts", name=op.f("bookings_time")),
    )
    op.create_index("bookings_calendar", "bookings", ["pool", "ends", "starts"])
    op.create_index("bookings_clock", "bookings", ["pool", "state", "starts"])
    op.create_index("bookings_clock_end", "bookings", ["pool", "state", "ends"])
    op.create_index("bookings_user", "bookings", ["user_id", "pool", "state"])
    budget = ["project_id", "pool", "ends", "starts", "gpus", "state", "kind", "id"]
    op.create_index("bookings_budget", "bookings", budget)
    op.create_index("bookings_order", "bookings", ["starts", "id"])
    op.create_index("bookings_of_user", "bookings", ["user_id", "starts", "id"])
    op.create_index("bookings_of_series", "bookings", ["series"])


def _occupancy() -> None:
    op.create_table(
        "occupancy",
        sa.Column("lane", sa.Integer, nullable=False),
        *map(_number, ("starts", "ends")),
        *map(_text, ("pool", "booking")),
        sa.PrimaryKeyConstraint("lane", "starts", name="occupancy_pkey"),
        sa.ForeignKeyConstraint(["booking"], ["bookings.id"], name="occupancy_booking_fkey"),
        sa.ForeignKeyConstraint(["lane", "pool"], ["lanes.id", "lanes.pool"], name="occupancy_lane_pool_fkey"),
        sa.CheckConstraint("ends > starts", name=op.f("occupancy_time")),
        sqlite_with_rowid=False,
    )
    op.create_index("occupancy_booking", "occupancy", ["booking"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(EXCLUSION)
    else:
        op.execute(INSERT_TRIGGER)
        op.execute(TRIGGER.format(event="update", but="and not (lane = old.lane and starts = old.starts)"))
    op.create_table(
        "occupancy_log",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        _text("pool"),
        _number("generation"),
        _text("booking"),
        sa.Column("lane", sa.Integer, nullable=False),
        *map(_number, ("starts", "ends")),
        _flag("taken"),
        sa.PrimaryKeyConstraint("id", name="occupancy_log_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("occupancy_log_step", "occupancy_log", ["pool", "generation"])


def _messages() -> None:
    op.create_table(
        "keys",
        *map(_text, ("user_id", "key", "digest", "bookings")),
        _number("at"),
        sa.PrimaryKeyConstraint("user_id", "key", name="keys_pkey"),
    )
    op.create_index("keys_at", "keys", ["at"])
    op.create_table(
        "told",
        *map(_text, ("booking", "what")),
        _number("at"),
        sa.PrimaryKeyConstraint("booking", "what", name="told_pkey"),
    )
    op.create_table(
        "audit",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        _number("at"),
        *map(_text, ("actor", "action", "target", "rule", "text")),
        sa.PrimaryKeyConstraint("id", name="audit_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_target", "audit", ["target"])
    op.create_table(
        "events",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        _text("kind"),
        _number("at"),
        *map(_text, ("booking", "user_id", "email", "details")),
        sa.PrimaryKeyConstraint("id", name="events_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_at", "events", ["at"])
    op.create_table("channels", _text("name"), sa.PrimaryKeyConstraint("name", name="channels_pkey"))
    op.create_table(
        "deliveries",
        sa.Column("event", RISING, nullable=False),
        _text("channel"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(_maybe, ("next_try", "delivered")),
        sa.PrimaryKeyConstraint("event", "channel", name="deliveries_pkey"),
        sa.ForeignKeyConstraint(["event"], ["events.id"], name="deliveries_event_fkey"),
    )
    op.create_index("deliveries_next", "deliveries", ["channel", "next_try"])


def _portal() -> None:
    op.create_table(
        "sessions",
        *map(_text, ("digest", "user_id", "user_name", "project_id", "csrf")),
        *map(_number, ("created", "expires")),
        sa.PrimaryKeyConstraint("digest", name="sessions_pkey"),
    )
    op.create_index("sessions_expires", "sessions", ["expires"])
    op.create_index("sessions_user", "sessions", ["user_id"])
    op.create_table(
        "feeds",
        *map(_text, ("digest", "scope", "target", "owner")),
        _number("created"),
        sa.PrimaryKeyConstraint("digest", name="feeds_pkey"),
    )
    op.create_index("feeds_owner", "feeds", ["owner"])


def _enforcement() -> None:
    op.create_table(
        "cases",
        _text("server_id"),
        _number("seen"),
        *map(_text, ("server", "pool", "user_id", "project_id", "rule", "action")),
        *map(_maybe, ("warned", "due", "done", "cleared")),
        _flag("dry_run"),
        _text("text"),
        sa.PrimaryKeyConstraint("server_id", "seen", name="cases_pkey"),
    )
    op.create_index("cases_open", "cases", ["cleared", "seen"])
    op.create_table(
        "enforcement",
        *map(_text, ("pool", "key", "value")),
        sa.PrimaryKeyConstraint("pool", "key", name="enforcement_pkey"),
    )
