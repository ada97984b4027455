"""Checks ``device_spec`` without knowing the host."""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.diagnosis.lint.model import LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.config import COMPUTE, View
from gpuyard.nova.device_spec import ANY, MATCHERS, TAGS, Address, DeviceSpecs, Entry, device_specs
from gpuyard.nova.json_text import meant
from gpuyard.nova.options import REPORTED
from gpuyard.nova.release import RELEASES, Release


def check(subject: LintInput) -> Iterator[Finding]:
    for view in subject.of(COMPUTE):
        specs = device_specs(view)
        for refusal in specs.refusals:
            yield found("device-spec-refused", refusal, refusal.reason, refusal.fix)
        for source, key in specs.repeated:
            yield found("json-key-repeated", source, f"{key!r} comes twice; the last value counts", "keep one of them")
        for entry in specs.entries:
            yield from _unknown_keys(entry)
            yield from _width(entry, view)
            yield from _placement(entry, view, subject.release)
        yield from _repeated(specs)


def _unknown_keys(entry: Entry) -> Iterator[Finding]:
    for key in entry.unknown_keys:
        right = meant(key, (*MATCHERS, *TAGS))
        severity = None if right else Severity.WARNING  # nobody can tell what it was to match
        if right in MATCHERS:
            reason = f"{key!r} is not a key that Nova matches by: the entry matches devices as if it were not there"
        else:
            reason = f"{key!r} is not a key of device_spec; Nova ignores it"
        fix = f"did you mean {right}?" if right else _remedy(key)
        yield found("device-spec-unknown-key", entry.source, reason, fix, severity=severity, line=entry.line)


def _remedy(key: str) -> str:
    if key in ("name", "device_type", "numa_policy"):
        return f"remove it; {key} belongs into [pci]alias"
    return f"remove it; device_spec has {', '.join((*MATCHERS, *TAGS))}"


def _width(entry: Entry, view: View) -> Iterator[Finding]:
    """Entries that match more than they seem to."""
    address = entry.address
    if address is None:
        return
    if entry.everything:
        reason = "it matches every PCI device of the host: its disks and network ports could be given to servers"
        fix = "name each GPU by address, vendor_id and product_id"
        yield found("device-spec-matches-everything", entry.source, reason, fix, line=entry.line)
        return
    if not entry.for_gpus:
        return
    if address.everything and ANY in (entry.vendor, entry.product):
        half = f"vendor {entry.vendor}" if entry.product == ANY else f"product {entry.product} of any vendor"
        reason = f"it matches every device of {half}, also audio and USB functions, NVSwitches, and cards added later"
        fix = "name each GPU by address, vendor_id and product_id"
        yield found("device-spec-vendor-only", entry.source, reason, fix, line=entry.line)
    yield from _loose_address(entry, address, view)


def _loose_address(entry: Entry, address: Address, view: View) -> Iterator[Finding]:
    _, bus, slot, function = address.parts
    if address.regex or ANY in (bus, slot):
        return
    if address.free(0):
        single_domain = view.inventory is not None and _one_domain(entry, view)
        reason = f"without a domain it matches {bus}:{slot}.{function} in every PCI domain of the host"
        fix = f'write "0000:{bus}:{slot}.{function}", or the domain that lspci -D shows'
        severity = Severity.NOTE if single_domain else None
        yield found("device-spec-without-domain", entry.source, reason, fix, severity=severity, line=entry.line)
    if function == ANY and entry.product == ANY:
        reason = f"it matches all functions of the card in slot {bus}:{slot}"
        fix = "write the function (.0 for the GPU) and the product_id"
        yield found("device-spec-all-functions", entry.source, reason, fix, line=entry.line)


def _one_domain(entry: Entry, view: View) -> bool:
    assert view.inventory is not None
    return len({f.address.split(":")[0] for f in view.inventory.functions if entry.matches(f)}) < 2


def _placement(entry: Entry, view: View, release: Release) -> Iterator[Finding]:
    reported = view.boolean(*REPORTED)
    if reported and entry.raw.get("devname"):
        reason = "nova-compute does not start: devname cannot be used while report_in_placement is on"
        fix = "name the device by address"
        yield found("devname-with-placement", entry.source, reason, fix, line=entry.line)
    for tag in ("managed", "live_migratable"):
        if tag in entry.raw and not release.managed:
            since = min(candidate.nova for candidate in RELEASES.values() if candidate.managed)
            reason = f"{tag} does nothing in {release.name} (Nova {release.nova}); it came with Nova {since}"
            yield found("tag-too-new", entry.source, reason, "upgrade, or remove it", line=entry.line)
    if entry.truth("one_time_use") and not release.one_time_use:
        since = min(candidate.nova for candidate in RELEASES.values() if candidate.one_time_use)
        reason = f"one_time_use does nothing in {release.name} (Nova {release.nova}); it came with Nova {since}"
        yield found("tag-too-new", entry.source, reason, "upgrade, or remove it", line=entry.line)
    elif entry.truth("one_time_use") and reported is False:
        reason = "nova-compute does not start: one_time_use needs [pci]report_in_placement"
        fix = "set report_in_placement = true in the same file"
        yield found("one-time-use-without-placement", entry.source, reason, fix, line=entry.line)
    tags = [tag for tag in ("resource_class", "traits") if entry.raw.get(tag)]
    if tags and reported is False and not entry.raw.get("physical_network"):
        reason = f"{' and '.join(tags)} do nothing while [pci]report_in_placement is off"
        fix = "set report_in_placement = true (it cannot be taken back on a host), or remove them"
        yield found("tag-without-placement", entry.source, reason, fix, line=entry.line)


def _repeated(specs: DeviceSpecs) -> Iterator[Finding]:
    entries_by_device: dict[tuple[str, str, Address], list[Entry]] = {}
    for entry in specs.entries:
        if entry.address is None:
            continue
        before = entries_by_device.setdefault((entry.vendor, entry.product, entry.address), [])
        first = next((earlier for earlier in before if not earlier.source.setting.excludes(entry.source.setting)), None)
        if first is not None:
            reason = f"{entry} is named in {first.source.file.path}:{first.line} already; that one counts"
            yield found("device-spec-repeated", entry.source, reason, "remove one of them", line=entry.line)
        before.append(entry)
