"""Migrates the tables of a schema module to those of this release.

One process at a time does it, in one transaction, so that several may start at once and none ever sees half of it. A
database of a newer release is refused, and so is one at a step that is no longer kept. A SQLite file is copied
before it is changed.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from enum import StrEnum
from functools import cache
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, text

from gpuyard.database.engine import IMMEDIATE, PATIENCE, open_engine, open_sqlite, private_file, shown, translated
from gpuyard.database.errors import StoreError
from gpuyard.database.schema_modules import SchemaModule

HEAD = "head"
ONE_AT_A_TIME = threading.Lock()
"""Lock around migrations: Alembic hands its operations to them in a global variable."""
LOCK = 5_283_174_901_226_411
"""Number of PostgreSQL's advisory lock; any that nobody else uses."""
WITH_ALL_STEPS = "2a265a9"
"""The last commit that has every step from the first one on."""


class Unknown(StrEnum):
    """Tables that are at a step which this release does not have."""

    NEWER = "made by a newer gpuyard"
    OLDER = "made by a gpuyard too old for this one"

    @property
    def remedy(self) -> str:
        if self is Unknown.NEWER:
            return "install that release again, or restore a copy of before"
        return f"bring it up with commit {WITH_ALL_STEPS} of gpuyard first (gpuyard db upgrade)"


def migrate(url: URL, schema_module: SchemaModule, target: str = HEAD) -> None:
    """Migrate the tables to `target`. Raises StoreError; then nothing was changed."""
    sqlite = url.get_backend_name() == "sqlite"
    path = Path(url.database or "") if sqlite else None
    with translated(shown(url)), ONE_AT_A_TIME, file_lock(path) if path else nullcontext():
        engine = open_sqlite(url, foreign_keys=False) if sqlite else open_engine(url, statement=0)
        try:
            _upgrade(engine, schema_module, path, target)
        finally:
            engine.dispose()


def _upgrade(engine: Engine, schema_module: SchemaModule, path: Path | None, target: str) -> None:
    with engine.connect() as connection:
        connection.execution_options(**{IMMEDIATE: True})
        with connection.begin():
            if path is None:
                connection.execute(text("select pg_advisory_xact_lock(:number)"), {"number": LOCK})
            script = steps_of(schema_module)
            before = revision_of(connection, schema_module)
            refuse_unknown(schema_module, script, before, shown(engine.url))
            if before == script.get_current_head():
                return
            if path and before:
                _copy(path, f"{schema_module.name}-{before}")
            run_steps(connection, schema_module, script, target)
            if path:
                _check_references(connection, path)


def steps_of(schema_module: SchemaModule) -> ScriptDirectory:
    return _steps_in(schema_module.steps)


@cache
def _steps_in(folder: Path) -> ScriptDirectory:
    """Read once: each of its files is compiled anew when it is asked for its steps."""
    return ScriptDirectory(folder, version_locations=[folder])


def revision_of(connection: Connection, schema_module: SchemaModule) -> str | None:
    """Return the step that the tables are at; None before the first one."""
    return MigrationContext.configure(
        connection, opts={"version_table": schema_module.version_table}
    ).get_current_revision()


def run_steps(connection: Connection, schema_module: SchemaModule, script: ScriptDirectory, target: str) -> None:
    """Run the steps over this connection, and within its transaction."""
    steps = {
        "version_table": schema_module.version_table,
        "fn": lambda revision, _: script._upgrade_revs(target, revision),
    }
    context = MigrationContext.configure(connection, opts=steps)
    with context.begin_transaction(), Operations.context(context):
        context.run_migrations()


def unknown(script: ScriptDirectory, revision: str | None) -> Unknown | None:
    """Return why a step is unknown; None for a step that there is, and before the first one. Steps are numbered in
    order."""
    if revision is None or revision in {step.revision for step in script.walk_revisions()}:
        return None
    return Unknown.OLDER if revision < str(script.get_current_head()) else Unknown.NEWER


def refuse_unknown(schema_module: SchemaModule, script: ScriptDirectory, revision: str | None, name: str) -> None:
    if why := unknown(script, revision):
        raise StoreError(
            f"the database {name} was {why} (the {schema_module.name}'s tables are at {revision}, this one knows "
            f"{script.get_current_head()}); {why.remedy}"
        )


def _copy(path: Path, what: str) -> None:
    """``gpuyard.db`` -> ``gpuyard.db.before-ledger-0001``, which is a whole database with all that its log had."""
    target = path.with_name(f"{path.name}.before-{what}")
    private_file(target)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _check_references(connection: Connection, path: Path) -> None:
    """References are not enforced during a migration, since that may make a table anew."""
    broken = connection.execute(text("pragma foreign_key_check")).first()
    if broken is not None:
        raise StoreError(f"{path} could not be brought up to date: table {broken[0]} refers to a row that is not there")


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    private_file(path)
    lock = path.with_name(f"{path.name}.lock")
    private_file(lock)
    descriptor = os.open(lock, os.O_RDWR)
    try:
        _wait_for(descriptor, lock)
        yield
    finally:
        os.close(descriptor)  # unlocks


def _wait_for(descriptor: int, lock: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                raise StoreError(f"another process has held {lock} for {PATIENCE} s; is a migration stuck?") from None
            time.sleep(0.05)
