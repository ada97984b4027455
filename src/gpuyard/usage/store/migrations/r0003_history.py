"""The first tables: GPUs, what they were had for, intervals; sums by day, month and hour."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import RISING, flag, maybe_time, number, text

revision = "0003"
down_revision = None
OPEN = 221845392000


def upgrade() -> None:
    intervals()
    sums()


def intervals() -> None:
    op.create_table(
        "history_seen",
        text("site"),
        *map(number, ("first", "until", "settled")),
        maybe_time("rolled"),
        sa.PrimaryKeyConstraint("site", name="history_seen_pkey"),
    )
    _numbered("history_gpus", *map(text, ("host", "address", "pool")))
    op.create_index("history_gpus_one", "history_gpus", ["host", "address", "pool"], unique=True)
    words = "digest reason booking kind server server_name user_id user project_id project flavor repository"
    _numbered("history_tenures", *map(text, words.split()))
    op.create_index("history_tenures_digest", "history_tenures", ["digest"], unique=True)
    for name, column in (("server", "server"), ("booking", "booking"), ("project", "project_id"), ("user", "user_id")):
        op.create_index(f"history_tenures_{name}", "history_tenures", [column])
    _numbered(
        "history_intervals",
        *map(number, ("gpu", "tenure")),
        text("state"),
        *map(number, ("starts", "ends")),
        *map(flag, ("exact_start", "exact_end")),
    )
    op.create_index("history_intervals_gpu", "history_intervals", ["gpu", "ends"])
    op.create_index("history_intervals_tenure", "history_intervals", ["tenure"])
    op.create_index("history_intervals_ends", "history_intervals", ["ends", "starts"])
    goes_on = sa.text(f"ends = {OPEN}")
    op.create_index(
        "history_intervals_open", "history_intervals", ["gpu"], unique=True,
        sqlite_where=goes_on, postgresql_where=goes_on,
    )  # fmt: skip


def sums() -> None:
    words = "digest tariff pool host project_id project user_id user repository state kind"
    _numbered("history_slices", *map(text, words.split()))
    op.create_index("history_slices_digest", "history_slices", ["digest"], unique=True)
    op.create_index("history_slices_host", "history_slices", ["host"])
    op.create_index("history_slices_project", "history_slices", ["project_id"])
    periods = {"days": "day", "pools": "day", "months": "month", "totals": "month"}
    for name, period in ((f"history_{sums}", period) for sums, period in periods.items()):
        op.create_table(
            name,
            *map(number, (period, "slice", "seconds")),
            sa.PrimaryKeyConstraint(period, "slice", name=f"{name}_pkey"),
        )
    op.create_table(
        "history_hours",
        number("hour"),
        *map(text, ("pool", "state", "kind")),
        number("seconds"),
        sa.PrimaryKeyConstraint("hour", "pool", "state", "kind", name="history_hours_pkey"),
    )


def _numbered(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
