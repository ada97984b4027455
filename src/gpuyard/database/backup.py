"""Backs up a whole database while it is in use, and restores it.

A backup is one SQLite file, whichever database it is of: it has the tables of every schema module at the steps that
they were at, so either database can be restored from it, by this release and by later ones.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import URL, Connection, MetaData, Table, insert, inspect, select, text

from gpuyard.database.engine import SERVING, Database, open_engine, parse_url, private_file, translated
from gpuyard.database.errors import StoreError
from gpuyard.database.migrate import (
    HEAD,
    LOCK,
    ONE_AT_A_TIME,
    file_lock,
    migrate,
    refuse_unknown,
    revision_of,
    run_steps,
    steps_of,
)
from gpuyard.database.schema_modules import SchemaModule
from gpuyard.database.times import moment, seconds
from gpuyard.model.errors import BlockedError

TOOL = "gpuyard db"
"""Application name of these connections in PostgreSQL; portals have another one."""
GOING = 2.0
"""Seconds for which PostgreSQL may still show a connection that was closed."""
ROWS = 2000
"""Rows held in memory at a time."""
NOTE = "gpuyard_backup"
"""The table of a backup that no database has: when and by which release it was made."""


@dataclass(frozen=True)
class BackupNote:
    """The record in a backup of when and by which release it was made."""

    made: datetime
    release: str
    """Version of the gpuyard that made it."""


def file_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


def open_tool(url: str) -> Database:
    """Open a database for the commands of this module: a statement may take as long as it takes, and nothing is made
    that is not there. Raises StoreError."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise StoreError(f"there is no database {parsed.database}; name another with --database or GPUYARD_DATABASE")
    return Database(url, statement=0, who=TOOL)


def back_up(database: Database, schema_modules: Sequence[SchemaModule], path: Path, note: BackupNote) -> None:
    """Write a backup, all of one moment; users of the database go on. Raises StoreError, and then there is no file.

    The file is readable by its owner alone, and gets its name only when it is whole.
    """
    if path.exists():
        raise StoreError(f"{path} is there already; a backup never replaces another one")
    part = path.with_name(f"{path.name}.part")
    _remove(part)
    private_file(part)
    try:
        with _refused(part):
            if database.sqlite:
                _copy_file(Path(database.url.database or ""), part)
            else:
                _copy_server(database, schema_modules, part)
            _finish(part, note)
        os.rename(part, path)
        _on_disk(path.parent)
    finally:
        _remove(part)


def note_of(path: Path) -> BackupNote | None:
    """Return a backup's note; None for a file that `back_up` did not make, as the copy before a migration. Raises
    StoreError."""
    with _refused(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        if file.execute("select 1 from sqlite_master where name = ?", (NOTE,)).fetchone() is None:
            return None
        made, release = file.execute(f"select made, release from {NOTE}").fetchone()  # noqa: S608 - a name of ours
        return BackupNote(moment(int(made)), str(release))


def unpack(backup: Path, path: Path, schema_modules: Sequence[SchemaModule]) -> Database:
    """Return a copy of a backup, with this release's tables. Raises StoreError when it is not whole, or `Unknown`."""
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}")
    private_file(path)
    with _refused(backup):
        _copy_file(backup, path)
        with closing(sqlite3.connect(path)) as copy:
            report = [str(row[0]) for row in copy.execute("pragma integrity_check(3)")]
            if report != ["ok"]:
                raise StoreError(f"{backup} is damaged and nothing was restored: {'; '.join(report)}")
            copy.execute(f"drop table if exists {NOTE}")
            copy.commit()
    database = Database(file_url(path).render_as_string(hide_password=False))
    try:
        with database.reading() as connection:
            if not any(revision_of(connection, schema_module) for schema_module in schema_modules):
                raise StoreError(f"{backup} has nothing of gpuyard's in it")
        for schema_module in schema_modules:
            migrate(database.url, schema_module)
    except BaseException:
        database.close()
        raise
    return database


