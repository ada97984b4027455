"""Connections and transactions, on SQLite and PostgreSQL, and the meaning of their errors.

SQLite runs with a write-ahead log and synchronous=FULL: the log is forced to disk before a commit returns, so a
booking that was answered with yes survives a power cut. (With NORMAL the last commits may be lost.) PostgreSQL does
the same unless its administrator has turned synchronous_commit off.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gpuyard.database.errors import ConflictError, OverlapError, StoreError
from gpuyard.model.errors import how_to_install

PATIENCE = 30
"""Seconds to wait for somebody else's transaction before giving up."""
STATEMENT = 60
"""Seconds that one statement may take on PostgreSQL, but in a migration."""
REST = 20
"""Seconds that a transaction of a portal may rest between two statements on PostgreSQL: a process that is stopped in
the middle of one blocks a pool for others. Less than PATIENCE, so that those who wait get it."""
LINE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # ms
}
"""Connection options for PostgreSQL: a server that has silently gone is noticed within half a minute; else it takes
many."""
CONNECTIONS = 32
FOR_ELECTIONS = 4
"""Further connections for the leader election, which must not wait for readers."""
CACHE_KIB = 16 * 1024
"""The largest cache of a connection to SQLite."""
OVERLAP = "a lane is taken twice"
"""The message of SQLite's triggers."""
SERVING = "gpuyard"
"""Application name of portals in PostgreSQL."""
IMMEDIATE = "gpuyard_immediate"
"""Execution option: the transaction will write, so SQLite takes the lock at its beginning."""


class Database:
    """An engine, and the two kinds of transactions on it."""

    def __init__(self, url: str, statement: int | None = None, who: str = SERVING) -> None:
        """`statement` and `who` as for `open_engine`."""
        self.url = parse_url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = open_engine(self.url, statement, who)
        self.for_elections = self.engine if self.sqlite else open_engine(self.url, statement, who, FOR_ELECTIONS)
        self._writer = threading.Lock()
        self.name = shown(self.url)

    def close(self) -> None:
        self.engine.dispose()
        self.for_elections.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction whose reads all see the same moment; it waits for nobody."""
        with translated(self.name), self.engine.connect() as connection:
            if not self.sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end, and rolled back when the block raises. On SQLite there is
        one at a time."""
        with translated(self.name), self._turn(), self.engine.connect() as connection:
            connection.execution_options(**{IMMEDIATE: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Threads of this process wait here for each other: SQLite lets those who wait sleep for up to 100 ms, and
        prefers nobody."""
        if not self.sqlite:
            yield
            return
        if not self._writer.acquire(timeout=PATIENCE):
            raise StoreError(_busy(self.name))
        try:
            yield
        finally:
            self._writer.release()


def parse_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError(
            "the database's URL cannot be read; write sqlite:////path/to/file or "
            "postgresql+psycopg://user:password@host/database"
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError(f"databases of kind {url.drivername!r} cannot be used; use sqlite or postgresql+psycopg")
    if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(f"{shown(url)} names no file; write sqlite:////path/to/file")
    return url


def shown(url: URL) -> str:
    """Return the URL without the password, also one that stands in the query."""
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(url: URL, statement: int | None = None, who: str = SERVING, connections: int = CONNECTIONS) -> Engine:
    """Return an engine, which does not connect yet. `statement`: seconds that one may take, or a transaction rest; 0:
    any; None: STATEMENT and REST. `who`: its application name in PostgreSQL; `connections`: to that at most."""
    if url.get_backend_name() == "sqlite":
        return open_sqlite(url)
    limit = STATEMENT if statement is None else statement
    rest = REST if statement is None else statement
    try:
        return create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=PATIENCE,
            pool_pre_ping=True,
            connect_args={
                **{name: value for name, value in LINE.items() if name not in url.query},
                "application_name": who,
                "options": f"-c lock_timeout={PATIENCE}s -c statement_timeout={limit}s -c timezone=UTC "
                f"-c idle_in_transaction_session_timeout={rest}s",
            },
        )
    except ModuleNotFoundError:
        raise StoreError(f"psycopg is not installed: {how_to_install('postgresql')}") from None


def open_sqlite(url: URL, *, foreign_keys: bool = True) -> Engine:
    path = Path(url.database or "")
    private_file(path)
    engine = create_engine(
        url, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=PATIENCE, connect_args={"timeout": PATIENCE}
    )

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # else the driver begins transactions when it sees fit
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            connection.execute("PRAGMA synchronous = FULL")
            # Pages. Whoever commits when the log is full waits for it to be copied: one in some hundred commits.
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except sqlite3.Error as error:
            raise StoreError(f"the database {path} cannot be used: {error}") from None
        if mode != "wal":
            raise StoreError(f"{path} cannot have a write-ahead log (is it on a network file system?); move it")

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        immediate = connection.get_execution_options().get(IMMEDIATE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def private_file(path: Path) -> None:
    """Make the file if there is none, for its owner only; SQLite gives its log the same mode. Raises StoreError.

    A file that root makes belongs to the owner of the folder, as SQLite's files beside a database belong to the
    database's: or the service could not start after its administrator has made a backup.

    A file that is there is not opened: closing it would take off all locks that this process has on it through
    SQLite (so POSIX says), and the next process that comes and goes would delete the log under us, with what is in
    it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                if os.geteuid() == 0:
                    folder = path.parent.stat()
                    os.chown(path, folder.st_uid, folder.st_gid)
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise StoreError(f"the database {path} cannot be opened for writing: {error.strerror}") from None


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Translate SQLAlchemy's errors to StoreError. Their statements and values are left out: those may be private."""
    try:
        yield
    except PoolTimeoutError:
        raise StoreError(
            f"all {CONNECTIONS} connections to {name} have been busy for {PATIENCE} s; try again"
        ) from None
    except DBAPIError as error:
        raise _meaning(error, name) from None
    except SQLAlchemyError as error:
        raise StoreError(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}") from None


def _meaning(error: DBAPIError, name: str) -> StoreError:
    text = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
    state = getattr(error.orig, "sqlstate", None)
    if state == "23P01" or OVERLAP in text or "occupancy_pkey" in text or "occupancy.lane, occupancy.starts" in text:
        return OverlapError("a GPU would be booked twice at a time; nothing was changed")
    if state == "23505" or "UNIQUE constraint failed" in text:
        return ConflictError(f"it is there already ({text}); read it again")
    if state in ("55P03", "40P01", "40001") or "database is locked" in text:
        return StoreError(_busy(name))
    if state in ("57014", "25P03"):
        return StoreError(f"the database {name} gave up: {text}; try again")
    if state == "25006" or "readonly database" in text:
        return StoreError(
            f"the database {name} is read-only; let gpuyard's user write to it, or name the server that is no standby "
            "(target_session_attrs=read-write)"
        )
    if state == "28P01" or state == "28000":
        return StoreError(f"the database {name} does not let this user in: check the user and password of its URL")
    if error.connection_invalidated or state is None or state.startswith(("08", "57P")):
        return StoreError(f"the database {name} cannot be used: {text}; is it there, and is its disk full?")
    return StoreError(f"the database {name} refused: {text}")


def _busy(name: str) -> str:
    return f"somebody else has kept the database {name} for {PATIENCE} s; try again"
