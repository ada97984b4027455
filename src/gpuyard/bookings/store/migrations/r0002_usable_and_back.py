"""Since when a booking can be used, and when a lane in trouble is expected back."""

from __future__ import annotations

from alembic import op

from gpuyard.database.columns import maybe_time

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("bookings", maybe_time("usable_since"))
    op.add_column("lanes", maybe_time("back"))
