"""Maintenances: servers that may be on the host meanwhile, and when a person has said that it is back.

GPUs: what each shows of what does not change by itself, what of it it was accepted with, and what signals on trial
would have made of it.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Text, literal

revision = "0008"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("health_maintenances", Column("may_go_down", Text, nullable=False, server_default=literal("[]")))
    op.add_column("health_maintenances", Column("due", BigInteger, nullable=True))
    op.add_column("gpu_health", Column("shown", Text, nullable=False, server_default=literal("{}")))
    op.add_column("gpu_health", Column("baseline", Text, nullable=False, server_default=literal("")))
    op.add_column("gpu_health", Column("trial", Text, nullable=False, server_default=literal("")))
