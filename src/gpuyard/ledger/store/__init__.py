"""The ledger's database: SQLite or PostgreSQL. The only place with SQL on bookings.

Everything that concerns the bookings of a pool is changed in one transaction that has the pool to itself
(`Store.change`). Behind it stands a constraint of the database: no lane is ever taken twice at a time.
"""

from gpuyard.ledger.store.desk import Records
from gpuyard.ledger.store.outbox import Delivery, Outbox
from gpuyard.ledger.store.pool import LaneChange, PoolLook, Remembered, Taken
from gpuyard.ledger.store.pool_change import PoolChange
from gpuyard.ledger.store.rows import GONE
from gpuyard.ledger.store.store import Store
from gpuyard.store.errors import ConflictError, OverlapError, StoreError
from gpuyard.store.turns import Turns

__all__ = [
    "GONE",
    "ConflictError",
    "Delivery",
    "LaneChange",
    "Outbox",
    "OverlapError",
    "PoolChange",
    "PoolLook",
    "Records",
    "Remembered",
    "Store",
    "StoreError",
    "Taken",
    "Turns",
]
