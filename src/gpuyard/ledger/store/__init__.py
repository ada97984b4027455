"""The ledger's database: SQLite or PostgreSQL. The only place with SQL.

Everything that concerns the bookings of a pool is changed in one transaction that has the pool to itself
(`Store.change`). Behind it stands a constraint of the database: no lane is ever taken twice at a time.
"""

from gpuyard.ledger.store.errors import ConflictError, OverlapError, StoreError
from gpuyard.ledger.store.outbox import Delivery
from gpuyard.ledger.store.pool import PoolLook, Remembered, Step, Taken
from gpuyard.ledger.store.pool_change import PoolChange
from gpuyard.ledger.store.store import Store

__all__ = [
    "ConflictError",
    "Delivery",
    "OverlapError",
    "PoolChange",
    "PoolLook",
    "Remembered",
    "Step",
    "Store",
    "StoreError",
    "Taken",
]
