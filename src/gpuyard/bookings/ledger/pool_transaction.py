"""A transaction that has one pool to itself, with the pool's timetable in memory, which changes together with it.

Each process keeps a copy of the pool's lanes and timetable, as of one generation of the store, and brings it up to date
when a transaction begins. What a transaction changes is in the copy at once, so that later decisions of the same
transaction see it, and is undone with the transaction. When the store finds a conflict nevertheless, the copy is read
anew and the work is done once more (docs/adr/0018).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from gpuyard.bookings.admission import Movable, Placed, PoolLanes, admit, find_place, place, well_lanes
from gpuyard.bookings.budget_check import Allowance, BookedTime
from gpuyard.bookings.policy import Usage, at_limit, booking_owner, bookings_per_gpu, broken_rules, months
from gpuyard.bookings.records import AuditEntry, Event
from gpuyard.bookings.store import ConflictError, OverlapError, PoolChange, PoolReader, Store
from gpuyard.bookings.timetable import Taken, Timetable
from gpuyard.bookings.yielding import MADE_WAY, Placing, with_way_made
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import FOREVER, Answer, Ask, Booking, BookingKind, BookingState, Lane, Person, Reason, Rules
from gpuyard.model.booking_life import EVENTS, TAKES_LANES, become

GPUYARD = "gpuyard"
"""The actor of what happens by the clock."""
EPOCH = moment(0)
A_MOMENT = 60
"""Seconds."""
T = TypeVar("T")


@dataclass(frozen=True)
class BookingSettings:
    """Pools, rules and budgets of a site, as the ledger needs them."""

    pools: Sequence[str]
    rules: Callable[[str, str], Rules]
    """Rules of a pool (name) for a project (name)."""
    zone: str
    """Time zone of quiet hours, as in ``Europe/Rome``."""
    knows: Callable[[str], bool] = lambda project: True
    """Whether the site is for a project (name), so that its people are let in."""
    allowance: Callable[[str, str], Allowance | None] = lambda project_id, project: None
    """The budget of a project (id, name), with what it has used; None: it has none. It is asked within transactions,
    and must answer at once."""

    def rules_of(self, pool: str, project: str) -> Rules:
        """Return the rules of a pool for a project; also for pools that are no longer in the site file: nobody can book
        there, and what was booked ends."""
        return self.rules(pool, project) if pool in self.pools else Rules(may_book=False)


class PoolCopy:
    """A pool's lanes and timetable in memory, as of one generation of the store. Its user holds the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = -1
        self._lanes_generation = -1
        self.lanes: tuple[Lane, ...] = ()
        self.well: tuple[Lane, ...] = ()
        self.timetable = Timetable()

    def catch_up(self, look: PoolReader) -> None:
        """Make it what the store has in this transaction."""
        if look.lanes_generation != self._lanes_generation:
            self.lanes = look.lanes()
            self.well = well_lanes(self.lanes)
            self._lanes_generation = look.lanes_generation
        if look.generation == self.generation:
            return
        steps = look.changes_since(self.generation) if self.generation >= 0 else None
        self.generation = -1  # until it is whole again
        if steps is None:
            self.timetable = Timetable((lane, start, end) for _, lane, start, end in look.occupancy(EPOCH))
        else:
            for step in steps:
                (self.timetable.add if step.taken else self.timetable.remove)(step.lane, step.start, step.end)
        self.generation = look.generation

    def forget(self) -> None:
        """Make the next transaction read everything anew."""
        self.generation = -1


