"""Bookings and holds of the ledger as times in which GPUs are kept."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.advice.moves.facts import KeptTime
from gpuyard.model.booking import Booking, BookingKind, Lane
from gpuyard.model.gpu import provider_name


def kept_of(bookings: Iterable[Booking], lanes: Iterable[Lane]) -> tuple[KeptTime, ...]:
    """Of those that take lanes, or will."""
    names = {lane.id: [provider_name(lane.host, address) for address in lane.addresses] for lane in lanes}
    return tuple(
        KeptTime(
            one.id, one.kind, frozenset(name for lane in one.lanes for name in names.get(lane, ())), one.ask.start,
            one.ask.end,
            one.ask.comment if one.kind is BookingKind.HOLD else f"{one.user} ({one.project})", bool(one.ask.gpu),
        )
        for one in bookings
        if one.lanes
    )  # fmt: skip
