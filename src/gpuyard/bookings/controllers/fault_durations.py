"""Decides which servers are about to take a GPU and which lanes cannot be had, from one observation of the cloud.

Most faults must last for PATIENCE before bookings leave a lane, so that a moment's trouble moves nobody. Three count at
once: a nova-compute that Nova says is down, a host that gpuyard itself has closed, and a lane that was in trouble
already. A host whose cell does not answer keeps the trouble that its lanes had: nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import Lane
from gpuyard.model.gpu import GpuState
from gpuyard.model.world import HostService, Server, Snapshot
from gpuyard.openstack.disabled_reason import tag_of
from gpuyard.site.compile import CompiledSite

PATIENCE = timedelta(minutes=5)
"""Time for which something must be wrong with a lane before bookings leave it, except for a nova-compute that Nova says
is down, and for a host that gpuyard itself has closed."""
STUCK = timedelta(minutes=30)
"""A server that Nova has been building for longer is not waited for."""
TAKING = frozenset({"resize_prep", "rebuild_spawning", "unshelving"})
"""Task states in which a server is about to get another GPU, or is getting it."""


class FaultDurations:
    """Remembers since when each lane has had a fault; forgetting it costs PATIENCE."""

    def __init__(self, compiled: CompiledSite) -> None:
        self._gpus = compiled.gpus
        self._pools = {flavor.name: flavor.pool or "" for flavor in compiled.flavors}
        self._since: dict[int, datetime] = {}

    def pool_of(self, flavor: str) -> str:
        """Return the pool that servers of a flavor take GPUs of; empty when the site does not know the flavor."""
        return self._pools.get(flavor, "")

    @staticmethod
    def on_its_way(server: Server, has_gpus: bool, now: datetime) -> bool:
        """Return whether Nova may be about to give it a GPU."""
        if server.created is not None and now - server.created > STUCK and not server.task:
            return False
        return (server.status == "BUILD" and not has_gpus) or server.task in TAKING

    def troubles(self, lanes: Iterable[Lane], snapshot: Snapshot, ours: Collection[str]) -> dict[int, str]:
        """Return lane -> what is lastingly wrong with it. `ours`: providers that are reserved by enforcement itself."""
        statuses = {(s.gpu.host, s.gpu.address): s for s in gpu_statuses(self._gpus, snapshot)}
        reasons: dict[int, str] = {}
        at_once: set[int] = set()
        for lane in lanes:
            service = snapshot.services.get(lane.host)
            if service is not None and service.silent:  # nothing is known, not even that all is well
                if lane.trouble:
                    reasons[lane.id] = lane.trouble
                continue
            if service is not None and not service.up:  # Nova has waited for it for a minute
                reasons[lane.id] = f"nova-compute on {lane.host} is down"
                at_once.add(lane.id)
                continue
            for address in lane.addresses:
                status = statuses.get((lane.host, address))
                if status is None or (status.state is GpuState.HELD and status.gpu.provider_name in ours):
                    continue
                if status.state in (GpuState.LOST, GpuState.BLOCKED, GpuState.HELD):
                    reasons.setdefault(lane.id, f"{lane.host}/{address}: {status.reason}")
                    # No server is made there before the host is given back, so no booking waits for PATIENCE on it.
                    if status.state is GpuState.BLOCKED and service is not None and is_closed_by_gpuyard(service):
                        at_once.add(lane.id)
        now = snapshot.taken_at
        self._since = {lane: min(self._since.get(lane, now), now) for lane in reasons}  # the clock may go back
        immediate = at_once | {lane.id for lane in lanes if lane.trouble}
        return {lane: why for lane, why in reasons.items() if lane in immediate or now - self._since[lane] >= PATIENCE}


def is_closed_by_gpuyard(service: HostService) -> bool:
    """Return whether a drain, an evacuation or a maintenance has disabled nova-compute: its reason carries our tag."""
    return not service.enabled and tag_of(service.disabled_reason) is not None
