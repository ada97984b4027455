"""The first tables: GPUs, their records, observations, tokens, what hosts and guests said last; maintenances; tries of
acceptance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import RISING, flag, maybe_time, number, text

revision = "0004"
down_revision = None


def upgrade() -> None:
    gpus()
    history()
    others()
    guests()
    maintenances()
    tries()


def gpus() -> None:
    op.create_table(
        "gpu_health",
        *map(text, ("host", "address", "pool", "state")),
        number("since"),
        *map(text, ("cause", "signal", "by", "card")),
        maybe_time("until"),
        number("relapses"),
        flag("asked"),
        text("order"),
        *map(maybe_time, ("generation", "accepted")),
        *map(text, ("software", "keeper")),
        number("version"),
        sa.PrimaryKeyConstraint("host", "address", name="gpu_health_pkey"),
    )


def history() -> None:
    op.create_table(
        "health_events",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        *map(text, ("host", "address", "card")),
        number("at"),
        *map(text, ("before", "after", "cause", "signal", "evidence", "by", "source")),
        sa.PrimaryKeyConstraint("id", name="health_events_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("health_events_gpu", "health_events", ["host", "address", "id"])
    op.create_index("health_events_card", "health_events", ["card", "id"])
    op.create_index("health_events_after", "health_events", ["after", "at"])
    op.create_table(
        "health_observations",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        *map(text, ("host", "address", "code")),
        number("seen"),
        *map(text, ("evidence", "by")),
        sa.PrimaryKeyConstraint("id", name="health_observations_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("health_observations_one", "health_observations", ["host", "address", "code", "by"], unique=True)


def others() -> None:
    op.create_table(
        "health_tokens",
        *map(text, ("digest", "purpose", "subject")),
        number("created"),
        *map(maybe_time, ("expires", "spent")),
        sa.PrimaryKeyConstraint("digest", name="health_tokens_pkey"),
    )
    op.create_index("health_tokens_subject", "health_tokens", ["purpose", "subject"])
    op.create_table(
        "health_hosts",
        text("host"),
        number("heard"),
        text("look"),
        sa.PrimaryKeyConstraint("host", name="health_hosts_pkey"),
    )
    op.create_table(
        "health_values",
        *map(text, ("key", "value")),
        sa.PrimaryKeyConstraint("key", name="health_values_pkey"),
    )


def guests() -> None:
    op.create_table(
        "health_guests",
        text("server"),
        number("heard"),
        text("state"),
        sa.PrimaryKeyConstraint("server", name="health_guests_pkey"),
    )
    op.create_table(
        "health_cards",
        *map(text, ("card", "places")),
        number("seen"),
        text("server"),
        sa.PrimaryKeyConstraint("card", name="health_cards_pkey"),
    )
    op.create_table(
        "health_hours",
        *map(text, ("server", "card")),
        *map(number, ("hour", "samples", "use", "memory", "power", "hottest")),
        sa.PrimaryKeyConstraint("server", "card", "hour", name="health_hours_pkey"),
    )
    op.create_index("health_hours_hour", "health_hours", ["hour"])


def maintenances() -> None:
    op.create_table(
        "health_maintenances",
        *map(text, ("id", "host")),
        *map(number, ("start", "until")),
        *map(text, ("why", "by", "state")),
        *map(number, ("since", "created")),
        *map(maybe_time, ("begun", "done")),
        *map(text, ("done_by", "software", "problems")),
        flag("holds"),
        sa.Column("open_host", sa.Text, nullable=True),
        number("version"),
        sa.PrimaryKeyConstraint("id", name="health_maintenances_pkey"),
        sa.UniqueConstraint("open_host", name="health_maintenances_open_host_key"),
    )
    op.create_index("health_maintenances_host", "health_maintenances", ["host", "created"])


def tries() -> None:
    op.create_table(
        "health_tries",
        *map(text, ("id", "batch", "host", "state")),
        number("begun"),
        number("version"),
        text("data"),
        sa.PrimaryKeyConstraint("id", name="health_tries_pkey"),
    )
    op.create_index("health_tries_batch", "health_tries", ["batch"])
    op.create_index("health_tries_state", "health_tries", ["state"])
    op.create_index("health_tries_host", "health_tries", ["host", "begun"])
