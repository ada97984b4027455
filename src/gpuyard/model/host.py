"""Facts about one hypervisor: its PCI functions and what it needs for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from gpuyard.model.pci import PciFunction


@dataclass(frozen=True)
class HostFacts:
    """Facts about the machine that the scheduler and the compiler need besides its PCI functions."""

    hostname: str
    kernel: str = ""
    command_line: str = ""
    cpu_model: str = ""
    cpus: int = 0
    """Logical CPUs that are online."""
    memory_mib: int = 0
    disk_gib: int = 0
    """Size of the disk that holds the root file system."""
    numa_nodes: int = 1
    address_bits: int = 0
    """Width of a CPU's physical addresses; 0 when it is not known (a recording of an earlier gpuyard, not x86)."""


@dataclass(frozen=True)
class Inventory:
    """One scan of one host."""

    facts: HostFacts
    functions: Tuple[PciFunction, ...]
    """All functions, in bus order."""
    needed_by_host: Mapping[str, str] = field(default_factory=dict)
    """Address of a function -> the host's use of it (``root disk nvme0n1``, ``uplink eno1``)."""
    origin: str = ""
    """Origin of the scan: the live machine, or what a recording says about itself."""

    def function(self, address: str) -> PciFunction:
        """Return the function at a full address. Raises KeyError when there is none."""
        for function in self.functions:
            if function.address == address:
                return function
        raise KeyError(address)

    def groups(self) -> Dict[int, List[PciFunction]]:
        """Return IOMMU group number -> members in bus order; empty when the IOMMU is off."""
        groups: Dict[int, List[PciFunction]] = {}
        for function in self.functions:
            if function.iommu_group is not None:
                groups.setdefault(function.iommu_group, []).append(function)
        return dict(sorted(groups.items()))

    @property
    def gpus(self) -> Tuple[PciFunction, ...]:
        """GPUs that could be given away. Virtual functions are in `virtual_gpus`."""
        return tuple(f for f in self.functions if f.is_gpu and not f.is_virtual)

    @property
    def virtual_gpus(self) -> Tuple[PciFunction, ...]:
        """Virtual functions of GPUs: parts of a card, which a site can only offer as such."""
        return tuple(f for f in self.functions if f.is_gpu and f.is_virtual)

    @property
    def iommu_on(self) -> bool:
        return any(f.iommu_group is not None for f in self.functions)

    @property
    def unreadable(self) -> Tuple[str, ...]:
        """Functions that could not be read, so that a GPU may be there and not be counted; a sentence each."""
        if not self.functions:
            return ("no PCI function is to be seen: /sys/bus/pci/devices is empty, or cannot be read",)
        return tuple(
            f"{f.short_address} {f.class_name} may be a GPU: its {'class' if f.vendor_id else 'vendor'} cannot be read"
            for f in self.functions
            if not f.class_code or (f.is_display and not f.vendor_id)
        )

    @property
    def host_name(self) -> Optional[str]:
        return self.facts.hostname or None
