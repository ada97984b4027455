"""Generates Nova's and Placement's options for a site, with the reason for each.

Every device is named by its full address and by vendor and product: after a renumbering the worst is that nothing
matches, never that another device does. All aliases go to every Nova service; device_spec is a host's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuyard.model.gpu import GpuKind
from gpuyard.nova.filters import AGGREGATE_FILTER, DEFAULTS, NUMA_FILTER, PCI_FILTER
from gpuyard.nova.options import MDEV_TYPES, mdev_sections, name_in
from gpuyard.nova.release import RELEASES, Release
from gpuyard.site.capacity import cpu_ratio
from gpuyard.site.encoding import (
    LONE_TRAIT,
    EncodedGpu,
    count_class,
    peer_class,
    pool_class,
    set_trait,
    slot_trait,
)
from gpuyard.site.gateway_rules import SiteGateway
from gpuyard.site.options import Option, ServiceOptions, compact_json
from gpuyard.site.schema import Host, Site

# From this many GPUs of a pool on one host, or in one flavor, Placement's search for candidates takes seconds to
# minutes unless it is bounded.
WIDE_HOST = 8
WIDE_FLAVOR = 5
# Candidates are wanted from every hypervisor: what Nova filters out later must not be all that it got.
MAX_CANDIDATES = 100
CANDIDATES_PER_HYPERVISOR = 4

SPEC_REASON = "one line per GPU: the leader of an IOMMU group has the pool's class, its peers their own"
VF_REASON = "one line per virtual function; Placement counts them at their card"
MDEV_REASON = "which functions make vGPUs of which type, and the class that Placement counts them by"
ALIAS_REASON = "what flavors ask for; the same on every Nova service, because resize and migration read it too"
ORDER_REASON = "one scheduling decision at a time: requests that come together would otherwise pick the same GPU"
CONSOLE_REASON = "browsers find consoles at the gateway, by TLS"
CONSOLE_URLS = {
    "novnc": ("vnc", "novncproxy_base_url", "https", "/vnc_lite.html"),
    "spice": ("spice", "html5proxy_base_url", "https", "/spice_auto.html"),
    "serial": ("serial_console", "base_url", "wss", "/"),
}
"""Kind of console -> section, option, protocol, and the page that Kolla's nova.conf has there."""
WIDE_REASON = "hosts with many GPUs of one class: bound Placement's search for candidates"


def alias(site: Site, pool: str) -> str:
    """Return the alias for any GPU of a pool that can be had alone."""
    return site.pools[pool].alias or pool


def lone_alias(site: Site, pool: str) -> str:
    """Return the alias for a GPU of a pool that is alone in its IOMMU group."""
    return f"{alias(site, pool)}-lone"


def leader_alias(site: Site, pool: str, letter: str) -> str:
    return f"{alias(site, pool)}-set-{letter.lower()}"


def peer_alias(site: Site, pool: str, letter: str) -> str:
    return f"{alias(site, pool)}-peer-{letter.lower()}"


def nova_options(site: Site, encoded: Sequence[EncodedGpu]) -> tuple[ServiceOptions, ...]:
    """Return the options of every service, common ones first, then host by host."""
    by_host: dict[str, list[EncodedGpu]] = {name: [] for name in site.hosts}
    for item in encoded:
        if item.offered and item.gpu.host in by_host:
            by_host[item.gpu.host].append(item)
    release = RELEASES[site.release]
    return (
        ServiceOptions("nova", None, _named(_common(site, encoded), release)),
        ServiceOptions("nova-scheduler", None, _named(_scheduler(site), release)),
        ServiceOptions("placement", None, tuple(_placement(site, encoded))),
        *(
            ServiceOptions("nova-compute", name, _named(_compute(site, name, mine), release))
            for name, mine in by_host.items()
        ),
    )


def _named(options: Iterable[Option], release: Release) -> tuple[Option, ...]:
    """The options under the names that they have in a release."""
    names = ((option, *name_in((option.section, option.key), release)) for option in options)
    return tuple(replace(option, section=section, key=key) for option, section, key in names)


def _common(site: Site, encoded: Sequence[EncodedGpu]) -> Iterable[Option]:
    by_pool: dict[str, list[EncodedGpu]] = {name: [] for name in site.pools}
    for item in encoded:
        if item.offered:
            by_pool[item.gpu.pool].append(item)
    for pool, members in by_pool.items():
        for value in _aliases(site, pool, members):
            yield Option("pci", "alias", compact_json(value), ALIAS_REASON)
    for extra in site.extra_aliases:
        yield Option("pci", "alias", compact_json(extra), "other devices, from 'extra_aliases'")
    if site.pci_in_placement == "on":
        reason = "Placement knows each GPU, and limits count them"
        yield Option("filter_scheduler", "pci_in_placement", "true", reason)
    reason = "Nova's defaults, and the filters for PCI devices and NUMA"
    filters = (
        *DEFAULTS,
        PCI_FILTER,
        NUMA_FILTER,
        *([AGGREGATE_FILTER] if site.aggregates else []),
        *site.extra_filters,
    )
    yield Option("filter_scheduler", "enabled_filters", ",".join(dict.fromkeys(filters)), reason)
    if site.isolated:
        reason = "the site's hosts take only servers whose flavor asks for the site's trait"
        yield Option("scheduler", "enable_isolated_aggregate_filtering", "true", reason)
    if site.gpu_quotas:
        yield from _quotas(site, by_pool)
    if site.gateway is not None:
        yield from _consoles(site.gateway)


