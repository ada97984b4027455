"""Adds the number of jobs of a scale set that wait at GitHub until the set has room."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("scale_sets", Column("waiting", BigInteger, nullable=False, server_default="0"))
