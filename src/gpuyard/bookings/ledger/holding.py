"""Makes holds, with which operators keep GPUs out of use for a time. Within one transaction a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.editing import describe
from gpuyard.bookings.ledger.pool_transaction import PoolTransaction
from gpuyard.bookings.policy import spell
from gpuyard.model.booking import Answer, Ask, Booking, BookingKind, BookingState, Lane, Person, Reason
from gpuyard.model.booking_life import from_now


def wanted_lanes(lanes: Sequence[Lane], gpus: Sequence[str], hosts: Sequence[str], pools: Sequence[str]) -> list[Lane]:
    """Return the lanes of GPUs (``host/address``), of whole hosts and of whole pools, each once. Raises RefusedError
    for what does not exist."""
    by_gpu = {f"{lane.host}/{address}".lower(): lane for lane in lanes for address in lane.addresses}
    all_hosts, all_pools = sorted({lane.host for lane in lanes}), sorted({lane.pool for lane in lanes})
    wrong = [
        *(Reason("no_such_gpu", f"there is no GPU {name}; name one as in host/0000:3b:00.0")
          for name in gpus if name.lower() not in by_gpu),
        *(Reason("no_such_host", f"there is no host {name}; there are {', '.join(all_hosts)}")
          for name in hosts if name not in all_hosts),
        *(Reason("no_such_pool", f"there is no pool {name!r}; there are {', '.join(all_pools)}")
          for name in pools if name not in all_pools),
    ]  # fmt: skip
    if wrong:
        raise RefusedError(Answer(reasons=tuple(wrong)))
    named = {by_gpu[name.lower()].id for name in gpus}
    return [lane for lane in lanes if lane.id in named or lane.host in hosts or lane.pool in pools]


def whole(lane: Lane, start: datetime, end: datetime, comment: str) -> Ask:
    """Return an ask for all of a slot."""
    return Ask(lane.pool, start, end, lane.size, lane.size > 1, lane.size > 1, lane.name, comment)


def hold_all(
    asks: Sequence[tuple[Lane, Ask]], who: Person, series: str, new_id: Callable[[], str], transaction: PoolTransaction
) -> list[Booking]:
    """Make a hold for each lane and ask. Raises RefusedError when a booking is in the way that cannot go elsewhere."""
    return [_hold(transaction, lane, ask, who, series, new_id()) for lane, ask in asks]


def _hold(transaction: PoolTransaction, lane: Lane, ask: Ask, who: Person, series: str, id: str) -> Booking:
    if ask.end <= ask.start or ask.end <= transaction.now:
        text = f"the end, {spell(ask.end)}, is not after the start or is over"
        raise RefusedError(Answer(reasons=(Reason("ends_first", text),)))
    ask = from_now(ask, transaction.now)
    make_way(transaction, lane, ask.start, ask.end)
    booking = Booking(
        id=id,
        kind=BookingKind.HOLD,
        ask=ask,
        state=BookingState.CONFIRMED,
        user_id=who.user_id,
        user=who.user,
        project_id=who.project_id,
        project=who.project,
        created=transaction.now,
        changed=transaction.now,
        lanes=(lane.id,),
        series=series,
    )
    saved = transaction.add(booking)
    transaction.note(who.user, "hold.create", saved, describe(ask))
    return saved


def make_way(transaction: PoolTransaction, lane: Lane, start: datetime, end: datetime) -> None:
    """Move bookings of a lane in a time elsewhere, and end leases that yield. Raises RefusedError when one cannot."""
    in_the_way = [booking for booking in transaction.look.on_lanes([lane.id], start) if booking.ask.start < end]
    leases = [booking for booking in in_the_way if booking.yields]
    fixed = [booking for booking in in_the_way if not transaction.may_move(booking) and not booking.yields]
    if fixed:
        raise RefusedError(Answer(reasons=tuple(_blocks(lane, booking) for booking in fixed)))
    transaction.move(Answer(ends=tuple(lease.id for lease in leases)))
    transaction.leave_out(lane.id)
    for booking in [candidate for candidate in in_the_way if candidate not in leases]:
        answer = transaction.place(booking)
        if not answer.yes:
            raise RefusedError(Answer(reasons=(_blocks(lane, booking), *answer.reasons)))
        transaction.save(replace(booking, lanes=answer.lanes), *transaction.move(answer))


def _blocks(lane: Lane, booking: Booking) -> Reason:
    verb = {BookingKind.HOLD: "held", BookingKind.LOAN: "lent"}.get(booking.kind, "booked")
    whose = f"has runner {booking.server}" if booking.kind is BookingKind.RUNNER else f"is {verb} by {booking.user}"
    text = (
        f"{lane.name} {whose} until {spell(booking.ask.end)} (booking {booking.id}), and that one cannot go elsewhere"
    )
    return Reason("in_the_way", text)
