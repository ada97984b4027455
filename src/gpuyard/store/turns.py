"""What only one process may do at a time. The right to it ends with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from zlib import crc32

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from gpuyard.store.engine import Database, private_file, translated

NUMBERS = 5_283_174_901_000_000
"""PostgreSQL's advisory locks have numbers; ours begin here."""


class Turns:
    """Part of `Store`."""

    _database: Database
    _files: dict[str, int]
    _connections: dict[str, Connection]
    _turns: threading.Lock

    def take_turn(self, name: str) -> bool:
        """Whether this process has the turn now: it takes it when nobody has it, and keeps it until `end_turns`."""
        with self._turns:
            return self._take_file(name) if self._database.sqlite else self._take_lock(name)

    def has_turn(self, name: str) -> bool:
        """Whether this process has had the turn without a break since it took it."""
        with self._turns:
            if self._database.sqlite:
                return name in self._files
            connection = self._connections.get(name)
            return connection is not None and self._is_alive(name, connection)

    def end_turns(self) -> None:
        """Let others have them."""
        with self._turns:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            for connection in self._connections.values():
                connection.invalidate()  # the lock belongs to the session, which must not go back to the pool with it
                connection.close()
            self._connections.clear()

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
        connection = self._connections.get(name)
        if connection is not None and self._is_alive(name, connection):
            return True
        with translated(self._database.name):
            connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            number = NUMBERS + crc32(name.encode())
            if connection.execute(text("select pg_try_advisory_lock(:number)"), {"number": number}).scalar_one():
                self._connections[name] = connection
                return True
            connection.close()
            return False

    def _is_alive(self, name: str, connection: Connection) -> bool:
        """Whether the session is still there, and with it the lock; forgets it when not."""
        try:
            connection.execute(text("select 1"))
        except SQLAlchemyError:  # the server was restarted, or has gone
            connection.invalidate()
            connection.close()
            del self._connections[name]
            return False
        return True
