"""Turns the ledger's bookings and holds into times in which GPUs are kept."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.drain.facts import KeptTime
from gpuyard.model.booking import Booking, BookingKind, Lane
from gpuyard.model.gpu import provider_name


def kept_of(bookings: Iterable[Booking], lanes: Iterable[Lane]) -> tuple[KeptTime, ...]:
    """Return the times of bookings that take lanes, or will."""
    names = {lane.id: [provider_name(lane.host, address) for address in lane.addresses] for lane in lanes}
    return tuple(
        KeptTime(
            booking.id,
            booking.kind,
            frozenset(name for lane in booking.lanes for name in names.get(lane, ())),
            booking.ask.start,
            booking.ask.end,
            booking.ask.comment if booking.kind is BookingKind.HOLD else f"{booking.user} ({booking.project})",
            bool(booking.ask.gpu),
        )
        for booking in bookings
        if booking.lanes
    )
