"""All who keep something in the database of a site, in the order in which their tables are made."""

from __future__ import annotations

from gpuyard.health.store import schema as health
from gpuyard.history.store import schema as history
from gpuyard.ledger.store import schema as ledger
from gpuyard.portal.store import schema as portal
from gpuyard.runners.store import schema as runners

ROOMS = (ledger.ROOM, portal.ROOM, runners.ROOM, health.ROOM, history.ROOM)