def _consoles(gateway: SiteGateway) -> Iterable[Option]:
    """Nova's proxies compare protocol and name with those that a browser says it is at."""
    for name, endpoint in gateway.consoles.items():
        section, key, scheme, page = CONSOLE_URLS[name]
        yield Option(section, key, f"{scheme}://{endpoint.public.authority}{page}", CONSOLE_REASON)
    if "serial" in gateway.consoles and gateway.dashboard is not None:
        reason = "pages of Horizon open serial consoles themselves"
        yield Option("console", "allowed_origins", gateway.dashboard.public.name, reason)


def _quotas(site: Site, by_pool: dict[str, list[EncodedGpu]]) -> Iterable[Option]:
    reason = "limits live in Keystone, where GPUs can be counted"
    yield Option("quota", "driver", "nova.quota.UnifiedLimitsDriver", reason)
    if RELEASES[site.release].limits_named:
        reason = "without a registered limit a class is unlimited for everybody; those named here are then nobody's"
        classes = [name for pool in by_pool for name in limited_classes(site, pool, by_pool[pool])]
        yield Option("quota", "unified_limits_resource_strategy", "require", reason)
        named = ",".join(["servers", *(f"class:{name}" for name in classes)])
        yield Option("quota", "unified_limits_resource_list", named, reason)
    if any(wish.vcpus is not None for wish in (site.limits, *site.projects.values())):
        reason = "a limit on vCPUs is one on dedicated ones too"
        yield Option("workarounds", "unified_limits_count_pcpu_as_vcpu", "true", reason)


def limited_classes(site: Site, pool: str, members: Iterable[EncodedGpu]) -> list[str]:
    """Return the resource classes of a pool that limits are on.

    The class that counts GPUs is asked for by the site's flavors, so Nova counts it in every release, and on every
    path: the classes of the GPUs themselves are counted from 2026.2 on, but not when a server is resized. Limits on
    those hold for flavors that somebody else makes.
    """
    if not site.pools[pool].counted_by_alias:
        return [pool_class(pool)]  # flavors ask for it themselves, so Nova counts it in every release
    classes = [count_class(pool)]
    if RELEASES[site.release].pci_quotas and site.pci_in_placement == "on":
        classes.append(pool_class(pool))
        if any(item.gpu.resource_class == peer_class(pool) for item in members):
            classes.append(peer_class(pool))
    return classes


def _aliases(site: Site, pool: str, members: Sequence[EncodedGpu]) -> Iterable[dict[str, str]]:
    """The alias of a pool, then leader and peer of each of its sets. A pool without offered GPUs has none."""
    if not members or not site.pools[pool].counted_by_alias:
        return
    wish = site.pools[pool]
    more = {"device_type": members[0].function.device_type.value}
    if wish.numa:
        more["numa_policy"] = wish.numa
    if wish.live_migratable:
        more["live_migratable"] = "yes"
    models = sorted({(item.function.vendor_id, item.function.product_id) for item in members})
    named = [{"vendor_id": vendor, "product_id": product, **more} for vendor, product in models]
    if site.pci_in_placement != "on":
        # The same name again is an alternative, as long as Placement does not decide.
        yield from ({"name": alias(site, pool), **entry} for entry in named)
        return
    base = named[0] if len(named) == 1 else more  # the class alone tells several models from other pools
    yield {"name": alias(site, pool), **base, "resource_class": pool_class(pool)}
    if any(item.gpu.marked_lone for item in members):
        yield {"name": lone_alias(site, pool), **base, "resource_class": pool_class(pool), "traits": LONE_TRAIT}
    for letter in sorted({item.gpu.set_letter for item in members if item.gpu.set_letter}):
        trait = set_trait(letter)
        yield {"name": leader_alias(site, pool, letter), **base, "resource_class": pool_class(pool), "traits": trait}
        yield {"name": peer_alias(site, pool, letter), **base, "resource_class": peer_class(pool), "traits": trait}


def _scheduler(site: Site) -> Iterable[Option]:
    yield Option("DEFAULT", "executor_thread_pool_size", "1", ORDER_REASON)
    yield Option("scheduler", "workers", "1", ORDER_REASON)


def _placement(site: Site, encoded: Sequence[EncodedGpu]) -> Iterable[Option]:
    per_host: dict[tuple[str, str], int] = {}
    for item in encoded:
        key = (item.gpu.host, item.gpu.resource_class)
        per_host[key] = per_host.get(key, 0) + item.offered
    widest_flavor = max((sum(flavor.gpus.values()) for flavor in site.flavors.values()), default=0)
    if max(per_host.values(), default=0) < WIDE_HOST and widest_flavor < WIDE_FLAVOR:
        return
    candidates = max(MAX_CANDIDATES, CANDIDATES_PER_HYPERVISOR * (site.hypervisors or len(site.hosts)))
    yield Option("placement", "max_allocation_candidates", str(candidates), WIDE_REASON)
    yield Option("placement", "allocation_candidates_generation_strategy", "breadth-first", WIDE_REASON)
    if RELEASES[site.release].wide_trees:
        yield Option("workarounds", "optimize_for_wide_provider_trees", "true", WIDE_REASON)


