"""What signals on trial would have made of a GPU."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text, literal

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("gpu_health", Column("trial", Text, nullable=False, server_default=literal("")))
