"""The facts that moves are planned from: a host, its servers, capacity elsewhere, and what bookings and holds keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuyard.bookings.policy import spell
from gpuyard.diagnosis.capacity.facts import CloudResources
from gpuyard.diagnosis.capacity.reckon import Statuses
from gpuyard.model.booking import BookingKind
from gpuyard.model.world import HostService
from gpuyard.nova.request import NovaFlavor
from gpuyard.nova.server_states import MigrationSeen, is_settled


@dataclass(frozen=True)
class KeptTime:
    """A time in which the ledger keeps GPUs for somebody, or out of use."""

    id: str
    kind: BookingKind
    gpus: frozenset[str]
    """Names of their providers."""
    start: datetime
    end: datetime
    who: str
    """``ada (physics)``; of a hold, its comment."""
    pinned: bool = False
    """It must be this GPU."""

    @property
    def fixed(self) -> bool:
        """Whether the ledger cannot move it to another GPU."""
        return self.pinned or self.kind is BookingKind.HOLD

    def __str__(self) -> str:
        what = "held" if self.kind is BookingKind.HOLD else "booked"
        return f"{what} from {spell(self.start)} to {spell(self.end)}: {self.who}"


@dataclass(frozen=True)
class GuestServer:
    """A server of the host, whatever it asks for."""

    id: str
    name: str
    status: str
    task: str
    project_id: str
    project: str
    user: str
    flavor: NovaFlavor
    """As it was when the server got it."""
    gpus: tuple[str, ...] = ()
    """Names of the providers of its GPUs on the host."""
    asks: int = 0
    """How many devices its flavor asks for, as far as Placement decides about them."""
    from_volume: bool = False
    """Its root disk is a volume."""
    ours: bool = False
    """gpuyard itself has started it, for a job or to accept GPUs, and deletes it when that is over."""

    @property
    def busy(self) -> bool:
        return not is_settled(self.status, self.task)

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


@dataclass(frozen=True)
class MovesFacts:
    """The facts of one observation."""

    now: datetime
    host: str
    service: HostService | None
    """Its nova-compute."""
    servers: tuple[GuestServer, ...]
    migrations: tuple[MigrationSeen, ...]
    """Migrations that began on the host."""
    room: CloudResources
    statuses: Statuses
    kept: tuple[KeptTime, ...] | None = ()
    """None: the site has bookings, and it is not known which."""
    not_live: Mapping[str, str] = field(default_factory=dict)
    """Id of a server -> why it cannot be migrated while it runs; those that can are left out."""
