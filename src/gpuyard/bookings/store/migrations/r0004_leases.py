"""Leases: which server one is for, and whether a booking may end it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, Text, false, literal, text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("bookings", Column("server", Text, nullable=False, server_default=literal("")))
    op.add_column("bookings", Column("yields", Boolean, nullable=False, server_default=false()))
    leases = text("server != ''")
    op.create_index("bookings_of_server", "bookings", ["server"], sqlite_where=leases, postgresql_where=leases)
    op.create_index(
        "bookings_yielding",
        "bookings",
        ["pool"],
        sqlite_where=text("yields = 1"),
        postgresql_where=text("yields"),
    )
