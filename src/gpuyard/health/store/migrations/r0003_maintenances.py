"""Maintenances of hosts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import flag, maybe_time, number, text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
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
