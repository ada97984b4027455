"""Sessions end at the latest when the login that they are from does; feeds end, and say when they were read.

Nobody knows what older sessions are from, so they end here: people log in again. Older feeds get a year from now."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import maybe_time

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("delete from sessions")
    _add_time("sessions", "latest", 0)
    _add_time("feeds", "expires", int(time.time()) + 365 * 86400)
    op.add_column("feeds", maybe_time("used"))


def _add_time(table: str, name: str, value: int) -> None:
    """A column that is in no row yet and has a value in each of them after."""
    op.add_column(table, maybe_time(name))
    op.execute(f"update {table} set {name} = {value}")  # noqa: S608
    with op.batch_alter_table(table) as batch:
        batch.alter_column(name, existing_type=sa.BigInteger, nullable=False)
