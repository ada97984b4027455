"""The portal's tables."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Index, Table, Text

from gpuyard.database.columns import maybe_time, new_tables, text, time
from gpuyard.database.schema_modules import SchemaModule

TABLES = new_tables()
SCHEMA_MODULE = SchemaModule("portal", Path(__file__).parent / "migrations", TABLES, "portal_version")

SESSIONS = Table(
    "sessions",
    TABLES,
    Column("digest", Text, primary_key=True),
    text("user_id"),
    text("user_name"),
    text("project_id"),
    text("csrf"),
    time("created"),
    time("expires"),
    time("latest"),
    Column("sealed_token", Text, nullable=True),
    Index("sessions_expires", "expires"),
    Index("sessions_user", "user_id"),
)

USED_LOGINS = Table(
    "used_logins",
    TABLES,
    Column("digest", Text, primary_key=True),
    time("expires"),
)
"""Digests of tokens of single sign-on that have begun a session, until Keystone no longer accepts them."""

FEEDS = Table(
    "feeds",
    TABLES,
    Column("digest", Text, primary_key=True),
    text("scope"),
    text("target"),
    text("owner"),
    time("created"),
    time("expires"),
    maybe_time("used"),
    Index("feeds_owner", "owner"),
)

PLACES = Table(
    "known_places",
    TABLES,
    Column("digest", Text, primary_key=True),
    text("user_id"),
    time("logged_in"),
    Index("known_places_user", "user_id"),
)
"""Digests of a user's name together with a place, and when somebody logged in last with it from there."""
