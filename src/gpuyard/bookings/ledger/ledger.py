"""The one record of who has which GPU when: every booking is made, changed and ended here, whoever asks.

Each change is one transaction that has its pool to itself: it reads the pool, decides (admission.py) and writes, with
the events and the audit entries that belong to it. So two requests at the same time are decided one after the other, in
one process and in several. A service outside that has a say is asked before the transaction, never within it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from gpuyard.bookings.admission import NO_ROOM
from gpuyard.bookings.admissions import Admissions
from gpuyard.bookings.budget_check import Allowance, BookedTime
from gpuyard.bookings.errors import NoBookingError, RefusedError, StaleError
from gpuyard.bookings.ledger import clock
from gpuyard.bookings.ledger.closing import Closings
from gpuyard.bookings.ledger.editing import describe, edit, note_override, only_less, owner
from gpuyard.bookings.ledger.holding import hold_all, wanted_lanes, whole
from gpuyard.bookings.ledger.loans import Loans
from gpuyard.bookings.ledger.pool_transaction import BookingSettings, PoolTransaction, PoolTransactions
from gpuyard.bookings.ledger.runner_leases import Leases
from gpuyard.bookings.ledger.series import edit_series, members, on_day, same_use, wishes
from gpuyard.bookings.ledger.upkeep import Upkeep
from gpuyard.bookings.outside import NOBODY, Outside
from gpuyard.bookings.policy import booking_owner, spell
from gpuyard.bookings.records import AuditEntry, AuditQuery, Granted, LiveBookings, Occupied, Overstay, Query
from gpuyard.bookings.recurrence import expand
from gpuyard.bookings.rule_change import losses
from gpuyard.bookings.store import GONE, Store
from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import (
    FOREVER,
    Alternative,
    Answer,
    Ask,
    Booking,
    BookingKind,
    BookingState,
    Lane,
    Person,
    Reason,
    Rules,
)
from gpuyard.model.booking_life import OPEN, from_now, require_state
from gpuyard.model.errors import ForbiddenError
from gpuyard.model.finding import Finding
from gpuyard.model.rights import STATES, Verb, may, require

__all__ = ["BookingSettings", "ForbiddenError", "Ledger", "NoBookingError", "RefusedError", "StaleError"]

MOST_HOLDS = 10_000
"""Holds of a series that are looked at."""
MOST_POOLS = 3
"""Other pools that are proposed."""


@dataclass(frozen=True)
class _Order:
    """The people and options of one request to book."""

    who: Person
    """The owner."""
    by: Person
    wait: bool
    override: bool
    shared: bool


class Ledger:
    """The ledger as people use it. Safe to use from several threads, and from several processes on one store."""

    def __init__(
        self, store: Store, book: BookingSettings, now: Callable[[], datetime], new_id: Callable[[], str]
    ) -> None:
        self._store = store
        self.book = book
        self.now = now
        self._new_id = new_id
        self._transactions = PoolTransactions(store, book, now)
        self.admissions = Admissions()
        """How long answers to requests for bookings took."""
        self.upkeep = Upkeep(store, self._transactions)
        """The controller's side: what time and the cloud do to bookings."""
        self.leases = Leases(store, self._transactions, new_id)
        """GPUs that runners for GitHub jobs have."""
        self.loans = Loans(store, self._transactions, new_id)
        """Certain GPUs for one project alone, although something may be wrong with them."""
        self.outside: Outside = NOBODY
        """The service that must say yes, too, before a person's booking is made or changed."""
        self.closings = Closings(store, self._transactions, new_id)
        """Hosts that are out of use for a time."""

    def allow(self, allowance: Callable[[str, str], Allowance | None]) -> None:
        """Require bookings to fit into these budgets from now on: `BookingSettings.allowance`."""
        self.book = self._transactions.book = replace(self.book, allowance=allowance)

    def close(self) -> None:
        """Close the database and give up leadership."""
        self._store.close()

    @property
    def database(self) -> Database:
        """The database, for others who keep something there."""
        return self._store.database

    # What people do. `who` has the roles of the project that it is about; rights.py says what they let them do.

    def check(self, ask: Ask, who: Person, *, without: str = "") -> Answer:
        """Return whether this could be booked now, and why not. `without`: as if that booking (its id) were not
        there."""
        self._require_pool(ask.pool)
        with self._transactions.look(ask.pool) as transaction:
            old = transaction.look.get(without) if without else None
            ask = ask if old and old.ask.start == ask.start else self._tidy(ask)
            answer = transaction.admit(ask, owner(old, who) if old else who, without=old)
        return self._with_other_pools(ask, who, answer)

    def create(
        self,
        ask: Ask,
        who: Person,
        *,
        wait: bool = False,
        override: bool = False,
        key: str = "",
        repeat: str = "",
        zone: str = "UTC",
        shared: bool = False,
        by: Person | None = None,
    ) -> tuple[Booking, ...]:
        """Book GPUs. Raises RefusedError, ForbiddenError.

        `wait`: go on the waitlist when there is no GPU free. `override`: an admin sets rules aside; never that a GPU is
        given twice. `key`: the same key of the same person gets the booking that was made, not another one; raises
        RefusedError (code ``key_reused``) when the ask differs. `repeat`: an iCalendar RRULE with COUNT or UNTIL,
        reckoned in `zone`; all of its bookings are made, or none. Several bookings are returned only for `repeat`.
        `shared`: every member of the project may use it. `by`: the person who asks, where the booking is to be that of
        a colleague, `who`, whose rules and limits hold.
        """
        order = _Order(who, by or who, wait, override, shared)
        if (shared or order.by != who) and not self.book.rules_of(ask.pool, who.project).for_others:
            require(order.by, Verb.BOOK_FOR_OTHERS)
        if override:
            require(order.by, Verb.OVERRIDE)
        wish = (ask, who.project_id, who.user_id, shared, wait, override, repeat, zone)
        digest = hashlib.sha256(repr(wish).encode()).hexdigest()
        asks = self._each_time(ask, repeat, zone)
        self._require_pool(ask.pool)

        def known(transaction: PoolTransaction) -> tuple[Booking, ...]:
            """What this key has got before."""
            before = transaction.look.key(order.by.user_id, key) if key else None
            if before is None:
                return ()
            if before.digest != digest:
                reason = Reason("key_reused", f"the key {key!r} was used for another booking; use a new one")
                raise RefusedError(Answer(reasons=(reason,)))
            made = transaction.look.get_many(before.bookings)
            return tuple(made[id] for id in before.bookings)

        def book(transaction: PoolTransaction) -> tuple[Booking, ...]:
            if made := known(transaction):
                return made
            bookings = tuple(self._book(transaction, draft, order, number) for number, draft in enumerate(drafts))
            for booking in bookings:
                for reason in set_aside:
                    transaction.note(order.by.user, "booking.override", booking, reason.text, reason.code)
            if key:
                made_now = tuple(booking.id for booking in bookings)
                transaction.change.remember_key(order.by.user_id, key, digest, made_now, transaction.now)
            return bookings

        try:
            if self.outside is not NOBODY:  # who is not asked for what is there already, or is refused here anyway
                with self._transactions.look(ask.pool) as transaction:
                    if made := known(transaction):
                        return made
                    self._admitted(transaction, asks[0], order)
            series = self._new_id() if repeat else ""
            drafts = [self._wished(occurrence, order, series) for occurrence in asks]
            with self.outside.making(drafts, override) as set_aside, self.admissions.timed():
                return self._transactions.run(ask.pool, book)
        except RefusedError as refused:
            raise RefusedError(self._with_other_pools(asks[0], who, refused.answer)) from None

    def hold(
        self,
        gpus: Sequence[str],
        start: datetime,
        end: datetime,
        who: Person,
        comment: str,
        *,
        hosts: Sequence[str] = (),
        pools: Sequence[str] = (),
        repeat: str = "",
        zone: str = "UTC",
    ) -> tuple[Booking, ...]:
        """Keep GPUs (``host/address``), or all of some hosts and pools, out of use; also again and again (`repeat` and
        `zone` as in `create`). Admins only. Bookings in the way move to other GPUs when they can; when they cannot,
        RefusedError names them."""
        require(who, Verb.HOLD)
        lanes = wanted_lanes([lane for lane in self.lanes() if lane.trouble != GONE], gpus, hosts, pools)
        series = self._new_id() if repeat else ""
        made: list[Booking] = []
        try:
            for pool in sorted({lane.pool for lane in lanes}):
                asks = [
                    (lane, ask)
                    for lane in lanes
                    if lane.pool == pool
                    for ask in self._each_time(whole(lane, start, end, comment), repeat, zone)
                ]
                made += self._transactions.run(pool, partial(hold_all, asks, who, series, self._new_id))
        except RefusedError:
            for booking in made:  # of other pools: all or nothing
                self.cancel(booking.id, who)
            raise
        return tuple(made)

    def edit(
        self,
        id: str,
        ask: Ask,
        who: Person,
        version: int | None = None,
        *,
        override: bool = False,
        series: bool = False,
    ) -> Booking:
        """Change a booking's time, number or comment; also extend or shorten one that is active (its start stays).
        `version`: raises StaleError when the booking has another one by now. `series`: the others of its series that
        have not begun change alike. Raises RefusedError, and leaves all as it was."""
        if override:
            require(who, Verb.OVERRIDE)

        if series and (others := self._other_pools(self.get(id))):
            text = f"its series has holds in {', '.join(others)} too: cancel it with its series, and make it anew"
            raise RefusedError(Answer(reasons=(Reason("other_pool", text),)))

        def tidied(old: Booking) -> Ask:
            same_start = ask.start == old.ask.start  # then it is not too late for it, however little it is in the past
            return ask if same_start else self._tidy(ask)

        def change(transaction: PoolTransaction, old: Booking) -> Booking:
            work = edit_series if series else edit
            new = work(transaction, old, tidied(old), who, override, self._new_id)
            for reason in set_aside if override else ():
                transaction.note(who.user, "booking.override", new, reason.text, reason.code)
            return new

        before = self.get(id)
        changes = self._asked_outside(before, tidied(before), who, series)
        gives_back = all(only_less(member.ask, wish.ask) for member, wish in changes)  # against which nobody has a say
        with self.outside.changing(changes, override or gives_back) as set_aside:
            return self._change_one(id, who, Verb.CHANGE, version, change)

    def _asked_outside(self, old: Booking, ask: Ask, who: Person, series: bool) -> list[tuple[Booking, Booking]]:
        """Whose change somebody outside has a say in: that of time or number, of what is somebody's; not when the
        person may not change it, or it is too late for it. Raises NoBookingError."""
        if (
            old.kind is not BookingKind.BOOKING
            or old.state not in STATES[Verb.CHANGE]
            or not may(who, Verb.CHANGE, old)
        ):
            return []
        if series:
            with self._transactions.look(old.ask.pool) as transaction:
                changes = wishes(transaction, old, ask)
        else:
            changes = [(old, ask)]
        return [(booking, replace(booking, ask=wish)) for booking, wish in changes if not same_use(booking.ask, wish)]

    def cancel(
        self, id: str, who: Person, version: int | None = None, reason: str = "", *, series: bool = False
    ) -> Booking:
        """Cancel a booking before it begins; also take one off the waitlist, refuse an offer, decline a request, end a
        hold. `series`: and all others of its series that have not begun."""

        def cancel_one(transaction: PoolTransaction, old: Booking) -> Booking:
            if old.kind is BookingKind.HOLD and old.state is BookingState.ACTIVE:
                return self._end(transaction, old, who)
            return transaction.transition(
                replace(old, reason=_by(who, old.user_id, reason)),
                BookingState.CANCELLED, who.user, action="booking.cancel", note=reason, by=who.user, reason=reason,
            )  # fmt: skip

        def change(transaction: PoolTransaction, old: Booking) -> Booking:
            new = cancel_one(transaction, old)
            if series:
                cancel_others(old, transaction)
            clock.offer(transaction)
            return new

        def cancel_others(old: Booking, transaction: PoolTransaction) -> None:
            for member in members(transaction, old, Verb.CANCEL):
                if member.id != old.id:
                    cancel_one(transaction, member)

        cancelled = self._change_one(id, who, Verb.CANCEL, version, change)
        for pool in self._other_pools(cancelled) if series else ():  # of a hold that is repeated
            self._transactions.run(pool, partial(cancel_others, cancelled))
        return cancelled

    def _other_pools(self, booking: Booking) -> list[str]:
        """Pools that the booking's series has holds of beside its own."""
        bookings = self.find(Query(series=booking.series), MOST_HOLDS) if booking.series else []
        return sorted({member.ask.pool for member in bookings} - {booking.ask.pool})

    def end(self, id: str, who: Person, version: int | None = None) -> Booking:
        """End an active one now; the rest of its time is free at once."""
        return self._change_one(id, who, Verb.END, version, lambda transaction, old: self._end(transaction, old, who))

    def approve(self, id: str, who: Person, version: int | None = None) -> Booking:
        """Confirm a requested booking; admins only. Its GPUs are looked for now: raises RefusedError when they are
        gone."""

        def change(transaction: PoolTransaction, old: Booking) -> Booking:
            require_state(old, BookingState.REQUESTED, "approved")
            old = replace(old, ask=from_now(old.ask, transaction.now))
            answer = transaction.place(old)
            if not answer.yes:
                raise RefusedError(answer)
            answer = replace(answer, overridden=tuple(transaction.broken(old)))
            placed, moved = replace(old, lanes=answer.lanes, reason=""), transaction.move(answer)
            new = transaction.transition(
                placed, BookingState.CONFIRMED, who.user, moved=moved, action="booking.approve", by=who.user
            )
            note_override(transaction, new, who, answer)
            return new

        return self._change_one(id, who, Verb.APPROVE, version, change)

    def accept(self, id: str, who: Person, version: int | None = None) -> Booking:
        """Take an offer. Raises RefusedError when it is over, or a rule is against it by now."""

        def change(transaction: PoolTransaction, old: Booking) -> Booking:
            require_state(old, BookingState.OFFERED, "accepted")
            if old.offer_until is not None and old.offer_until <= transaction.now:
                text = f"the offer of booking {id} was open until {spell(old.offer_until)}"
                raise RefusedError(Answer(reasons=(Reason("offer_over", text),)))
            if broken := transaction.broken(replace(old, ask=from_now(old.ask, transaction.now))):
                raise RefusedError(Answer(reasons=tuple(broken)))
            return transaction.transition(old, BookingState.CONFIRMED, who.user, action="booking.accept")

        return self._change_one(id, who, Verb.ACCEPT, version, change)

    def open(self, id: str, who: Person) -> Booking:
        """Release the GPUs of an active booking for its owner's server, for a while: in pools with unbooked use."""

        def change(transaction: PoolTransaction, old: Booking) -> Booking:
            if old.state is not BookingState.ACTIVE or old.kind is BookingKind.HOLD:
                text = f"booking {id} is {old.state.value}; its GPUs can be released while it is active"
                raise RefusedError(Answer(reasons=(Reason("not_active", text),)))
            window = transaction.rules(old.project).window
            (new,) = transaction.save(replace(old, open_until=min(transaction.now + window, old.ask.end)))
            transaction.note(who.user, "booking.open", new, f"until {spell(transaction.now + window)}")
            return new

        return self._change_one(id, who, Verb.OPEN, None, change)

    def expect_back(self, gpus: Sequence[str], back: datetime | None, who: Person) -> list[Lane]:
        """Record when GPUs (``host/address``, or all of a host) that cannot be used now will be back, so that they can
        be booked from then on; None: the rule `trouble` says it again. Admins only. Raises RefusedError."""
        require(who, Verb.HOLD)
        chosen: list[Lane] = []
        for name in gpus:
            mine = [lane for lane in self.lanes() if name in (lane.host, *(f"{lane.host}/{a}" for a in lane.addresses))]
            if not mine:
                raise RefusedError(Answer(reasons=(Reason("no_such_gpu", f"there is no GPU or host {name}"),)))
            bad = [lane for lane in mine if lane.trouble and lane.back != FOREVER]
            if not bad:
                raise RefusedError(Answer(reasons=(Reason("no_trouble", f"nothing is wrong with {name}"),)))
            chosen += bad
        self._store.set_back({lane.id for lane in chosen}, back)
        text = f"back on {spell(back)}" if back else "back by the rule"
        for lane in chosen:
            self._store.write_audit(AuditEntry(self.now(), who.user, "lane.back", lane.name, "trouble", text))
        self._transactions.on_change()
        ids = {lane.id for lane in chosen}
        return [lane for lane in self.lanes() if lane.id in ids]

    # What is shown.

    def get(self, id: str) -> Booking:
        """Return a booking. Raises NoBookingError."""
        booking = self._store.get(id)
        if booking is None:
            raise NoBookingError(f"there is no booking {id}")
        return booking

    def find(self, query: Query, limit: int = 1000, marker: str = "") -> list[Booking]:
        """Return bookings in order of start, then id; `marker` is the id of the last one of the page before."""
        return self._store.find(query, limit, marker)

    def live(self) -> list[LiveBookings]:
        """Count bookings, and what else takes GPUs, that are not over."""
        return self._store.live(self.book.pools, OPEN)

    def granted(self, since: datetime) -> list[Granted]:
        """Return bookings that got their GPUs since then."""
        return self._store.granted(since)

    def booked_ahead(self, project_id: str, since: datetime) -> list[BookedTime]:
        """Return what a project has booked in all pools after a moment, also what has ended since."""
        with self._transactions.look(self.book.pools[0]) as transaction:
            return transaction.look.booked_ahead(project_id, seconds(since))

    def lanes(self, pool: str = "") -> tuple[Lane, ...]:
        """Return the rows of the calendar, by pool, host and address."""
        return self._store.lanes(pool)

    def overstays(self, who: Person) -> list[Overstay]:
        """Return a person's servers that must give their GPUs back, and have been warned; for an admin those of all."""
        overstays = [
            overstay
            for overstay in self._store.open_overstays()
            if overstay.warned is not None and overstay.due is not None
        ]
        return [overstay for overstay in overstays if who.admin or overstay.user_id == who.user_id]

    def occupied(self, pool: str, start: datetime, end: datetime) -> list[Occupied]:
        """Return every lane that is taken in a time, with the booking that takes it."""
        return self._store.occupied(pool, start, end)

    def free(self, pool: str, start: datetime, end: datetime, step: int) -> list[tuple[datetime, int]]:
        """Return how many lanes are free throughout each `step` seconds of a time: (start of the step, lanes). Those of
        leases that would make way for a booking are."""
        self._require_pool(pool)
        with self._transactions.look(pool) as transaction, transaction.with_way_made():
            first, until = seconds(start), transaction.troubled
            well = [lane.id for lane in transaction.lanes if lane.id not in until]
            counts = transaction.timetable.free_by_step(well, first, seconds(end), step)
            for lane, back in until.items():
                late = transaction.timetable.free_by_step([lane], first, seconds(end), step) if back < end else ()
                for number, free in enumerate(late):
                    counts[number] += free * (first + number * step >= seconds(back))
        return [(moment(first + number * step), count) for number, count in enumerate(counts)]

    def changed_rules(self, changed: Mapping[tuple[str, str], Rules | None], zone: str) -> list[Finding]:
        """Return what open bookings would lose by other rules, by (pool, project) by name; None: the pool is gone.
        `zone` is that of quiet hours then. Changes nothing."""
        findings: list[Finding] = []
        for pool in sorted({pool for pool, _ in changed}):
            bookings = [booking for booking in self._open(pool) if (pool, booking.project) in changed]
            if not bookings:
                continue
            with self._transactions.look(pool) as transaction:
                for booking in bookings:
                    after = changed[pool, booking.project]
                    facts = transaction.facts(booking.ask, booking_owner(booking), booking, after)
                    findings += losses(
                        booking, transaction.rules(booking.project), after, facts, (self.book.zone, zone)
                    )
        return findings

    def _open(self, pool: str) -> Iterator[Booking]:
        query = Query(pool=pool, kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        page = self._store.find(query)
        while page:
            yield from page
            page = self._store.find(query, marker=page[-1].id)

    def audit(self, limit: int = 100, before: int | None = None, query: AuditQuery | None = None) -> list[AuditEntry]:
        """Return audit entries, the newest first; `before`: only those with a smaller id."""
        return self._store.audit(limit, before, query)

    def note(self, who: Person, action: str, target: str, text: str) -> None:
        """Write an audit entry about something that is not a booking."""
        self._store.write_audit(AuditEntry(self.now(), who.user, action, target, text=text))

    # How.

    def _wished(self, ask: Ask, order: _Order, series: str) -> Booking:
        """One booking as it is asked for, before anything is decided."""
        who, now = order.who, self.now().replace(microsecond=0)
        return Booking(
            id=self._new_id(),
            kind=BookingKind.BOOKING,
            ask=ask,
            state=BookingState.REQUESTED,
            user_id=who.user_id,
            user=who.user,
            project_id=who.project_id,
            project=who.project,
            created=now,
            changed=now,
            email=who.email,
            series=series,
            shared=order.shared,
            reason=_by(order.by, who.user_id, ""),
        )

    def _admitted(self, transaction: PoolTransaction, ask: Ask, order: _Order) -> tuple[Answer, bool]:
        """The answer, and whether it is to wait. Raises RefusedError."""
        answer = transaction.admit(ask, order.who, override=order.override)
        waits = order.wait and bool(answer.reasons) and all(reason.code in NO_ROOM for reason in answer.reasons)
        if not answer.yes and not waits:
            raise RefusedError(answer)
        return answer, waits

    def _book(self, transaction: PoolTransaction, wish: Booking, order: _Order, number: int) -> Booking:
        """One booking, made within a transaction; `number`: which of several."""
        rules, ask = transaction.rules(order.who.project), wish.ask
        try:
            answer, waits = self._admitted(transaction, ask, order)
        except RefusedError as refused:
            raise RefusedError(on_day(refused.answer, ask) if number else refused.answer) from None
        asks_first = rules.approval and not order.override
        state = BookingState.REQUESTED if asks_first else BookingState.WAITING if waits else BookingState.CONFIRMED
        booking = replace(
            wish,
            state=state,
            created=transaction.now,
            changed=transaction.now,
            lanes=answer.lanes if state is BookingState.CONFIRMED else (),
            priority=rules.priority,
            override=bool(answer.overridden),
        )
        moved = transaction.move(answer) if state is BookingState.CONFIRMED else []
        saved = transaction.add(booking, *moved)
        transaction.tell(f"booking.{state.value}", saved)
        transaction.note(order.by.user, "booking.create", saved, describe(ask))
        note_override(transaction, saved, order.by, answer)
        return saved

    def _end(self, transaction: PoolTransaction, old: Booking, who: Person) -> Booking:
        old = replace(old, reason=_by(who, old.user_id, ""))
        new = transaction.transition(old, BookingState.ENDED, who.user, action="booking.end", by=who.user)
        clock.offer(transaction)
        return new

    def _change_one(
        self,
        id: str,
        who: Person,
        verb: Verb,
        version: int | None,
        change: Callable[[PoolTransaction, Booking], Booking],
    ) -> Booking:
        def work(transaction: PoolTransaction) -> Booking:
            old = transaction.look.get(id)
            if old is None:
                raise NoBookingError(f"there is no booking {id}")
            require(who, verb, old)
            if version is not None and version != old.version:
                raise StaleError(f"booking {id} was changed by somebody else since you read it; look again", old)
            return change(transaction, old)

        return self._transactions.run(self.get(id).ask.pool, work)

    def _with_other_pools(self, ask: Ask, who: Person, answer: Answer) -> Answer:
        """An answer that says no for want of room, with other pools that have it."""
        if not any(reason.code in NO_ROOM for reason in answer.reasons) or (not answer.alternatives and ask.gpu):
            return answer
        others: list[Alternative] = []
        for pool in self.book.pools:
            if pool == ask.pool or len(others) == MOST_POOLS:
                continue
            wish = replace(ask, pool=pool, gpu="")
            with self._transactions.look(pool) as transaction:
                if transaction.admit(wish, who).yes:
                    others.append(Alternative(wish, f"{ask.gpus} of pool {pool} instead"))
        return replace(answer, alternatives=(*answer.alternatives, *others))

    def _each_time(self, ask: Ask, repeat: str, zone: str) -> list[Ask]:
        asks = expand(self._tidy(ask), repeat, zone) if repeat else [self._tidy(ask)]
        if isinstance(asks, Reason):
            raise RefusedError(Answer(reasons=(asks,)))
        return asks

    def _tidy(self, ask: Ask) -> Ask:
        """Whole seconds."""
        return replace(ask, start=ask.start.replace(microsecond=0), end=ask.end.replace(microsecond=0))

    def _require_pool(self, pool: str) -> None:
        if pool not in self.book.pools:
            text = f"there is no pool {pool!r}; there are {', '.join(self.book.pools)}"
            raise RefusedError(Answer(reasons=(Reason("no_such_pool", text),)))


def _by(who: Person, owner: str, reason: str) -> str:
    by = "" if who.user_id == owner else f"by {who.user}"
    return ": ".join(part for part in (by, reason) if part)
