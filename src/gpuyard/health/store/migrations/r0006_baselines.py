"""What a GPU shows of what does not change by itself, and what of it it was accepted with."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text, literal

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("gpu_health", Column("shown", Text, nullable=False, server_default=literal("{}")))
    op.add_column("gpu_health", Column("baseline", Text, nullable=False, server_default=literal("")))
