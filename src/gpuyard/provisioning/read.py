"""Reads the objects that a site manages: flavors with access, limits, aggregates, images, and reported provider.yaml.

docs/reference/openstack-calls.md has the calls; none of them grows with the GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.model.world import Provider
from gpuyard.nova.request import NovaFlavor
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import PAGE, Reader
from gpuyard.openstack.rows import ZONE, AggregateRow, LimitRow
from gpuyard.openstack.silent_cells import list_hypervisors
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import (
    AggregateObject,
    FlavorObject,
    ImageObject,
    LimitObject,
    SeenAggregate,
    SeenFlavor,
    SeenImage,
    SeenLimit,
    SeenObjects,
)
from gpuyard.site.provider_config import ProviderConfig

OF_PROVIDER_CONFIGS = re.compile(r"^CUSTOM_(NOGPU_\w+|GPU_\w+_COUNT)$")


def read_objects(api: CloudApi, compiled: CompiledSite | None = None, look_at_hosts: bool = True) -> SeenObjects:
    """Return the cloud's objects. Images and hosts, which only a site can name, are left out without one; the hosts'
    inventories in Placement are also left out without `look_at_hosts`."""
    with Reader(api) as cloud:
        return see_objects(cloud, compiled, look_at_hosts)


def see_objects(cloud: Reader, compiled: CompiledSite | None, look_at_hosts: bool) -> SeenObjects:
    """Return the same as `read_objects`, with an open reader."""
    projects = cloud.projects()
    names = {identity: name for name, identity in projects.items()}
    limits = cloud.later(cloud.limits)
    aggregates = cloud.later(cloud.aggregates)
    services = cloud.later(cloud.services)
    configs = compiled.provider_configs if compiled and look_at_hosts else None
    hypervisors = cloud.later(lambda: list_hypervisors(cloud, services.result())) if configs is not None else None
    images = [cloud.later(_images, cloud, image) for image in (compiled.images if compiled else ())]
    flavors = cloud.flavors()
    access = cloud.each(cloud.access, [flavor.id for flavor in flavors if not flavor.public])
    placed = _hosts_in_placement(cloud, configs) if configs is not None else {}
    registered, own = limits.result()
    return SeenObjects(
        flavors=tuple(
            SeenFlavor(flavor.id, _flavor(flavor, {names.get(p, p) for p in access.get(flavor.id, ())}))
            for flavor in flavors
        ),
        limits=(
            *(SeenLimit(row.id, _limit(row, None)) for row in registered),
            *(SeenLimit(row.id, _limit(row, _owner(row, names))) for row in own),
        ),
        projects=projects,
        aggregates=tuple(SeenAggregate(row.id, _aggregate(row)) for row in aggregates.result()),
        images=tuple(image for later in images for image in later.result()),
        hosts=frozenset(services.result()),
        up=frozenset(host for host, service in services.result().items() if service.up),
        busy=frozenset(row.host for row in hypervisors.result() if row.busy) if hypervisors else frozenset(),
        **placed,
    )


def _flavor(flavor: NovaFlavor, projects: set[str]) -> FlavorObject:
    return FlavorObject(
        name=flavor.name,
        vcpus=flavor.vcpus,
        ram=flavor.ram,
        disk=flavor.disk,
        ephemeral=flavor.ephemeral,
        public=flavor.public,
        extra_specs=dict(flavor.extra_specs),
        projects=frozenset(projects),
        description=flavor.description,
    )


def _owner(row: LimitRow, names: Mapping[str, str]) -> str:
    """The project of a limit. One of a whole domain stands under a name that no project can have."""
    return names.get(row.project, row.project) if row.project else f"(domain {row.domain})"


def _limit(row: LimitRow, project: str | None) -> LimitObject:
    return LimitObject(row.resource, row.value, project, row.description)


def _aggregate(row: AggregateRow) -> AggregateObject:
    metadata = {key: value for key, value in row.metadata.items() if key != ZONE}
    return AggregateObject(row.name, row.hosts, row.zone, metadata)


def _images(cloud: Reader, image: ImageObject) -> list[SeenImage]:
    """Glance's images of that name, with the properties that the site states. Others' own images are not meant."""
    return [
        SeenImage(row["id"], ImageObject(row["name"], {key: str(row[key]) for key in image.properties if key in row}))
        for row in cloud.members("image", "/images", "images", name=image.name, limit=PAGE)
        if row["visibility"] == "public" or row["owner"] == cloud.api.project
    ]


def _hosts_in_placement(cloud: Reader, configs: Sequence[ProviderConfig]) -> dict[str, Any]:
    """What hosts have of their provider.yaml, as `SeenObjects` has it: the inventory of each host that has one, and
    what else has classes of ours. Hosts that the site does not name (any more) are only found while they have room."""
    classes_by_host = {config.host: frozenset(config.inventories) for config in configs}
    known_classes = cloud.members("placement", "/resource_classes", "resource_classes")
    ours = [row["name"] for row in known_classes if OF_PROVIDER_CONFIGS.match(row["name"])]
    traits = {trait for config in configs for trait in config.traits}
    with_class = cloud.each(lambda name: cloud.able(resources=f"{name}:1") or frozenset(), ours)
    with_trait = cloud.each(lambda name: cloud.able(required=name) or frozenset(), traits)
    providers = cloud.providers()
    others = frozenset[str]().union(*with_class.values())
    hosts = {
        provider.name: provider
        for provider in providers.values()
        if provider.name in classes_by_host or provider.id in others
    }
    stock = cloud.each(lambda host: cloud.stock(hosts[host].id), hosts)
    strays = {host: _ours(stock[host]) - classes_by_host.get(host, frozenset()) for host in hosts}
    usages = cloud.each(lambda host: cloud.usages(hosts[host].id), [host for host in hosts if strays[host]])
    in_use = {host: frozenset(name for name in strays[host] if used.get(name)) for host, used in usages.items()}
    reported = {
        name: {host for host in classes_by_host if name in stock.get(host, {})}
        for names in classes_by_host.values()
        for name in names
    } | {
        trait: {c.host for c in configs if trait in c.traits and _id(hosts.get(c.host)) in members}
        for trait, members in with_trait.items()
    }
    return {
        "reported": {name: frozenset(reporters) for name, reporters in reported.items()},
        # What can be had in all: 0 of what is reserved entirely.
        "totals": {
            h: {name: inventory.total - inventory.reserved for name, inventory in stock[h].items()}
            for h in classes_by_host
            if h in stock
        },
        "in_use": {host: names for host, names in in_use.items() if names},
    }


def _id(provider: Provider | None) -> str | None:
    return provider.id if provider else None


def _ours(names: Mapping[str, object]) -> frozenset[str]:
    return frozenset(name for name in names if OF_PROVIDER_CONFIGS.match(name))
