"""Judges IOMMU groups: which GPUs can be given to a VM, together with what, and if not, why not.

A slot is blocked when any function of its group is needed by the host, is the boot console, is cut into parts that
servers share, or is part of the chipset and in use. GPUs and functions of their cards go together; other functions of
the group are noted as lost to the host. A driver of the host on a function does not block: preparation changes it.
"""

from __future__ import annotations

from typing import Iterable, List, Mapping, Sequence, Set, Tuple

from gpuyard.model.host import Inventory
from gpuyard.model.pci import CLASSES_CHIPSET, CLASSES_COMPANION, PciFunction
from gpuyard.model.slot import Capacity, Slot, Verdict
from gpuyard.model.text import counted

PASSTHROUGH_DRIVERS = ("vfio-pci", "pci-stub")
NO_IOMMU = "the IOMMU is off: gpuyard host check says what to switch on"


def judge(inventory: Inventory) -> Tuple[Slot, ...]:
    """The slots of a host in bus order: every IOMMU group that has a GPU in it, usable or blocked with its reasons."""
    if not inventory.iommu_on:
        return tuple(Slot(None, (gpu,), (), Verdict.BLOCKED, (NO_IOMMU,)) for gpu in inventory.gpus)
    gpus = inventory.gpus
    with_gpus = {gpu.iommu_group for gpu in gpus}
    slots = [
        _judge_group(number, members, inventory)
        for number, members in inventory.groups().items()
        if number in with_gpus
    ]
    ungrouped = [
        Slot(None, (gpu,), (), Verdict.BLOCKED, (f"{gpu.short_address} is in no IOMMU group, and others are",))
        for gpu in gpus
        if gpu.iommu_group is None
    ]
    return tuple(sorted([*slots, *ungrouped], key=lambda slot: inventory.functions.index(slot.leader)))


def companions_of(gpus: Sequence[PciFunction], members: Iterable[PciFunction], inventory: Inventory) -> Set[str]:
    """Addresses of the members that are on a card of the GPUs, and NVSwitches.

    A USB controller or a sound card of the mainboard has the same class and may share the group, but the host uses it.
    """
    bridges = {f.address: f for f in inventory.functions if f.is_bridge}
    cards = {(gpu.vendor_id, gpu.card) for gpu in gpus}
    own = {(gpu.vendor_id, bridge) for gpu in gpus for bridge in _own_bridges(gpu, bridges)}

    def on_a_card(function: PciFunction) -> bool:
        above = bridges.get(function.parent or "")
        places = (function.parent, above.parent if above else None)
        return (function.vendor_id, function.card) in cards or any((function.vendor_id, at) in own for at in places)

    return {f.address for f in members if f.is_nvswitch or (f.class_id in CLASSES_COMPANION and on_a_card(f))}


def _own_bridges(gpu: PciFunction, bridges: Mapping[str, PciFunction]) -> Iterable[str]:
    """The two ports of a switch that is on the card, as Intel's and AMD's have one: of its maker, and no root port."""
    bridge = bridges.get(gpu.parent or "")
    for _ in range(2):
        if bridge is None or bridge.parent is None or bridge.vendor_id != gpu.vendor_id:
            return
        yield bridge.address
        bridge = bridges.get(bridge.parent)


def _judge_group(number: int, members: Sequence[PciFunction], inventory: Inventory) -> Slot:
    gpus = tuple(f for f in members if f.is_gpu and f.physical_function is None)
    others = [f for f in members if f not in gpus and not f.is_bridge]
    reasons = [reason for f in [*gpus, *others] for reason in _blocking(f, inventory.needed_by_host)]
    addresses = companions_of(gpus, others, inventory)
    companions = tuple(f for f in others if f.address in addresses)
    notes = [*_notes(gpus, [f for f in others if f not in companions]), *_unprepared([*gpus, *others])]
    verdict = Verdict.BLOCKED if reasons else Verdict.USABLE
    return Slot(number, gpus, companions, verdict, tuple(reasons), tuple(notes))


def _blocking(function: PciFunction, needed: Mapping[str, str]) -> Iterable[str]:
    """Why this member keeps its whole group with the host."""
    what = f"{function.short_address} {function.model}"
    if function.address in needed:
        yield f"{what} is needed by the host: {needed[function.address]}"
    if function.boot_vga:
        yield f"{what} is the boot console: make another display the primary one in the firmware"
    yield from sharing(function)
    if function.class_id in CLASSES_CHIPSET and function.driver not in (None, *PASSTHROUGH_DRIVERS):
        yield f"{what} is part of the chipset and in use by the host (driver {function.driver})"


def sharing(function: PciFunction) -> Iterable[str]:
    """Why a card that is cut into parts cannot be given away whole."""
    what = f"{function.short_address} {function.model}"
    if function.sriov_num_vfs:
        yield f"{what} has {function.sriov_num_vfs} virtual functions switched on: write 0 to its sriov_numvfs"
    if function.mdevs:
        yield f"{what} has {counted(function.mdevs, 'mediated device')} (vGPU) on it: remove what is there first"


def _notes(gpus: Sequence[PciFunction], strangers: Sequence[PciFunction]) -> Iterable[str]:
    models = sorted({gpu.model for gpu in gpus})
    if len(models) > 1:
        yield f"GPUs of different models share the group: {', '.join(models)}"
    for gpu in gpus:
        if gpu.mdev_types:
            yield f"{gpu.short_address} can make vGPUs: keep it with the host (--keep) where servers are to share it"
    for function in strangers:
        if not function.stays_with_host:
            yield f"the host loses {function.short_address} {function.class_name}, which shares the group"


def _unprepared(members: Sequence[PciFunction]) -> List[str]:
    bound = [f"{f.short_address} ({f.driver})" for f in members if f.driver not in (None, *PASSTHROUGH_DRIVERS)]
    return [f"not prepared yet, on a driver of the host: {', '.join(bound)}"] if bound else []


def capacity(slots: Iterable[Slot]) -> Capacity:
    """What the usable slots allow at once, by groups alone."""
    usable = [slot for slot in slots if slot.usable]
    return Capacity(gpus=sum(len(slot.gpus) for slot in usable), single_gpu_vms=len(usable), whole_slot_vms=len(usable))
