"""The encrypted token of a session, and the tokens of single sign-on that have been used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import text, time

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("sealed_token", sa.Text, nullable=True))
    op.create_table(
        "used_logins",
        text("digest"),
        time("expires"),
        sa.PrimaryKeyConstraint("digest", name="used_logins_pkey"),
    )
