"""Clouds for tests of drift and of roll-outs: one that is as a site says, to be changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpuyard.diagnosis.drift.facts import DeviceSeen, HostSeen, ServerSeen, World
from gpuyard.diagnosis.rollout import Stage, staged
from gpuyard.model.world import HostService, Stock
from gpuyard.site.capacity import shared_cpus
from gpuyard.site.encoding import slot_traits
from gpuyard.site.load import LoadedSite
from gpuyard.site.objects import SeenAggregate, SeenFlavor, SeenImage, SeenLimit, SeenObjects, site_trait
from gpuyard.site.plan import flavor_id

FOREVER = 10**6


def world_of(loaded: LoadedSite) -> World:
    """The cloud that a site describes, without servers."""
    compiled = loaded.compiled
    hosts = {name: host_of(loaded, name) for name in loaded.site.hosts}
    reported: dict[str, frozenset[str]] = {}
    for config in compiled.provider_configs:
        for name in (
            *(resource_class for resource_class, total in config.inventories.items() if total),
            *config.traits,
        ):
            reported[name] = reported.get(name, frozenset()) | {config.host}
    return World(
        objects=SeenObjects(
            flavors=tuple(SeenFlavor(flavor_id(flavor.name), flavor) for flavor in compiled.flavors),
            limits=tuple(SeenLimit(f"limit-{n}", limit) for n, limit in enumerate(compiled.limits)),
            projects={name: f"id-{name}" for name in ("demo", "other")},
            aggregates=tuple(SeenAggregate(str(n), aggregate) for n, aggregate in enumerate(compiled.aggregates)),
            images=tuple(SeenImage(image.name, image) for image in compiled.images),
            hosts=frozenset(hosts),
            reported=reported,
        ),
        hosts=hosts,
        devices=devices_of(loaded, Stage(loaded.site.pci_in_placement)),
        servers={},
        services={name: HostService(name, True, True) for name in hosts},
        mirrored={aggregate.name: aggregate.hosts for aggregate in compiled.aggregates},
        microversion="2.104",
    )


def host_of(loaded: LoadedSite, name: str) -> HostSeen:
    """A host as its options and its provider.yaml make it report itself."""
    wish, facts = loaded.site.hosts[name], loaded.inventories[name].facts
    options = loaded.compiled.options_of("nova-compute", name)

    def value(key: str, default: float) -> float:
        return float((options.values("DEFAULT", key) or [str(default)])[-1])

    config = loaded.compiled.provider_config_of(name)
    memory = int(value("reserved_host_memory_mb", 512))
    stock = {
        "VCPU": Stock(
            shared_cpus(wish, facts), int(value("reserved_host_cpus", 0)), value("cpu_allocation_ratio", 4.0)
        ),
        "MEMORY_MB": Stock(facts.memory_mib, memory, value("ram_allocation_ratio", 1.0)),
        "DISK_GB": Stock(facts.disk_gib, -(-int(value("reserved_host_disk_mb", 0)) // 1024), 1.0),
        **{resource_class: Stock(total) for resource_class, total in config.inventories.items() if total},
    }
    trait = site_trait(loaded.site.site) in config.traits
    return HostSeen(name, f"id-{name}", HostService(name, True, True), stock, {}, trait)


def devices_of(loaded: LoadedSite, stage: Stage) -> dict[str, DeviceSeen]:
    """The PCI devices that hosts report at a stage, all free."""
    if stage is Stage.OFF:
        return {}
    return {
        gpu.provider_name: DeviceSeen(
            gpu.provider_name, f"id-{gpu.provider_name}", gpu.host, frozenset({gpu.resource_class}),
            slot_traits(gpu), {}, True,
            one_time_use=loaded.site.pools[gpu.pool].one_time_use,
        )
        for gpu in staged(loaded.site, loaded.inventories, stage).gpus
    }  # fmt: skip


def with_device(world: World, name: str, **change: Any) -> World:
    return replace(world, devices={**world.devices, name: replace(world.devices[name], **change)})


def with_host(world: World, name: str, **change: Any) -> World:
    return replace(world, hosts={**world.hosts, name: replace(world.hosts[name], **change)})


def with_stock(world: World, host: str, name: str, stock: Stock | None) -> World:
    rows = {key: value for key, value in world.hosts[host].stock.items() if key != name}
    return with_host(world, host, stock=rows if stock is None else {**rows, name: stock})


def with_server(
    world: World, loaded: LoadedSite, identity: str, flavor: str, host: str, devices: Iterable[str] = (), **change: Any
) -> World:
    """The cloud with a server of one of the site's flavors that has all that it should, and these devices."""
    made = next(candidate for candidate in loaded.compiled.flavors if candidate.name == flavor)
    server = ServerSeen(identity, identity, "ACTIVE", None, host, "id-demo", flavor, made.extra_specs)
    amounts = {"VCPU": made.vcpus, "MEMORY_MB": made.ram, "DISK_GB": made.disk}
    amounts |= {
        key.removeprefix("resources:"): int(value)
        for key, value in made.extra_specs.items()
        if key.startswith("resources:")
    }
    world = replace(world, servers={**world.servers, identity: replace(server, **change)})
    world = with_host(world, host, consumers={**world.hosts[host].consumers, identity: amounts})
    for name in devices:
        world = with_device(world, name, holders={**world.devices[name].holders, identity: 1}, free=False)
    return world