def replace_all(database: Database, schema_modules: Sequence[SchemaModule], source: Database) -> None:
    """Replace a database by an unpacked backup, all at once or not at all. Raises BlockedError when somebody else has
    it open, and StoreError."""
    if database.sqlite:
        _replace_file(Path(database.url.database or ""), Path(source.url.database or ""))
    else:
        _replace_server(database, schema_modules, source)


def set_aside(url: URL, path: Path) -> bool:
    """Copy the file of a SQLite database that nobody can read, with its log; False when there is none to copy."""
    source = Path(url.database or "")
    if url.get_backend_name() != "sqlite" or not source.is_file():
        return False
    for ending in ("", "-wal"):
        if Path(f"{source}{ending}").is_file():
            private_file(Path(f"{path}{ending}"))
            shutil.copyfile(f"{source}{ending}", f"{path}{ending}")
    return True


def refuse_in_use(database: Database) -> None:
    """Raise BlockedError while a portal has connections to a PostgreSQL database; SQLite reports it when it is
    replaced."""
    if database.sqlite:
        return
    query = text(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = :name "
        "and pid <> pg_backend_pid()"
    )
    until = time.monotonic() + GOING
    while True:
        with database.reading() as connection:
            others = connection.execute(query, {"name": SERVING}).scalar_one()
        if not others:
            return
        if time.monotonic() > until:
            raise BlockedError(_in_use(database.name))
        time.sleep(0.1)


def _in_use(name: str) -> str:
    return f"a portal, or another program, has {name} open; stop it first (systemctl stop gpuyard)"


# SQLite's own way


