"""Acceptance by a booted server: each try."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import number, text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
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
