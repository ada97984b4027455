"""The first tables: sessions and feeds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import number, text

revision = "0001"
down_revision = None


def upgrade() -> None:
    if "sessions" in sa.inspect(op.get_bind()).get_table_names():
        return  # the ledger's first step made them, when the portal had no steps of its own
    op.create_table(
        "sessions",
        *map(text, ("digest", "user_id", "user_name", "project_id", "csrf")),
        *map(number, ("created", "expires")),
        sa.PrimaryKeyConstraint("digest", name="sessions_pkey"),
    )
    op.create_index("sessions_expires", "sessions", ["expires"])
    op.create_index("sessions_user", "sessions", ["user_id"])
    op.create_table(
        "feeds",
        *map(text, ("digest", "scope", "target", "owner")),
        number("created"),
        sa.PrimaryKeyConstraint("digest", name="feeds_pkey"),
    )
    op.create_index("feeds_owner", "feeds", ["owner"])
