"""Brings a database to the tables of this release.

One process at a time does it, in one transaction, so that several may start at once and none ever sees half of it. A
database of a newer release is refused. A SQLite file is copied before it is changed.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from importlib.resources import as_file, files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, text

from gpuyard.ledger.store.engine import IMMEDIATE, PATIENCE, open_engine, open_sqlite, private_file, shown, translated
from gpuyard.ledger.store.errors import StoreError

HEAD = "head"
FOLDER = files("gpuyard.ledger.store").joinpath("migrations")
_ONE_AT_A_TIME = threading.Lock()
"""Alembic hands its context to the migrations in a global variable."""
LOCK = 5_283_174_901_226_411
"""Number of PostgreSQL's advisory lock; any that nobody else uses."""


def migrate(url: URL, target: str = HEAD) -> None:
    """Raises StoreError; then nothing was changed."""
    sqlite = url.get_backend_name() == "sqlite"
    path = Path(url.database or "") if sqlite else None
    with translated(shown(url)), _ONE_AT_A_TIME, _file_lock(path) if path else nullcontext():
        engine = open_sqlite(url, foreign_keys=False) if sqlite else open_engine(url, statement=0)
        try:
            _upgrade(engine, path, target)
        finally:
            engine.dispose()


def _upgrade(engine: Engine, path: Path | None, target: str) -> None:
    with migrations() as config, engine.connect() as connection:
        connection.execution_options(**{IMMEDIATE: True})
        with connection.begin():
            if path is None:
                connection.execute(text("select pg_advisory_xact_lock(:number)"), {"number": LOCK})
            script = ScriptDirectory.from_config(config)
            before = MigrationContext.configure(connection).get_current_revision()
            _refuse_newer(script, before, shown(engine.url))
            if before == script.get_current_head():
                return
            if path and before:
                _copy(path, before)
            config.attributes["connection"] = connection
            command.upgrade(config, target)
            if path:
                _check_references(connection, path)


@contextmanager
def migrations() -> Iterator[Config]:
    """The folder of the steps, for alembic."""
    with as_file(FOLDER) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        yield config


def _refuse_newer(script: ScriptDirectory, revision: str | None, name: str) -> None:
    known = {one.revision for one in script.walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the database {name} was made by a newer gpuyard (its tables are at {revision}, this one knows "
            f"{script.get_current_head()}); install that release again, or restore a copy of before"
        )


def _copy(path: Path, revision: str) -> None:
    """``gpuyard.db`` -> ``gpuyard.db.before-0001``, which is a whole database with all that its log had."""
    target = path.with_name(f"{path.name}.before-{revision}")
    private_file(target)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _check_references(connection: Connection, path: Path) -> None:
    """References are not enforced during a migration, since that may make a table anew."""
    broken = connection.execute(text("pragma foreign_key_check")).first()
    if broken is not None:
        raise StoreError(f"{path} could not be brought up to date: table {broken[0]} refers to a row that is not there")


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
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
