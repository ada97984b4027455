"""Checks the cards: their models, the groups that they share, their resets, and what they ask of a VM."""

from __future__ import annotations

import re
from typing import Dict, List

from gpuyard.host.checks.acs import acs_of
from gpuyard.host.judge import capacity, sharing
from gpuyard.host.machine import Answer, Machine, by_model, named
from gpuyard.model.finding import Severity
from gpuyard.model.pci import RESETS_THAT_COUNT, PciFunction
from gpuyard.model.slot import Slot

GIB = 2**30
BIG_BAR = 32 * GIB
"""From here on firmware needs "Above 4G Decoding", and a guest UEFI, q35 and enough address bits."""
RESET_WORKS = ("flr", "pm", "bus", "device_specific", "af_flr", "acpi")
COUNTED = [(method,) for method in RESETS_THAT_COUNT]
# Cards whose driver refused to run in a VM until version 465. Names are those of pci.ids.
CONSUMER = re.compile(r"GeForce|TITAN|NVS|Quadro (FX|K)?\d", re.IGNORECASE)


def gpus(machine: Machine) -> Answer:
    gpus = machine.inventory.gpus
    for reason in machine.inventory.unreadable:
        remedy = "look again on the machine itself; if it is so there too, dmesg may say what the card or the bus has"
        yield Severity.ERROR, reason, remedy
    if not machine.inventory.functions:
        return
    if not gpus:
        remedy = "if there should be one, look at its seat and its power, and whether the firmware shows it"
        yield Severity.ERROR, "no GPU of NVIDIA, AMD or Intel is on the PCI bus: nothing to give away", remedy
        return
    models: Dict[str, int] = {}
    for gpu in gpus:
        models[f"{gpu.model} [{gpu.ids}]"] = models.get(f"{gpu.model} [{gpu.ids}]", 0) + 1
    yield Severity.OK, ", ".join(f"{count} x {model}" for model, count in models.items()), ""


def groups(machine: Machine) -> Answer:
    for slot in machine.slots if machine.inventory.iommu_on else ():
        gpus = ", ".join(gpu.short_address for gpu in slot.gpus)
        name = f"group {slot.group}" if slot.group is not None else "no group"
        if not slot.usable:
            shared = {reason for gpu in slot.gpus for reason in sharing(gpu)}
            for reason in slot.reasons:
                remedy = "keep it with the host, or move the card to another PCIe slot"
                if reason in shared:
                    remedy = "nothing to do where it is to be shared; so it cannot be given away whole"
                level = Severity.WARNING if reason in shared else Severity.ERROR
                yield level, f"{name} ({gpus}): {reason}", remedy
        elif len(slot.gpus) > 1:
            remedy = (
                "nothing to do: gpuyard offers them as leader and peers; another PCIe slot, or ACS, may separate them"
            )
            yield Severity.OK, f"{name} is shared by {len(slot.gpus)} GPUs ({gpus}): they go to one VM together", remedy
    room = capacity(machine.slots)
    if room.gpus:
        yield Severity.OK, f"{room.gpus} GPUs can be given away, to at most {room.single_gpu_vms} VMs at once", ""


def isolation(machine: Machine) -> Answer:
    """Why functions of several cards are in one group: the bridges above them that cannot keep them apart."""
    for slot in machine.slots:
        members = [f for f in machine.group_members(slot) if not f.is_bridge and f.physical_function is None]
        if len({function.card for function in members}) < 2:
            continue
        weak: Dict[str, List[PciFunction]] = {}
        for bridge in _bridges_above(machine, members, slot):
            acs = acs_of(machine.tree, bridge.address)
            weak.setdefault(acs.weakness if acs else "", []).append(bridge)
        causes = [f"{named(bridges)} ({weakness})" for weakness, bridges in weak.items() if weakness]
        if causes:
            reason = f"group {slot.group} ({named(members)}) is one because of {', '.join(causes)}"
            yield Severity.OK, reason, "nothing to do; behind another root port each card may have a group of its own"


def _bridges_above(machine: Machine, members: List[PciFunction], slot: Slot) -> List[PciFunction]:
    """The bridges above members that are in the group with them, in bus order."""
    bridges = {f.address: f for f in machine.group_members(slot) if f.is_bridge}
    above: List[PciFunction] = []
    for member in members:
        function = member
        while function.parent in bridges and bridges[function.parent] not in above:
            function = bridges[function.parent]
            above.append(function)
    return sorted(above, key=machine.inventory.functions.index)


