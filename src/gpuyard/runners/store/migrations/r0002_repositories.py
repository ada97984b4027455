"""Which repositories are private."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import flag, number, text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "repositories",
        *map(text, ("scope", "name")),
        flag("private"),
        number("seen"),
        sa.PrimaryKeyConstraint("scope", "name", name="repositories_pkey"),
    )
