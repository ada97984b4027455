"""Matches servers with bookings and leases, by their users, projects and names. Pure.

A booking is for servers of its user and project, by Keystone's ids, a shared one for any server of its project; a lease
is for the one server with its name and project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.world import Server

LET_IN = frozenset({BookingKind.BOOKING, BookingKind.LOAN})
"""Kinds whose owners start servers themselves, as far as their project's limit allows."""
EARLY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Holder:
    """A server that has GPUs of a pool now, or is about to get them."""

    id: str
    name: str
    status: str
    user_id: str
    project_id: str
    project: str
    """Its name, as the site file may have it."""
    pool: str
    """Empty when that cannot be told yet; it may become any."""
    lanes: tuple[int, ...] = ()
    """Lanes that it is on; empty for one that is on its way."""
    gpus: int = 0
    created: datetime | None = None
    on_its_way: bool = False
    """Nova works on it in a way that may still take a GPU: a create or a resize that has not got one yet."""


@dataclass(frozen=True)
class Matches:
    """Servers of one pool, matched with its bookings."""

    claims: Mapping[str, tuple[int, ...]]
    """Id of a booking -> lanes that servers of its owner are on; bookings without a server are not named."""
    gpus: Mapping[str, int]
    """Id of a booking -> GPUs of those servers."""
    bookings_of: Mapping[str, tuple[str, ...]]
    """Id of a server -> ids of the bookings that it draws on."""
    unbooked: tuple[Holder, ...]
    """The other servers, the oldest first."""


def running(bookings: Iterable[Booking]) -> list[Booking]:
    """Return bookings and loans that are active, in order of their start."""
    active = [b for b in bookings if b.kind in LET_IN and b.state is BookingState.ACTIVE]
    return sorted(active, key=lambda b: (b.ask.start, b.id))


def on_now(bookings: Iterable[Booking]) -> list[Booking]:
    """Return leases that are active, in order of their start."""
    leases = [b for b in bookings if b.kind is BookingKind.RUNNER and b.state is BookingState.ACTIVE]
    return sorted(leases, key=lambda b: (b.ask.start, b.id))


def may_use(holder: Holder | Server, booking: Booking) -> bool:
    """Return whether a booking is for a server, as far as its user and project tell."""
    return booking.project_id == holder.project_id and (booking.shared or booking.user_id == holder.user_id)


def match(bookings: Iterable[Booking], holders: Iterable[Holder]) -> Matches:
    """Give each server a booking of its user and project, or a shared one of its project, that is not used up; several
    where none has enough: Nova counts GPUs of a project, so it lets in whoever has booked two GPUs one by one and
    starts a server with both. The oldest server first, so that what runs keeps what it has. Of several bookings one
    that is not shared, then one whose lanes the server is on, then the one that began first. A server that a lease is
    for has that one, and no other server has it."""
    bookings = list(bookings)
    active = running(bookings)
    leases = {(lease.project_id, lease.server): lease.id for lease in reversed(on_now(bookings))}
    left = {booking.id: _Left(booking.ask.gpus, len(booking.lanes) or booking.ask.lanes) for booking in active}
    claims: dict[str, tuple[int, ...]] = {}
    gpus: dict[str, int] = {}
    bookings_of: dict[str, tuple[str, ...]] = {}
    unbooked: list[Holder] = []
    for holder in sorted(
        (holder for holder in holders if holder.lanes), key=lambda server: (server.created or EARLY, server.id)
    ):
        lease = leases.pop((holder.project_id, holder.name), None)
        if lease is not None:
            claims[lease], gpus[lease], bookings_of[holder.id] = holder.lanes, holder.gpus, (lease,)
            continue
        drawn = _drawn(holder, active, left)
        if not drawn:
            unbooked.append(holder)
            continue
        for id, draw in drawn.items():
            left[id] = left[id].less(draw)
            gpus[id] = gpus.get(id, 0) + draw.gpus
            if draw.lanes:
                claims[id] = (*claims.get(id, ()), *draw.lanes)
        bookings_of[holder.id] = tuple(drawn)
    return Matches(claims, gpus, bookings_of, tuple(unbooked))


@dataclass(frozen=True)
class _Draw:
    """What a server uses of a booking."""

    gpus: int
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class _Left:
    """What servers have not used of a booking."""

    gpus: int
    lanes: int

    def takes(self, holder: Holder) -> bool:
        return holder.gpus <= self.gpus and len(holder.lanes) <= self.lanes

    def less(self, draw: _Draw) -> _Left:
        return _Left(self.gpus - draw.gpus, self.lanes - len(draw.lanes))


def _drawn(holder: Holder, active: Sequence[Booking], left: Mapping[str, _Left]) -> dict[str, _Draw]:
    """Booking -> what the server uses of it; empty when all of its owner's bookings together have not enough."""
    own = [b for b in active if may_use(holder, b) and _lends(b, holder) and left[b.id].gpus]
    # Stable: otherwise in order of their start. A shared one comes last wherever the server is: a colleague may have
    # no other, and which lane a server gets is Nova's choice.
    own.sort(key=lambda b: (b.shared, not set(holder.lanes) & set(b.lanes)))
    for booking in own:
        if left[booking.id].takes(holder):
            return {booking.id: _Draw(holder.gpus, holder.lanes)}
    lanes = _shared_out(holder.lanes, own, left)
    gpus = {booking.id: min(left[booking.id].gpus, len(lanes[booking.id])) for booking in own}
    for booking in own:  # a lane may have several
        gpus[booking.id] += min(left[booking.id].gpus - gpus[booking.id], holder.gpus - sum(gpus.values()))
    if sum(map(len, lanes.values())) < len(holder.lanes) or sum(gpus.values()) != holder.gpus:
        return {}
    return {booking.id: _Draw(gpus[booking.id], lanes[booking.id]) for booking in own if gpus[booking.id]}


def _lends(booking: Booking, holder: Holder) -> bool:
    """A loan is of one GPU, whatever Nova chose, and may be for one server."""
    if booking.kind is not BookingKind.LOAN:
        return True
    return {*holder.lanes} <= {*booking.lanes} and booking.server in ("", holder.name)


def _shared_out(lanes: Sequence[int], own: Sequence[Booking], left: Mapping[str, _Left]) -> dict[str, tuple[int, ...]]:
    """Booking -> lanes of a server that count as its: those that it has, then others as long as it has room."""
    shared: dict[str, tuple[int, ...]] = {}
    for booking in own:
        others = [lane for mine in shared.values() for lane in mine]
        shared[booking.id] = tuple(lane for lane in lanes if lane in booking.lanes and lane not in others)
        shared[booking.id] = shared[booking.id][: left[booking.id].lanes]
    rest = [lane for lane in lanes if not any(lane in mine for mine in shared.values())]
    for booking in own:
        room = left[booking.id].lanes - len(shared[booking.id])
        shared[booking.id] += tuple(rest[:room])
        rest = rest[room:]
    return shared
