"""A slot: one IOMMU group seen as something to give away."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

from gpuyard.model.pci import PciFunction


class Verdict(str, Enum):
    USABLE = "usable"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Slot:
    """The GPUs of one IOMMU group, what comes with them, and whether they can be passed to a VM."""

    group: Optional[int]
    """IOMMU group number; None when the IOMMU is off, and the slot is blocked then."""
    gpus: Tuple[PciFunction, ...]
    """Its GPUs: the leader first, then its peers, in bus order."""
    companions: Tuple[PciFunction, ...] = ()
    """Other members that are bound to vfio-pci but not offered: audio, USB, NVSwitch."""
    verdict: Verdict = Verdict.USABLE
    reasons: Tuple[str, ...] = ()
    """Reasons why the slot is blocked; empty when it is usable."""
    notes: Tuple[str, ...] = ()
    """Things to know although the slot is usable."""

    @property
    def leader(self) -> PciFunction:
        return self.gpus[0]

    @property
    def peers(self) -> Tuple[PciFunction, ...]:
        return self.gpus[1:]

    @property
    def usable(self) -> bool:
        return self.verdict is Verdict.USABLE


@dataclass(frozen=True)
class Capacity:
    """The number of VMs that a host can run at once, by its slots alone (without CPU and RAM)."""

    gpus: int
    """GPUs in usable slots: all of them are in use when every slot is taken whole."""
    single_gpu_vms: int
    """VMs with one GPU each: one per usable slot, because a group is never split between VMs."""
    whole_slot_vms: int
    """VMs that each get all GPUs of a slot."""
