"""The subject of a comparison: a site, its recordings and the cloud, with look-ups that several comparisons need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gpuyard.diagnosis.drift.facts import DeviceSeen, ServerSeen, World
from gpuyard.model.gpu import Gpu, LedgerWords
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.site.compile import CompiledSite
from gpuyard.site.nova import alias, leader_alias, lone_alias, peer_alias


@dataclass(frozen=True)
class DriftSubject:
    """A site, the recordings of its hosts, and the cloud."""

    compiled: CompiledSite
    inventories: Mapping[str, Inventory]
    world: World
    words: LedgerWords | None = None
    """The reasons for which bookings and holds keep GPUs; None where they are not known."""

    @cached_property
    def offered(self) -> dict[str, Gpu]:
        """The GPUs that Placement should know, by name of their provider."""
        if self.compiled.site.pci_in_placement == "off":
            return {}
        return {gpu.provider_name: gpu for gpu in self.compiled.whole_gpus if not gpu.blocked}

    @cached_property
    def gpus(self) -> dict[str, Gpu]:
        """All GPUs of the site, by name of their provider."""
        return {gpu.provider_name: gpu for gpu in self.compiled.whole_gpus}

    @cached_property
    def functions(self) -> dict[tuple[str, str], PciFunction]:
        """The recorded functions, by host and address."""
        return {
            (host, function.address): function
            for host, inventory in self.inventories.items()
            for function in inventory.functions
        }

    def function(self, device: DeviceSeen) -> PciFunction | None:
        return self.functions.get((device.host, device.address))

    @cached_property
    def pool_of_alias(self) -> dict[str, str]:
        """The site's aliases, each with its pool."""
        site = self.compiled.site
        pools_by_alias = {alias(site, pool): pool for pool in site.pools}
        for gpu in self.compiled.gpus:
            if gpu.marked_lone:
                pools_by_alias[lone_alias(site, gpu.pool)] = gpu.pool
            if gpu.set_letter:
                pools_by_alias[leader_alias(site, gpu.pool, gpu.set_letter)] = gpu.pool
                pools_by_alias[peer_alias(site, gpu.pool, gpu.set_letter)] = gpu.pool
        return pools_by_alias

    def asked(self, server: ServerSeen) -> dict[str, int]:
        """Return how many GPUs of each pool a server's flavor asks for."""
        counts_by_pool: dict[str, int] = {}
        for name, number in asked_devices(server.specs).items():
            pool = self.pool_of_alias.get(name)
            if pool is not None:
                counts_by_pool[pool] = counts_by_pool.get(pool, 0) + number
        return counts_by_pool

    def devices_on_site(self) -> list[DeviceSeen]:
        return [device for device in self.world.devices.values() if device.host in self.compiled.site.hosts]
