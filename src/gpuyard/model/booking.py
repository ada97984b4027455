"""Bookings: who may use which GPUs when, what may be asked, and what the answer is.

Times are UTC, intervals half-open: [start, end). What is booked is a *lane*: one slot (an IOMMU group) over time, a row
of the calendar. A booking of n GPUs takes n lanes, or one lane whose slot has n GPUs when they must share a group. A
server with one GPU on a slot of two leaves the other stranded, so a lane is never shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import FrozenSet, Mapping, Optional, Tuple


class BookingState(str, Enum):
    """Where a booking is in its life; ledger/life.py has the ways between them."""

    REQUESTED = "requested"
    """Waits for an admin's approval; takes no GPU yet."""
    WAITING = "waiting"
    """On the waitlist; takes no GPU yet."""
    OFFERED = "offered"
    """Was waiting, and its GPUs are kept for it until `offer_until`, for its owner to accept."""
    CONFIRMED = "confirmed"
    """Its GPUs are its own from start to end."""
    ACTIVE = "active"
    """Now is within its time."""
    ENDED = "ended"
    CANCELLED = "cancelled"
    """By its owner or an admin, before it began."""
    NO_SHOW = "no-show"
    """Released: no server came within the time that the rules give."""
    EXPIRED = "expired"
    """Nobody approved or accepted it, or no GPU became free, in time."""


class BookingKind(str, Enum):
    """What takes a lane."""

    BOOKING = "booking"
    HOLD = "hold"
    """An operator keeps a GPU out of use: maintenance, quarantine."""


@dataclass(frozen=True)
class Lane:
    """One slot of a pool as the ledger books it. Its number stays while the site keeps the slot."""

    id: int
    pool: str
    host: str
    addresses: Tuple[str, ...]
    """PCI addresses of its GPUs, the leader's first."""
    trouble: str = ""
    """Why it cannot be booked or used now (lost, blocked, gone from the site); empty when it can."""

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.addresses)

    @property
    def name(self) -> str:
        """``host/address`` of its first GPU, as people name it."""
        return f"{self.host}/{self.addresses[0]}"


@dataclass(frozen=True)
class Person:
    """Who asks: a Keystone user in a project, with the roles there."""

    user_id: str
    user: str
    project_id: str
    project: str
    roles: FrozenSet[str] = frozenset()
    email: str = ""

    @property
    def admin(self) -> bool:
        return "admin" in self.roles


@dataclass(frozen=True)
class Ask:
    """What somebody wants to book."""

    pool: str
    start: datetime
    """UTC."""
    end: datetime
    """UTC; the first moment that is not booked any more."""
    gpus: int = 1
    same_group: bool = False
    """The GPUs must be one whole IOMMU group."""
    same_host: bool = False
    """The GPUs must be on one host, as a server with several GPUs needs them."""
    gpu: str = ""
    """``host/address`` of a GPU that it must be; empty for any of the pool."""
    comment: str = ""
    """For everybody to see."""

    @property
    def lanes(self) -> int:
        """How many lanes it takes."""
        return 1 if self.same_group else self.gpus

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.end - self.start).total_seconds() / 3600


@dataclass(frozen=True)
class Booking:
    """A booking or a hold, as the store has it."""

    id: str
    kind: BookingKind
    ask: Ask
    state: BookingState
    user_id: str
    user: str
    project_id: str
    project: str
    created: datetime
    changed: datetime
    version: int = 1
    """Rises with every change: what ETag and If-Match compare."""
    lanes: Tuple[int, ...] = ()
    """Ids of the lanes that it has; empty in states that take none."""
    reason: str = ""
    """Why it is in its state, when that is not its owner's doing."""
    email: str = ""
    series: str = ""
    """The same for all bookings of one recurring one."""
    offer_until: Optional[datetime] = None
    claimed: Optional[datetime] = None
    """When a server of its owner was first seen on one of its GPUs."""
    open_until: Optional[datetime] = None
    """In pools with unbooked use: until when its GPUs are released for its owner's server."""
    priority: int = 0
    override: bool = False
    """An admin set rules aside for it."""
    followed: int = 0
    """Its place among those that were made in the same second: order of the waitlist."""


