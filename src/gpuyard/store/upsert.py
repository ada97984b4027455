"""Insert or replace, in the words of either database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, *rows: Mapping[str, Any]) -> bool:
    """Insert rows that are not there yet; whether any was new."""
    statement = _insert(connection, table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
    return sum(connection.execute(statement, dict(row)).rowcount for row in rows) > 0


def put(connection: Connection, table: Table, row: Mapping[str, Any], only: ColumnElement[bool] | None = None) -> bool:
    """Insert a row, or replace the one with its primary key; that one only when `only` holds of it. Whether it is
    written."""
    upsert = _upsert(connection, table, row, only).execution_options(preserve_rowcount=True)
    return connection.execute(upsert, dict(row)).rowcount == 1


def put_many(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], only: ColumnElement[bool] | None = None
) -> None:
    """The same for many rows that have the same columns, one after the other."""
    if rows:
        connection.execute(_upsert(connection, table, rows[0], only), [dict(row) for row in rows])


def _upsert(
    connection: Connection, table: Table, row: Mapping[str, Any], only: ColumnElement[bool] | None
) -> postgresql.Insert | sqlite.Insert:
    keys = [column.name for column in table.primary_key]
    statement = _insert(connection, table)
    values = {name: statement.excluded[name] for name in row if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=values, where=only)


def _insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
