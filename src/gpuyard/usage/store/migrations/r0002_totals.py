"""Sums of months without their hosts, which are few."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import number

revision = "0002"
down_revision = "0001"
WORDS = ("tariff", "pool", "project_id", "project", "user_id", "user", "repository", "state", "kind")


def upgrade() -> None:
    op.create_table(
        "history_totals",
        *map(number, ("month", "slice", "seconds")),
        sa.PrimaryKeyConstraint("month", "slice", name="history_totals_pkey"),
    )
    slices = sa.table("history_slices", sa.column("id"), *(sa.column(name) for name in ("digest", "host", *WORDS)))
    months = sa.table("history_months", *map(sa.column, ("month", "slice", "seconds")))
    totals = sa.table("history_totals", *map(sa.column, ("month", "slice", "seconds")))
    words = [slices.c[name] for name in WORDS]
    sums = sa.select(months.c.month, *words, sa.func.sum(months.c.seconds)).join(slices, slices.c.id == months.c.slice)
    connection = op.get_bind()
    for month, *said, seconds in connection.execute(sums.group_by(months.c.month, *words)).all():
        row = {**dict(zip(WORDS, said, strict=True)), "host": ""}
        digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
        known = sa.select(slices.c.id).where(slices.c.digest == digest)
        if connection.execute(known).first() is None:
            connection.execute(slices.insert().values(digest=digest, **row))
        id = connection.execute(known).scalar_one()
        connection.execute(totals.insert().values(month=month, slice=id, seconds=int(seconds)))
