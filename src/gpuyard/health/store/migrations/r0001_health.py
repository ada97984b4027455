"""The first tables: GPUs, their records, observations, tokens, what hosts said last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import RISING, flag, maybe_time, number, text

revision = "0001"
down_revision = None


def upgrade() -> None:
    gpus()
    history()
    others()


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
