"""Tables of a new database, made by their migrations once in a process, and by what these left from then on.

Hundreds of tests begin with such a database, and its migrations take a tenth of a second each time. What has tables of
the same room already goes through its migrations, and so does all of PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from gpuyard.database import migrate
from gpuyard.database.schema_modules import SchemaModule

_by_migration = migrate.run_steps
_made: dict[tuple[Path, tuple[str, ...]], list[str]] = {}
"""Folder of a room's migrations, and all that other rooms have there -> the statements that make what these migrations
made."""


def made_once() -> None:
    """From now on, in this process."""
    migrate.run_steps = _run_steps


def _run_steps(connection: Connection, schema_module: SchemaModule, script: ScriptDirectory, target: str) -> None:
    new = target == migrate.HEAD and migrate.revision_of(connection, schema_module) is None
    if not new or connection.dialect.name != "sqlite":
        _by_migration(connection, schema_module, script, target)
        return
    before = _dump(connection)
    if (schema_module.steps, before) in _made:
        for statement in _made[schema_module.steps, before]:
            connection.exec_driver_sql(statement)
    else:
        _by_migration(connection, schema_module, script, target)
        _made[schema_module.steps, before] = [line for line in _dump(connection) if line not in before]


def _dump(connection: Connection) -> tuple[str, ...]:
    """What would make all tables, indexes, triggers and rows of a database again."""
    driver = connection.connection.driver_connection
    assert driver is not None
    return tuple(line for line in driver.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;"))