def _copy_file(source: Path, target: Path) -> None:
    """In one step, so of one moment; who writes meanwhile does not wait, and what its log has is in it."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
        new.execute("pragma journal_mode = delete")  # one file, that can be read where nothing can be written


def _replace_file(path: Path, source: Path) -> None:
    with file_lock(path), closing(sqlite3.connect(source)) as new:
        try:
            _fill(path, new)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                if "locked" in str(error):
                    raise BlockedError(_in_use(str(path))) from None
                raise StoreError(f"{path} cannot be replaced: {error}") from None
            for ending in ("-wal", "-shm", ""):  # it is no database any more; what it was has been set aside
                Path(f"{path}{ending}").unlink(missing_ok=True)
            private_file(path)
            _fill(path, new)


def _fill(path: Path, new: sqlite3.Connection) -> None:
    """Over what is there, in one transaction: whoever is killed in it leaves the old. Nobody else may have it open."""
    with closing(sqlite3.connect(path, timeout=1)) as old:
        old.execute("pragma locking_mode = exclusive")  # of a database with a log it takes that nobody else has it open
        old.execute("begin exclusive")
        old.execute("commit")
        new.backup(old)


# PostgreSQL


def _copy_server(database: Database, schema_modules: Sequence[SchemaModule], path: Path) -> None:
    with database.reading() as source:
        for schema_module in schema_modules:
            revision = revision_of(source, schema_module)
            refuse_unknown(schema_module, steps_of(schema_module), revision, database.name)
            if revision is not None:
                migrate(file_url(path), schema_module, revision)
        tables = _reflected(source, schema_modules)
        engine = open_engine(file_url(path))
        try:
            with engine.connect() as target, target.begin():
                copied = MetaData()
                copied.reflect(target, only=[table.name for table in tables.sorted_tables])
                _copy_rows(source, target, tables, copied)
        finally:
            engine.dispose()


def _replace_server(database: Database, schema_modules: Sequence[SchemaModule], source: Database) -> None:
    """In one transaction, after which readers see the new; until then they see the old."""
    with ONE_AT_A_TIME, translated(database.name), database.engine.connect() as target, target.begin():
        target.execute(text("select pg_advisory_xact_lock(:number)"), {"number": LOCK})
        for schema_module in schema_modules:
            refuse_unknown(schema_module, steps_of(schema_module), revision_of(target, schema_module), database.name)
        existing = set(inspect(target).get_table_names())
        names = [
            name
            for schema_module in schema_modules
            for name in (*schema_module.tables.tables, schema_module.version_table)
            if name in existing
        ]
        quoted = target.dialect.identifier_preparer.quote_identifier
        for name in names:
            target.execute(text(f"drop table {quoted(name)} cascade"))
        for schema_module in schema_modules:
            run_steps(target, schema_module, steps_of(schema_module), HEAD)
        with source.reading() as connection:
            _copy_rows(connection, target, _reflected(connection, schema_modules), _reflected(target, schema_modules))


def _reflected(connection: Connection, schema_modules: Sequence[SchemaModule]) -> MetaData:
    """The tables of schema modules, as the database has them."""
    existing, metadata = set(inspect(connection).get_table_names()), MetaData()
    metadata.reflect(
        connection,
        only=sorted(
            name for schema_module in schema_modules for name in schema_module.tables.tables if name in existing
        ),
    )
    return metadata


def _copy_rows(source: Connection, target: Connection, have: MetaData, want: MetaData) -> None:
    """Those that others refer to come first."""
    for table in want.sorted_tables:
        old = have.tables[table.name]
        rows = source.execute(select(old), execution_options={"yield_per": ROWS})
        for some in rows.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in some])
        _go_on_counting(source, target, old)


def _go_on_counting(source: Connection, target: Connection, table: Table) -> None:
    """Numbers that were given once, and whose rows are gone, are not given again."""
    last = _last_number(source, table)
    if last is None:
        return
    if target.dialect.name == "sqlite":
        if "sqlite_sequence" not in _names(target):
            return
        target.execute(text("delete from sqlite_sequence where name = :name"), {"name": table.name})
        row = {"name": table.name, "last": last}
        target.execute(text("insert into sqlite_sequence (name, seq) values (:name, :last)"), row)
    elif (sequence := _sequence(target, table)) is not None:
        target.execute(text("select setval(:sequence, :last)"), {"sequence": sequence, "last": last})


def _last_number(connection: Connection, table: Table) -> int | None:
    """None: none was given yet, or the table has no such numbers."""
    if connection.dialect.name == "sqlite":
        if "sqlite_sequence" not in _names(connection):
            return None
        query = text("select seq from sqlite_sequence where name = :name")
        number = connection.execute(query, {"name": table.name}).scalar()
        keys = list(table.primary_key)
        if number is None and len(keys) == 1 and keys[0].name == "id":  # of a table that gives numbers again
            number = connection.execute(select(keys[0]).order_by(keys[0].desc()).limit(1)).scalar()
        return int(number) if isinstance(number, int) and number > 0 else None
    sequence = _sequence(connection, table)
    if sequence is None:
        return None
    last = connection.execute(text(f"select last_value, is_called from {sequence}")).one()  # noqa: S608 - quoted already
    return int(last.last_value) if last.is_called else None


def _names(connection: Connection) -> set[str]:
    return {str(name) for name in connection.execute(text("select name from sqlite_master")).scalars()}


def _sequence(connection: Connection, table: Table) -> str | None:
    """Its name, quoted as PostgreSQL says it."""
    if "id" not in table.c:
        return None
    quoted = connection.dialect.identifier_preparer.quote_identifier(table.name)
    sequence = connection.execute(text("select pg_get_serial_sequence(:name, 'id')"), {"name": quoted}).scalar()
    return None if sequence is None else str(sequence)


# Files


def _finish(path: Path, note: BackupNote) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"create table {NOTE} (made integer not null, release text not null)")
        file.execute(f"insert into {NOTE} values (?, ?)", (seconds(note.made), note.release))  # noqa: S608 - as above
        file.commit()
        file.execute("pragma journal_mode = delete")
        (verdict,) = file.execute("pragma quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(f"the database is damaged, and no backup was made: {verdict}; see gpuyard db check")
    with path.open("rb") as whole:
        os.fsync(whole.fileno())


def _on_disk(folder: Path) -> None:
    """The names in it, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal", ".lock"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What SQLite and the system say of a file, as StoreError."""
    try:
        with translated(str(path)):
            yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{path}: {error}") from None
