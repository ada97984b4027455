"""Checks ``device_spec`` and aliases against the recording of the host that they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuyard.diagnosis.lint.model import LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.host.judge import judge
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.host import Inventory
from gpuyard.model.slot import Slot
from gpuyard.nova.alias import each_once
from gpuyard.nova.config import COMPUTE, View
from gpuyard.nova.device_spec import Entry, device_specs
from gpuyard.nova.offers import Offer, fits, matched, means, offers
from gpuyard.nova.options import REPORTED


def check(subject: LintInput) -> Iterator[Finding]:
    for view in subject.of(COMPUTE):
        if view.inventory is not None:
            entries = device_specs(view).entries
            yield from _host(view, entries, view.inventory)
    yield from _types(subject)


def _host(view: View, entries: Sequence[Entry], inventory: Inventory) -> Iterator[Finding]:
    offered = offers(entries, inventory)
    slots = judge(inventory)
    for entry in entries:
        if entry.address is not None and not matched(entry, inventory):
            gpu_names = ", ".join(f"{gpu.address} {gpu.ids}" for gpu in inventory.gpus) or "none"
            reason = f"no device of {inventory.facts.hostname} is {entry}"
            yield found("device-spec-matches-nothing", entry.source, reason, f"its GPUs: {gpu_names}", line=entry.line)
    yield from _needed(offered, slots, inventory)
    yield from _physical_and_virtual(offered, view)
    yield from _groups(offered, slots, view)
    yield from _others(offered, slots)


def _needed(offered: Sequence[Offer], slots: Sequence[Slot], inventory: Inventory) -> Iterator[Finding]:
    blocked = {gpu.address: slot.reasons for slot in slots if not slot.usable for gpu in (*slot.gpus, *slot.companions)}
    for offer in offered:
        function = offer.function
        use = inventory.needed_by_host.get(function.address)
        fix = "leave it out"
        if use:
            reason = f"{function.address} {function.model} is needed by the host: {use}"
        elif function.boot_vga:
            reason, fix = f"{function.address} {function.model} is the boot console", "make another display the first"
        elif blocked.get(function.address):
            reason = f"{function.address} cannot be given away: {blocked[function.address][0]}"
        elif function.is_bridge:
            reason = f"{function.address} is a PCI bridge"
        else:
            continue
        yield _at(offer, "device-spec-takes-from-host", reason, fix)


def _physical_and_virtual(offered: Sequence[Offer], view: View) -> Iterator[Finding]:
    by_address = {offer.function.address: offer for offer in offered}
    reported: set[str] = set()
    for offer in offered:
        parent = offer.function.physical_function
        if parent in by_address and parent not in reported:
            reported.add(parent)
            physical = by_address[parent]
            way = (
                "matches its virtual functions too"
                if offer.entry == physical.entry
                else f"is offered, and so is its {offer.function.address}"
            )
            stops = view.boolean(*REPORTED)
            end = "nova-compute does not start" if stops else "giving one away takes the others"
            reason = f"the physical function {parent} {way}: {end}"
            fix = "offer either the function as a whole, with its virtual functions switched off, or those alone"
            yield _at(physical, "pf-and-vfs", reason, fix)


def _groups(offered: Sequence[Offer], slots: Sequence[Slot], view: View) -> Iterator[Finding]:
    by_address = {offer.function.address: offer for offer in offered}
    told_apart = view.boolean(*REPORTED)
    for slot in slots:
        members = [by_address[gpu.address] for gpu in slot.gpus if gpu.address in by_address]
        kinds: dict[object, list[Offer]] = {}
        for offer in members:
            kind = offer.resource_class if told_apart else offer.function.ids
            kinds.setdefault(kind, []).append(offer)
        for equals in kinds.values():
            if len(equals) > 1:
                yield _split(slot, equals, offered, bool(told_apart))


def _split(slot: Slot, equals: Sequence[Offer], offered: Sequence[Offer], told_apart: bool) -> Finding:
    names = " and ".join(offer.function.address for offer in equals)
    traits = frozenset.intersection(*(offer.traits for offer in equals))
    others = [offer for offer in offered if offer not in equals and offer.resource_class == equals[0].resource_class]
    own = told_apart and traits and all(not traits <= offer.traits for offer in others)
    if own:
        reason = (
            f"{names} share IOMMU group {slot.group} and can only be had together; with the trait "
            f"{min(traits)} that holds as long as every flavor takes {len(equals)} of them"
        )
        fix = f"make no flavor with fewer than {len(equals)}, or give the second one a class of its own"
        return _at(equals[1], "group-split", reason, fix, Severity.NOTE)
    reason = (
        f"{names} share IOMMU group {slot.group}, and Nova would give them to two servers: the second one cannot start"
    )
    fix = "offer one of them, or tell them apart by resource_class and traits as 'gpuyard site render' does"
    return _at(equals[1], "group-split", reason, fix)


def _others(offered: Sequence[Offer], slots: Sequence[Slot]) -> Iterator[Finding]:
    gpus = {gpu.address for slot in slots for gpu in slot.gpus}
    companions = {companion.address for slot in slots for companion in slot.companions}
    for offer in offered:
        function = offer.function
        if function.address in gpus or function.physical_function or offer.raw.get("physical_network"):
            continue
        what = f"{function.address} {function.class_name} {function.model}"
        if function.address in companions:
            reason = f"{what} goes with its GPU, and can be given to another server than that one"
            fix = "leave it out: it must be on vfio-pci, but need not be given away"
            yield _at(offer, "companion-offered", reason, fix)
        elif not function.is_gpu and not function.is_bridge and offer.entry is not None and offer.entry.for_gpus:
            reason = f"it matches {what}, which is not a GPU"
            fix = "add vendor_id and product_id, or a full address"
            yield _at(offer, "not-a-gpu", reason, fix)


def _types(subject: LintInput) -> Iterator[Finding]:
    """Aliases whose type no device has that they could mean."""
    offered = [
        offer
        for view in subject.of(COMPUTE)
        if view.inventory is not None
        for offer in offers(device_specs(view).entries, view.inventory)
    ]
    for alias, placed in each_once(subject.views):
        meant = [offer for offer in offered if means(alias, offer, placed)]
        types = sorted({offer.function.device_type.value for offer in meant})
        if meant and not any(fits(alias, offer.function.device_type) for offer in meant):
            what = alias.device_type or "not given"
            reason = (
                f"alias {alias.name!r}: device_type is {what}, and {meant[0].function.address} "
                f"{meant[0].function.model} is {' or '.join(types)}: it never matches"
            )
            yield found("alias-type-never-matches", alias.source, reason, f'write "device_type": "{types[0]}"')


def _at(offer: Offer, rule: str, reason: str, fix: str, severity: Severity | None = None) -> Finding:
    """A finding at the entry that offers a device."""
    assert offer.entry is not None
    return found(rule, offer.entry.source, reason, fix, severity=severity, line=offer.entry.line)
