"""Moves bookings to other lanes when a GPU goes bad, or when Nova gives a server another GPU than planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpuyard.bookings.ledger.pool_transaction import GPUYARD, PoolTransaction, taken_by
from gpuyard.bookings.timetable import Timetable
from gpuyard.model.booking import Booking, BookingKind
from gpuyard.model.booking_life import TAKES_LANES


def leave_bad_lanes(transaction: PoolTransaction) -> int:
    """Move bookings off lanes that are expected to be in trouble when they start and that no server has taken yet; tell
    owners of those that cannot move, once for each lane. Returns how many moved."""
    until = transaction.troubled
    bad = {lane.id: lane for lane in transaction.lanes if lane.id in until}
    moved = 0
    for candidate in transaction.look.on_lanes(list(bad), transaction.now) if bad else []:
        booking = transaction.look.get(candidate.id)  # one before it may have moved it to make room
        if booking is None or not concerned(booking, until):
            continue
        # A certain GPU was asked for, and it is not to be had: any other of the pool is better than none.
        anywhere = replace(booking, ask=replace(booking.ask, gpu=""))
        answer = transaction.place(anywhere, [lane for lane in booking.lanes if lane not in bad])
        if answer.yes:
            saved = transaction.save(replace(booking, lanes=answer.lanes), *transaction.move(answer))[0]
            transaction.note(
                GPUYARD,
                "booking.moved",
                saved,
                "; ".join(f"{bad[i].name}: {bad[i].trouble}" for i in booking.lanes if i in bad),
            )
            moved += 1
            continue
        for lane in (bad[id] for id in booking.lanes if id in bad):
            if transaction.change.mark_told(booking.id, f"trouble {lane.id}", transaction.now):
                transaction.tell("booking.trouble", booking, gpu=lane.name, trouble=lane.trouble)
                transaction.note(GPUYARD, "booking.trouble", booking, f"{lane.name}: {lane.trouble}")
    return moved


def concerned(booking: Booking, bad: Mapping[int, datetime]) -> bool:
    """Return whether a booking must leave bad lanes (lane -> until when it is bad): not a hold, which may be there
    because of them, nor one with a server, which stays where that is."""
    takes_any = booking.kind is BookingKind.BOOKING and booking.claimed is None
    return takes_any and any(lane in bad and booking.ask.start < bad[lane] for lane in booking.lanes)


def follow_claim(transaction: PoolTransaction, booking: Booking, chosen: Sequence[int]) -> Booking:
    """Make a booking's lanes those on which its servers are. Others that were to have these later change places
    with it. When that cannot be, the booking keeps the lanes that it has: it still counts as many GPUs as are taken.
    """
    if booking.claimed is None and chosen:
        booking = transaction.save(replace(booking, claimed=transaction.now))[0]
    return change_lanes(transaction, booking, chosen)


def change_lanes(transaction: PoolTransaction, booking: Booking, chosen: Sequence[int]) -> Booking:
    """Give a booking other lanes; those who were to have these later get its old ones, where that can be."""
    new_lanes = [lane for lane in chosen if lane not in booking.lanes]
    spare = [lane for lane in booking.lanes if lane not in chosen]
    for new, old in zip(new_lanes, spare, strict=False):
        swapped = _swap(transaction, booking, old, new)
        if swapped is None:
            continue
        booking = transaction.save(*swapped)[0]
    return booking


def _swap(transaction: PoolTransaction, booking: Booking, old: int, new: int) -> list[Booking] | None:
    """All bookings of two lanes from now on with these exchanged, this booking first; None when that cannot be."""
    sizes = {lane.id: lane.size for lane in transaction.lanes}
    if old not in sizes or new not in sizes:
        return None
    others = [other for other in transaction.look.on_lanes([old, new], transaction.now) if other.id != booking.id]
    exchange = {old: new, new: old}
    result = [replace(booking, lanes=tuple(new if lane == old else lane for lane in booking.lanes))]
    for other in others:
        fixed = other.kind is BookingKind.HOLD or other.claimed is not None or bool(other.ask.gpu)
        fixed = fixed or (other.ask.same_group and sizes[old] != sizes[new])
        lanes = other.lanes if fixed else tuple(exchange.get(lane, lane) for lane in other.lanes)
        result.append(replace(other, lanes=lanes))
    if _overlap(result):
        # Only this one then, if there is room on the other lane as it is.
        result = result[:1]
        if _overlap([*result, *others]):
            return None
    return [swapped for swapped in result if swapped is result[0] or swapped not in others]


def _overlap(bookings: Sequence[Booking]) -> bool:
    table = Timetable()
    try:
        for booking in bookings:
            if booking.state in TAKES_LANES:
                for taken in taken_by(booking):
                    table.add(*taken)
    except ValueError:
        return True
    return False
