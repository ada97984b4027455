"""The ledger's tables in SQLite or PostgreSQL. The only place with SQL on bookings.

Everything that concerns the bookings of a pool is changed in one transaction that has the pool to itself
(`Store.change`). Behind it stands a constraint of the database: no lane is ever taken twice at a time.
"""

from gpuyard.bookings.store.audit import Records
from gpuyard.bookings.store.outbox import Delivery, Outbox
from gpuyard.bookings.store.pool import LaneChange, PoolReader, Remembered, Taken
from gpuyard.bookings.store.pool_change import PoolChange
from gpuyard.bookings.store.rows import GONE
from gpuyard.bookings.store.store import Store
from gpuyard.database.errors import ConflictError, OverlapError, StoreError
from gpuyard.database.leader_election import LeaderElection

__all__ = [
    "GONE",
    "ConflictError",
    "Delivery",
    "LaneChange",
    "LeaderElection",
    "Outbox",
    "OverlapError",
    "PoolChange",
    "PoolReader",
    "Records",
    "Remembered",
    "Store",
    "StoreError",
    "Taken",
]
