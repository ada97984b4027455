"""The list of all schema modules in the database of a site, in the order in which their tables are made."""

from __future__ import annotations

from gpuyard.bookings.store import schema as ledger
from gpuyard.health.store import schema as health
from gpuyard.runners.store import schema as runners
from gpuyard.usage.store import schema as history
from gpuyard.web.store import schema as portal

SCHEMA_MODULES = (
    ledger.SCHEMA_MODULE,
    portal.SCHEMA_MODULE,
    runners.SCHEMA_MODULE,
    health.SCHEMA_MODULE,
    history.SCHEMA_MODULE,
)
