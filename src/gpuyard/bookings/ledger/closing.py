"""Closes a host for a time: bookings move elsewhere, owners of those that cannot are told, and the rest is held.

Unlike a hold that somebody asks for, a closing is not refused when a booking is in the way: that one keeps its lane,
and what is left of the time is held around it. Closing the host again takes what has become free meanwhile, follows
another end, and changes nothing when there is nothing to change. Its holds are one series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from gpuyard.bookings.ledger import clock
from gpuyard.bookings.ledger.editing import describe
from gpuyard.bookings.ledger.holding import whole
from gpuyard.bookings.ledger.pool_transaction import GPUYARD, PoolTransaction, PoolTransactions
from gpuyard.bookings.policy import spell
from gpuyard.bookings.records import Query
from gpuyard.bookings.store import GONE, Store
from gpuyard.model.booking import Answer, Booking, BookingKind, BookingState, Lane
from gpuyard.model.booking_life import TAKES_LANES

MOST_HOLDS = 10_000

Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class Closing:
    """A host that nobody is to use from `start` to `end`."""

    id: str
    """Id of the series of its holds."""
    host: str
    start: datetime
    end: datetime
    why: str
    """For everybody to see."""
    by: str
    """Name of the person or controller that wants it."""


@dataclass(frozen=True)
class ClosingForecast:
    """The bookings that would move, and those that would stay, if a host were closed."""

    moves: tuple[Booking, ...]
    """Bookings that would get other GPUs, which nobody would notice."""
    stays: tuple[Booking, ...]
    """Bookings and leases that have begun or cannot be elsewhere; owners of bookings would be told."""


class _Undone(Exception):
    """Raised to undo what was tried."""


class Closings:
    """The part of `Ledger` that closes and opens hosts. Safe to use from several threads, and from several processes on
    one store."""

    def __init__(self, store: Store, transactions: PoolTransactions, new_id: Callable[[], str]) -> None:
        self._store, self._transactions, self._new_id = store, transactions, new_id
        self._seen: dict[tuple[str, str], object] = {}

    def close(self, closing: Closing) -> None:
        """Move bookings off the host, end leases that yield once its time has begun, and hold all of its time that is
        free."""
        for pool in self._pools(closing.host):
            with self._transactions.look(pool) as transaction:
                fingerprint = (closing, closing.start <= transaction.now, transaction.look.generation)
            if self._seen.get((closing.id, pool)) != fingerprint:
                self._transactions.run(pool, partial(_close, closing, self._new_id))
                self._seen[closing.id, pool] = fingerprint  # what was written now is looked at once more

    def open(self, id: str, why: str) -> None:
        """End what is left of its holds."""
        holds = self._store.find(Query(series=id, kinds=frozenset({BookingKind.HOLD}), states=TAKES_LANES), MOST_HOLDS)
        for pool in sorted({hold.ask.pool for hold in holds}):
            self._transactions.run(pool, partial(_open, [hold.id for hold in holds if hold.ask.pool == pool], why))
        self._seen = {key: fingerprint for key, fingerprint in self._seen.items() if key[0] != id}

    def in_the_way(self, closing: Closing) -> list[Booking]:
        """Return bookings and leases that keep a lane of the host in its time: those that have begun, or cannot be
        elsewhere. By start."""
        bookings: dict[str, Booking] = {}
        for pool in self._pools(closing.host):
            with self._transactions.look(pool) as transaction:
                bookings |= _booked(transaction, [lane.id for lane in _lanes(transaction, closing)], closing)
        return sorted(bookings.values(), key=lambda booking: (booking.ask.start, booking.id))

    def forecast(self, closing: Closing) -> ClosingForecast:
        """Return what closing the host would do to bookings. It is closed in transactions that are undone, so the
        forecast depends on all that a closing depends on."""
        before: dict[str, Booking] = {}
        after: dict[str, Booking] = {}
        for pool in self._pools(closing.host):
            try:
                with self._transactions.change(pool) as transaction:
                    lanes = [lane.id for lane in _lanes(transaction, closing)]
                    before |= _booked(transaction, lanes, closing)
                    _close(closing, self._new_id, transaction)
                    after |= _booked(transaction, lanes, closing)
                    raise _Undone
            except _Undone:
                pass
        stays = sorted(after.values(), key=lambda booking: (booking.ask.start, booking.id))
        moves = [
            booking for booking in before.values() if booking.id not in after and booking.kind is BookingKind.BOOKING
        ]
        return ClosingForecast(tuple(sorted(moves, key=lambda booking: (booking.ask.start, booking.id))), tuple(stays))

    def _pools(self, host: str) -> list[str]:
        return sorted({lane.pool for lane in self._store.lanes() if lane.host == host and lane.trouble != GONE})


def _lanes(transaction: PoolTransaction, closing: Closing) -> list[Lane]:
    return [lane for lane in transaction.lanes if lane.host == closing.host and lane.trouble != GONE]


def _booked(transaction: PoolTransaction, lanes: list[int], closing: Closing) -> dict[str, Booking]:
    """Bookings and leases on lanes in its time, by id."""
    start = max(closing.start, transaction.now)
    bookings = transaction.look.on_lanes(lanes, start, closing.end) if lanes and start < closing.end else []
    return {booking.id: booking for booking in bookings if booking.kind is not BookingKind.HOLD}


def _close(closing: Closing, new_id: Callable[[], str], transaction: PoolTransaction) -> None:
    lanes, start = _lanes(transaction, closing), max(closing.start, transaction.now)
    if not lanes or closing.end <= start:
        return
    for lane in lanes:
        transaction.leave_out(lane.id)
    for candidate in transaction.look.on_lanes([lane.id for lane in lanes], start, closing.end):
        booking = transaction.look.get(candidate.id)  # one before it may have moved it to make room
        if booking is None or booking.state not in TAKES_LANES:
            continue
        if booking.yields and closing.start <= transaction.now:
            transaction.move(Answer(ends=(booking.id,)))
        elif booking.kind is BookingKind.BOOKING:
            _move_or_tell(transaction, booking, lanes, closing)
    for lane in lanes:
        _hold(transaction, lane, (start, closing.end), closing, new_id)


def _move_or_tell(transaction: PoolTransaction, booking: Booking, lanes: Iterable[Lane], closing: Closing) -> None:
    """One with a server stays where that is; any other GPU is better than one that cannot be used."""
    mine = {lane.id: lane for lane in lanes if lane.id in booking.lanes}
    if not mine:
        return
    if booking.claimed is None:
        anywhere = replace(booking, ask=replace(booking.ask, gpu=""))
        answer = transaction.place(anywhere, [lane for lane in booking.lanes if lane not in mine])
        if answer.yes:
            saved = transaction.save(replace(booking, lanes=answer.lanes), *transaction.move(answer))[0]
            transaction.note(GPUYARD, "booking.moved", saved, closing.why)
            return
    if transaction.change.mark_told(booking.id, f"closing {closing.id}", transaction.now):
        for lane in mine:  # so that nobody is told the same again when it begins
            transaction.change.mark_told(booking.id, f"trouble {lane}", transaction.now)
        names = ", ".join(lane.name for lane in mine.values())
        when = f"from {spell(closing.start)} to {spell(closing.end)}"
        transaction.tell("booking.maintenance", booking, gpu=names, why=closing.why, due=when)
        transaction.note(GPUYARD, "booking.maintenance", booking, f"{names}: {closing.why}, {when}")


def _hold(
    transaction: PoolTransaction, lane: Lane, time: Interval, closing: Closing, new_id: Callable[[], str]
) -> None:
    """Make the holds of a lane what they are to be."""
    taken = [booking for booking in transaction.look.on_lanes([lane.id], time[0]) if booking.state in TAKES_LANES]
    own = [booking for booking in taken if booking.series == closing.id and booking.kind is BookingKind.HOLD]
    for hold in own:
        if hold.ask.end > time[1]:
            _cut(transaction, hold, time[1], closing)
    for start, end in gaps(time, [(booking.ask.start, booking.ask.end) for booking in taken]):
        before = next((hold for hold in own if hold.ask.end == start), None)
        if before is not None:
            longer = transaction.save(replace(before, ask=replace(before.ask, end=end)))[0]
            transaction.note(closing.by, "hold.edit", longer, f"until {spell(end)}: {closing.why}")
        else:
            _add(transaction, lane, start, end, closing, new_id())


def _add(transaction: PoolTransaction, lane: Lane, start: datetime, end: datetime, closing: Closing, id: str) -> None:
    hold = Booking(
        id=id,
        kind=BookingKind.HOLD,
        ask=whole(lane, start, end, closing.why),
        state=BookingState.CONFIRMED,
        user_id="",
        user=closing.by,
        project_id="",
        project="",
        created=transaction.now,
        changed=transaction.now,
        lanes=(lane.id,),
        series=closing.id,
    )
    transaction.note(closing.by, "hold.create", transaction.add(hold), describe(hold.ask))


def _cut(transaction: PoolTransaction, hold: Booking, end: datetime, closing: Closing) -> None:
    if hold.ask.start >= end:
        transaction.transition(hold, BookingState.CANCELLED, closing.by, action="hold.cancel", note=closing.why)
    else:
        shorter = transaction.save(replace(hold, ask=replace(hold.ask, end=end)))[0]
        transaction.note(closing.by, "hold.edit", shorter, f"until {spell(end)}: {closing.why}")


def _open(ids: list[str], why: str, transaction: PoolTransaction) -> None:
    for hold in transaction.look.get_many(ids).values():
        if hold.state in TAKES_LANES:
            to = BookingState.ENDED if hold.state is BookingState.ACTIVE else BookingState.CANCELLED
            transaction.transition(hold, to, GPUYARD, action="hold.end", note=why)
    clock.offer(transaction)


def gaps(time: Interval, taken: Iterable[Interval]) -> list[Interval]:
    """Return what is left of [start, end) beside what is taken, in order."""
    free: list[Interval] = []
    begin, end = time
    for start, until in sorted(taken):
        if begin < min(start, end):
            free.append((begin, min(start, end)))
        begin = max(begin, until)
    if begin < end:
        free.append((begin, end))
    return free
