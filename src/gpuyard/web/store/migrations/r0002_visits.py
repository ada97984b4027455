"""The first tables: sessions and feeds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import maybe_time, number, text

revision = "0002"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        *map(text, ("digest", "user_id", "user_name", "project_id", "csrf")),
        *map(number, ("created", "expires", "latest")),
        sa.PrimaryKeyConstraint("digest", name="sessions_pkey"),
    )
    op.create_index("sessions_expires", "sessions", ["expires"])
    op.create_index("sessions_user", "sessions", ["user_id"])
    op.create_table(
        "feeds",
        *map(text, ("digest", "scope", "target", "owner")),
        *map(number, ("created", "expires")),
        maybe_time("used"),
        sa.PrimaryKeyConstraint("digest", name="feeds_pkey"),
    )
    op.create_index("feeds_owner", "feeds", ["owner"])
