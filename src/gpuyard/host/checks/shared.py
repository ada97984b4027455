"""Checks cards that several servers share: virtual functions (SR-IOV), mediated devices (vGPU), and both at once."""

from __future__ import annotations

from typing import Dict, List

from gpuyard.host.machine import Answer, Machine, named
from gpuyard.model.finding import Severity
from gpuyard.model.pci import PciFunction
from gpuyard.model.text import counted

AS_IT_IS = "to share it, name it in a pool of kind vgpu or vf in site.yaml; 'docs/how-to/share-a-gpu.md' has both ways"


def shared(machine: Machine) -> Answer:
    """What a card is cut into, and what is missing before servers can have a part."""
    parts: Dict[str, List[PciFunction]] = {}
    for function in machine.inventory.virtual_gpus:
        parts.setdefault(function.physical_function or "", []).append(function)
    for gpu in machine.inventory.gpus:
        mine = parts.get(gpu.address, [])
        if mine:
            reason = f"{gpu.short_address} {gpu.model} has {counted(len(mine), 'virtual function')} on: {_ways(mine)}"
            yield Severity.OK, f"{reason}; each is a part of that card, and none is a card of its own", AS_IT_IS
            yield from _missing(machine, mine)
        elif gpu.mdev_types:
            yield Severity.OK, f"{gpu.short_address} {gpu.model} can be shared: {_ways([gpu])}", AS_IT_IS
    loose = [f for address, mine in parts.items() if address not in {g.address for g in machine.inventory.gpus}
             for f in mine]  # fmt: skip
    if loose:
        remedy = "look at the machine itself: their physical function is not to be seen, or is no display controller"
        yield Severity.WARNING, f"{named(loose)}: virtual functions of no GPU that is here", remedy


def _ways(functions: List[PciFunction]) -> str:
    """How servers can have parts of it."""
    kinds = sorted({kind.name for function in functions for kind in function.mdev_types})
    made = sum(function.mdevs for function in functions)
    chosen = sorted({f.vgpu_type for f in functions if f.vgpu_type})
    if kinds:
        return f"mediated devices of {counted(len(kinds), 'type')} ({_some(kinds)}), {made} made"
    if any(f.vgpu_type is not None for f in functions):
        count = sum(bool(f.vgpu_type) for f in functions)
        return f"a vGPU type is chosen for {count} of them" + (f" ({_some(list(map(str, chosen)))})" if chosen else "")
    drivers = sorted({f.driver or "no driver" for f in functions})
    return f"to be given away one by one, with {', '.join(drivers)}"


def _some(names: List[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _missing(machine: Machine, functions: List[PciFunction]) -> Answer:
    without = [f for f in functions if f.vgpu_type == 0]
    if without and len(without) == len(functions):
        first = without[0]
        folder = f"/sys/bus/pci/devices/{first.address}/nvidia"
        remedy = f"choose one of {folder}/creatable_vgpu_types and write its number to current_vgpu_type there"
        yield Severity.WARNING, f"no vGPU type is chosen for {named([first])} and those beside it", remedy
    if any(f.mdev_types for f in functions):
        return  # each mediated device has a group of its own
    groups = machine.inventory.groups()
    tied = [f for f in functions if f.iommu_group is not None
            and any(member is not f and not member.is_bridge for member in groups[f.iommu_group])]  # fmt: skip
    if tied:
        remedy = "behind another root port, or with ACS, each may have a group of its own; until then none can be given"
        yield (
            Severity.WARNING,
            f"{counted(len(tied), 'virtual function')} share an IOMMU group, as {named(tied[:1])}",
            remedy,
        )
