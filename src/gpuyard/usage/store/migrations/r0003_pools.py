"""Sums of days of whole pools, and slices found by host and by project."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import number

revision = "0003"
down_revision = "0002"
BROAD = ("tariff", "pool", "state", "kind")
NARROW = ("host", "project_id", "project", "user_id", "user", "repository")


def upgrade() -> None:
    op.create_table(
        "history_pools",
        *map(number, ("day", "slice", "seconds")),
        sa.PrimaryKeyConstraint("day", "slice", name="history_pools_pkey"),
    )
    op.create_index("history_slices_host", "history_slices", ["host"])
    op.create_index("history_slices_project", "history_slices", ["project_id"])
    slices = sa.table("history_slices", *(sa.column(name) for name in ("id", "digest", *BROAD, *NARROW)))
    days, pools = (
        sa.table(name, *map(sa.column, ("day", "slice", "seconds"))) for name in ("history_days", "history_pools")
    )
    connection = op.get_bind()
    for said in connection.execute(sa.select(*(slices.c[name] for name in BROAD)).distinct()).all():
        words = {**dict(zip(BROAD, said, strict=True)), **dict.fromkeys(NARROW, "")}
        digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
        if connection.execute(sa.select(slices.c.id).where(slices.c.digest == digest)).first() is None:
            connection.execute(slices.insert().values(digest=digest, **words))
    broad = slices.alias("broad")
    same = sa.and_(*(broad.c[name] == slices.c[name] for name in BROAD), *(broad.c[name] == "" for name in NARROW))
    sums = (
        sa.select(days.c.day, broad.c.id, sa.func.sum(days.c.seconds))
        .join(slices, slices.c.id == days.c.slice)
        .join(broad, same)
        .group_by(days.c.day, broad.c.id)
    )
    connection.execute(pools.insert().from_select(["day", "slice", "seconds"], sums))
