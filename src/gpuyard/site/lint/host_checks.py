"""What ``device_spec`` and aliases do on a host that is known from its recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.host.judge import judge
from gpuyard.model.host import Inventory
from gpuyard.model.pci import CLASSES_COMPANION, DeviceType, PciFunction
from gpuyard.model.slot import Slot
from gpuyard.site.lint.alias import Alias, each_once
from gpuyard.site.lint.device_spec import Entry, device_specs
from gpuyard.site.lint.model import COMPUTE, Finding, Severity, Subject, View
from gpuyard.site.lint.rules import found


@dataclass(frozen=True)
class Offer:
    """A function that Nova would give away, and the entry that says so: the first one that matches."""

    function: PciFunction
    entry: Entry

    @property
    def resource_class(self) -> str:
        given = self.entry.raw.get("resource_class")
        ids = f"CUSTOM_PCI_{self.function.vendor_id}_{self.function.product_id}".upper()
        return normal_name(given) if isinstance(given, str) and given else ids

    @property
    def traits(self) -> frozenset[str]:
        return trait_names(self.entry.raw.get("traits"))


def normal_name(name: str) -> str:
    """A resource class or trait as Nova makes one of what it is given. Standard names cannot be told from others
    here and keep no CUSTOM_ of their own; they are compared with each other only."""
    upper = name.upper()
    return upper if upper.startswith("CUSTOM_") else "CUSTOM_" + re.sub("[^0-9A-Z]+", "_", upper)


def trait_names(text: object) -> frozenset[str]:
    return frozenset(normal_name(name) for name in text.split(",") if name) if isinstance(text, str) else frozenset()


def offers(entries: Sequence[Entry], inventory: Inventory) -> list[Offer]:
    """Every function that is offered, in bus order."""
    physical = {f.address for f in inventory.functions if f.sriov_total_vfs > 0}
    found_: list[Offer] = []
    for function in inventory.functions:
        entry = next((entry for entry in entries if entry.matches(function, physical)), None)
        if entry is not None:
            found_.append(Offer(function, entry))
    return found_


def check(subject: Subject) -> Iterator[Finding]:
    for view in subject.of(COMPUTE):
        if view.inventory is not None:
            entries = device_specs(view).entries
            yield from _host(view, entries, view.inventory)
    yield from _types(subject)


def _host(view: View, entries: Sequence[Entry], inventory: Inventory) -> Iterator[Finding]:
    given = offers(entries, inventory)
    slots = judge(inventory)
    physical = {f.address for f in inventory.functions if f.sriov_total_vfs > 0}
    for entry in entries:
        if entry.address is not None and not any(entry.matches(f, physical) for f in inventory.functions):
            there = ", ".join(f"{gpu.address} {gpu.ids}" for gpu in inventory.gpus) or "none"
            reason = f"no device of {inventory.facts.hostname} is {entry}"
            yield found("device-spec-matches-nothing", entry.source, reason, f"its GPUs: {there}", line=entry.line)
    yield from _needed(given, slots, inventory)
    yield from _physical_and_virtual(given, view)
    yield from _groups(given, slots, view)
    yield from _others(given, slots)


def _needed(given: Sequence[Offer], slots: Sequence[Slot], inventory: Inventory) -> Iterator[Finding]:
    blocked = {gpu.address: slot.reasons for slot in slots if not slot.usable for gpu in (*slot.gpus, *slot.companions)}
    for offer in given:
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
        yield found("device-spec-takes-from-host", offer.entry.source, reason, fix, line=offer.entry.line)


def _physical_and_virtual(given: Sequence[Offer], view: View) -> Iterator[Finding]:
    by_address = {offer.function.address: offer for offer in given}
    reported: set[str] = set()
    for offer in given:
        parent = offer.function.physical_function
        if parent in by_address and parent not in reported:
            reported.add(parent)
            entry = by_address[parent].entry
            way = (
                "matches its virtual functions too"
                if offer.entry == entry
                else f"is offered, and so is its {offer.function.address}"
            )
            stops = view.boolean("pci", "report_in_placement")
            end = "nova-compute does not start" if stops else "giving one away takes the others"
            reason = f"the physical function {parent} {way}: {end}"
            fix = "offer either the function as a whole, with its virtual functions switched off, or those alone"
            yield found("pf-and-vfs", entry.source, reason, fix, line=entry.line)


def _groups(given: Sequence[Offer], slots: Sequence[Slot], view: View) -> Iterator[Finding]:
    by_address = {offer.function.address: offer for offer in given}
    told_apart = view.boolean("pci", "report_in_placement")
    for slot in slots:
        members = [by_address[gpu.address] for gpu in slot.gpus if gpu.address in by_address]
        kinds: dict[object, list[Offer]] = {}
        for offer in members:
            kind = offer.resource_class if told_apart else offer.function.ids
            kinds.setdefault(kind, []).append(offer)
        for equals in kinds.values():
            if len(equals) > 1:
                yield _split(slot, equals, given, bool(told_apart))


def _split(slot: Slot, equals: Sequence[Offer], given: Sequence[Offer], told_apart: bool) -> Finding:
    entry = equals[1].entry
    names = " and ".join(offer.function.address for offer in equals)
    traits = frozenset.intersection(*(offer.traits for offer in equals))
    others = [offer for offer in given if offer not in equals and offer.resource_class == equals[0].resource_class]
    own = told_apart and traits and all(not traits <= offer.traits for offer in others)
    if own:
        reason = (
            f"{names} share IOMMU group {slot.group} and can only be had together; with the trait "
            f"{min(traits)} that holds as long as every flavor takes {len(equals)} of them"
        )
        fix = f"make no flavor with fewer than {len(equals)}, or give the second one a class of its own"
        return found("group-split", entry.source, reason, fix, severity=Severity.NOTE, line=entry.line)
    reason = (
        f"{names} share IOMMU group {slot.group}, and Nova would give them to two servers: the second one cannot start"
    )
    fix = "offer one of them, or tell them apart by resource_class and traits as 'gpuyard site render' does"
    return found("group-split", entry.source, reason, fix, line=entry.line)


def _others(given: Sequence[Offer], slots: Sequence[Slot]) -> Iterator[Finding]:
    gpus = {gpu.address for slot in slots for gpu in slot.gpus}
    cards = {gpu.card for slot in slots for gpu in slot.gpus}
    groups = {slot.group for slot in slots} - {None}
    for offer in given:
        function = offer.function
        if function.address in gpus or function.physical_function or offer.entry.raw.get("physical_network"):
            continue
        what = f"{function.address} {function.class_name} {function.model}"
        companion = function.class_id in CLASSES_COMPANION and (
            function.card in cards or function.iommu_group in groups
        )
        if companion:
            reason = f"{what} goes with its GPU, and can be given to another server than that one"
            fix = "leave it out: it must be on vfio-pci, but need not be given away"
            yield found("companion-offered", offer.entry.source, reason, fix, line=offer.entry.line)
        elif not function.is_gpu and not function.is_bridge:
            reason = f"it matches {what}, which is not a GPU"
            fix = "add vendor_id and product_id, or a full address"
            yield found("not-a-gpu", offer.entry.source, reason, fix, line=offer.entry.line)


def _types(subject: Subject) -> Iterator[Finding]:
    """Aliases whose type no device has that they could mean."""
    given = [
        offer
        for view in subject.of(COMPUTE)
        if view.inventory is not None
        for offer in offers(device_specs(view).entries, view.inventory)
    ]
    for alias, placed in each_once(subject.views):
        meant = [offer for offer in given if asks_for(alias, offer, placed)]
        types = sorted({offer.function.device_type.value for offer in meant})
        if meant and not any(fits(alias, offer.function.device_type) for offer in meant):
            what = alias.device_type or "not given"
            reason = (
                f"alias {alias.name!r}: device_type is {what}, and {meant[0].function.address} "
                f"{meant[0].function.model} is {' or '.join(types)}: it never matches"
            )
            yield found("alias-type-never-matches", alias.source, reason, f'write "device_type": "{types[0]}"')


def fits(alias: Alias, device_type: DeviceType) -> bool:
    """Nova never gives a type-PF to whom does not ask for one; without a type it gives the other two."""
    if alias.device_type is None:
        return device_type is not DeviceType.PF
    return alias.device_type == device_type.value


def asks_for(alias: Alias, offer: Offer, classes: bool) -> bool:
    """Whether the device is one that the alias means, but for its type."""
    if not alias.has_ids and "resource_class" not in alias.raw:
        return False
    function = offer.function
    for key, value in (("vendor_id", function.vendor_id), ("product_id", function.product_id)):
        if key in alias.raw and alias.raw[key].lower() != value:
            return False
    if classes and "resource_class" in alias.raw:
        return normal_name(alias.raw["resource_class"]) == offer.resource_class
    return True
