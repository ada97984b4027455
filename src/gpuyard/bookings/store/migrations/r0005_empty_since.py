"""Since when a booking's servers are all gone."""

from __future__ import annotations

from alembic import op

from gpuyard.database.columns import maybe_time

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("bookings", maybe_time("empty_since"))
