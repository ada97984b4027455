"""Checks options that must fit together, on one host and between services."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from gpuyard.diagnosis.lint.layout import of_controller
from gpuyard.diagnosis.lint.model import FlavorText, LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.alias import aliases
from gpuyard.nova.alias_spec import ALIAS_SPEC
from gpuyard.nova.config import API, COMPUTE, CONDUCTOR, SCHEDULER, ConfigFile, View
from gpuyard.nova.device_spec import device_specs, settings_of
from gpuyard.nova.ini import DEFAULT
from gpuyard.nova.options import MDEV_TYPES, PLACED, READERS, REPORTED, mdev_sections, names_of

DB_QUOTA, UNIFIED = "nova.quota.DbQuotaDriver", "nova.quota.UnifiedLimitsDriver"


def check(subject: LintInput) -> Iterator[Finding]:
    for view in subject.of(COMPUTE):
        yield from _cpus(view)
        yield from _vgpus(view)
        if any(entry.for_gpus for entry in device_specs(view).entries) or device_specs(view).refusals:
            yield from _memory(view)
    quotas = (finding for view in of_controller(subject, API) for finding in _quota(view, subject))
    yield from itertools.islice(quotas, 1)  # it is of the whole cloud, and not of a file
    yield from _placement(subject)
    yield from _two_computes(subject)
    yield from _unread(subject)


def _cpus(view: View) -> Iterator[Finding]:
    pinned = view.last(DEFAULT, "vcpu_pin_set")
    dedicated = view.last("compute", "cpu_dedicated_set")
    shared = view.last("compute", "cpu_shared_set")
    if pinned is not None and pinned.value.strip():
        if dedicated is not None:
            reason = f"it excludes [compute]cpu_dedicated_set ({dedicated}): nova-compute does not start"
            yield found("cpu-sets-clash", pinned, reason, "remove vcpu_pin_set")
        else:
            more = "; while it is set, cpu_shared_set is for emulator threads only" if shared is not None else ""
            reason = f"vcpu_pin_set is deprecated since Nova 20, and still read{more}"
            fix = "write [compute]cpu_shared_set for shared vCPUs, cpu_dedicated_set for pinned ones"
            yield found("vcpu-pin-set", pinned, reason, fix)
        return
    reserved = view.last(DEFAULT, "reserved_host_cpus")
    sets = dedicated or shared
    if reserved is not None and sets is not None and (view.number(DEFAULT, "reserved_host_cpus") or 0) > 0:
        reason = f"reserved_host_cpus cannot stand beside {sets.setting} ({sets}): nova-compute does not start"
        yield found("cpu-sets-clash", reserved, reason, "remove it: CPUs in neither set are the host's")


def _vgpus(view: View) -> Iterator[Finding]:
    """``[devices]enabled_mdev_types`` and a section for each type, as the libvirt driver reads them."""
    keys = [key for _, key in names_of(MDEV_TYPES)]
    setting = view.last(MDEV_TYPES[0], *keys)
    taken: dict[str, str] = {}
    default = ""
    for kind in dict.fromkeys(view.names(MDEV_TYPES[0], *keys) or ()):
        section = next((name for name in mdev_sections(kind) if view.last(name, "device_addresses")), "")
        place = view.last(section, "device_addresses") if section else setting
        addresses = view.names(section, "device_addresses") if section else None
        if place is None or place.setting.open:
            continue
        for address in addresses or ():
            if address in taken:
                reason = f"{address} is of vGPU type {taken[address]} already: nova-compute does not start"
                yield found("vgpu-address-twice", place, reason, "give each address to one type, once")
            taken.setdefault(address, kind)
        if not addresses and default:
            reason = (
                f"vGPU type {kind} has no device_addresses, and neither has {default}, which so is the default of all "
                f"GPUs: {kind} is not offered"
            )
            fix = f"write [{mdev_sections(kind)[0]}]device_addresses, or leave the type out"
            yield found("vgpu-type-unused", place, reason, fix)
        default = default or ("" if addresses else kind)


def _unread(subject: LintInput) -> Iterator[Finding]:
    """Options that stand only in files of services that do not read them."""
    for option, readers in READERS.items():
        names = names_of(option)
        reader_views = [view for view in subject.views if view.service is None or view.service in readers]
        if any(view.under(names) for view in reader_views):
            continue
        for view in subject.views:
            # What Kolla makes of its overrides has the options of all services.
            own = [item for item in view.under(names) if item.file.service and (reader_views or not _of_all(item.file))]
            if own and view.service not in readers:
                who = " and ".join(readers)
                reason = f"{own[0].setting} stands in a file that {view.service} reads; it is {who} that would need it"
                yield found("option-not-read-here", own[0], reason, f"move it to a file of {who}, or to nova.conf")


def _of_all(file: ConfigFile) -> bool:
    return PurePosixPath(file.path).name == "nova.conf"


def _memory(view: View) -> Iterator[Finding]:
    for key in ("ram_allocation_ratio", "initial_ram_allocation_ratio"):
        setting, ratio = view.last(DEFAULT, key), view.number(DEFAULT, key)
        if setting is not None and ratio is not None and ratio > 1:
            reason = (
                f"{key} is {setting.value}, and VFIO pins all memory of a server with a GPU: the host runs out of it"
            )
            yield found("ram-overcommitted", setting, reason, "set ram_allocation_ratio = 1.0 on hosts with GPUs")
            return
        if setting is not None and ratio:  # 0.0 means: as if it were not set
            return


def _names_own_class(view: View) -> bool:
    """Return whether a limit is required of a class that is none of a device: flavors then ask for it, as gpuyard's
    do."""
    named = (view.text("quota", "unified_limits_resource_list") or "").split(",")
    return any(
        name.strip().startswith("class:CUSTOM_") and not name.strip().startswith("class:CUSTOM_PCI_") for name in named
    )


def _quota(view: View, subject: LintInput) -> Iterator[Finding]:
    first = next((alias for alias in aliases(view).items if alias.for_gpus), None)
    if first is None:
        return
    driver, setting = view.text("quota", "driver") or DB_QUOTA, view.last("quota", "driver")
    if driver == DB_QUOTA:
        how = "set to" if setting else "not set, which is"
        reason = f"[quota]driver is {how} DbQuotaDriver: quotas cannot count GPUs"
        fix = f"set driver = {UNIFIED}, with limits in Keystone"
        yield found("no-gpu-quota", setting or first.source, reason, fix)
    elif any(_own_class(flavor) for flavor in subject.flavors) or _names_own_class(view):
        return
    elif driver == UNIFIED and not (subject.release.pci_quotas and view.boolean(*PLACED)):
        why = (
            "pci_in_placement is off" if subject.release.pci_quotas else f"Nova {subject.release.nova} leaves them out"
        )
        reason = f"limits do not count GPUs that an alias asks for: {why}"
        fix = "limits on PCI classes need Nova 34 and pci_in_placement; before that, a class of your own in flavors"
        yield found("no-gpu-quota", setting or first.source, reason, fix)
    elif driver == UNIFIED:
        listed = view.names("quota", "unified_limits_resource_list") or ["servers"]
        strict = (view.text("quota", "unified_limits_resource_strategy") or "require") == "require"
        if not strict or not any(name.startswith("class:CUSTOM_") for name in listed):
            reason = "a GPU class that has no registered limit in Keystone is unlimited for every project"
            fix = "register a limit for each class, or name the classes in unified_limits_resource_list"
            yield found("limits-do-not-fail-closed", setting or first.source, reason, fix)


def _own_class(flavor: FlavorText) -> bool:
    """Return whether a flavor with GPUs takes a class that is there to be counted."""
    keys = flavor.extra_specs
    return ALIAS_SPEC in keys and any(key.startswith("resources:CUSTOM_") for key in keys)


def _placement(subject: LintInput) -> Iterator[Finding]:
    """Return whether hosts report what the others ask for."""
    computes = [view for view in subject.of(COMPUTE) if device_specs(view).set]
    askers = [view for view in subject.views if view.service in (API, SCHEDULER, CONDUCTOR)]
    if not askers:  # one file for all, or files of nobody knows whom: what is set is set
        askers = [view for view in subject.views if view.service is None and view.last(*PLACED)]
    users = [view for view in askers if view.boolean(*PLACED)]
    for view in computes:
        setting = view.last(*REPORTED)
        place = setting or settings_of(view)[0]
        if users and view.boolean(*REPORTED) is False:
            reason = (
                f"{users[0].name} asks Placement for PCI devices ({users[0].last(*PLACED)}), and {view.name} does not "
                "report its own: no server gets one of them"
            )
            fix = "set [pci]report_in_placement = true on every host with GPUs first"
            yield found("placement-half-on", place, reason, fix, severity=Severity.ERROR)
        elif askers and not users and view.boolean(*REPORTED):
            reason = "PCI devices are reported to Placement, and nobody asks there: classes and traits do not count yet"
            fix = "once all hosts report, set [filter_scheduler]pci_in_placement = true for every Nova service"
            yield found("placement-half-on", place, reason, fix)
    yield from _differing([view for view in subject.views if view.service])


def _differing(views: Sequence[View]) -> Iterator[Finding]:
    """pci_in_placement on for one service and off for another."""
    on = next((view for view in views if view.boolean(*PLACED)), None)
    setting = on.last(*PLACED) if on is not None else None
    if on is None or setting is None:
        return
    for off in views:
        if off.boolean(*PLACED) is False:
            # nova-compute reads it only to check its aliases.
            harmless = off.service == COMPUTE and all(alias.has_ids for alias in aliases(off).items)
            severity = Severity.WARNING if harmless else Severity.ERROR
            reason = f"pci_in_placement is on for {on.name} and off for {off.name}"
            yield found("placement-differs", setting, reason, "set it alike for every Nova service", severity=severity)


def _two_computes(subject: LintInput) -> Iterator[Finding]:
    """A second whole configuration in one folder that calls its host by another name, and has GPUs."""
    by_folder: dict[str, list[View]] = {}
    for view in subject.of(COMPUTE):
        by_folder.setdefault(view.files[-1].folder, []).append(view)
    for views in by_folder.values():
        for view in views:
            file, host = view.files[-1], view.last(DEFAULT, "host")
            if not (file.alone and host) or not device_specs(view).set:
                continue
            others = [other for other in views if other is not view and other.host is None]
            first = next((other for other in others if other.text(DEFAULT, "host") != view.text(DEFAULT, "host")), None)
            if first is not None:
                yield found("second-nova-compute", host, _why_not_two(first.files[-1], host.value), SECOND_FIX)


SECOND_FIX = (
    "run one nova-compute for each machine, and keep CPU and RAM for servers with GPUs by resource classes: "
    "'reserve' in the site file does it"
)


def _why_not_two(first: ConfigFile, host: str) -> str:
    return (
        f"a second nova-compute, {host!r}, beside the one of {first.path}: they share the identity in compute_id, both "
        "see all servers of the machine, and both report the same GPUs"
    )