def _compute(site: Site, name: str, mine: Sequence[EncodedGpu]) -> Iterable[Option]:
    """The options of a host's nova-compute; `mine` are the GPUs that it offers."""
    # Also on hosts that offer nothing now: one that has ever reported does not start without.
    if site.pci_in_placement != "off":
        reason = "each GPU becomes a provider in Placement; cannot be taken back on a host once it is set"
        yield Option("pci", "report_in_placement", "true", reason)
    for item in mine:
        if item.gpu.kind is not GpuKind.VGPU:
            reason = VF_REASON if item.gpu.kind is GpuKind.VF else SPEC_REASON
            yield Option("pci", "device_spec", compact_json(device_spec(site, item)), reason)
    for extra in site.hosts[name].extra_device_specs:
        yield Option("pci", "device_spec", compact_json(extra), "other devices, from 'extra_device_specs'")
    if any(site.pools[item.gpu.pool].live_migratable for item in mine):
        reason = "VFIO devices cannot migrate after the switch to the other host"
        yield Option("libvirt", "live_migration_permit_post_copy", "false", reason)
    yield from _mdevs(site, [item for item in mine if item.gpu.kind is GpuKind.VGPU])
    yield from _sharing(site.hosts[name], bool(mine))


def _mdevs(site: Site, mine: Sequence[EncodedGpu]) -> Iterable[Option]:
    """Every type with its devices by name: a type without would be made on whatever else the host has, and then Nova
    counts it as a plain VGPU."""
    makers: dict[str, dict[str, None]] = {}
    for item in mine:
        makers.setdefault(item.gpu.pool, {})[item.function.address] = None
    types = {pool: site.pools[pool].type or "" for pool in makers}
    if types:
        yield Option(*MDEV_TYPES, ",".join(types.values()), MDEV_REASON)
    for pool, kind in types.items():
        section, _ = mdev_sections(kind)
        yield Option(section, "device_addresses", ",".join(makers[pool]), MDEV_REASON)
        yield Option(section, "mdev_class", pool_class(pool), MDEV_REASON)


def _sharing(host: Host, with_gpus: bool) -> Iterable[Option]:
    """How a host's CPU, RAM and disk are shared."""
    if with_gpus or host.reserve is not None:
        reason = "VFIO pins all memory of a server with a GPU: it cannot be promised twice"
        yield Option("DEFAULT", "ram_allocation_ratio", "1.0", reason)
    if host.cpu_allocation_ratio is not None or host.reserve is not None:
        reason = "vCPUs for each CPU; what is kept for servers with GPUs is reckoned with it"
        yield Option("DEFAULT", "cpu_allocation_ratio", str(cpu_ratio(host)), reason)
    if host.reserve is not None:
        yield Option("DEFAULT", "disk_allocation_ratio", "1.0", "a reserve of disk is of real disk")
    reason = "what the host itself needs"
    if host.overhead.vcpus:
        yield Option("DEFAULT", "reserved_host_cpus", str(host.overhead.vcpus), reason)
    if "overhead" in host.model_fields_set or host.reserve is not None:
        yield Option("DEFAULT", "reserved_host_memory_mb", str(host.overhead.ram), reason)
    if host.overhead.disk:
        yield Option("DEFAULT", "reserved_host_disk_mb", str(host.overhead.disk * 1024), reason)
    reason = "which CPUs are shared, and which belong to one server each (hw:cpu_policy=dedicated)"
    if host.cpu_shared_set is not None:
        yield Option("compute", "cpu_shared_set", host.cpu_shared_set, reason)
    if host.cpu_dedicated_set is not None:
        yield Option("compute", "cpu_dedicated_set", host.cpu_dedicated_set, reason)


def device_spec(site: Site, item: EncodedGpu) -> dict[str, str]:
    """Return the ``[pci]device_spec`` of one GPU."""
    pool = site.pools[item.gpu.pool]
    spec = {
        "address": item.function.address,
        "vendor_id": item.function.vendor_id,
        "product_id": item.function.product_id,
    }
    if site.pci_in_placement != "off":
        spec["resource_class"] = item.gpu.resource_class
        if trait := slot_trait(item.gpu):
            spec["traits"] = trait
    if pool.managed is not None:
        spec["managed"] = "yes" if pool.managed else "no"
    elif item.function.vgpu_type is not None:
        spec["managed"] = "no"  # NVIDIA's driver gives it away itself: bound to another one it is no vGPU any more
    if pool.live_migratable:
        spec["live_migratable"] = "yes"
    if pool.one_time_use:
        spec["one_time_use"] = "true"
    return spec
