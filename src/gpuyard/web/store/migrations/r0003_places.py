"""Places from which users have logged in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import text, time

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "known_places",
        *map(text, ("digest", "user_id")),
        time("logged_in"),
        sa.PrimaryKeyConstraint("digest", name="known_places_pkey"),
    )
    op.create_index("known_places_user", "known_places", ["user_id"])