class PoolTransaction:
    """One pool within one transaction. Changes are in the timetable at once, and undone with the transaction."""

    def __init__(self, look: PoolReader, copy: PoolCopy, book: BookingSettings, now: datetime) -> None:
        self.look = look
        self.book = book
        self.now = now
        self.lanes = copy.lanes
        self._well = copy.well
        self.timetable = copy.timetable
        self._done: list[tuple[bool, Taken]] = []
        self.wrote = False

    @property
    def change(self) -> PoolChange:
        """The store's transaction, for writing. A transaction that only reads has none."""
        assert isinstance(self.look, PoolChange)
        return self.look

    @property
    def pool(self) -> PoolLanes:
        troubled = {id: seconds(until) for id, until in self.troubled.items()}
        return PoolLanes(self.lanes, self.timetable, self._movable, troubled, self._well)

    @property
    def troubled(self) -> dict[int, datetime]:
        """Lane -> until when it is expected to be in trouble."""
        if len(self._well) == len(self.lanes):
            return {}
        usually = self.rules("").trouble
        untils = {lane.id: lane.troubled_until(self.now, usually) for lane in self.lanes}
        return {id: until for id, until in untils.items() if until is not None}

    def leave_out(self, lane: int) -> None:
        """Give this lane to nobody in this transaction."""
        self.lanes = tuple(
            replace(pool_lane, trouble="held", back=FOREVER) if pool_lane.id == lane else pool_lane
            for pool_lane in self.lanes
        )
        self._well = well_lanes(self.lanes)

    def rules(self, project: str) -> Rules:
        return self.book.rules_of(self.look.pool, project)

    def admit(self, ask: Ask, who: Person, *, without: Booking | None = None, override: bool = False) -> Answer:
        """Return the answer to an ask. `without`: the booking that it is to replace."""
        rules = self.rules(who.project)
        old = without.id if without else ""
        facts = self.facts(ask, who, without)
        keep = without.lanes if without else ()
        stay = without is not None and (without.claimed is not None or without.kind is BookingKind.HOLD)
        avoid = frozenset() if override or ask.gpu else at_limit(facts, rules) - {*keep}

        def decide(pool: PoolLanes) -> Answer:
            return admit(
                ask,
                pool,
                rules,
                who,
                facts,
                self.now,
                zone=self.book.zone,
                override=override,
                keep=keep,
                stay=stay,
            )

        with self.timetable.without(taken_by(without) if without else ()):
            return self._decided(Placing(ask, keep, stay), decide, old, avoid)

    def _decided(
        self, wish: Placing, decide: Callable[[PoolLanes], Answer], without: str, avoid: frozenset[int] = frozenset()
    ) -> Answer:
        """What `decide` says of the pool; leases that yield end where that helps. `without`: the id of a booking that
        moves by itself; `avoid`: lanes that the wish cannot have."""
        pool = replace(self._pool_but(without), avoid=avoid)
        return with_way_made(wish, pool, decide, self.look.yielding)

    def _pool_but(self, without: str) -> PoolLanes:
        return replace(self.pool, movable=lambda start, end: self._movable(start, end, without))

    def with_way_made(self) -> AbstractContextManager[None]:
        """Take leases that yield off the timetable for as long as the context lasts."""
        return self.timetable.without([taken for lease in self.look.yielding() for taken in taken_by(lease)])

    @contextmanager
    def also_taken(self, lanes: Sequence[int]) -> Iterator[None]:
        """Count these lanes as taken for the next moment, for as long as the context lasts, where they are free."""
        start = seconds(self.now)
        lane_ids = {lane.id for lane in self.lanes}
        taken = [(lane, start, start + A_MOMENT) for lane in lanes if lane in lane_ids]
        taken = [interval for interval in taken if self.timetable.is_free(*interval)]
        for interval in taken:
            self.timetable.add(*interval)
        try:
            yield
        finally:
            for interval in taken:
                self.timetable.remove(*interval)

    def facts(self, ask: Ask, who: Person, without: Booking | None, rules: Rules | None = None) -> Usage:
        """Return what the rules need to know, by the rules that hold unless others are given."""
        rules = rules or self.rules(who.project)
        old = without.id if without else ""
        booked = {}
        if rules.gpu_hours_per_month is not None and ask.start < ask.end:
            booked = {
                month: self.look.booked_seconds(who.project_id, month, following, old)
                for month, following in months(ask.start, min(ask.end, ask.start + rules.longest))
            }
        per_gpu = self._per_gpu(who.user_id, rules, old)
        named = (per_gpu[lane.id] for lane in self.lanes if lane.id in per_gpu and lane.is_named(ask.gpu))
        return Usage(
            active=self.look.active_count(who.user_id, old),
            booked_seconds=booked,
            per_gpu=per_gpu,
            on_named_gpu=next(named, 0) if ask.gpu and per_gpu else 0,
            started=without is not None and without.state is BookingState.ACTIVE,
            over_budget=self._over_budget(ask, who, rules, old),
        )

    def _per_gpu(self, user_id: str, rules: Rules, without: str = "") -> dict[int, int]:
        """Lane -> bookings of a user that count on it, without one of them; empty where no rule limits them."""
        if rules.most_active_per_gpu is None:
            return {}
        return bookings_per_gpu(self.look.active_of(user_id, without), self.lanes)

    def _over_budget(self, ask: Ask, who: Person, rules: Rules, without: str) -> Sequence[str]:
        allowance = self.book.allowance(who.project_id, who.project)
        if allowance is None or not ask.start < ask.end or ask.end - ask.start > rules.longest:
            return ()
        ahead = self.look.booked_ahead(who.project_id, allowance.counted_until, without)
        return allowance.objections(BookedTime(seconds(ask.start), seconds(ask.end), ask.gpus), ahead)

    def broken(self, booking: Booking) -> list[Reason]:
        """Return rules that speak against a booking by now, except for those about the moment at which it is made."""
        who = booking_owner(booking)
        rules, facts = self.rules(booking.project), replace(self.facts(booking.ask, who, booking), started=True)
        return broken_rules(booking.ask, rules, who, facts, self.book.zone, self.now)

    def _movable(self, start: int, end: int, without: str = "") -> Sequence[Movable]:
        """Bookings in a time that have not begun: they may have other lanes, but for those where their owners have as
        many bookings as they may have."""
        if not self.lanes:
            return ()
        begins = max(self.now, moment(start))
        bookings = self.look.on_lanes([lane.id for lane in self.lanes], begins, moment(end))
        able = [booking for booking in bookings if booking.id != without and self.may_move(booking)]
        full: dict[tuple[str, str], frozenset[int]] = {}
        for booking in able:
            owner = booking.user_id, booking.project
            if owner not in full:
                rules = self.rules(booking.project)
                full[owner] = at_limit(Usage(per_gpu=self._per_gpu(booking.user_id, rules)), rules)
        return [
            Movable(
                booking.id, booking.ask, booking.lanes, self._barred(booking, full[booking.user_id, booking.project])
            )
            for booking in able
        ]

    def _barred(self, booking: Booking, full: frozenset[int]) -> frozenset[int]:
        """Lanes that it cannot move to, of those where its owner has as many as he may have: it may stay where it is,
        and one for which an admin has set rules aside may go anywhere."""
        return frozenset() if booking.override else full - {*booking.lanes}

    def may_move(self, booking: Booking) -> bool:
        """Return whether nobody would notice that it has other GPUs: not when it asks for a certain one, has begun, or
        begins so soon that its GPUs are kept free already."""
        kept_from = booking.ask.start - self.rules(booking.project).hold
        confirmed = booking.state in (BookingState.CONFIRMED, BookingState.OFFERED)
        return booking.kind is BookingKind.BOOKING and confirmed and not booking.ask.gpu and kept_from > self.now

    def add(self, booking: Booking, *others: Booking) -> Booking:
        """Write a new booking, and others that change for it; the timetable follows."""
        return self._save((booking, *others), [other.id for other in others])[0]

    def save(self, *bookings: Booking) -> tuple[Booking, ...]:
        """Write bookings with their next version; the timetable follows."""
        return self._save(bookings, [booking.id for booking in bookings])

    def _save(self, bookings: Sequence[Booking], changing: Sequence[str]) -> tuple[Booking, ...]:
        self.wrote = True
        former = self.look.get_many(changing) if changing else {}
        new = [
            replace(booking, version=former[booking.id].version + 1 if booking.id in former else 1, changed=self.now)
            for booking in bookings
        ]
        stored = self.change.write(*new)
        for old in former.values():
            for taken in taken_by(old):
                self._on_timetable(False, taken)
        for booking in stored:
            for taken in taken_by(booking):
                self._on_timetable(True, taken)
        return stored

    def transition(
        self,
        booking: Booking,
        to: BookingState,
        actor: str = GPUYARD,
        *,
        moved: Sequence[Booking] = (),
        action: str = "",
        note: str = "",
        **details: str,
    ) -> Booking:
        """Bring a booking into another state: with all that the state means, the event for its owner and the audit
        entry. `booking`: in its state so far, with what else changes; `moved`: others that change for it; `details`:
        the event's details. Raises LifeError."""
        new = become(booking, to, self.now, self.rules(booking.project))
        saved = self.save(new, *moved)[0]
        if booking.kind is BookingKind.BOOKING:
            self.tell(EVENTS[to], saved, **{name: text for name, text in details.items() if text})
        self.note(actor, action or f"booking.{to.value}", saved, note)
        return saved

    def move(self, moves: Answer) -> list[Booking]:
        """Return bookings of an answer's moves, with their new lanes; not saved yet. Leases that end for it have
        ended."""
        for lease in self.look.get_many(list(moves.ends)).values():
            self.transition(replace(lease, reason=MADE_WAY), BookingState.ENDED, action="lease.end", note=MADE_WAY)
        bookings = self.look.get_many(list(moves.moves))
        return [replace(bookings[id], lanes=lanes) for id, lanes in moves.moves.items()]

    def find_place(self, booking: Booking) -> Answer | None:
        """Return lanes for a booking that has none, where its user may have another booking; None when there are none.
        The rules about the booking itself are not asked."""
        rules = self.rules(booking.project)
        avoid: frozenset[int] = frozenset()
        if rules.most_active_per_gpu is not None and not booking.ask.gpu:
            avoid = at_limit(self.facts(booking.ask, booking_owner(booking), booking), rules)

        def decide(pool: PoolLanes) -> Answer:
            return _placed(find_place(booking.ask, pool) or Reason("full", "no GPU of it is free throughout that time"))

        answer = self._decided(Placing(booking.ask), decide, "", avoid)
        return answer if answer.yes else None

    def place(self, booking: Booking, keep: Sequence[int] = ()) -> Answer:
        """Return other lanes for a booking, whatever the rules say of it."""
        wish = Placing(booking.ask, keep)
        with self.timetable.without(taken_by(booking)):
            return self._decided(wish, lambda pool: _placed(place(wish.ask, pool, keep)), booking.id)

    def place_lease(self, lease: Booking, ask: Ask, keep: Sequence[int] = ()) -> Answer:
        """Return lanes for a lease; `keep`: it must be these. No other lease ends for it."""
        start, end = seconds(ask.start), seconds(ask.end)
        with self.timetable.without(taken_by(lease)):
            if keep and all(self.timetable.is_free(lane, start, end) for lane in keep):
                return Answer(lanes=tuple(keep))
            return _placed(place(ask, self._pool_but(lease.id), keep, stay=bool(keep)))

    def _on_timetable(self, taken: bool, interval: Taken) -> None:
        (self.timetable.add if taken else self.timetable.remove)(*interval)
        self._done.append((taken, interval))

    def undo(self) -> None:
        """Make the timetable what it was before the transaction."""
        while self._done:
            taken, interval = self._done.pop()
            (self.timetable.remove if taken else self.timetable.add)(*interval)

    def tell(self, kind: str, booking: Booking, **details: str) -> None:
        """Write an event for the booking's owner."""
        self.wrote = True
        self.change.event(Event(kind, self.now, booking.id, booking.user_id, booking.email, details))

    def note(self, actor: str, action: str, booking: Booking, text: str = "", rule: str = "") -> None:
        """Write an entry into the audit log."""
        self.change.audit(AuditEntry(self.now, actor, action, booking.id, rule, text))


