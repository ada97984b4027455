"""Chooses the functions of a host that go to VMs: whole slots, never one that the host needs.

A GPU to be kept keeps the others of its group. A group with a stranger in it, such as a disk or a network port, goes
only when somebody names the stranger. A GPU that cannot go is a refusal when somebody asked for it, else a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Tuple

from gpuyard.host.judge import companions_of
from gpuyard.host.machine import Machine
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.model.pci import PciFunction
from gpuyard.model.slot import Slot


@dataclass(frozen=True)
class Choice:
    """What a plan is made for."""

    functions: Tuple[PciFunction, ...] = ()
    """Every function that a VFIO driver must have, in bus order: GPUs and what shares their groups."""
    refusals: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()


def choose(machine: Machine, wishes: Wishes) -> Choice:
    """Every GPU that can be given away, but for those to be kept."""
    functions: List[PciFunction] = []
    refusals, notes = _unknown(machine, wishes)
    for slot in machine.slots:
        name = slot_name(slot)
        if not _wanted(slot, wishes):
            notes.append(f"{name}: stays with the host, as asked for")
        elif slot.group is None:
            card_functions, reasons = _card(machine, slot)
            functions += card_functions
            notes += [f"{name}: stays with the host: {reason}" for reason in reasons]
        elif slot.usable and not _strangers(machine, slot, wishes):
            functions += _members(machine, slot)
            notes += [f"{name}: {note}" for note in slot.notes if note.startswith("the host loses")]
        else:
            requested = wishes.only is not None or any(gpu.address in wishes.give for gpu in slot.gpus)
            reasons = [*slot.reasons, *_strangers(machine, slot, wishes)]
            (refusals if requested else notes).append(f"{name}: cannot be given away: {'; '.join(reasons)}")
    ordered = sorted(functions, key=machine.inventory.functions.index)
    return Choice(tuple(ordered), tuple(refusals), tuple(notes))


def slot_name(slot: Slot) -> str:
    gpus = ", ".join(gpu.short_address for gpu in slot.gpus)
    return gpus if slot.group is None else f"group {slot.group} ({gpus})"


def _unknown(machine: Machine, wishes: Wishes) -> Tuple[List[str], List[str]]:
    """Wishes about GPUs that are not there. One to be given away is missed; one to be kept may have been taken out."""
    addresses = {gpu.address for gpu in machine.inventory.gpus}
    listed = ", ".join(sorted(addresses)) or "none"
    missing = ", ".join(address for address in wishes.only or () if address not in addresses)
    refusals = [f"there is no GPU at {missing}, to be given away; GPUs are at: {listed}"] if missing else []
    return refusals, [
        f"{address} is to be kept, but there is no GPU at it" for address in wishes.keep if address not in addresses
    ]


def _wanted(slot: Slot, wishes: Wishes) -> bool:
    """A group is given whole, so one GPU to be kept keeps the others of its group."""
    addresses = [gpu.address for gpu in slot.gpus]
    if any(address in wishes.keep for address in addresses):
        return False
    return wishes.only is None or any(address in wishes.only for address in addresses)


def _strangers(machine: Machine, slot: Slot, wishes: Wishes) -> List[str]:
    """Disks, network ports and the like in the group. Whether the host needs one cannot be known for certain from
    here (a disk of a storage cluster is neither mounted nor quiet), so such a one goes only if somebody names it."""
    strangers = [f for f in _members(machine, slot) if f not in slot.gpus and f not in slot.companions]
    return [
        f"{f.short_address} {f.class_name} {f.model} shares the group, and the host would lose it: --give "
        f"{f.short_address} if that is meant"
        for f in strangers
        if f.address not in wishes.give
    ]


def _members(machine: Machine, slot: Slot) -> Iterable[PciFunction]:
    """All that would make the group "not viable" with a driver of the host."""
    for function in machine.inventory.groups()[slot.group or 0]:
        if not function.stays_with_host:
            yield function


def _card(machine: Machine, slot: Slot) -> Tuple[List[PciFunction], List[str]]:
    """While the IOMMU is off nobody knows the groups: the functions of the same card, unless the host needs one."""
    inventory, cards = machine.inventory, {gpu.card for gpu in slot.gpus}
    companions = companions_of(slot.gpus, inventory.functions, inventory)
    members = [f for f in inventory.functions if (f.is_gpu and f.card in cards) or f.address in companions]
    reasons = [
        f"{f.short_address} is needed by the host: {inventory.needed_by_host[f.address]}"
        for f in members
        if f.address in inventory.needed_by_host
    ]
    reasons += [f"{f.short_address} is the boot console" for f in members if f.boot_vga]
    return ([] if reasons else members), reasons
