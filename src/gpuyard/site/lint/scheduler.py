"""The scheduler's filters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from gpuyard.site.lint import alias, device_spec
from gpuyard.site.lint.model import SCHEDULER, Finding, Located, Severity, Subject, View
from gpuyard.site.lint.roles import of_controller
from gpuyard.site.lint.rules import found

SECTION, OPTION, AVAILABLE = "filter_scheduler", "enabled_filters", "available_filters"
PCI_FILTER = "PciPassthroughFilter"
DEFAULTS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
# The same in Nova 31 to 34.
FILTERS = (
    *DEFAULTS, PCI_FILTER, "AggregateImagePropertiesIsolation", "AggregateInstanceExtraSpecsFilter",
    "AggregateIoOpsFilter", "AggregateMultiTenancyIsolation", "AggregateNumInstancesFilter",
    "AggregateTypeAffinityFilter", "AllHostsFilter", "DifferentHostFilter", "IoOpsFilter", "IsolatedHostsFilter",
    "JsonFilter", "MetricsFilter", "NUMATopologyFilter", "NumInstancesFilter", "SameHostFilter",
    "SimpleCIDRAffinityFilter",
)  # fmt: skip
PLACEMENT_DOES = "Placement does its work"
# Name -> the first Nova without it, and what does its work.
REMOVED = {
    "RamFilter": (20, PLACEMENT_DOES),
    "CoreFilter": (20, PLACEMENT_DOES),
    "DiskFilter": (20, PLACEMENT_DOES),
    "RetryFilter": (22, "the scheduler hands out alternates"),
    "AggregateRamFilter": (22, "Placement does its work, with allocation ratios on the hosts"),
    "AggregateCoreFilter": (22, "Placement does its work, with allocation ratios on the hosts"),
    "AggregateDiskFilter": (22, "Placement does its work, with allocation ratios on the hosts"),
    "AvailabilityZoneFilter": (28, PLACEMENT_DOES),
    "ExactRamFilter": (18, "resource classes of bare metal do its work"),
    "ExactCoreFilter": (18, "resource classes of bare metal do its work"),
    "ExactDiskFilter": (18, "resource classes of bare metal do its work"),
    "TrustedFilter": (17, "traits do its work"),
    "TypeAffinityFilter": (17, "AggregateTypeAffinityFilter is nearest to it"),
}
ALL = "nova.scheduler.filters.all_filters"


def check(subject: Subject) -> Iterator[Finding]:
    told = set()
    for view, setting in _lists(subject):
        if setting.setting.open or setting.value in told:
            continue
        told.add(setting.value)  # a copy of it in another file needs no word of its own
        yield from _enabled(view, setting)
    yield from _pci_filter(subject)


def _lists(subject: Subject) -> list[tuple[View, Located]]:
    """The lists of filters that nova-scheduler may read; those of hypervisors only where there is no other."""
    return [(v, setting) for v in of_controller(subject, SCHEDULER) if (setting := v.last(SECTION, OPTION))] or [
        (v, setting) for v in subject.of(SCHEDULER) if (setting := v.last(SECTION, OPTION))
    ]


def _enabled(view: View, setting: Located) -> Iterator[Finding]:
    names = view.names(SECTION, OPTION) or []
    available = [item.value for item in view.all(SECTION, AVAILABLE)]
    own = {path.rsplit(".", 1)[-1] for path in available}
    whole = not available or ALL in available
    # A function of somebody else may return filters of any name.
    foreign = any(not path.startswith("nova.scheduler.filters.") and not path.endswith("Filter") for path in available)
    for name in names:
        if name in own:
            continue
        if name in REMOVED:
            since, instead = REMOVED[name]
            reason = f"{name} was removed in Nova {since}; nova-scheduler stops with SchedulerHostFilterNotFound"
            yield found("removed-filter", setting, reason, f"leave it out: {instead}")
        elif name not in FILTERS:
            severity = Severity.NOTE if foreign else None
            yield found("unknown-filter", setting, f"Nova has no filter {name!r}", _hint(name), severity=severity)
        elif not whole and not foreign:
            reason = f"{name} is enabled, but available_filters ({', '.join(available)}) does not have it"
            fix = f"remove available_filters, or add a line 'available_filters = {ALL}'"
            yield found("filter-not-available", setting, reason, fix)
    missing = [name for name in DEFAULTS if name not in names]
    if missing:
        reason = f"the list replaces Nova's own and leaves out {', '.join(missing)}"
        yield found("default-filters-missing", setting, reason, f"write {','.join(mended(names))}")


def mended(names: Sequence[str]) -> list[str]:
    """The list with Nova's own filters first, and without those that do not exist."""
    good = [name for name in names if name in FILTERS and name not in DEFAULTS]
    return list(dict.fromkeys((*DEFAULTS, *good)))


def _hint(name: str) -> str:
    if "#" in name:
        return "move the comment to a line of its own: it is part of the list"
    short = name.strip("\"' ").rsplit(".", 1)[-1]
    if short in FILTERS:
        return f"write {short}: the name of the class alone, without quotes"
    close = difflib.get_close_matches(short, FILTERS, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "remove it; 'nova.scheduler.filters' has what there is"


def _pci_filter(subject: Subject) -> Iterator[Finding]:
    """Whether servers that ask for GPUs are kept off hosts without them."""
    users = [
        (view, settings[0])
        for view in subject.views
        if (settings := [*device_spec.settings_of(view), *alias.settings_of(view)])
    ]
    if not users:
        return
    fix = f"set [{SECTION}]{OPTION} = {','.join((*DEFAULTS, PCI_FILTER))}"
    schedulers = subject.of(SCHEDULER)
    wrong = _lists(subject)
    told = set()
    for view, setting in wrong:
        known = setting.setting.open or setting.value in told
        if not known and PCI_FILTER not in (view.names(SECTION, OPTION) or []):
            told.add(setting.value)
            reason = f"there are GPUs to give away ({users[0][1]}), and {PCI_FILTER} is not in the list"
            yield found("pci-filter-missing", setting, reason, f"add {PCI_FILTER}")
    if not wrong and schedulers:
        sure = any(view.service == SCHEDULER for view in schedulers)
        reason = f"[{SECTION}]{OPTION} is not set, and {PCI_FILTER} is not in Nova's own list"
        severity = None if sure else Severity.NOTE
        yield found("pci-filter-missing", users[0][1], reason, f"on nova-scheduler, {fix}", severity=severity)