def _placed(placement: Placed | Reason) -> Answer:
    return (
        Answer(reasons=(placement,))
        if isinstance(placement, Reason)
        else Answer(lanes=placement[0], moves=placement[1])
    )


def taken_by(booking: Booking) -> list[Taken]:
    """Return the intervals that a booking has on the timetable."""
    if booking.state not in TAKES_LANES:
        return []
    return [(lane, seconds(booking.ask.start), seconds(booking.ask.end)) for lane in booking.lanes]


class PoolTransactions:
    """Opens transactions of pools, one at a time for each pool."""

    def __init__(self, store: Store, book: BookingSettings, now: Callable[[], datetime]) -> None:
        self._store = store
        self.book = book
        self.now = now
        self._copies: dict[str, PoolCopy] = {}
        self._adding = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, whoever made it, to wake a loop."""

    def _copy(self, pool: str) -> PoolCopy:
        with self._adding:
            return self._copies.setdefault(pool, PoolCopy())

    @contextmanager
    def change(self, pool: str) -> Iterator[PoolTransaction]:
        """Open a pool for writing: it is locked until the block ends, here and in the store."""
        copy = self._copy(pool)
        transaction = None
        with copy.lock:
            try:
                with self._store.change(pool) as change:
                    now = self.now().replace(microsecond=0)
                    copy.catch_up(change)
                    transaction = PoolTransaction(change, copy, self.book, now)
                    yield transaction
                copy.generation = change.generation
            except BaseException:
                if transaction is not None:
                    transaction.undo()
                raise

    @contextmanager
    def look(self, pool: str) -> Iterator[PoolTransaction]:
        """Open a pool for reading."""
        copy = self._copy(pool)
        with copy.lock, self._store.look(pool) as look:
            now = self.now().replace(microsecond=0)
            copy.catch_up(look)
            yield PoolTransaction(look, copy, self.book, now)

    def run(self, pool: str, work: Callable[[PoolTransaction], T]) -> T:
        """Do work on a pool in a transaction; once more, with everything read anew, when the store saw a conflict."""
        try:
            with self.change(pool) as transaction:
                result = work(transaction)
        except (OverlapError, ConflictError):
            self._forget(pool)
            with self.change(pool) as transaction:
                result = work(transaction)
        if transaction.wrote:
            self.on_change()
        return result

    def _forget(self, pool: str) -> None:
        """After the store has found that a timetable was wrong."""
        copy = self._copy(pool)
        with copy.lock:
            copy.forget()
