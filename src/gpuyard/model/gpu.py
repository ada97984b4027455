"""GPUs of a site: their place, their state with its reason, and the server that has each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Dict, Optional, Tuple


class GpuRole(str, Enum):
    """A GPU's place in its IOMMU group; it decides the resource class that Placement knows it by."""

    LONE = "lone"
    LEADER = "leader"
    PEER = "peer"


class GpuKind(str, Enum):
    """How the servers of a pool get its GPUs."""

    PASSTHROUGH = "passthrough"
    """A whole card, for one server."""
    VGPU = "vgpu"
    """A mediated device that the card's driver makes for a server: NVIDIA's vGPU, also on a part of the card (MIG)."""
    VF = "vf"
    """A virtual function of the card (SR-IOV)."""


class GpuState(str, Enum):
    """One at a time, each with its reason."""

    FREE = "free"
    """Can be had right now."""
    CLAIMED = "claimed"
    """A server holds it, booked or not, running or shut off."""
    BOOKED = "booked"
    """Kept for a booking that starts soon or has no server yet."""
    HELD = "held"
    """Kept out of scheduling: quarantine, maintenance, scrub."""
    STRANDED = "stranded"
    """Free, but cannot be had: its leader is taken, or its host has no room left for any flavor of its pool."""
    BLOCKED = "blocked"
    """The host is not ready, or a server that was evacuated from it still counts for the GPU."""
    LOST = "lost"
    """The site expects it, the cloud does not have it."""


UNIT = "~"
"""Separator before the number of a unit: ``0000:41:00.0~3`` is the third server's share of the card at
``0000:41:00.0``. No name of a host and no PCI address contains it."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the site, as the compiler made it known to Nova and Placement; or a unit, which is one server's share
    of a card that several share."""

    host: str
    address: str
    """Full PCI address; for a unit, that of its device and the unit's number (UNIT)."""
    pool: str
    model: str
    """Name for people, ``Tesla V100 PCIe 16GB``."""
    ids: str
    """``vendor:product``."""
    role: GpuRole
    resource_class: str
    group: Optional[int]
    """IOMMU group number on its host."""
    set_letter: Optional[str] = None
    """The letter of its leader/peer set; None for a lone GPU."""
    numa_node: Optional[int] = None
    blocked: str = ""
    """The reason why its slot cannot be offered; empty when it can."""
    kind: GpuKind = GpuKind.PASSTHROUGH
    """The kind of its pool. All but passthrough are units: Placement knows how many of a device are taken, not
    which."""
    marked_lone: bool = False
    """Whether a trait says that it is alone in its group: in pools that have shared groups too, where the site has
    runners."""

    @property
    def provider_name(self) -> str:
        """Its name in a snapshot. For a whole GPU that is the name of its provider; units of one device have the
        provider in common, and a name each."""
        return provider_name(self.host, self.address)

    @property
    def is_unit(self) -> bool:
        return self.kind is not GpuKind.PASSTHROUGH

    @property
    def device(self) -> str:
        """PCI address of the function that it is, or is a share of, as Placement has it: the physical one of a virtual
        function; for a vGPU, the one that makes it."""
        return self.address.partition(UNIT)[0]

    @property
    def place(self) -> Tuple[str, int]:
        """Sort key of the GPUs of a host as people count: the tenth unit of a device comes after its ninth."""
        device, _, number = self.address.partition(UNIT)
        return device, int(number or 0)

    @property
    def provider(self) -> str:
        """The name of its resource provider in Placement."""
        if self.kind is GpuKind.VGPU:  # the name that libvirt has for the device
            return f"{self.host}_pci_{self.device.replace(':', '_').replace('.', '_')}"
        return provider_name(self.host, self.device)


def provider_name(host: str, address: str) -> str:
    """Return the name of a PCI device's resource provider in Placement, which Nova makes from host and address; for a
    unit, its name in a snapshot."""
    return f"{host}_{address.upper()}"


def is_unit(name: str) -> bool:
    """Return whether an address, or a `provider_name`, is that of a unit."""
    return UNIT in name


@dataclass(frozen=True)
class Claim:
    """A server that holds a GPU now."""

    server_id: str
    server_name: str
    server_status: str
    project: str
    user: str
    since: Optional[datetime] = None
    """When it began, UTC."""
    project_id: str = ""
    """The project's id: two projects may have one name, in domains of their own; so may users."""
    user_id: str = ""


@dataclass(frozen=True)
class GpuStatus:
    """The state of a GPU: one row of ``gpuyard gpu list`` and one box of the map."""

    gpu: Gpu
    state: GpuState
    reason: str = ""
    claim: Optional[Claim] = None
    booking: str = ""
    """Id of the booking or hold that keeps it; only when it is booked or held."""

    def as_dict(self) -> Dict[str, Any]:
        """Return it as the API and the command lines show it."""
        gpu, claim = self.gpu, self.claim
        server = {"id": claim.server_id, "name": claim.server_name, "status": claim.server_status} if claim else None
        return {
            "host": gpu.host,
            "address": gpu.address,
            "state": self.state.value,
            "reason": self.reason,
            "pool": gpu.pool,
            "model": gpu.model,
            "ids": gpu.ids,
            "group": gpu.group,
            "role": gpu.role.value,
            "set": gpu.set_letter,
            "numa_node": gpu.numa_node,
            "server": server,
            "project": (claim.project or None) if claim else None,
            "user": (claim.user or None) if claim else None,
            "since": claim.since if claim else None,
            "booking": self.booking or None,
        }


@dataclass(frozen=True)
class Keeping:
    """The ledger's record of a GPU that is kept now."""

    state: GpuState
    """BOOKED, or HELD by an operator's hold."""
    reason: str
    booking: str = ""
    """Id of the booking or hold, where there is one."""


LedgerWords = Mapping[str, Keeping]
"""The ledger's records of GPUs, by the names of their providers."""


FOREIGN = "reserved in Placement: for a booking, maintenance, quarantine or scrub"
"""The reason for a held GPU that the ledger does not hold."""
