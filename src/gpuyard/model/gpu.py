"""GPUs of a site as people meet them: where each one is, who has it, and why it is in the state it is in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Optional


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
        """The name of its resource provider in Placement, which Nova makes from host and address."""
        return f"{self.host}_{self.address.upper()}"


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
