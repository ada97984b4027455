"""The rules: every kind of finding, its usual severity, and a sentence on it. The manual's table has all of them."""

from __future__ import annotations

from gpuyard.model.finding import Finding, Rule, Severity
from gpuyard.nova.config import Located, Rejection

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES = {
    rule.id: rule
    for rule in (
        # The file.
        Rule("not-an-ini-file", E, "oslo.config refuses to read the file, so no service that reads it starts."),
        Rule("template", N, "The file is a template of Kolla, and what is filled in is not known."),
        Rule("default-section-case", E, "`[default]` is not `[DEFAULT]`: what stands in it is not read."),
        Rule("repeated-option", W, "An option that takes one value is set twice in one file; the last one counts."),
        Rule("not-a-value", E, "The option cannot have this value: the service fails when it reads it."),
        Rule(
            "comment-behind-value", E,
            "oslo.config knows comments only on lines of their own: one behind a value is part of it.",
        ),
        Rule("option-in-wrong-section", E, "An option stands in a section where no service looks for it."),
        Rule("unknown-option", E, "`[pci]` has an option that no service reads, often a misspelled one."),
        Rule("renamed-option", W, "An option still works under its old name, and will not for ever."),
        Rule("dead-option", E, "An option was removed: it is ignored without a word."),
        Rule("old-and-new-names", E, "An option is set under its old and its new name: the values add up."),
        Rule("two-layers", W, "Two files of one service set a list: Nova adds them up, Kolla keeps the later one."),
        # device_spec.
        Rule("device-spec-refused", E, "nova-compute does not take a `device_spec` and does not start."),
        Rule("device-spec-matches-everything", E, "A `device_spec` matches every PCI device of the host."),
        Rule("device-spec-unknown-key", E, "A `device_spec` has a key that Nova does not know and ignores."),
        Rule("device-spec-vendor-only", W, "A `device_spec` matches all devices of a vendor, or half an id."),
        Rule("device-spec-without-domain", W, "An address without a PCI domain matches in every domain."),
        Rule("device-spec-all-functions", W, "An address matches all functions of a card, also audio and USB."),
        Rule("device-spec-repeated", W, "A device is named twice: only the first entry counts."),
        Rule("devname-with-placement", E, "`devname` cannot be used with `report_in_placement`."),
        Rule("one-time-use-without-placement", E, "`one_time_use` needs `report_in_placement`."),
        Rule("tag-too-new", E, "A tag of a `device_spec` is not known to this release and is ignored."),
        Rule("tag-without-placement", W, "`resource_class` and `traits` do nothing without `report_in_placement`."),
        Rule("json-key-repeated", E, "A JSON object has a key twice: the first value is lost."),
        # device_spec on a host that is known.
        Rule("device-spec-matches-nothing", E, "A `device_spec` matches no device of the recorded host."),
        Rule("device-spec-takes-from-host", E, "A `device_spec` offers a device that the host needs."),
        Rule("pf-and-vfs", E, "A physical function and its virtual functions are offered together."),
        Rule("group-split", E, "GPUs of one IOMMU group are offered as equals: the second server with one fails."),
        Rule("companion-offered", W, "The audio or USB function of a GPU is offered on its own."),
        Rule("not-a-gpu", W, "A `device_spec` for GPUs also matches other devices."),
        # Aliases.
        Rule("alias-refused", E, "Nova does not take an `alias`; nova-api and nova-compute do not start."),
        Rule("alias-without-ids", E, "An `alias` has neither vendor and product nor a class that counts."),
        Rule("alias-class-unused", W, "`resource_class` and `traits` of an `alias` need `pci_in_placement`."),
        Rule("alias-repeated", E, "Several `alias` lines have the same name."),
        Rule("alias-type-missing", W, "An `alias` without `device_type` never matches a GPU with SR-IOV."),
        Rule("alias-type-never-matches", E, "The `device_type` of an `alias` is not that of the devices it asks for."),
        Rule("alias-without-device", W, "No `device_spec` offers what an `alias` asks for."),
        Rule("alias-on-one-service", W, "An `alias` is on nova-api and not on nova-compute, or the other way round."),
        Rule("alias-differs", E, "An `alias` of one name asks for other devices on nova-api than on nova-compute."),
        # The scheduler.
        Rule("removed-filter", E, "A filter does not exist any more, and nova-scheduler does not start."),
        Rule("unknown-filter", E, "A filter does not exist, and nova-scheduler does not start."),
        Rule("filter-not-available", E, "`available_filters` leaves out a filter that is enabled."),
        Rule("default-filters-missing", W, "`enabled_filters` replaces Nova's own list, and some of it is missing."),
        Rule("pci-filter-missing", E, "PciPassthroughFilter is not enabled, so servers land on hosts without GPUs."),
        # Services together.
        Rule("placement-half-on", W, "GPUs are reported to Placement, or asked for there, but not both."),
        Rule("placement-differs", E, "`pci_in_placement` is not the same in all Nova services."),
        Rule("ram-overcommitted", E, "RAM is promised twice on a host whose servers have all of it pinned."),
        Rule("vcpu-pin-set", W, "`vcpu_pin_set` is deprecated."),
        Rule("cpu-sets-clash", E, "CPU options that exclude each other are set, and nova-compute does not start."),
        Rule("second-nova-compute", E, "Two nova-computes run on one machine and see the same GPUs."),
        Rule("no-gpu-quota", N, "Quotas do not count GPUs."),
        Rule("limits-do-not-fail-closed", N, "A GPU class without a registered limit is unlimited."),
        Rule("option-not-read-here", W, "An option stands only in files of services that do not read it."),
        Rule("vgpu-address-twice", E, "A GPU is given to two vGPU types, and nova-compute does not start."),
        Rule("vgpu-type-unused", W, "A second vGPU type without addresses is not offered."),
        # Flavors.
        Rule("flavor-alias-syntax", E, "A flavor's alias is not of the form `name:count`."),
        Rule("flavor-alias-unknown", E, "A flavor asks for an alias that no file defines."),
        Rule("flavor-takes-pci-class", E, "A flavor takes a GPU's resource class by itself: the GPU is lost to all."),
        Rule("flavor-hide-hypervisor", W, "A flavor has `hide_hypervisor_id` without its namespace."),
        Rule("flavor-key-without-namespace", E, "A flavor has a key without a namespace, which filters out all hosts."),
        Rule("wide-flavor", W, "A flavor with more than four GPUs, and Placement's search is not bounded."),
    )
}  # fmt: skip


def found(
    rule: str,
    place: Located | Rejection | str,
    reason: str,
    fix: str,
    *,
    severity: Severity | None = None,
    line: int | None = None,
) -> Finding:
    """Return a finding at a setting (or at a line of its value), or about a file as a whole. Its payload has ``file``
    and ``line`` (from 1; None when it is about a file as a whole, or about a flavor)."""
    if isinstance(place, str):
        file = place
    elif isinstance(place, Rejection):
        file, line = place.source.file.path, line or place.line
    else:
        file, line = place.file.path, line or place.setting.line
    where = f"{file}:{line}" if line else file
    return Finding(rule, severity or RULES[rule].severity, where, reason, fix, {"file": file, "line": line})
