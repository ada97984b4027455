"""Names of the scheduler's filters. They are the same in Nova 31 to 34; a test asks the installed Nova."""

from __future__ import annotations

from collections.abc import Sequence

PCI_FILTER = "PciPassthroughFilter"
NUMA_FILTER = "NUMATopologyFilter"
AGGREGATE_FILTER = "AggregateInstanceExtraSpecsFilter"
TENANT_FILTER = "AggregateMultiTenancyIsolation"
DEFAULTS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
"""Nova's default list, which setting the option replaces as a whole."""
FILTERS = (
    *DEFAULTS, PCI_FILTER, NUMA_FILTER, AGGREGATE_FILTER, "AggregateImagePropertiesIsolation", "AggregateIoOpsFilter",
    TENANT_FILTER, "AggregateNumInstancesFilter", "AggregateTypeAffinityFilter", "AllHostsFilter",
    "DifferentHostFilter", "IoOpsFilter", "IsolatedHostsFilter", "JsonFilter", "MetricsFilter", "NumInstancesFilter",
    "SameHostFilter", "SimpleCIDRAffinityFilter",
)  # fmt: skip
ALL = "nova.scheduler.filters.all_filters"
"""The value of available_filters that means all of them."""
_PLACEMENT = "Placement does its work"
_RATIOS = "Placement does its work, with allocation ratios on the hosts"
_BARE_METAL = "resource classes of bare metal do its work"
REMOVED = {
    "RamFilter": (20, _PLACEMENT),
    "CoreFilter": (20, _PLACEMENT),
    "DiskFilter": (20, _PLACEMENT),
    "RetryFilter": (22, "the scheduler hands out alternates"),
    "AggregateRamFilter": (22, _RATIOS),
    "AggregateCoreFilter": (22, _RATIOS),
    "AggregateDiskFilter": (22, _RATIOS),
    "AvailabilityZoneFilter": (28, _PLACEMENT),
    "ExactRamFilter": (18, _BARE_METAL),
    "ExactCoreFilter": (18, _BARE_METAL),
    "ExactDiskFilter": (18, _BARE_METAL),
    "TrustedFilter": (17, "traits do its work"),
    "TypeAffinityFilter": (17, "AggregateTypeAffinityFilter is nearest to it"),
}
"""Name -> the first Nova without it, and its replacement."""


def with_defaults(names: Sequence[str]) -> list[str]:
    """Return the list with Nova's own filters first, and without those that do not exist."""
    good = [name for name in names if name in FILTERS and name not in DEFAULTS]
    return list(dict.fromkeys((*DEFAULTS, *good)))
