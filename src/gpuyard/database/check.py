"""Checks whether a database is whole, and which release its tables are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, MetaData, Table, and_, func, inspect, literal_column, select, text
from sqlalchemy.exc import DBAPIError

from gpuyard.database.engine import Database
from gpuyard.database.migrate import Unknown, revision_of, steps_of, unknown
from gpuyard.database.schema_modules import SchemaModule

MOST = 5
"""Most items that are named for each kind of problem."""


@dataclass(frozen=True)
class SchemaVersion:
    """The migration step that the tables of a schema module are at."""

    room: str
    at: str | None
    """The step; None: there are no tables yet; they come when they are needed."""
    newest: str
    """The newest step that this release knows."""
    unknown: Unknown | None = None
    """Why this release does not know the step."""

    @property
    def due(self) -> bool:
        """Whether an upgrade would change it."""
        return self.unknown is None and self.at != self.newest


def versions(database: Database, schema_modules: Sequence[SchemaModule]) -> list[SchemaVersion]:
    """Return the version of each schema module's tables. Raises StoreError."""
    schema_versions = []
    with database.reading() as connection:
        for schema_module in schema_modules:
            script, at = steps_of(schema_module), revision_of(connection, schema_module)
            schema_versions.append(
                SchemaVersion(schema_module.name, at, str(script.get_current_head()), unknown(script, at))
            )
    return schema_versions


def problems(database: Database, schema_modules: Sequence[SchemaModule]) -> list[str]:
    """Return the problems of the data; none when it is whole. Every row is read. Raises StoreError when it cannot be
    read at all."""
    with database.reading() as connection:
        try:
            return [*_damage(connection, schema_modules, database.sqlite), *_orphans(connection, schema_modules)]
        except DBAPIError as error:
            if "malformed" not in str(error.orig):
                raise
            return [f"the file is damaged: {error.orig}"]


def _damage(connection: Connection, schema_modules: Sequence[SchemaModule], sqlite: bool) -> Iterator[str]:
    if sqlite:
        report = [str(scalar) for scalar in connection.execute(text(f"pragma integrity_check({MOST})")).scalars()]
        yield from (f"the file is damaged: {line}" for line in report if line != "ok")
        return
    quoted = connection.dialect.identifier_preparer.quote_identifier
    for table in _tables(connection, schema_modules).sorted_tables:  # PostgreSQL says nothing until somebody reads
        connection.execute(select(func.count(literal_column(f"{quoted(table.name)}::text"))).select_from(table))


def _orphans(connection: Connection, schema_modules: Sequence[SchemaModule]) -> Iterator[str]:
    """Rows that refer to one that is not there."""
    tables = _tables(connection, schema_modules).tables
    for schema_module in schema_modules:
        for table in schema_module.tables.sorted_tables:
            if table.name in tables:
                for columns, others in [*_keys(table), *_loose(schema_module, table)]:
                    if others[0].table.name in tables:
                        yield from _without(connection, columns, others)


def _keys(table: Table) -> Iterator[tuple[list[Column[object]], list[Column[object]]]]:
    for key in table.foreign_key_constraints:
        yield [element.parent for element in key.elements], [element.column for element in key.elements]


def _loose(schema_module: SchemaModule, table: Table) -> Iterator[tuple[list[Column[object]], list[Column[object]]]]:
    for name, target in schema_module.references.items():
        if name.partition(".")[0] == table.name:
            yield [_column(schema_module, name)], [_column(schema_module, target)]


def _column(schema_module: SchemaModule, name: str) -> Column[object]:
    table, _, column = name.partition(".")
    return schema_module.tables.tables[table].c[column]


def _without(connection: Connection, columns: list[Column[object]], others: list[Column[object]]) -> Iterator[str]:
    table, target = columns[0].table, others[0].table
    if not {column.name for column in columns} <= _columns(connection, table.name):
        return  # a later step brings it
    same = and_(*(mine == theirs for mine, theirs in zip(columns, others, strict=True)))
    lost = select(*columns).where(~select(literal_column("1")).select_from(target).where(same).exists())
    many = connection.execute(select(func.count()).select_from(lost.subquery())).scalar_one()
    if many:
        some = connection.execute(lost.distinct().limit(MOST)).all()
        named = ", ".join(" ".join(str(value) for value in row) for row in some)
        words = "/".join(column.name for column in columns)
        yield f"{table.name}: {many} rows refer by {words} to {target.name} that are not there ({named})"


def _columns(connection: Connection, table: str) -> set[str]:
    return {str(column["name"]) for column in inspect(connection).get_columns(table)}


def _tables(connection: Connection, schema_modules: Sequence[SchemaModule]) -> MetaData:
    metadata, existing = MetaData(), set(inspect(connection).get_table_names())
    metadata.reflect(
        connection,
        only=sorted(
            name for schema_module in schema_modules for name in schema_module.tables.tables if name in existing
        ),
    )
    return metadata
