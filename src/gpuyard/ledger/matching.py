"""Which server uses which booking: by Keystone's user and project, never by name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuyard.model.booking import Booking, BookingKind, BookingState

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
    """Servers of one pool beside its bookings."""

    claims: Mapping[str, tuple[int, ...]]
    """Id of a booking -> lanes that servers of its owner are on; bookings without a server are not named."""
    gpus: Mapping[str, int]
    """Id of a booking -> GPUs of those servers."""
    booking_of: Mapping[str, str]
    """Id of a server -> id of its booking."""
    unbooked: tuple[Holder, ...]
    """The other servers, the oldest first."""


def running(bookings: Iterable[Booking]) -> list[Booking]:
    """Bookings whose time it is, in order of their start."""
    active = [b for b in bookings if b.kind is BookingKind.BOOKING and b.state is BookingState.ACTIVE]
    return sorted(active, key=lambda b: (b.ask.start, b.id))


def match(bookings: Iterable[Booking], holders: Iterable[Holder]) -> Matches:
    """Give each server a booking of its user and project that is not used up; the oldest server first, so that what
    runs keeps what it has. Of several bookings one whose lanes the server is on, then the one that began first."""
    active = running(bookings)
    left = {booking.id: _Left(booking.ask.gpus, len(booking.lanes) or booking.ask.lanes) for booking in active}
    claims: dict[str, tuple[int, ...]] = {}
    gpus: dict[str, int] = {}
    booking_of: dict[str, str] = {}
    unbooked: list[Holder] = []
    for holder in sorted((one for one in holders if one.lanes), key=lambda one: (one.created or EARLY, one.id)):
        found = _booking_of(holder, active, left)
        if found is None:
            unbooked.append(holder)
            continue
        left[found.id] = left[found.id].less(holder)
        claims[found.id] = (*claims.get(found.id, ()), *holder.lanes)
        gpus[found.id] = gpus.get(found.id, 0) + holder.gpus
        booking_of[holder.id] = found.id
    return Matches(claims, gpus, booking_of, tuple(unbooked))


@dataclass(frozen=True)
class _Left:
    """What servers have not used of a booking."""

    gpus: int
    lanes: int

    def takes(self, holder: Holder) -> bool:
        return holder.gpus <= self.gpus and len(holder.lanes) <= self.lanes

    def less(self, holder: Holder) -> _Left:
        return _Left(self.gpus - holder.gpus, self.lanes - len(holder.lanes))


def _booking_of(holder: Holder, active: Sequence[Booking], left: Mapping[str, _Left]) -> Booking | None:
    own = [
        booking
        for booking in active
        if (booking.user_id, booking.project_id) == (holder.user_id, holder.project_id)
        and left[booking.id].takes(holder)
    ]
    on_them = [booking for booking in own if set(holder.lanes) & set(booking.lanes)]
    return next(iter(on_them or own), None)
