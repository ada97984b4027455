"""Bookings that a whole project may use."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, false

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("bookings", Column("shared", Boolean, nullable=False, server_default=false()))
