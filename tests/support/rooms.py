"""What is left on the hosts of a site, without a cloud, and a Placement that gives of it what a server asks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice, HostResources
from gpuyard.diagnosis.capacity.reckon import Statuses
from gpuyard.diagnosis.why.causes import unmet
from gpuyard.diagnosis.why.facts import Asker, ComputeNode, HostStock, Limit
from gpuyard.diagnosis.why.read_scheduling import placement_decides, pools_of_classes, scheduling, site_aliases
from gpuyard.model.gpu import Gpu, GpuState, GpuStatus
from gpuyard.nova.request import NovaFlavor, Request
from gpuyard.openstack.errors import CloudError
from gpuyard.site.encoding import count_class, slot_traits
from gpuyard.site.load import LoadedSite
from gpuyard.site.objects import site_trait

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def room_of(loaded: LoadedSite, **more: object) -> CloudResources:
    """Everything free."""
    compiled = loaded.compiled
    room = CloudResources(
        taken_at=NOON,
        flavors=tuple(
            NovaFlavor(
                flavor.name, flavor.name, flavor.vcpus, flavor.ram, flavor.disk, flavor.ephemeral, public=flavor.public,
                projects=frozenset(f"p-{name}" for name in flavor.projects), extra_specs=flavor.extra_specs,
            )
            for flavor in compiled.flavors
        ),
        hosts=tuple(_host(loaded, name) for name in loaded.site.hosts),
        gpus=compiled.gpus,
        reported=frozenset({gpu.resource_class for gpu in compiled.gpus} | {"VCPU", "MEMORY_MB", "DISK_GB"}).union(
            *(config.inventories for config in compiled.provider_configs)
        ),
        aliases=site_aliases(compiled),
        placed=placement_decides(compiled),
        pools=pools_of_classes(compiled),
        counting=frozenset(map(count_class, loaded.site.pools)),
        **scheduling(compiled),
    )  # fmt: skip
    return replace(room, **more)  # type: ignore[arg-type]


def _host(loaded: LoadedSite, name: str) -> HostResources:
    (has,) = [capacity for capacity in loaded.compiled.capacities if capacity.host == name]
    config = loaded.compiled.provider_config_of(name)
    totals = {**has.total.classes, **config.inventories}
    plain = {"VCPU": has.total.vcpus, "MEMORY_MB": has.total.ram, "DISK_GB": has.total.disk}
    stocks = {resource_class: HostStock(total) for resource_class, total in {**totals, **plain}.items()}
    node = ComputeNode(name, f"id-{name}", name, hypervisor_type="QEMU", rooms=stocks, zone="nova", numa_nodes=2)
    devices = tuple(device_of(gpu) for gpu in loaded.compiled.gpus if gpu.host == name and not gpu.blocked)
    return HostResources(node, frozenset({*config.traits, site_trait(loaded.site.site)}), devices)


def device_of(gpu: Gpu) -> FreeDevice:
    traits = slot_traits(gpu)
    return FreeDevice(gpu.provider_name, {gpu.resource_class: 1}, traits)


def taken(resources: CloudResources, host: str, request: Request, rng: random.Random) -> CloudResources | None:
    """The room once a server is on a host, with devices by chance; None when Placement would not give them."""
    (old,) = [candidate for candidate in resources.hosts if candidate.node.name == host]
    stocks = dict(old.node.rooms or {})
    for name, needs in request.amounts.items():
        has = stocks.get(name)
        if has is None or needs > min(has.free, has.max_unit):
            return None
        stocks[name] = replace(has, used=has.used + needs)
    left = {device.provider: device for device in old.devices}
    ways = [
        [
            device.provider
            for device in left.values()
            if device.left.get(need.resource_class) and need.traits <= device.traits
        ]
        for need in request.devices
    ]
    if unmet(ways):
        return None
    for _ in range(1000):
        chosen = [rng.choice(way) for way in ways]
        if len(set(chosen)) == len(chosen):
            break
    for provider in chosen if ways else ():
        del left[provider]
    new = HostResources(replace(old.node, rooms=stocks), old.traits, tuple(left.values()))
    return replace(resources, hosts=tuple(new if host is old else host for host in resources.hosts))


def free_of(room: CloudResources) -> Statuses:
    """What would be said of the GPUs."""
    free = {device.provider for host in room.hosts for device in host.devices}
    return {
        gpu.provider_name: GpuStatus(gpu, GpuState.FREE if gpu.provider_name in free else GpuState.CLAIMED)
        for gpu in room.gpus
    }


@dataclass
class Knows:
    """A cloud that says what a test wants, and counts how often it is asked."""

    room: CloudResources
    used: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Project's id -> resource -> what is left of its limit."""
    down: bool = False
    reads: int = 0

    def read(self, now: datetime) -> CloudResources:
        self.reads += 1
        self._answer()
        return replace(self.room, taken_at=now)

    def limits(self, asker: Asker, resources: Iterable[str]) -> Asker:
        self._answer()
        left = self.used.get(asker.id, {})
        limits = tuple(Limit(name, left.get(name, -1), 0, True) for name in sorted(resources))
        return replace(asker, limits=limits)

    def _answer(self) -> None:
        if self.down:
            raise CloudError("the cloud is away")
