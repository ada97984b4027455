"""The ledger's store: its parts joined into one class, on one open database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuyard.bookings.store.audit import Records
from gpuyard.bookings.store.bookings import Bookings
from gpuyard.bookings.store.lanes import Lanes
from gpuyard.bookings.store.outbox import Outbox
from gpuyard.bookings.store.pool import PoolReader
from gpuyard.bookings.store.pool_change import PoolChange
from gpuyard.bookings.store.schema import SCHEMA_MODULE
from gpuyard.database.engine import Database
from gpuyard.database.leader_election import LeaderElection
from gpuyard.database.migrate import migrate


class Store(Bookings, Lanes, Records, Outbox, LeaderElection):
    """The ledger's records in a database. Safe to use from several threads, and from several processes on one database.
    Every method raises StoreError when the database cannot be used.

    `change` is for what belongs together; each other method that writes is a transaction of its own, and must not be
    called within a `change`: on SQLite it would wait for it.
    """

    def __init__(self, database: Database) -> None:
        """Makes the tables, or brings older ones up to date. Raises StoreError."""
        migrate(database.url, SCHEMA_MODULE)
        super().__init__(database)

    @classmethod
    def open(cls, url: str) -> Store:
        """Open ``sqlite:////var/lib/gpuyard/gpuyard.db`` or ``postgresql+psycopg://user:password@host/database``.

        Raises StoreError.
        """
        return cls(Database(url))

    def close(self) -> None:
        """Close the connections, and give up leadership."""
        self.resign()
        self._database.close()

    @property
    def database(self) -> Database:
        """The database, for others who keep something there."""
        return self._database

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._database.name

    @contextmanager
    def change(self, pool: str) -> Iterator[PoolChange]:
        """Open a transaction that has the pool to itself; written when the block ends, undone when it raises.

        Errors of the database that come up in the block leave it as OverlapError, ConflictError or StoreError.
        """
        with self._database.writing() as connection:
            yield PoolChange(connection, pool)

    @contextmanager
    def look(self, pool: str) -> Iterator[PoolReader]:
        """Open a pool for reading; waits for nobody."""
        with self._database.reading() as connection:
            yield PoolReader(connection, pool)
