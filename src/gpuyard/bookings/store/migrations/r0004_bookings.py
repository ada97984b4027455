"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import RISING, flag, maybe_time, number, text

revision = "0004"
down_revision = None

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
    _enforcement()


def _bookings() -> None:
    op.create_table(
        "pools",
        text("name"),
        *map(number, ("generation", "lanes_generation", "log_floor", "followed")),
        sa.PrimaryKeyConstraint("name", name="pools_pkey"),
    )
    op.create_table(
        "lanes",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        *map(text, ("pool", "host", "leader", "addresses", "trouble")),
        flag("gone"),
        maybe_time("back"),
        sa.PrimaryKeyConstraint("id", name="lanes_pkey"),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name="lanes_pool_fkey"),
        sa.UniqueConstraint("pool", "host", "leader", name="lanes_pool_host_leader_key"),
        sa.UniqueConstraint("id", "pool", name="lanes_id_pool_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "bookings",
        *map(text, ("id", "pool", "kind", "state")),
        *map(number, ("starts", "ends", "gpus")),
        *map(flag, ("same_group", "same_host")),
        *map(text, ("gpu", "comment", "user_id", "user_name", "project_id", "project")),
        *map(number, ("created", "changed", "version")),
        *map(text, ("lanes", "reason", "email", "series")),
        *map(maybe_time, ("offer_until", "claimed", "open_until")),
        number("priority"),
        flag("overridden"),
        number("followed"),
        maybe_time("usable_since"),
        sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("server", sa.Text, nullable=False, server_default=sa.literal("")),
        sa.Column("yields", sa.Boolean, nullable=False, server_default=sa.false()),
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
    leases = sa.text("server != ''")
    op.create_index("bookings_of_server", "bookings", ["server"], sqlite_where=leases, postgresql_where=leases)
    op.create_index(
        "bookings_yielding", "bookings", ["pool"],
        sqlite_where=sa.text("yields = 1"), postgresql_where=sa.text("yields"),
    )  # fmt: skip


def _occupancy() -> None:
    op.create_table(
        "occupancy",
        sa.Column("lane", sa.Integer, nullable=False),
        *map(number, ("starts", "ends")),
        *map(text, ("pool", "booking")),
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
        text("pool"),
        number("generation"),
        text("booking"),
        sa.Column("lane", sa.Integer, nullable=False),
        *map(number, ("starts", "ends")),
        flag("taken"),
        sa.PrimaryKeyConstraint("id", name="occupancy_log_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("occupancy_log_step", "occupancy_log", ["pool", "generation"])


def _messages() -> None:
    op.create_table(
        "keys",
        *map(text, ("user_id", "key", "digest", "bookings")),
        number("at"),
        sa.PrimaryKeyConstraint("user_id", "key", name="keys_pkey"),
    )
    op.create_index("keys_at", "keys", ["at"])
    op.create_table(
        "told",
        *map(text, ("booking", "what")),
        number("at"),
        sa.PrimaryKeyConstraint("booking", "what", name="told_pkey"),
    )
    op.create_table(
        "audit",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        number("at"),
        *map(text, ("actor", "action", "target", "rule", "text")),
        sa.PrimaryKeyConstraint("id", name="audit_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_target", "audit", ["target"])
    op.create_table(
        "events",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        text("kind"),
        number("at"),
        *map(text, ("booking", "user_id", "email", "details")),
        sa.PrimaryKeyConstraint("id", name="events_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_at", "events", ["at"])
    op.create_table("channels", text("name"), sa.PrimaryKeyConstraint("name", name="channels_pkey"))
    op.create_table(
        "deliveries",
        sa.Column("event", RISING, nullable=False),
        text("channel"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(maybe_time, ("next_try", "delivered")),
        sa.PrimaryKeyConstraint("event", "channel", name="deliveries_pkey"),
        sa.ForeignKeyConstraint(["event"], ["events.id"], name="deliveries_event_fkey"),
    )
    op.create_index("deliveries_next", "deliveries", ["channel", "next_try"])


def _enforcement() -> None:
    op.create_table(
        "cases",
        text("server_id"),
        number("seen"),
        *map(text, ("server", "pool", "user_id", "project_id", "rule", "action")),
        *map(maybe_time, ("warned", "due", "done", "cleared")),
        flag("dry_run"),
        text("text"),
        sa.PrimaryKeyConstraint("server_id", "seen", name="cases_pkey"),
    )
    op.create_index("cases_open", "cases", ["cleared", "seen"])
    op.create_table(
        "enforcement",
        *map(text, ("pool", "key", "value")),
        sa.PrimaryKeyConstraint("pool", "key", name="enforcement_pkey"),
    )
