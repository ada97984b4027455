"""Checks the scheduler's filters: unknown or removed ones, and a missing PciPassthroughFilter."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from gpuyard.diagnosis.lint.layout import of_controller
from gpuyard.diagnosis.lint.model import LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova import alias, device_spec
from gpuyard.nova.config import SCHEDULER, Located, View
from gpuyard.nova.filters import ALL, DEFAULTS, FILTERS, PCI_FILTER, REMOVED, with_defaults
from gpuyard.nova.options import AVAILABLE_FILTERS, ENABLED_FILTERS

OPTION = "[filter_scheduler]enabled_filters"


def check(subject: LintInput) -> Iterator[Finding]:
    reported = set()
    for view, setting in _lists(subject):
        if setting.setting.open or setting.value in reported:
            continue
        reported.add(setting.value)  # a copy of it in another file needs no word of its own
        yield from _enabled(view, setting)
    yield from _pci_filter(subject)


def _lists(subject: LintInput) -> list[tuple[View, Located]]:
    """The lists of filters that nova-scheduler may read; those of hypervisors only where there is no other."""
    return [(v, setting) for v in of_controller(subject, SCHEDULER) if (setting := v.last(*ENABLED_FILTERS))] or [
        (v, setting) for v in subject.of(SCHEDULER) if (setting := v.last(*ENABLED_FILTERS))
    ]


def _enabled(view: View, setting: Located) -> Iterator[Finding]:
    names = view.names(*ENABLED_FILTERS) or []
    available = [item.value for item in view.all(*AVAILABLE_FILTERS)]
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
        yield found("default-filters-missing", setting, reason, f"write {','.join(with_defaults(names))}")


def _hint(name: str) -> str:
    if "#" in name:
        return "move the comment to a line of its own: it is part of the list"
    short = name.strip("\"' ").rsplit(".", 1)[-1]
    if short in FILTERS:
        return f"write {short}: the name of the class alone, without quotes"
    close = difflib.get_close_matches(short, FILTERS, n=1, cutoff=0.75)
    if close:
        return f"did you mean {close[0]}?"
    return f"write names of filters in its place; those of Nova's own list are {','.join(DEFAULTS)}"


def _pci_filter(subject: LintInput) -> Iterator[Finding]:
    """Return whether servers that ask for GPUs are kept off hosts without them."""
    users = [
        (view, settings[0])
        for view in subject.views
        if (settings := [*device_spec.settings_of(view), *alias.settings_of(view)])
    ]
    if not users:
        return
    fix = f"set {OPTION} = {','.join((*DEFAULTS, PCI_FILTER))}"
    schedulers = subject.of(SCHEDULER)
    wrong = _lists(subject)
    reported = set()
    for view, setting in wrong:
        skipped = setting.setting.open or setting.value in reported
        if not skipped and PCI_FILTER not in (view.names(*ENABLED_FILTERS) or []):
            reported.add(setting.value)
            reason = f"there are PCI devices to give away ({users[0][1]}), and {PCI_FILTER} is not in the list"
            yield found("pci-filter-missing", setting, reason, f"add {PCI_FILTER}")
    if not wrong and schedulers:
        sure = any(view.service == SCHEDULER for view in schedulers)
        reason = f"{OPTION} is not set, and {PCI_FILTER} is not in Nova's own list"
        severity = None if sure else Severity.NOTE
        yield found("pci-filter-missing", users[0][1], reason, f"on nova-scheduler, {fix}", severity=severity)
