"""Checks that a GPU which is kept back cannot go to a server that gpuyard starts, before and after Nova has chosen.

A GPU's state is in the store the moment it goes bad; its hold in Placement stands a moment later, and until then Nova
may give the GPU to any server of its pool. So whoever starts a server asks twice: before the create, whether every slot
of the pool that is kept back is out of Nova's reach, by Placement's own word; and when Nova has chosen, whether the GPU
is one that is kept back. A server on one that went bad between the two is deleted before it has a job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.bookings.controllers.bookings import lanes_back
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.pool_view import read_memory
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.model.gpu import provider_name
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.placed_gpus import Availability, PlacedGpus
from gpuyard.site.compile import CompiledSite

LOG = logging.getLogger(__name__)


@dataclass
class HoldCheck:
    """The check for one site with `health`. Safe to use from several threads, and in any process on the database."""

    ledger: Ledger
    health: HealthService
    placed: PlacedGpus
    names: Mapping[str, str]
    """Name of a provider -> its GPU, as in ``host/address``."""
    _standing: dict[str, int] = field(default_factory=dict)
    """Providers that were seen to be held -> the generation that was remembered of that hold."""

    def unheld(self, pool: str) -> str:
        """Return why no server may be started in a pool at this moment: Nova could still give it a GPU that is kept
        back. Empty when one may."""
        lanes = {lane.id: lane for lane in self.ledger.lanes(pool)}
        back = lanes_back(lanes.values(), self.health.kept_back())
        if not back:
            return ""
        holds = read_memory(self.ledger.upkeep.records.values(pool)).holds
        # A peer is had with its leader only, so a slot is out of reach with that.
        leaders = {provider_name(lanes[id].host, lanes[id].addresses[0]): why for id, why in back.items()}
        unconfirmed = [name for name in leaders if name not in holds or self._standing.get(name) != holds[name]]
        try:
            availability_by_name = self.placed.availability(unconfirmed)
        except CloudError as error:
            return f"it cannot be told whether the GPUs of pool {pool} that are kept back are held: {error}"
        held = [
            name
            for name, availability in availability_by_name.items()
            if availability is Availability.HELD and name in holds
        ]
        self._standing.update((name, holds[name]) for name in held)
        free = sorted(name for name, availability in availability_by_name.items() if availability is Availability.FREE)
        if not free:
            return ""
        return f"GPU {self.names[free[0]]} is not held in Placement yet: {leaders[free[0]]}"

    def out_of_use(self) -> dict[str, str]:
        """Return GPUs (``host/address``) of slots with a bad one, each with why; those of hosts that are maintained
        only where they are bad themselves."""
        bad = self.health.bad_gpus()
        if not bad:
            return {}
        lanes = {lane.id: lane for lane in self.ledger.lanes()}
        return {
            f"{lanes[id].host}/{address}": why
            for id, why in lanes_back(lanes.values(), bad).items()
            for address in lanes[id].addresses
        }

    def gpus_of(self, server_id: str) -> tuple[str, ...]:
        """Return the GPUs (``host/address``) that Nova has chosen for a server; none as long as it has not, or when
        that cannot be told."""
        try:
            return tuple(self.names[name] for name in self.placed.of_server(server_id))
        except CloudError as error:
            LOG.info("server %s: its GPUs cannot be told yet: %s", server_id, error)
            return ()


def open_hold_check(compiled: CompiledSite, ledger: Ledger, health: HealthService, api: CloudApi) -> HoldCheck:
    whole = [gpu for gpu in compiled.gpus if not gpu.blocked and not gpu.is_unit]
    placed = PlacedGpus(api, {gpu.provider_name: gpu.resource_class for gpu in whole})
    return HoldCheck(ledger, health, placed, {gpu.provider_name: f"{gpu.host}/{gpu.address}" for gpu in whole})
