"""When a person has said that a host is back from its maintenance, which goes on by itself when it is not."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("health_maintenances", Column("due", BigInteger, nullable=True))
