"""Formats an inventory and its slots for people (lines like lspci's) and for programs (JSON with a documented
schema)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gpuyard.host.judge import capacity, judge
from gpuyard.host.preparation.pending import Setting, State
from gpuyard.model.host import HostFacts, Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.model.slot import Capacity, Slot, Verdict
from gpuyard.model.text import counted

FORMAT = 1


@dataclass(frozen=True)
class SlotRow:
    """One IOMMU group with GPUs in it; leader, peers and companions are addresses."""

    iommu_group: Optional[int]
    verdict: Verdict
    reasons: Tuple[str, ...]
    notes: Tuple[str, ...]
    leader: str
    peers: Tuple[str, ...]
    companions: Tuple[str, ...]


@dataclass(frozen=True)
class SettingRow:
    """Something that gpuyard sets, and whether a reboot is missing."""

    name: str
    wanted: bool
    running: bool
    state: State


@dataclass(frozen=True)
class InventoryDocument:
    """What ``gpuyard host scan -f json`` prints."""

    gpuyard_inventory: int
    """Version of this format."""
    origin: str
    host: HostFacts
    iommu: bool
    functions: Tuple[PciFunction, ...]
    needed_by_host: Dict[str, str]
    """Address of a function -> what the host uses it for."""
    slots: Tuple[SlotRow, ...]
    capacity: Capacity
    preparation: Tuple[SettingRow, ...] = ()
    """What gpuyard has set on the host."""
    unreadable: Tuple[str, ...] = ()
    """What could not be looked at, so that a GPU may be there and not be counted."""


def document(inventory: Inventory, settings: Iterable[Setting] = ()) -> InventoryDocument:
    """The document that docs/reference/inventory.schema.json describes."""
    slots = judge(inventory)
    return InventoryDocument(
        gpuyard_inventory=FORMAT,
        origin=inventory.origin,
        host=inventory.facts,
        iommu=inventory.iommu_on,
        functions=inventory.functions,
        needed_by_host=dict(inventory.needed_by_host),
        slots=tuple(_slot(slot) for slot in slots),
        capacity=capacity(slots),
        preparation=tuple(SettingRow(s.name, s.wanted, s.running, s.state) for s in settings),
        unreadable=inventory.unreadable,
    )


def to_dict(inventory: Inventory, settings: Iterable[Setting] = ()) -> Dict[str, Any]:
    return asdict(document(inventory, settings))


def to_json(inventory: Inventory, settings: Iterable[Setting] = ()) -> str:
    return json.dumps(to_dict(inventory, settings), indent=1)


def _slot(slot: Slot) -> SlotRow:
    return SlotRow(
        iommu_group=slot.group,
        verdict=slot.verdict,
        reasons=slot.reasons,
        notes=slot.notes,
        leader=slot.leader.address,
        peers=tuple(gpu.address for gpu in slot.peers),
        companions=tuple(function.address for function in slot.companions),
    )


def lines(inventory: Inventory, everything: bool = False) -> List[str]:
    """One line per function, by IOMMU group: those that share a group or a card with a GPU, or `everything`."""
    groups, cards = {f.iommu_group for f in inventory.gpus} - {None}, {f.card for f in inventory.gpus}
    shown = [
        f
        for f in inventory.functions
        if everything or ((f.iommu_group in groups or f.card in cards) and not f.is_bridge)
    ]
    shown.sort(key=lambda f: (f.iommu_group is None, f.iommu_group or 0))
    return [line(function) for function in shown]


def line(function: PciFunction) -> str:
    """``IOMMU Group 19 27:00.0 3D controller [0302]: ...``, then what lspci does not say in one line."""
    group = "no IOMMU group" if function.iommu_group is None else f"IOMMU Group {function.iommu_group}"
    revision = "" if function.revision == "00" else f" (rev {function.revision})"
    named = f"{function.class_name} [{function.class_id}]: {function.title} [{function.ids}]{revision}"
    numa = "" if function.numa_node is None else f"  NUMA {function.numa_node}"
    driver = function.driver or "no driver"
    return f"{group} {function.short_address} {named}{numa}  {function.device_type.value}  {driver}"


def verdict_lines(inventory: Inventory) -> List[str]:
    """A line per slot, its reasons and notes below it, what could not be seen, and what the host can run at once."""
    slots = judge(inventory)
    text: List[str] = []
    for slot in slots:
        group = "no group" if slot.group is None else f"group {slot.group}"
        gpus = " + ".join(gpu.short_address for gpu in slot.gpus)
        with_them = f", with {', '.join(f.short_address for f in slot.companions)}" if slot.companions else ""
        text.append(f"{slot.verdict.value:8} {group}: {len(slot.gpus)} x {slot.leader.model} ({gpus}{with_them})")
        text += [f"         because {reason}" for reason in slot.reasons]
        text += [f"         note: {note}" for note in slot.notes]
    text += inventory.unreadable
    room = capacity(slots)
    if not inventory.gpus:
        return text or ["no GPU of NVIDIA, AMD or Intel is on the PCI bus"]
    gpus, singles, wholes = (
        counted(room.gpus, "GPU"),
        counted(room.single_gpu_vms, "VM"),
        counted(room.whole_slot_vms, "VM"),
    )
    text.append(f"{gpus} can be given away: at once to {singles} with one GPU each, or to {wholes} with a group each")
    return text
