"""Reads the objects that a site manages: flavors with their access, limits, aggregates, properties of images, and what
hosts have reported of their provider.yaml.

====================================================  =====================================================
1                                                     projects of the default domain
1 per 1,000 flavors, and 1 per private flavor         flavors and who may use them
3 or 4                                                Nova's service in the catalogue, its region, limits of both kinds
2, and 1 per 1,000 hypervisors                        aggregates, nova-compute services, hosts with servers
1 per image that the site names                       its properties
1 per trait of the site's provider.yaml               which hosts have it
1 per host of the site, 1 per class of ours           its inventory; which other hosts have the class
1 per host with a class that is not to be there       whether servers consume it
2, and 1 per 1,000 hypervisors                        resource providers and classes; whose host is which
====================================================  =====================================================

None of them grows with the number of GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.model.errors import UsageError
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
BAD_REQUEST = 400
DOMAIN = "default"
"""Id of the domain that a site's projects are in."""
PARALLEL = 4
ZONE = "availability_zone"


def read_objects(api: CloudApi, compiled: CompiledSite | None = None, look_at_hosts: bool = True) -> SeenObjects:
    """What the cloud has now. What only a site can name, its images and hosts, is left out without one; what hosts have
    in Placement is also left out without `look_at_hosts`."""
    # Of one domain: another one may have a project of the same name, and must not get its limits and flavors.
    rows = api.get("identity", "/projects", domain_id=DOMAIN)["projects"]
    projects = {row["name"]: row["id"] for row in rows}
    names = {identity: name for name, identity in projects.items()}
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="read") as pool:
        limits = pool.submit(_limits, api, names)
        aggregates = pool.submit(_aggregates, api)
        services = pool.submit(api.get, "compute", "/os-services", binary="nova-compute")
        configs = compiled.provider_configs if compiled and look_at_hosts else None
        placed = pool.submit(_hosts_in_placement, api, configs) if configs is not None else None
        busy = pool.submit(_busy, api) if configs is not None else None
        flavors = list(api.pages("compute", "/flavors/detail", "flavors", is_public="None", limit=1000))
        private = [row["id"] for row in flavors if not row["os-flavor-access:is_public"]]
        access = dict(zip(private, pool.map(lambda identity: _access(api, identity), private), strict=True))
        images = [pool.submit(_images, api, image) for image in (compiled.images if compiled else ())]
        return SeenObjects(
            flavors=tuple(SeenFlavor(row["id"], _flavor(row, access, names)) for row in flavors),
            limits=limits.result(),
            projects=projects,
            aggregates=aggregates.result(),
            images=tuple(found for later in images for found in later.result()),
            hosts=frozenset(row["host"] for row in services.result()["services"]),
            up=frozenset(row["host"] for row in services.result()["services"] if row["state"] == "up"),
            busy=busy.result() if busy else frozenset(),
            in_use=placed.result().in_use if placed else {},
            totals=placed.result().totals if placed else {},
            reported=placed.result().reported if placed else {},
        )


def _busy(api: CloudApi) -> frozenset[str]:
    """Hosts that have servers."""
    rows = api.pages("compute", "/os-hypervisors/detail", "hypervisors", limit=1000)
    return frozenset(row["service"]["host"] for row in rows if row["running_vms"])


def _access(api: CloudApi, identity: str) -> list[str]:
    """Ids of the projects that may use a private flavor."""
    rows = api.get("compute", f"/flavors/{identity}/os-flavor-access")["flavor_access"]
    return [row["tenant_id"] for row in rows]


def _flavor(row: Mapping[str, Any], access: Mapping[str, list[str]], names: Mapping[str, str]) -> FlavorObject:
    return FlavorObject(
        name=row["name"],
        vcpus=row["vcpus"],
        ram=row["ram"],
        disk=row["disk"],
        ephemeral=row["OS-FLV-EXT-DATA:ephemeral"],
        public=row["os-flavor-access:is_public"],
        extra_specs=row["extra_specs"],
        projects=frozenset(names.get(identity, identity) for identity in access.get(row["id"], ())),
        description=row["description"] or "",
    )


def _limits(api: CloudApi, names: Mapping[str, str]) -> tuple[SeenLimit, ...]:
    service = compute_service(api)
    region = region_of(api, service)
    registered = api.get("identity", "/registered_limits", service_id=service)["registered_limits"]
    own = api.get("identity", "/limits", service_id=service)["limits"]
    return (
        *(SeenLimit(row["id"], _limit(row, "default_limit", None)) for row in registered if row["region_id"] == region),
        *(
            SeenLimit(row["id"], _limit(row, "resource_limit", _owner(row, names)))
            for row in own
            if row["region_id"] == region
        ),
    )


