"""Leader election: each named role has one process as its leader at a time. Leadership ends with the process, however
that ends.

On SQLite leadership is a lock on a file beside the database; on PostgreSQL it is an advisory lock of a session, which
ends with its connection. There a leader sends a query every BEAT seconds. When it does not, since it is stopped or its
machine or its network is gone, the server ends the session after SILENCE, and the process finds its leadership lost
when it goes on. In the same rhythm processes that were refused a role ask whether it has come free.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from gpuyard.database.engine import Database, private_file, translated
from gpuyard.database.errors import StoreError

LOG = logging.getLogger(__name__)
BEAT = 1.5
"""Seconds between two queries of a leader, and between two questions of a process that waits to lead."""
SILENCE = 6
"""Seconds without a query after which PostgreSQL (14 or later) ends a leadership. Some beats: busy is not dead."""
LAST = 5
"""Seconds for which `resign` waits for a question that is under way: the database may not answer."""
NUMBERS = 5_283_174_901_000_000
"""The first of our numbers for PostgreSQL's advisory locks."""
LOCKS = NUMBERS + (1 << 32)
"""The first number for locks of transactions."""


def take_lock(connection: Connection, name: str) -> None:
    """Wait for a lock that no other writing transaction has, and hold it until the end of this one. On SQLite only one
    writes at a time anyway."""
    if connection.dialect.name == "postgresql":
        number = LOCKS + crc32(name.encode())
        connection.execute(text("select pg_advisory_xact_lock(:number)"), {"number": number})


class LeaderElection:
    """The roles that this process leads, and those that it would lead."""

    def __init__(self, database: Database, silence: int = SILENCE) -> None:
        """`silence`: seconds without a query from this process after which PostgreSQL ends its leaderships; 0:
        never."""
        self._database = database
        self._silence = silence
        self._files: dict[str, int] = {}
        self._connections: dict[str, Connection] = {}
        self._waits: set[str] = set()
        """Roles that this process was refused, or has lost."""
        self._calls: dict[str, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beats: threading.Thread | None = None

    def on_free(self, name: str, call: Callable[[], None]) -> None:
        """Register a call for when a role that this process was refused, or has lost, comes free: it wakes the loop
        that tries to lead it. Only on PostgreSQL, and perhaps several times."""
        self._calls[name] = call

    def try_to_lead(self, name: str) -> bool:
        """Become the leader of a role that nobody leads, until `resign`; return whether this process leads it now."""
        with self._lock:
            if self._database.sqlite:
                return self._take_file(name)
            if self._beats is None:
                self._over = threading.Event()
                self._beats = threading.Thread(target=self._beat, args=(self._over,), name="leadership", daemon=True)
                self._beats.start()
            self._waits.add(name)  # also when the database does not answer
            taken = self._take_lock(name)
            if taken:
                self._waits.discard(name)
            return taken

    def is_leader(self, name: str) -> bool:
        """Return whether this process has led the role without a break since it became its leader."""
        with self._lock:
            if self._database.sqlite:
                return name in self._files
            return self._is_alive(name)

    def led_roles(self) -> list[str]:
        """Return the roles that this process leads, as far as it knows: the database is not asked."""
        return sorted({*self._files, *self._connections})

    def resign(self) -> None:
        """Leave all roles to other processes."""
        with self._lock:
            self._over.set()
            beats, self._beats = self._beats, None
            self._waits.clear()
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            for connection in self._connections.values():
                connection.invalidate()  # the lock belongs to the session, which must not go back to the pool with it
                connection.close()
            self._connections.clear()
        if beats is not None:
            beats.join(LAST)

    def _take_file(self, name: str) -> bool:
        if name in self._files:
            return True
        path = Path(f"{self._database.url.database}.{name}")
        private_file(path)
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._files[name] = descriptor
        return True

    def _take_lock(self, name: str) -> bool:
        if self._is_alive(name):
            return True
        with translated(self._database.name):
            connection = self._database.for_elections.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                taken = connection.execute(text("select pg_try_advisory_lock(:number)"), {"number": _number(name)})
                if taken.scalar_one():
                    connection.execute(text(f"set idle_session_timeout = '{self._silence}s'"))
                    self._connections[name] = connection
                    return True
            except SQLAlchemyError:
                connection.invalidate()  # it may have the lock
                connection.close()
                raise
            connection.close()
            return False

    def _is_alive(self, name: str) -> bool:
        """Return whether the session is still there, and with it the lock; forgets it when not. A word is said by
        it."""
        connection = self._connections.get(name)
        if connection is None:
            return False
        try:
            connection.execute(text("select 1"))
        except SQLAlchemyError:  # the server was restarted or has gone, or this process was silent
            LOG.warning("this process no longer leads %s: the database has ended its session", name)
            connection.invalidate()
            connection.close()
            del self._connections[name]
            self._waits.add(name)
            return False
        return True

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(BEAT):
            with self._lock:
                if over.is_set():
                    return
                for name in list(self._connections):
                    self._is_alive(name)
                waits = sorted(self._waits)
            try:
                free = [name for name in waits if self._is_free(name)]
            except StoreError as error:  # as those know who use it
                LOG.debug("cannot ask whether a role is free: %s", error)
                continue
            for name in free:
                if name in self._calls and not over.is_set():
                    self._calls[name]()

    def _is_free(self, name: str) -> bool:
        """Has the lock for as long as the statement takes."""
        with translated(self._database.name), self._database.for_elections.connect() as connection:
            asks = connection.execution_options(isolation_level="AUTOCOMMIT").execute
            taken = asks(text("select pg_try_advisory_xact_lock(:number)"), {"number": _number(name)}).scalar_one()
        return bool(taken)


def _number(name: str) -> int:
    return NUMBERS + crc32(name.encode())
