"""Reads hosts, limits and options that decide about servers beside GPUs, the same way for `why/` and `capacity/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuyard.diagnosis.why.facts import Asker, ComputeNode, Limit
from gpuyard.model.errors import UsageError
from gpuyard.model.world import HostService, Provider
from gpuyard.nova.alias import Alias, aliases_of
from gpuyard.nova.filters import DEFAULTS
from gpuyard.nova.release import RELEASES
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import Hypervisor
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import count_class
from gpuyard.site.load import LoadedSite

SHARES = "MISC_SHARES_VIA_AGGREGATE"
# Nova's own, for a site that does not set the option.
DEFAULT_FILTERS = ",".join(DEFAULTS)
# Without a registered limit Nova refuses what this option names, and lets anybody have the rest; its own default.
DEFAULT_REQUIRED = "servers"


def asker_named(cloud: Reader, name: str) -> Asker:
    """Return a project by its id, or by its name as the site file has it. Raises UsageError."""
    projects = KeystonePeople(cloud.api).projects(name)
    if not projects:
        raise UsageError(f"cloud {cloud.api.name} has no project {name!r}; one of another domain is NAME@DOMAIN")
    return Asker(projects[0].id, projects[0].name)


def limits_of(cloud: Reader, compiled: CompiledSite, asker: Asker, resources: Iterable[str]) -> Asker:
    """Return the project with its limits on some resources, and its use of them, counted as Nova does."""
    usages = cloud.later(cloud.project_usages, asker.id)
    servers = cloud.pages("compute", "/servers", "servers", all_tenants=1, project_id=asker.id)
    used = {"servers": sum(1 for _ in servers)}
    registered, own = cloud.limits(project_id=asker.id)
    used |= {f"class:{name}": number for name, number in usages.result().items()}
    default = {row.resource: row.value for row in registered}
    mine = {row.resource: row.value for row in own}
    missing = set(_unregistered(compiled)) - default.keys() - mine.keys()
    default |= dict.fromkeys(missing, 0)
    return replace(
        asker,
        limits=tuple(
            Limit(name, mine.get(name, default.get(name, -1)), used.get(name, 0), name in mine, name not in missing)
            for name in resources
        ),
    )


def compute_nodes(
    loaded: LoadedSite,
    hypervisors: Iterable[Hypervisor],
    services: Mapping[str, HostService],
    providers: Iterable[Provider],
    sharing: frozenset[str],
) -> Iterable[ComputeNode]:
    """Return every hypervisor, and every root provider of which Nova knows none. `sharing`: ids of providers that are
    no hosts."""
    reserves_by_host = {
        capacity.host: capacity.reserve.classes for capacity in loaded.compiled.capacities if capacity.keeps
    }
    known_ids = set()
    for row in hypervisors:
        service, inventory = services.get(row.host), loaded.inventories.get(row.host)
        known_ids.add(row.id)
        yield ComputeNode(
            name=row.host,
            provider=row.id,
            service_host=row.host,
            up=row.up,
            enabled=row.enabled,
            forced_down=service is not None and service.forced_down,
            silent=service is not None and service.silent,
            disabled_reason=row.disabled_reason,
            zone=service.zone if service else "",
            hypervisor_type=row.type,
            numa_nodes=inventory.facts.numa_nodes if inventory else None,
            kept=reserves_by_host.get(row.host, {}),
        )
    for provider in providers:
        if provider.id == provider.root_id and provider.id not in known_ids | sharing:
            yield ComputeNode(provider.name, provider.id, provider.name, has_service=False)


def site_aliases(compiled: CompiledSite) -> dict[str, Alias]:
    """Return the aliases that the site gives to every Nova service."""
    return aliases_of(compiled.options_of("nova").values("pci", "alias"))


def placement_decides(compiled: CompiledSite) -> bool:
    """Return whether Nova asks Placement for GPUs; else only nova-compute knows which are taken."""
    return _option(compiled, "filter_scheduler", "pci_in_placement") == "true"


def pools_of_classes(compiled: CompiledSite) -> dict[str, str]:
    """Return the pool of each resource class of GPUs, and of each class that counts them."""
    return {gpu.resource_class: gpu.pool for gpu in compiled.gpus} | {
        count_class(pool): pool for pool in compiled.site.pools
    }


def scheduling(compiled: CompiledSite) -> dict[str, Any]:
    """Return fields of `RequestFacts` that follow from options of Nova's services."""
    filters = _option(compiled, "filter_scheduler", "enabled_filters") or DEFAULT_FILTERS
    isolated = _option(compiled, "scheduler", "enable_isolated_aggregate_filtering") or "false"
    return {
        "filters": frozenset(name.strip() for name in filters.split(",")),
        "isolated_aggregates": isolated.lower() == "true",
        "counts_devices": RELEASES[compiled.site.release].pci_quotas,
    }


def _option(compiled: CompiledSite, section: str, key: str) -> str | None:
    """An option of the services that no host has for itself; None when the site does not set it."""
    values = [v for options in compiled.options if options.host is None for v in options.values(section, key)]
    return values[-1] if values else None


def _unregistered(compiled: CompiledSite) -> list[str]:
    """Resources that nobody gets while no limit is registered for them."""
    named = _option(compiled, "quota", "unified_limits_resource_list") or DEFAULT_REQUIRED
    return [name.strip() for name in named.split(",")]