def _owner(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The project of a limit. One of a whole domain stands under a name that no project can have."""
    if row["project_id"]:
        return names.get(row["project_id"], str(row["project_id"]))
    return f"(domain {row['domain_id']})"


def region_of(api: CloudApi, service: str) -> str | None:
    """The region whose limits Nova asks for: that of its endpoint, which clouds.yaml need not name."""
    if api.region:
        return api.region
    endpoints = api.get("identity", "/endpoints", service_id=service)["endpoints"]
    regions = sorted({row["region_id"] for row in endpoints if row["region_id"]})
    if len(regions) > 1:
        raise UsageError(
            f"cloud {api.name} has Nova in the regions {', '.join(regions)}: name one in clouds.yaml (region_name)"
        )
    return regions[0] if regions else None


def _limit(row: Mapping[str, Any], value: str, project: str | None) -> LimitObject:
    return LimitObject(row["resource_name"], row[value], project, row["description"] or "")


def compute_service(api: CloudApi) -> str:
    """The id of Nova in Keystone's catalogue, which limits are kept under."""
    services = api.get("identity", "/services", type="compute")["services"]
    if not services:
        raise CloudError(f"cloud {api.name}: Keystone has no service of type compute; is Nova installed?")
    return str(services[0]["id"])


def _aggregates(api: CloudApi) -> tuple[SeenAggregate, ...]:
    rows = api.get("compute", "/os-aggregates")["aggregates"]
    return tuple(SeenAggregate(str(row["id"]), _aggregate(row)) for row in rows)


def _aggregate(row: Mapping[str, Any]) -> AggregateObject:
    metadata = {key: value for key, value in row["metadata"].items() if key != ZONE}
    return AggregateObject(row["name"], frozenset(row["hosts"]), row[ZONE], metadata)


def _images(api: CloudApi, wanted: ImageObject) -> list[SeenImage]:
    """Glance's images of that name, with the properties that the site states. Others' own images are not meant."""
    rows = [
        row
        for row in api.get("image", "/images", name=wanted.name)["images"]
        if row["visibility"] == "public" or row["owner"] == api.project
    ]
    return [
        SeenImage(row["id"], ImageObject(row["name"], {key: str(row[key]) for key in wanted.properties if key in row}))
        for row in rows
    ]


@dataclass(frozen=True)
class HostsInPlacement:
    """What hosts have of their provider.yaml."""

    reported: Mapping[str, frozenset[str]]
    """Class or trait -> hosts that are to report it and do."""
    totals: Mapping[str, Mapping[str, int]]
    in_use: Mapping[str, frozenset[str]]
    """Host -> classes of ours that servers there consume, and that the site does not have for it."""


def _hosts_in_placement(api: CloudApi, configs: Sequence[ProviderConfig]) -> HostsInPlacement:
    """Asks for the inventory of each host that has a provider.yaml, and for whatever else has classes of ours."""
    wanted = {config.host: frozenset(config.inventories) for config in configs}
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="inventories") as pool:
        traits = {trait for config in configs for trait in config.traits}
        with_trait = dict(zip(traits, pool.map(lambda one: _providers_with(api, required=one), traits), strict=True))
        # Hosts that the site does not name (any more) are only found while they have room left.
        known = api.get("placement", "/resource_classes")["resource_classes"]
        ours = [row["name"] for row in known if OF_PROVIDER_CONFIGS.match(row["name"])]
        ids = {row["name"]: row["uuid"] for row in api.providers() if row["name"] in wanted}
        ids |= {name: one for rows in pool.map(lambda c: _strangers(api, c, wanted), ours) for name, one in rows}
        totals = dict(zip(ids, pool.map(lambda one: _totals(api, one), ids.values()), strict=True))
        strays = {host: _ours(totals[host]) - wanted.get(host, frozenset()) for host in ids}
        usages = pool.map(lambda host: _usages(api, ids[host]) if strays[host] else {}, ids)
        used = {host: frozenset(c for c in strays[host] if row.get(c)) for host, row in zip(ids, usages, strict=True)}
    reported = {
        name: {host for host in wanted if name in totals.get(host, {})} for names in wanted.values() for name in names
    }
    members = {trait: names & {c.host for c in configs if trait in c.traits} for trait, names in with_trait.items()}
    return HostsInPlacement(
        reported={name: frozenset(hosts) for name, hosts in {**reported, **members}.items()},
        totals={host: totals[host] for host in wanted if host in totals},
        in_use={host: names for host, names in used.items() if names},
    )


def _strangers(api: CloudApi, name: str, wanted: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = api.providers(resources=f"{name}:1")
    return [(row["name"], row["uuid"]) for row in rows if row["name"] not in wanted]


def _totals(api: CloudApi, provider: str) -> dict[str, int]:
    """Class -> what can be had of it in all; one of which everything is reserved has 0."""
    rows = api.get("placement", f"/resource_providers/{provider}/inventories")["inventories"]
    return {name: row["total"] - row["reserved"] for name, row in rows.items()}


def _ours(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if OF_PROVIDER_CONFIGS.match(name))


def _usages(api: CloudApi, provider: str) -> dict[str, int]:
    return dict(api.get("placement", f"/resource_providers/{provider}/usages")["usages"])


def _providers_with(api: CloudApi, **query: object) -> frozenset[str]:
    """Names of the providers that a question means."""
    try:
        return frozenset(row["name"] for row in api.providers(**query))
    except CloudError as error:
        if error.status == BAD_REQUEST:  # Placement does not know the word: no nova-compute has reported it
            return frozenset()
        raise
