"""GPUs of a site as people meet them: where each one is, who has it, and why it is in the state it is in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Dict, Optional


class GpuRole(str, Enum):
    """A GPU's place in its IOMMU group; it decides the resource class that Placement knows it by."""

    LONE = "lone"
    LEADER = "leader"
    PEER = "peer"


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
    """The host is not ready."""
    LOST = "lost"
    """The site expects it, the cloud does not have it."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the site, as the compiler made it known to Nova and Placement."""

    host: str
    address: str
    pool: str
    model: str
    """Human name, ``Tesla V100 PCIe 16GB``."""
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
    """Why its slot cannot be offered; empty when it can."""

    @property
    def provider_name(self) -> str:
        return provider_name(self.host, self.address)


def provider_name(host: str, address: str) -> str:
    """The name of a PCI device's resource provider in Placement, which Nova makes from host and address."""
    return f"{host}_{address.upper()}"


@dataclass(frozen=True)
class Claim:
    """A server that holds a GPU now."""

    server_id: str
    server_name: str
    server_status: str
    project: str
    user: str
    since: Optional[datetime] = None
    """UTC."""


@dataclass(frozen=True)
class GpuStatus:
    """One row of ``gpuyard gpu list`` and one box of the map."""

    gpu: Gpu
    state: GpuState
    reason: str = ""
    claim: Optional[Claim] = None
    booking: str = ""
    """Id of the booking or hold that keeps it; only of one that is booked or held."""

    def as_dict(self) -> Dict[str, Any]:
        """As the API has it, and the command lines."""
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
