"""Leases: GPUs that gpuyard itself keeps for servers that run one GitHub job each.

A lease is on the same lanes as bookings and is admitted by the same timetable, so no GPU is ever given twice, and one
that ends before the next booking of its lane begins delays nobody. Rules of people do not hold for it: the runners that
take leases decide what jobs may have. docs/adr/0021 says why it is so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuyard.bookings.errors import NoBookingError, RefusedError
from gpuyard.bookings.ledger import clock
from gpuyard.bookings.ledger.editing import describe
from gpuyard.bookings.ledger.pool_transaction import GPUYARD, PoolTransaction, PoolTransactions
from gpuyard.bookings.policy import malformed, spell
from gpuyard.bookings.store import Store
from gpuyard.bookings.timetable import Timetable
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import FOREVER, Answer, Ask, Booking, BookingKind, BookingState, Reason
from gpuyard.model.booking_life import used_until

_BLOCKED, _CLOSED = "leases.blocked", "leases.closed"
HORIZON = timedelta(hours=48)
"""How far ahead `Leases.rooms` looks."""


Gaps = tuple[tuple[datetime, datetime], ...]


@dataclass(frozen=True, slots=True)
class LaneCapacity:
    """The times in which a lane could be leased."""

    size: int
    """Number of GPUs."""
    free: Gaps
    """[start, end) in order of time, from now on and as far as HORIZON; the last one ends with FOREVER where nothing
    follows within it. What is left before a booking ends when its GPUs are to be kept free for it."""
    host: str


@dataclass(frozen=True)
class PoolCapacity:
    """The lanes of a pool that could be leased, with the times of each."""

    pool: str
    lanes: tuple[LaneCapacity, ...]
    """Without those that are in trouble."""
    blocked: str = ""
    """Why no server may be started there at the moment; empty when one may."""


class Leases:
    """The part of `Ledger` that takes, extends and ends leases. Safe to use from several threads, and from several
    processes on one store."""

    def __init__(self, store: Store, transactions: PoolTransactions, new_id: Callable[[], str]) -> None:
        self._store = store
        self._transactions = transactions
        self._new_id = new_id

    def take(
        self,
        pool: str,
        gpus: int,
        same_group: bool,
        end: datetime,
        server: str,
        project_id: str,
        project: str,
        comment: str,
        *,
        yields: bool,
    ) -> Booking:
        """Lease GPUs from now until `end`, for the one server `server` of a project; several GPUs are on one host.
        Raises RefusedError. Bookings that have not begun may get other lanes for it; none is delayed.

        Taken again for the same server, it is the lease that is there. `comment`: what everybody sees of it, as in
        ``runner gpuyard-v100-c3k8x2m9 of owner/name``. `yields`: a booking that needs its lanes may end it.
        """
        if pool not in self._transactions.book.pools:
            text = f"there is no pool {pool!r}; there are {', '.join(self._transactions.book.pools)}"
            raise _refused(Reason("no_such_pool", text))

        blocked, closed = self._told(pool)

        def take(transaction: PoolTransaction) -> Booking:
            if existing := transaction.look.lease_of(server, project_id):
                return existing
            if blocked:
                raise _refused(Reason("pool_blocked", f"no server can be started in pool {pool} now: {blocked}"))
            several = gpus > 1 and not same_group
            ask = Ask(pool, transaction.now, end.replace(microsecond=0), gpus, same_group, several, "", comment)
            lease = Booking(
                id=self._new_id(),
                kind=BookingKind.RUNNER,
                ask=ask,
                state=BookingState.ACTIVE,
                user_id="",
                user=GPUYARD,
                project_id=project_id,
                project=project,
                created=transaction.now,
                changed=transaction.now,
                server=server,
                yields=yields,
            )
            if wrong := malformed(ask, transaction.now):
                raise RefusedError(Answer(reasons=tuple(wrong)))
            with transaction.also_taken(closed):
                answer = transaction.place_lease(lease, _with_hold(transaction, ask))
            if not answer.yes:
                raise RefusedError(answer)
            saved = transaction.add(replace(lease, lanes=answer.lanes), *transaction.move(answer))
            transaction.note(GPUYARD, "lease.take", saved, f"{describe(ask)} for server {server}")
            return saved

        return self._transactions.run(pool, take)

    def extend(self, id: str, end: datetime, *, yields: bool | None = None) -> Booking:
        """Give a lease another end, later or earlier, on the same lanes. `yields`: whether it makes way from now on,
        which may end it at once when somebody waits. Raises RefusedError when a booking is in the way or the lease is
        over: then nothing changes."""

        def extend(transaction: PoolTransaction) -> Booking:
            old = _lease(transaction, id)
            if old.state is not BookingState.ACTIVE:
                text = f"lease {id} is {old.state.value}: {old.reason or 'its time is over'}"
                raise _refused(Reason("not_active", text))
            until = max(end.replace(microsecond=0), used_until(old.ask.start, transaction.now))
            ask = replace(old.ask, end=until)
            answer = Answer(lanes=old.lanes)
            if until > old.ask.end:
                answer = transaction.place_lease(old, _with_hold(transaction, ask), old.lanes)
            if not answer.yes:
                raise RefusedError(answer)
            new = replace(old, ask=ask, yields=old.yields if yields is None else yields)
            if new == old:
                return old
            saved = transaction.save(new, *transaction.move(answer))[0]
            transaction.note(GPUYARD, "lease.extend", saved, f"until {spell(until)}")
            if saved.yields and not old.yields and clock.offer(transaction):
                return _lease(transaction, id)
            return saved

        return self._transactions.run(self._pool_of(id), extend)

    def end(self, id: str, reason: str) -> None:
        """End a lease now: its lanes are free for others. Nothing happens when it is over already."""

        def end(transaction: PoolTransaction) -> None:
            old = _lease(transaction, id)
            if old.state is BookingState.ACTIVE:
                transaction.transition(replace(old, reason=reason), BookingState.ENDED, action="lease.end", note=reason)
                clock.offer(transaction)

        self._transactions.run(self._pool_of(id), end)

    def current(self) -> list[Booking]:
        """Return the leases that are on, by pool and start."""
        leases: list[Booking] = []
        for pool in self._transactions.book.pools:
            with self._store.look(pool) as look:
                leases += look.leases()
        return leases

    def rooms(self) -> Mapping[str, PoolCapacity]:
        """Return pool -> what could be leased now and later. Cheap: read from the ledger's copy in memory."""
        return {pool: self._room(pool) for pool in self._transactions.book.pools}

    def _room(self, pool: str) -> PoolCapacity:
        blocked, closed = self._told(pool)
        with self._transactions.look(pool) as transaction, transaction.also_taken(closed):
            now, hold = seconds(transaction.now), int(transaction.rules("").hold.total_seconds())
            until, always = _horizon(now), ((transaction.now, FOREVER),)

            def free(lane: int) -> Gaps:
                # With ten thousand lanes most have nothing on them.
                empty = transaction.timetable.is_free(lane, now, until)
                return always if empty else tuple(_gaps(transaction.timetable, lane, now, hold))

            lanes = tuple(
                LaneCapacity(lane.size, free(lane.id), lane.host) for lane in transaction.lanes if not lane.trouble
            )
        return PoolCapacity(pool, lanes, blocked)

    def tell(self, pool: str, blocked: str, closed: Collection[int]) -> None:
        """Record what only an observation of the cloud shows, for leases that are taken from now on. `blocked`: why no
        server may be started in the pool. `closed`: lanes that no new server can have or is to have now: servers
        without a booking are on them, or they are held."""
        words = {_BLOCKED: blocked, _CLOSED: " ".join(map(str, sorted(closed)))}
        recorded = self._store.values(pool)
        for key, text in words.items():
            if recorded.get(key, "") != text:
                self._store.set_value(pool, key, text or None)

    def tell_before(self, pool: str, blocked: str, closed: Collection[int]) -> None:
        """Record what is about to become so, besides what was recorded: before limits go down and holds are placed, so
        that no server is asked for that Nova would refuse then. `tell` records what has become of it."""
        before, closed_before = self._told(pool)
        self.tell(pool, blocked or before, {*closed, *closed_before})

    def blocked(self, pool: str) -> str:
        """Return why no server may be started in a pool at the moment; empty when one may."""
        return self._told(pool)[0]

    def _told(self, pool: str) -> tuple[str, list[int]]:
        recorded = self._store.values(pool)
        return recorded.get(_BLOCKED, ""), [int(lane) for lane in recorded.get(_CLOSED, "").split()]

    def _pool_of(self, id: str) -> str:
        """Raises NoBookingError."""
        lease = self._store.get(id)
        if lease is None or lease.kind is not BookingKind.RUNNER:
            raise NoBookingError(f"there is no lease {id}")
        return lease.ask.pool


def _lease(transaction: PoolTransaction, id: str) -> Booking:
    lease = transaction.look.get(id)
    if lease is None:
        raise NoBookingError(f"there is no lease {id}")
    return lease


def _with_hold(transaction: PoolTransaction, ask: Ask) -> Ask:
    """With the time for which GPUs are kept free before the booking that may follow."""
    return replace(ask, end=min(ask.end + transaction.rules("").hold, FOREVER))


def _refused(reason: Reason) -> RefusedError:
    return RefusedError(Answer(reasons=(reason,)))


def _horizon(now: int) -> int:
    return now + int(HORIZON.total_seconds())


def _gaps(table: Timetable, lane: int, now: int, hold: int) -> Iterator[tuple[datetime, datetime]]:
    """When a lane is free, but for `hold` seconds before what follows."""
    at, until = now, _horizon(now)
    for start, end in table.intervals(lane, now, until):
        if start - hold > at:
            yield moment(at), moment(start - hold)
        at = max(at, end)
    if at < until:
        yield moment(at), FOREVER