@dataclass(frozen=True)
class Reason:
    """One thing that speaks against what was asked."""

    code: str
    """For programs: ``full``, ``too_long``, ``past`` ...; does not change when the words do."""
    text: str


@dataclass(frozen=True)
class Alternative:
    """Something near that would be possible."""

    ask: Ask
    text: str
    """``from Thu 2026-11-26 14:00 UTC``, ``2 of pool t4 instead``."""


@dataclass(frozen=True)
class Answer:
    """Yes with the lanes that would be taken, or no with every reason."""

    lanes: Tuple[int, ...] = ()
    moves: Mapping[str, Tuple[int, ...]] = field(default_factory=dict)
    """Other bookings whose lanes change to make room: id -> all lanes that it has then. Nobody notices: GPUs of a pool
    are alike, and none of these has begun or asks for a certain GPU."""
    reasons: Tuple[Reason, ...] = ()
    alternatives: Tuple[Alternative, ...] = ()
    overridden: Tuple[Reason, ...] = ()
    """Rules that an admin's override has set aside."""

    @property
    def yes(self) -> bool:
        return not self.reasons


class ReclaimAction(str, Enum):
    """What happens to a server that keeps a GPU without a booking, after warning and grace."""

    WARN = "warn"
    """Nothing but the warning."""
    SHELVE = "shelve"
    """Shelve and offload: the server keeps its disk and address and can be started again; the GPU is free."""
    STOP = "stop"
    """Shut off. The server keeps its GPU: this frees nothing."""
    SNAPSHOT_AND_DELETE = "snapshot-and-delete"
    DELETE = "delete"


@dataclass(frozen=True)
class QuietHours:
    """Hours of the day, in the site's time zone, in which no booking starts or ends. May span midnight."""

    start_minute: int
    """Minutes after midnight."""
    end_minute: int


@dataclass(frozen=True)
class Rules:
    """What holds for bookings of one project in one pool, complete."""

    must_book: bool = True
    """Servers without a booking are not let in, and reclaimed when they are there."""
    longest: timedelta = timedelta(days=15)
    most_active: int = 2
    """Most bookings of a user in the pool that have not ended."""
    ahead: timedelta = timedelta(days=60)
    """How far ahead a booking may start."""
    notice: timedelta = timedelta(0)
    """How long before its start a booking must be made."""
    gpu_hours_per_month: Optional[int] = None
    """Most GPU-hours of the pool that a project may book in a month (UTC)."""
    may_book: bool = True
    """Whether the project may book here at all."""
    users: Optional[FrozenSet[str]] = None
    """Names of the users who may; None is everybody with the role member in the project."""
    priority: int = 0
    """On the waitlist the highest comes first."""
    quiet_hours: Tuple[QuietHours, ...] = ()
    approval: bool = False
    """An admin must approve."""
    no_show: Optional[timedelta] = timedelta(hours=4)
    """After this time without a server the booking is released; None is never."""
    offer: timedelta = timedelta(hours=2)
    """How long GPUs are kept for one on the waitlist to accept."""
    hold: timedelta = timedelta(minutes=10)
    """How long before the start the GPUs are kept free."""
    window: timedelta = timedelta(minutes=15)
    """In pools with unbooked use: how long the GPUs are released, and all others' limits kept at their use, for the
    owner to start a server. It is opened again on request."""
    end_soon: timedelta = timedelta(hours=4)
    """How long before the end its owner is reminded."""
    grace: timedelta = timedelta(hours=1)
    """How long after the warning a server without a booking keeps its GPU."""
    reclaim: ReclaimAction = ReclaimAction.SHELVE
