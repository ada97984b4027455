"""Nova's and Placement's options for a site, with the reason for each.

Every device is named by its full address and by vendor and product: after a renumbering the worst is that nothing
matches, never that another device does. All aliases go to every Nova service; device_spec is a host's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuyard.model.gpu import GpuRole
from gpuyard.site.encoding import EncodedGpu, peer_class, pool_class, set_trait
from gpuyard.site.options import Option, ServiceOptions, compact_json
from gpuyard.site.schema import Site

# Nova's own default list, which setting the option replaces as a whole, and the two that GPUs need.
ENABLED_FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "PciPassthroughFilter",
    "NUMATopologyFilter",
)
# From this many GPUs of a pool on one host, or in one flavor, Placement's search for candidates takes seconds to
# minutes unless it is bounded.
WIDE_HOST = 8
WIDE_FLAVOR = 5
MAX_CANDIDATES = 100

SPEC_REASON = "one line per GPU: the leader of an IOMMU group has the pool's class, its peers their own"
ALIAS_REASON = "what flavors ask for; the same on every Nova service, because resize and migration read it too"
ORDER_REASON = "one scheduling decision at a time: requests that come together would otherwise pick the same GPU"
WIDE_REASON = "hosts with many GPUs of one class: bound Placement's search for candidates"


def alias(pool: str) -> str:
    """Any GPU of a pool that can be had alone."""
    return pool


def leader_alias(pool: str, letter: str) -> str:
    return f"{pool}-set-{letter.lower()}"


def peer_alias(pool: str, letter: str) -> str:
    return f"{pool}-peer-{letter.lower()}"


def nova_options(site: Site, encoded: Sequence[EncodedGpu]) -> tuple[ServiceOptions, ...]:
    """The options of every service, common ones first, then host by host."""
    return (
        ServiceOptions("nova", None, tuple(_common(site, encoded))),
        ServiceOptions("nova-scheduler", None, tuple(_scheduler())),
        ServiceOptions("placement", None, tuple(_placement(site, encoded))),
        *(ServiceOptions("nova-compute", host, tuple(_compute(host, encoded))) for host in site.hosts),
    )


def _common(site: Site, encoded: Sequence[EncodedGpu]) -> Iterable[Option]:
    for pool in site.pools:
        for value in _aliases(pool, [item for item in encoded if item.gpu.pool == pool and item.offered]):
            yield Option("pci", "alias", compact_json(value), ALIAS_REASON)
    reason = "Placement knows each GPU, and limits count them"
    yield Option("filter_scheduler", "pci_in_placement", "true", reason)
    reason = "Nova's defaults, and the filters for PCI devices and NUMA"
    yield Option("filter_scheduler", "enabled_filters", ",".join(ENABLED_FILTERS), reason)
    reason = "limits live in Keystone, where GPUs can be counted"
    yield Option("quota", "driver", "nova.quota.UnifiedLimitsDriver", reason)


def _aliases(pool: str, members: Sequence[EncodedGpu]) -> Iterable[dict[str, str]]:
    """The alias of a pool, then leader and peer of each of its sets. A pool without offered GPUs has none."""
    if not members:
        return
    ids = {item.gpu.ids for item in members}
    base = {"device_type": members[0].function.device_type.value}
    if len(ids) == 1:  # with several models the resource class alone tells them from other pools
        base = {"vendor_id": members[0].function.vendor_id, "product_id": members[0].function.product_id, **base}
    yield {"name": alias(pool), **base, "resource_class": pool_class(pool)}
    for letter in sorted({item.gpu.set_letter for item in members if item.gpu.set_letter}):
        trait = set_trait(letter)
        yield {"name": leader_alias(pool, letter), **base, "resource_class": pool_class(pool), "traits": trait}
        yield {"name": peer_alias(pool, letter), **base, "resource_class": peer_class(pool), "traits": trait}


def _scheduler() -> Iterable[Option]:
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
    yield Option("placement", "max_allocation_candidates", str(MAX_CANDIDATES), WIDE_REASON)
    yield Option("placement", "allocation_candidates_generation_strategy", "breadth-first", WIDE_REASON)
    yield Option("workarounds", "optimize_for_wide_provider_trees", "true", WIDE_REASON)


def _compute(host: str, encoded: Sequence[EncodedGpu]) -> Iterable[Option]:
    mine = [item for item in encoded if item.gpu.host == host and item.offered]
    if not mine:
        return
    reason = "each GPU becomes a provider in Placement; cannot be taken back on a host once it is set"
    yield Option("pci", "report_in_placement", "true", reason)
    for item in mine:
        yield Option("pci", "device_spec", compact_json(device_spec(item)), SPEC_REASON)
    reason = "VFIO pins all memory of a server with a GPU: it cannot be promised twice"
    yield Option("DEFAULT", "ram_allocation_ratio", "1.0", reason)


def device_spec(item: EncodedGpu) -> dict[str, str]:
    """The ``[pci]device_spec`` of one GPU."""
    spec = {
        "address": item.gpu.address,
        "vendor_id": item.function.vendor_id,
        "product_id": item.function.product_id,
        "resource_class": item.gpu.resource_class,
    }
    if item.gpu.role is not GpuRole.LONE and item.gpu.set_letter:
        spec["traits"] = set_trait(item.gpu.set_letter)
    return spec
