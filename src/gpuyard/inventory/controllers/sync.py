"""The loop that observes the cloud and publishes the state of every GPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.state import NOTHING, gpu_statuses
from gpuyard.model.gpu import LedgerWords
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.runtime.control_loops import Loop
from gpuyard.site.compile import CompiledSite

REST = 3.0
"""A pause is at least this many times as long as the run before it: a slow cloud is not kept busy by being watched."""


def sync_loop(
    taker: SnapshotTaker,
    compiled: CompiledSite,
    inventory: InventoryCache,
    period: float,
    now: Callable[[], datetime],
    words: Callable[[], LedgerWords] | None = None,
) -> Loop:
    """Return a loop named ``sync`` that takes a snapshot every `period` seconds, or less often when that takes long.

    `words`: what the ledger says of GPUs, where they can be booked.
    """

    def run() -> None:
        snapshot = taker.take(now())
        statuses = gpu_statuses(compiled.gpus, snapshot, words() if words else NOTHING)
        inventory.publish(snapshot.taken_at, statuses, snapshot.services)

    what = "Looks at Placement and Nova and publishes the state of every GPU."
    return Loop("sync", what, period, run, REST, essential=True)
