"""Servers that may be on a host while somebody works on it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text, literal

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("health_maintenances", Column("may_go_down", Text, nullable=False, server_default=literal("[]")))
