"""Columns that schemas and migrations share. Times are whole seconds since 1970 (UTC)."""

from __future__ import annotations

import re

from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, Text

RISING = BigInteger().with_variant(Integer, "sqlite")
"""A number that the database gives; SQLite gives one only to columns of exactly this type."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Replace characters that a database refuses and JSON may have: NUL, and half a pair of UTF-16."""
    return _UNSTORABLE.sub("�", text)


def new_tables() -> MetaData:
    """Return metadata for the tables of a schema module, which names constraints as migrations do."""
    return MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        }
    )


def text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


time = number


def maybe_time(name: str) -> Column[int | None]:
    return Column(name, BigInteger, nullable=True)


def flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)
