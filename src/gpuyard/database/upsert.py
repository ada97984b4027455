"""Builds upserts: insert or replace, in the dialect of either database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, *rows: Mapping[str, Any]) -> bool:
    """Insert rows that are not there yet; return whether any was new."""
    statement = _insert(connection.dialect.name, table).on_conflict_do_nothing()
    counted = statement.execution_options(preserve_rowcount=True)
    return sum(connection.execute(counted, dict(row)).rowcount for row in rows) > 0


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those of many rows that are not there yet, at once."""
    if rows:
        connection.execute(
            _insert(connection.dialect.name, table).on_conflict_do_nothing(), [dict(row) for row in rows]
        )


def put(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the one with its primary key."""
    connection.execute(upsert(connection.dialect.name, table, list(row)), dict(row))


def upsert(
    dialect: str, table: Table, columns: Sequence[str], only: ColumnElement[bool] | None = None
) -> postgresql.Insert | sqlite.Insert:
    """Return a statement for `put`, for repeated use: it takes longer to make than to execute. It replaces a row only
    when `only` holds of it; its `rowcount` is 1 when a row was written."""
    keys = [column.name for column in table.primary_key]
    statement = _insert(dialect, table)
    values = {name: statement.excluded[name] for name in columns if name not in keys}
    whole = statement.on_conflict_do_update(index_elements=keys, set_=values, where=only)
    return whole.execution_options(preserve_rowcount=True)


def adding(dialect: str, table: Table, column: str) -> postgresql.Insert | sqlite.Insert:
    """Return a statement that inserts a row, or adds to a number of the one with its primary key."""
    keys = [key.name for key in table.primary_key]
    statement = _insert(dialect, table)
    more = {column: table.c[column] + statement.excluded[column]}
    return statement.on_conflict_do_update(index_elements=keys, set_=more)


def _insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
