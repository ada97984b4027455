"""The records that the ledger keeps besides bookings, and the queries it answers. Plain data; times are UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane, ReclaimAction


@dataclass(frozen=True)
class Occupied:
    """A lane that is taken for a time."""

    booking: str
    lane: int
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Event:
    """An event that its owner or a channel is to be told of. It is written with the change that it tells of, in one
    transaction, and delivered later: what happened is never lost, and told at least once."""

    kind: str
    """``booking.confirmed``, ``booking.started`` ...: model/events.py lists them."""
    at: datetime
    booking: str
    """Id; empty for what concerns a server without a booking."""
    user_id: str
    """The user whom it concerns."""
    email: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    id: int = 0
    """Given by the store; rises."""


@dataclass(frozen=True)
class AuditEntry:
    """An entry of the audit log: a person or gpuyard did something, by some rule."""

    at: datetime
    actor: str
    """A user's name, or ``gpuyard``."""
    action: str
    """``booking.create``, ``booking.override``, ``server.shelve``, ``limit.set`` ..."""
    target: str
    """The object of the action: a booking's id, a server's."""
    rule: str = ""
    """The rule of the site file that caused it, or was set aside: ``must_book``, ``longest`` ..."""
    text: str = ""
    id: int = 0


@dataclass(frozen=True)
class Query:
    """Filter for a list of bookings: those that match every field that is given. In order of start, then id."""

    pool: str = ""
    project_id: str = ""
    user_id: str = ""
    series: str = ""
    id: str = ""
    """Beginning of the id."""
    kinds: frozenset[BookingKind] = frozenset()
    states: frozenset[BookingState] = frozenset()
    start: datetime | None = None
    """Only those that end after this."""
    end: datetime | None = None
    """Only those that start before this."""


@dataclass(frozen=True)
class Granted:
    """A booking that got its GPUs."""

    pool: str
    asked: datetime
    granted: datetime
    """When they were first kept for it: at once, by an offer of the waitlist, or by an admin's approval."""


@dataclass(frozen=True)
class LiveBookings:
    """The number of bookings of a pool, a kind and a state; of states that are not over."""

    pool: str
    kind: BookingKind
    state: BookingState
    bookings: int
    gpus: int
    oldest: datetime
    """When the first of them was made."""


@dataclass(frozen=True)
class AuditQuery:
    """Filter for entries of the audit log: those that match every field that is given."""

    user: str = ""
    """Name of the user who did it, or whose booking it was."""
    target: str = ""
    """Beginning of the id of the booking or server."""
    pool: str = ""
    """Pool of the booking."""
    project: str = ""
    """Name or id, of the booking."""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class Overstay:
    """A server that keeps GPUs that it has no booking for, from the first observation to the end."""

    server_id: str
    server: str
    pool: str
    user_id: str
    project_id: str
    rule: str
    """``must_book``, ``past the end``, ``yields to a booking`` ..."""
    action: ReclaimAction
    seen: datetime
    warned: datetime | None = None
    due: datetime | None = None
    """When the action is taken."""
    done: datetime | None = None
    """When it was taken, or in a dry run would have been."""
    cleared: datetime | None = None
    """When there was no reason for it any more."""
    dry_run: bool = True
    text: str = ""


@dataclass(frozen=True)
class LedgerSeen:
    """The ledger's bookings and lanes as of one observation of the cloud."""

    bookings: Mapping[str, Booking] = field(default_factory=dict)
    """By id: those that have lanes."""
    drawn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Id of a server -> ids of the bookings that it draws on."""
    lanes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Host and address of a GPU -> the lane that it is of."""


def lanes_of(lanes: Iterable[Lane]) -> dict[tuple[str, str], int]:
    return {(lane.host, address): lane.id for lane in lanes for address in lane.addresses}