def reserved_memory(machine: Machine) -> Answer:
    """A region that the firmware wants mapped one to one (RMRR): VFIO refuses a group that has one.

    Those of graphics and USB are "direct-relaxable", which is none: the host does without them.
    """
    for slot in machine.slots:
        regions = machine.tree.read(f"sys/kernel/iommu_groups/{slot.group}/reserved_regions") or ""
        if any(line.split()[-1:] == ["direct"] for line in regions.splitlines()):
            reason = f"the firmware keeps memory mapped for group {slot.group} ({named(slot.gpus)}): a platform RMRR"
            remedy = "VFIO refuses the group: switch off management of this slot in the firmware, or move the card"
            yield Severity.ERROR, reason, remedy


def reset(machine: Machine) -> Answer:
    stuck = [gpu for gpu in machine.inventory.gpus if not any(method in RESET_WORKS for method in gpu.reset_methods)]
    for cards in by_model(stuck):
        remedy = "a VM may find it as the last one left it; test starting a second VM on it"
        yield Severity.WARNING, f"no way to reset {cards} is shown", remedy


def scrubs(machine: Machine) -> Answer:
    """Whether `gpuyard host scrub` has a reset for each slot that counts: see host/scrub.py."""
    able: List[PciFunction] = []
    for slot in machine.slots if machine.inventory.iommu_on else ():
        members = [f for f in machine.group_members(slot) if not f.stays_with_host] if slot.usable else []
        stuck = [f for f in members if not (_goes_with_its_bus(machine, f, members) or f.reset_methods[:1] in COUNTED)]
        if stuck:
            remedy = (
                "use its pool without one_time_use, and tell its users; behind another root port it may be different"
            )
            reason = f"group {slot.group}: {named(stuck)} cannot be reset in a way that counts between two VMs"
            yield Severity.WARNING, reason, remedy
        elif members:
            able += slot.gpus
    if able:
        yield Severity.OK, f"{named(able)} can be scrubbed between two VMs, by bus or FLR", ""


def _goes_with_its_bus(machine: Machine, function: PciFunction, members: List[PciFunction]) -> bool:
    """Whether its bus can be reset and nobody else be hit. Of a function that is alone on it the kernel says so."""
    beside = [f for f in machine.inventory.functions if f.parent == function.parent and f.parent is not None]
    return bool(beside) and all(f in members for f in beside) and (len(beside) > 1 or "bus" in function.reset_methods)


def bars(machine: Machine) -> Answer:
    sizes: Dict[int, List[PciFunction]] = {}
    for gpu in machine.inventory.gpus:
        sizes.setdefault(max(gpu.bars, default=0), []).append(gpu)
    for size, gpus in sizes.items():
        for cards in by_model(gpus) if size >= BIG_BAR else ():
            remedy = (
                "big_bars: true for its pool in site.yaml (hw:maxphysaddr_mode=passthrough in flavors); "
                "images need hw_machine_type=q35 and hw_firmware_type=uefi"
            )
            yield Severity.WARNING, f"{cards}: a BAR of {size // GIB} GiB", remedy


def sriov(machine: Machine) -> Answer:
    capable = [gpu for gpu in machine.inventory.gpus if gpu.sriov_total_vfs]
    if capable:
        names = ", ".join(gpu.short_address for gpu in capable)
        yield Severity.OK, f"SR-IOV is on in the firmware of {names}: Nova sees them as type-PF", ""


def guests(machine: Machine) -> Answer:
    """What the cards ask of flavors and images. Large BARs have a check of their own."""
    for cards in by_model(gpu for gpu in machine.inventory.gpus if is_consumer(gpu)):
        reason = f"{cards}: NVIDIA's drivers before 465 refuse to run on it in a VM, on Windows with code 43"
        remedy = "for guests with such drivers: hide_hypervisor: true for its pool in site.yaml (hw:hide_hypervisor_id)"
        yield Severity.OK, reason, remedy
    companions = [companion for slot in machine.slots if slot.usable for companion in slot.companions]
    if companions:
        what = ", ".join(f"{f.short_address} {f.class_name}" for f in companions)
        yield Severity.OK, f"companions, with a VFIO driver but not offered to guests: {what}", ""


def is_consumer(gpu: PciFunction) -> bool:
    """A card of NVIDIA for desktops, which have a display output; unknown when pci.ids has no name for it."""
    return gpu.vendor_id == "10de" and gpu.class_id == "0300" and bool(CONSUMER.search(gpu.model))
