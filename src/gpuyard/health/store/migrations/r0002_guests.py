"""What agents in guests say: where each stands, the cards that they see, and what each GPU did by the hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import number, text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
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
