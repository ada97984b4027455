"""The controller's side of the ledger: applies time and the cloud to bookings, and keeps what must outlive the process.

Each change of a booking is one transaction that has its pool to itself, as on the people's side (ledger.py). Pools that
have left the site file are kept up, too, until their bookings have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

from gpuyard.bookings.ledger import clock, relocate
from gpuyard.bookings.ledger.pool_transaction import GPUYARD, PoolTransaction, PoolTransactions
from gpuyard.bookings.records import AuditEntry, Event, Query
from gpuyard.bookings.store import GONE, LeaderElection, Outbox, Records, Store
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.booking_life import TAKES_LANES

BREAK = timedelta(minutes=5)
"""When no claims were recorded for this long, the cloud was out of sight, and nobody is a no-show because of it."""
KEEP = timedelta(days=30)
"""Retention of idempotency keys and of events that were delivered."""
PAGE = 1000


class Upkeep:
    """The part of `Ledger` for controllers. Safe to use from several threads, and from several processes on one
    store."""

    def __init__(self, store: Store, transactions: PoolTransactions) -> None:
        self._store = store
        self._transactions = transactions
        self.leadership: LeaderElection = store
        self.outbox: Outbox = store
        self.records: Records = store
        """Overstays, and what enforcement remembers."""
        self._reminded: set[tuple[str, datetime]] = set()
        self._pruned: datetime | None = None
        self._offers_tried: dict[str, int] = {}
        self._ready: dict[str, datetime] = {}
        """Bookings that have had no server -> when their owner was first seen to be let in."""
        # Pools that have left the site file have bookings that must end, too.
        self._pools = (
            *transactions.book.pools,
            *(pool for pool in store.pools() if pool not in transactions.book.pools),
        )

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this after every change, whoever made it, to wake a loop."""
        self._transactions.on_change = call

    def note_once(self, pool: str, subject: str, what: str, event: Event | None, *entries: AuditEntry) -> bool:
        """Write an event and audit entries, unless `what` was written of the subject (a booking's id, an overstay)
        before. False when it was."""
        with self._store.change(pool) as change:
            new = change.mark_told(subject, what, self._transactions.now())
            if new and event is not None:
                change.event(event)
            for entry in entries if new else ():
                change.audit(entry)
        return new

    def advance(self) -> int:
        """Do everything that is due by the clock: starts, ends, reminders, expiries, offers. Returns how many bookings
        changed. Done twice, the second time changes nothing."""
        changed = 0
        for pool in self._pools:
            with self._transactions.look(pool) as transaction:
                generation = transaction.look.generation
                waiting = self._offers_tried.get(pool) != generation and bool(transaction.look.waiting())
                active = [
                    (booking, transaction.rules(booking.project))
                    for booking in transaction.look.ending(transaction.now + clock.LONGEST_REMINDER)
                ]
                soon = {
                    (booking.id, booking.ask.end)
                    for booking, rules in active
                    if booking.ask.end - transaction.now <= rules.end_soon
                }
                soon -= self._reminded
                wrong = any(clock.too_long(booking, rules, transaction.now) for booking, rules in active)
                if not waiting and not soon and not wrong and not transaction.look.due(transaction.now):
                    continue
            changed += self._transactions.run(pool, clock.advance)
            self._reminded |= soon
            if waiting:
                self._offers_tried[pool] = generation
        self._prune()
        return changed

    def set_troubles(self, troubles: Mapping[int, str]) -> int:
        """Write down what is wrong with lanes (id -> why; a lane that is not named is well). Bookings on them that have
        begun without a server or begin later move to others; owners of those that cannot are told, once."""
        elsewhere = self._still_booked_elsewhere()
        self._store.set_troubles({**elsewhere, **troubles}, elsewhere.keys() - troubles.keys())
        moved = 0
        for pool in self._pools:
            with self._transactions.look(pool) as transaction:
                bad = transaction.troubled
                bookings = transaction.look.on_lanes(list(bad), transaction.now) if bad else []
            if any(relocate.concerned(booking, bad) for booking in bookings):
                moved += self._transactions.run(pool, relocate.leave_bad_lanes)
        return moved

    def expect_back(self, lanes: Collection[int], back: datetime | None) -> None:
        """Record when lanes in trouble (ids) are expected to be well; None: the rule `trouble` says it again."""
        if self._store.set_back(lanes, back):
            self._transactions.on_change()

    def _still_booked_elsewhere(self) -> dict[int, str]:
        """Lanes of GPUs that had another lane before the site file changed, as long as that one is still booked."""
        lanes = self._store.lanes()
        gone = [lane for lane in lanes if lane.trouble == GONE]
        troubles: dict[int, str] = {}
        for pool in sorted({lane.pool for lane in gone}):
            mine = {lane.id: lane for lane in gone if lane.pool == pool}
            with self._transactions.look(pool) as transaction:
                booked = {
                    id
                    for booking in transaction.look.on_lanes(list(mine), transaction.now)
                    for id in booking.lanes
                    if id in mine
                }
            gpus = {(mine[id].host, address): id for id in booked for address in mine[id].addresses}
            for lane in lanes:
                for address in lane.addresses:
                    before = gpus.get((lane.host, address))
                    if lane.trouble != GONE and before is not None:
                        troubles[lane.id] = f"it is still booked as {mine[before].name} of pool {pool}"
        return troubles

    def record_claims(
        self,
        claims: Mapping[str, Sequence[int]],
        ready: Collection[str] = (),
        usable: Mapping[str, bool] = MappingProxyType({}),
    ) -> None:
        """Write down which lanes servers of bookings hold now (booking id -> all of its lanes; one that is not named
        stays as it is): a booking's lanes become those that Nova chose. `ready`: bookings whose owner is let in; those
        of them that no server came for in time, the first or another one after the last, are released. `usable`:
        whether the owner of a booking can start a server now, where that is known."""
        seen_for, now = self._seen_for(), self._transactions.now()
        waiting: dict[str, set[str]] = {}
        for booking in self._active():
            lanes, let_in = claims.get(booking.id, ()), booking.id in ready
            since = _usable_since(booking, usable, now), _empty_since(booking, lanes, let_in, usable, now)
            if since != (booking.usable_since, booking.empty_since):
                self._transactions.run(booking.ask.pool, partial(_set_since, booking.id, *since))
            if lanes and (booking.claimed is None or not {*lanes} <= {*booking.lanes}):
                self._transactions.run(booking.ask.pool, partial(_follow, booking.id, lanes))
            elif not lanes and let_in and booking.kind is BookingKind.BOOKING:
                limit = self._transactions.book.rules_of(booking.ask.pool, booking.project).no_show
                first = self._ready.get(booking.id) if booking.claimed is None else since[1]
                if first is None or (limit is not None and now - first >= limit <= seen_for):
                    waiting.setdefault(booking.ask.pool, set()).add(booking.id)
                    self._ready.setdefault(booking.id, now)
        for pool, ids in waiting.items():
            self._transactions.run(pool, partial(_release, ids, seen_for))

    def _active(self) -> list[Booking]:
        """Also leases: their lanes become those of their servers, as bookings' do. And loans, which stay where they
        are and are nobody's no-show."""
        kinds = frozenset({BookingKind.BOOKING, BookingKind.RUNNER, BookingKind.LOAN})
        query = Query(states=frozenset({BookingState.ACTIVE}), kinds=kinds)
        bookings: list[Booking] = []
        while page := self._store.find(query, PAGE, bookings[-1].id if bookings else ""):
            bookings += page
        return bookings

    def prefer(self, lanes: Mapping[str, Sequence[int]]) -> int:
        """Give bookings without a server lanes that are free now instead of theirs (booking id -> all of its lanes, as
        many as it has). Later bookings of both change places where that helps. Returns how many moved; one that cannot
        keeps what it has."""
        pools = {id: booking.ask.pool for id in lanes if (booking := self._store.get(id))}
        return sum(self._transactions.run(pool, partial(_prefer, id, lanes[id])) for id, pool in pools.items())

    def _prune(self) -> None:
        """Once a day: forget what nobody asks for any more. Bookings and the audit log stay."""
        now = self._transactions.now()
        if self._pruned is None or now - self._pruned > timedelta(days=1):
            self._store.prune(now - KEEP)
            self._reminded = {(id, end) for id, end in self._reminded if end > now}
            self._pruned = now

    def _seen_for(self) -> timedelta:
        """For how long claims have been recorded without a break. Written down, for a restart is no break."""
        now = self._transactions.now().replace(microsecond=0)
        recorded = self._store.values("")
        last, since = (moment(int(recorded.get(key, "0"))) for key in ("claims.last", "claims.since"))
        if now - last > BREAK or max(last, since) > now:  # or the clock was wrong
            since = now
            self._store.set_value("", "claims.last", str(seconds(now)))
            self._store.set_value("", "claims.since", str(seconds(now)))
        if now - last > BREAK / 5:  # not at each look
            self._store.set_value("", "claims.last", str(seconds(now)))
        return now - since


