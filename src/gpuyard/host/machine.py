"""The input of the checks of a host, with look-ups that several of them share, and the form of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Dict, Iterable, List, Tuple

from gpuyard.host.holders import Processes, look
from gpuyard.host.modules import takers
from gpuyard.host.tree import Tree
from gpuyard.model.finding import Severity
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.model.slot import Slot

IOMMU_OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")
Answer = Iterable[Tuple[Severity, str, str]]
"""Severity, reason, remedy."""


@dataclass(frozen=True)
class Machine:
    """What the checks look at. What several of them ask for is found once."""

    tree: Tree
    inventory: Inventory
    slots: Tuple[Slot, ...]

    @cached_property
    def members(self) -> List[PciFunction]:
        """GPUs and companions of all slots, in bus order."""
        functions = [function for slot in self.slots for function in (*slot.gpus, *slot.companions)]
        return sorted(functions, key=self.inventory.functions.index)

    @property
    def vendor(self) -> str:
        """``AMD``, ``Intel``, or empty for others."""
        model = self.inventory.facts.cpu_model
        return "AMD" if "AMD" in model else "Intel" if "Intel" in model else ""

    @property
    def switched_off(self) -> List[str]:
        """Options of the running kernel that keep the IOMMU off."""
        return [word for word in self.inventory.facts.command_line.split() if word in IOMMU_OFF]

    @property
    def firmware_first(self) -> str:
        """What must be done in the firmware before anything else helps; empty where the IOMMU is on, or may only need
        a kernel option: Intel's does, AMD's and others are on by default."""
        if self.inventory.iommu_on:
            return ""
        tables = self.tree.names("sys/firmware/acpi/tables")
        table = {"AMD": "IVRS", "Intel": "DMAR"}.get(self.vendor)
        where = {"AMD": "IOMMU (AMD-Vi)", "Intel": "VT-d"}.get(self.vendor, "the IOMMU")
        if table and tables and table not in tables:
            return f"enable {where} in the firmware, which offers no IOMMU (no ACPI table {table})"
        requested = self.vendor != "Intel" or "intel_iommu=on" in self.inventory.facts.command_line.split()
        if self.switched_off or not requested:
            return ""
        if "hypervisor" in (self.tree.read("proc/cpuinfo") or ""):
            return "this machine is a VM: give it an emulated IOMMU where it runs, or use a machine of metal"
        return f"enable {where} in the firmware"

    @cached_property
    def takers(self) -> Dict[str, List[str]]:
        """Address of a member -> modules that would take it."""
        return takers(self.tree, self.members)

    @cached_property
    def processes(self) -> Processes:
        return look(self.tree)

    def group_members(self, slot: Slot) -> List[PciFunction]:
        """All functions of a slot's IOMMU group, bridges too; empty when the IOMMU is off."""
        return [f for f in self.inventory.functions if f.iommu_group is not None and f.iommu_group == slot.group]


Check = Callable[[Machine], Answer]


def by_model(functions: Iterable[PciFunction]) -> Dict[str, List[PciFunction]]:
    """``27:00.0, 28:00.0 Tesla V100 PCIe 16GB`` -> the two functions: cards that are alike are told of once."""
    models: Dict[str, List[PciFunction]] = {}
    for function in functions:
        models.setdefault(function.model, []).append(function)
    return {f"{named(alike)} {model}": alike for model, alike in models.items()}


def named(functions: Iterable[PciFunction]) -> str:
    """``27:00.0, 28:00.0``."""
    return ", ".join(function.short_address for function in functions)