def _release(ids: Collection[str], seen_for: timedelta, transaction: PoolTransaction) -> None:
    clock.no_shows(transaction, ids, seen_for)


def _usable_since(booking: Booking, usable: Mapping[str, bool], now: datetime) -> datetime | None:
    """`Booking.usable_since` as it is by a look."""
    if not usable.get(booking.id, booking.usable_since is not None):
        return None
    return booking.usable_since or now


def _empty_since(
    booking: Booking, lanes: Sequence[int], let_in: bool, usable: Mapping[str, bool], now: datetime
) -> datetime | None:
    """`Booking.empty_since` as it is by a look. It stays where the pool of the booking was not looked at."""
    if not (lanes or let_in or booking.id in usable):
        return booking.empty_since
    if lanes or not let_in or booking.claimed is None or booking.kind is not BookingKind.BOOKING:
        return None
    return now if booking.empty_since is None else min(booking.empty_since, now)  # later: the clock has gone back


def _set_since(id: str, usable: datetime | None, empty: datetime | None, transaction: PoolTransaction) -> None:
    booking = transaction.look.get(id)
    if booking is not None and booking.state is BookingState.ACTIVE:
        transaction.save(replace(booking, usable_since=usable, empty_since=empty))


def _follow(id: str, lanes: Sequence[int], transaction: PoolTransaction) -> None:
    booking = transaction.look.get(id)
    if booking is not None and booking.state is BookingState.ACTIVE:
        relocate.follow_claim(transaction, booking, lanes)
        # Whoever has changed places with it may have got a lane in trouble: that of a host which its server has left.
        relocate.leave_bad_lanes(transaction)


def _prefer(id: str, lanes: Sequence[int], transaction: PoolTransaction) -> bool:
    booking = transaction.look.get(id)
    if booking is None or booking.state not in TAKES_LANES:
        return False
    moved = relocate.change_lanes(transaction, booking, lanes)
    if moved.lanes != booking.lanes:
        transaction.note(GPUYARD, "booking.moved", moved, "its GPU was not free in time, and another one is")
    return moved.lanes != booking.lanes
