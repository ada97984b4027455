"""The one record of who has which GPU when: every booking is made, changed and ended here, whoever asks.

Each change is one transaction that has its pool to itself: look, decide (admission.py), write, with the events and the
audit entries that belong to it. So two who ask at once are asked one after the other, in one process and in several.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from gpuyard.ledger import clock, relocate
from gpuyard.ledger.admission import moment, seconds
from gpuyard.ledger.desk import Book, Desk, Desks
from gpuyard.ledger.editing import NO_ROOM, describe, edit, note_override, owner
from gpuyard.ledger.errors import ForbiddenError, NoBookingError, RefusedError, StaleError
from gpuyard.ledger.life import require
from gpuyard.ledger.policy import spell
from gpuyard.ledger.records import AuditEntry, Occupied, Query
from gpuyard.ledger.recurrence import expand
from gpuyard.ledger.store import ConflictError, OverlapError, Store
from gpuyard.model.booking import Alternative, Answer, Ask, Booking, BookingKind, BookingState, Lane, Person, Reason

__all__ = ["Book", "ForbiddenError", "Ledger", "NoBookingError", "RefusedError", "StaleError"]

S = BookingState
MOST_POOLS = 3
"""Other pools that are proposed."""
BREAK = timedelta(minutes=5)
"""When claims were not told of for this long, the cloud was out of sight, and nobody is a no-show because of it."""
KEEP = timedelta(days=30)
"""How long idempotency keys and events that were delivered are kept."""
PAGE = 1000
GONE = "it is not in the site file any more"
"""The trouble of lanes that have left, as the store says it."""
T = TypeVar("T")


class Ledger:
    """Safe to use from several threads, and from several processes on one store."""

    def __init__(self, store: Store, book: Book, now: Callable[[], datetime], new_id: Callable[[], str]) -> None:
        self.store = store
        self.book = book
        self.now = now
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, by whoever made it: to wake a loop."""
        self._new_id = new_id
        self._desks = Desks(store, book, now)
        self._reminded: set[tuple[str, datetime]] = set()
        self._pruned: datetime | None = None
        self._offers_tried: dict[str, int] = {}
        self._ready: dict[str, datetime] = {}
        """Bookings without a server -> when their owner was first seen to be let in."""
        # Pools that have left the site file have bookings that must end, too.
        self._pools = (*book.pools, *(pool for pool in store.pools() if pool not in book.pools))

    # What people do. `who` may act on own bookings; with the role admin on everybody's.

    def check(self, ask: Ask, who: Person, *, without: str = "") -> Answer:
        """Whether this could be booked now, and why not. `without`: as if that booking (its id) were not there."""
        self._require_pool(ask.pool)
        with self._desks.look(ask.pool) as desk:
            old = desk.look.get(without) if without else None
            ask = ask if old and old.ask.start == ask.start else self._tidy(ask)
            answer = desk.admit(ask, owner(old, who) if old else who, without=old)
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
    ) -> tuple[Booking, ...]:
        """Book. Raises RefusedError, ForbiddenError.

        `wait`: go on the waitlist when there is no GPU free. `override`: an admin sets rules aside; never that a GPU is
        given twice. `key`: the same key of the same person gets the booking that was made, not another one; raises
        RefusedError (code ``key_reused``) when the ask differs. `repeat`: an iCalendar RRULE with COUNT or UNTIL,
        reckoned in `zone`; all of its bookings are made, or none. Several bookings are returned only for `repeat`.
        """
        _require_admin(who, override, "set rules aside (override)")
        digest = hashlib.sha256(repr((ask, who.project_id, wait, override, repeat, zone)).encode()).hexdigest()
        asks = expand(self._tidy(ask), repeat, zone) if repeat else [self._tidy(ask)]
        if isinstance(asks, Reason):
            raise RefusedError(Answer(reasons=(asks,)))
        self._require_pool(ask.pool)

        def book(desk: Desk) -> tuple[Booking, ...]:
            if key and (known := desk.look.key(who.user_id, key)):
                if known.digest != digest:
                    reason = Reason("key_reused", f"the key {key!r} was used for another booking; use a new one")
                    raise RefusedError(Answer(reasons=(reason,)))
                made = desk.look.get_many(known.bookings)
                return tuple(made[id] for id in known.bookings)
            series = self._new_id() if repeat else ""
            bookings = tuple(
                self._book(desk, one, who, wait, override, series, number) for number, one in enumerate(asks)
            )
            if key:
                desk.change.remember_key(who.user_id, key, digest, tuple(one.id for one in bookings), desk.now)
            return bookings

        try:
            return self._change(ask.pool, book)
        except RefusedError as refused:
            raise RefusedError(self._with_other_pools(asks[0], who, refused.answer)) from None

    def hold(
        self, lanes: Sequence[str], start: datetime, end: datetime, who: Person, comment: str
    ) -> tuple[Booking, ...]:
        """Keep GPUs (``host/address``) out of use. Admins only. Bookings in the way move to other GPUs when they can;
        when they cannot, RefusedError names them."""
        _require_admin(who, True, "hold GPUs")
        there = [lane for lane in self.lanes() if lane.trouble != GONE]
        known = {f"{lane.host}/{address}": lane for lane in there for address in lane.addresses}
        missing = [name for name in lanes if name.lower() not in {one.lower() for one in known}]
        if missing:
            reason = Reason("no_such_gpu", f"there is no GPU {missing[0]}; name one as in host/0000:3b:00.0")
            raise RefusedError(Answer(reasons=(reason,)))
        by_name = {name.lower(): lane for name, lane in known.items()}
        wanted = {by_name[name.lower()].id: by_name[name.lower()] for name in lanes}
        made: list[Booking] = []
        try:
            for pool in sorted({lane.pool for lane in wanted.values()}):
                asks = [
                    (lane, self._tidy(_whole(lane, start, end, comment)))
                    for lane in wanted.values()
                    if lane.pool == pool
                ]
                made += self._change(pool, partial(self._hold_all, asks, who))
        except RefusedError:
            for booking in made:  # of other pools: all or nothing
                self.cancel(booking.id, who)
            raise
        return tuple(made)

    def edit(self, id: str, ask: Ask, who: Person, version: int | None = None, *, override: bool = False) -> Booking:
        """Another time, number or comment; also extends or shortens one that is active (its start stays). `version`:
        raises StaleError when the booking has another one by now. Raises RefusedError, and leaves all as it was."""
        _require_admin(who, override, "set rules aside (override)")

        def change(desk: Desk, old: Booking) -> Booking:
            same_start = ask.start == old.ask.start  # then it is not too late for it, however little it is in the past
            return edit(desk, old, ask if same_start else self._tidy(ask), who, override, self._new_id)

        return self._change_one(id, who, version, change)

    def cancel(self, id: str, who: Person, version: int | None = None, reason: str = "") -> Booking:
        """Before it begins; also takes one off the waitlist, refuses an offer, declines a request, ends a hold."""

        def change(desk: Desk, old: Booking) -> Booking:
            if old.kind is BookingKind.HOLD and old.state is S.ACTIVE:
                return self._end(desk, old, who)
            require(old, S.CANCELLED)
            (new,) = desk.save(
                replace(old, state=S.CANCELLED, lanes=(), offer_until=None, reason=_by(who, old, reason))
            )
            if old.kind is BookingKind.BOOKING:
                desk.tell("booking.cancelled", new, by=who.user, reason=reason)
            desk.note(who.user, "booking.cancel", new, reason)
            clock.offer(desk)
            return new

        return self._change_one(id, who, version, change)

    def end(self, id: str, who: Person, version: int | None = None) -> Booking:
        """End an active one now; the rest of its time is free at once."""
        return self._change_one(id, who, version, lambda desk, old: self._end(desk, old, who))

    def approve(self, id: str, who: Person, version: int | None = None) -> Booking:
        """Admins only. The GPUs are looked for now: raises RefusedError when they are gone."""
        _require_admin(who, True, "approve bookings")

        def change(desk: Desk, old: Booking) -> Booking:
            if old.state is not S.REQUESTED:
                require(old, S.REQUESTED)
            old = replace(old, ask=_from_now(old.ask, desk.now))
            answer = desk.place(old)
            if not answer.yes:
                raise RefusedError(answer)
            answer = replace(answer, overridden=tuple(desk.broken(old)))
            new = desk.save(replace(old, state=S.CONFIRMED, lanes=answer.lanes, reason=""), *desk.move(answer))[0]
            desk.tell("booking.confirmed", new, by=who.user)
            desk.note(who.user, "booking.approve", new)
            note_override(desk, new, who, answer)
            return new

        return self._change_one(id, who, version, change)

    def accept(self, id: str, who: Person, version: int | None = None) -> Booking:
        """Take an offer."""

        def change(desk: Desk, old: Booking) -> Booking:
            if old.state is not S.OFFERED:
                require(old, S.OFFERED)
            if old.offer_until is not None and old.offer_until <= desk.now:
                text = f"the offer of booking {id} was open until {spell(old.offer_until)}"
                raise RefusedError(Answer(reasons=(Reason("offer_over", text),)))
            asked = _from_now(old.ask, desk.now)
            if broken := desk.broken(replace(old, ask=asked)):
                raise RefusedError(Answer(reasons=tuple(broken)))
            (new,) = desk.save(replace(old, ask=asked, state=S.CONFIRMED, offer_until=None))
            desk.tell("booking.confirmed", new)
            desk.note(who.user, "booking.accept", new)
            return new

        return self._change_one(id, who, version, change)

    def open(self, id: str, who: Person) -> Booking:
        """In pools with unbooked use: release the GPUs of an active booking for its owner's server, for a while."""

        def change(desk: Desk, old: Booking) -> Booking:
            if old.state is not S.ACTIVE or old.kind is BookingKind.HOLD:
                text = f"booking {id} is {old.state.value}; its GPUs can be released while it is active"
                raise RefusedError(Answer(reasons=(Reason("not_active", text),)))
            window = desk.rules(old.project).window
            (new,) = desk.save(replace(old, open_until=min(desk.now + window, old.ask.end)))
            desk.note(who.user, "booking.open", new, f"until {spell(desk.now + window)}")
            return new

        return self._change_one(id, who, None, change)

    # What is shown.

    def get(self, id: str) -> Booking:
        """Raises NoBookingError."""
        found = self.store.get(id)
        if found is None:
            raise NoBookingError(f"there is no booking {id}")
        return found

    def find(self, query: Query, limit: int = 1000, marker: str = "") -> list[Booking]:
        """In order of start, then id; `marker` is the id of the last one of the page before."""
        return self.store.find(query, limit, marker)

    def lanes(self, pool: str = "") -> tuple[Lane, ...]:
        """Rows of the calendar: by pool, host and address."""
        return self.store.lanes(pool)

    def occupied(self, pool: str, start: datetime, end: datetime) -> list[Occupied]:
        """Every lane that is taken in a time, by whom."""
        return self.store.occupied(pool, start, end)

    def free(self, pool: str, start: datetime, end: datetime, step: int) -> list[tuple[datetime, int]]:
        """How many lanes are free throughout each `step` seconds of a time: (start of the step, lanes)."""
        self._require_pool(pool)
        with self._desks.look(pool) as desk:
            well = [lane.id for lane in desk.lanes if not lane.trouble]
            first = seconds(start)
            counts = desk.timetable.free_by_step(well, first, seconds(end), step)
        return [(moment(first + number * step), count) for number, count in enumerate(counts)]

    def audit(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """The newest first."""
        return self.store.audit(limit, before)

    # What the keeper does.

    def advance(self) -> int:
        """Everything that is due by the clock: starts, ends, reminders, expiries, offers. Returns how many bookings
        changed. What is done twice is done once."""
        changed = 0
        for pool in self._pools:
            with self._desks.look(pool) as desk:
                generation = desk.look.generation
                waiting = self._offers_tried.get(pool) != generation and bool(desk.look.waiting())
                soon = {
                    (one.id, one.ask.end)
                    for one in desk.look.ending(desk.now + clock.LONGEST_REMINDER)
                    if one.ask.end - desk.now <= desk.rules(one.project).end_soon
                } - self._reminded
                if not waiting and not soon and not desk.look.due(desk.now):
                    continue
            changed += self._change(pool, clock.advance)
            self._reminded |= soon
            if waiting:
                self._offers_tried[pool] = generation
        self._prune()
        return changed

    def troubles(self, troubles: Mapping[int, str]) -> int:
        """Tell what is wrong with lanes (id -> why; a lane that is not named is well). Bookings on them that have begun
        without a server or begin later move to others; owners of those that cannot are told, once."""
        self.store.set_troubles({**self._still_booked_elsewhere(), **troubles})
        moved = 0
        for pool in self._pools:
            with self._desks.look(pool) as desk:
                bad = [lane.id for lane in desk.lanes if lane.trouble]
                found = desk.look.on_lanes(bad, desk.now) if bad else []
            if any(relocate.concerned(one, bad) for one in found):
                moved += self._change(pool, relocate.leave_bad_lanes)
        return moved

    def _still_booked_elsewhere(self) -> dict[int, str]:
        """Lanes of GPUs that had another lane before the site file changed, as long as that one is still booked."""
        lanes = self.lanes()
        gone = [lane for lane in lanes if lane.trouble == GONE]
        troubles: dict[int, str] = {}
        for pool in sorted({lane.pool for lane in gone}):
            mine = {lane.id: lane for lane in gone if lane.pool == pool}
            with self._desks.look(pool) as desk:
                booked = {id for one in desk.look.on_lanes(list(mine), desk.now) for id in one.lanes if id in mine}
            gpus = {(mine[id].host, address): id for id in booked for address in mine[id].addresses}
            for lane in lanes:
                for address in lane.addresses:
                    before = gpus.get((lane.host, address))
                    if lane.trouble != GONE and before is not None:
                        troubles[lane.id] = f"it is still booked as {mine[before].name} of pool {pool}"
        return troubles

    def claimed(self, claims: Mapping[str, Sequence[int]], ready: Collection[str] = ()) -> None:
        """Tell which lanes servers of bookings hold now (booking id -> lanes; all of them, each time): a booking's
        lanes become those that Nova chose. `ready`: bookings whose owner is let in; those of them that no server came
        for in time are released."""
        seen_for, now = self._seen_for(), self.now()
        waiting: dict[str, set[str]] = {}
        for booking in self._active():
            lanes = claims.get(booking.id, ())
            if lanes and (booking.claimed is None or not {*lanes} <= {*booking.lanes}):
                self._change(booking.ask.pool, partial(_follow, booking.id, lanes))
            elif not lanes and booking.claimed is None and booking.id in ready:
                limit = self.book.rules_of(booking.ask.pool, booking.project).no_show
                first = self._ready.get(booking.id)
                if first is None or (limit is not None and now - first >= limit <= seen_for):
                    waiting.setdefault(booking.ask.pool, set()).add(booking.id)
                    self._ready.setdefault(booking.id, now)
        for pool, ids in waiting.items():
            self._change(pool, partial(_release, ids, seen_for))

    def _active(self) -> list[Booking]:
        query = Query(states=frozenset({S.ACTIVE}), kinds=frozenset({BookingKind.BOOKING}))
        found: list[Booking] = []
        while page := self.find(query, PAGE, found[-1].id if found else ""):
            found += page
        return found

    def prefer(self, lanes: Mapping[str, Sequence[int]]) -> int:
        """Tell which lanes bookings without a server should rather have, because those are free now (booking id -> all
        of its lanes, as many as it has). Later bookings of both change places where that helps. Returns how many moved;
        one that cannot keeps what it has."""
        moved = 0
        for id, wanted in lanes.items():
            moved += self._change(self.get(id).ask.pool, partial(_prefer, id, wanted))
        return moved

    # How.

    def _book(self, desk: Desk, ask: Ask, who: Person, wait: bool, override: bool, series: str, number: int) -> Booking:
        """One booking, made within a transaction."""
        rules = desk.rules(who.project)
        answer = desk.admit(ask, who, override=override)
        waits = wait and bool(answer.reasons) and all(reason.code in NO_ROOM for reason in answer.reasons)
        if not answer.yes and not waits:
            raise RefusedError(_in_series(answer, ask) if number else answer)
        asks_first = rules.approval and not override
        state = S.REQUESTED if asks_first else S.WAITING if waits else S.CONFIRMED
        booking = Booking(
            id=self._new_id(),
            kind=BookingKind.BOOKING,
            ask=ask,
            state=state,
            user_id=who.user_id,
            user=who.user,
            project_id=who.project_id,
            project=who.project,
            created=desk.now,
            changed=desk.now,
            lanes=answer.lanes if state is S.CONFIRMED else (),
            email=who.email,
            series=series,
            priority=rules.priority,
            override=bool(answer.overridden),
        )
        moved = desk.move(answer) if state is S.CONFIRMED else []
        saved = desk.add(booking, *moved)
        desk.tell(f"booking.{state.value}", saved)
        desk.note(who.user, "booking.create", saved, describe(ask))
        note_override(desk, saved, who, answer)
        return saved

    def _end(self, desk: Desk, old: Booking, who: Person) -> Booking:
        require(old, S.ENDED)
        end = max(desk.now, old.ask.start + timedelta(seconds=1))
        ended = replace(old, state=S.ENDED, ask=replace(old.ask, end=min(end, old.ask.end)), reason=_by(who, old, ""))
        (new,) = desk.save(ended)
        if old.kind is BookingKind.BOOKING:
            desk.tell("booking.ended", new, by=who.user)
        desk.note(who.user, "booking.end", new)
        clock.offer(desk)
        return new

    def _hold_all(self, asks: Sequence[tuple[Lane, Ask]], who: Person, desk: Desk) -> list[Booking]:
        return [self._hold(desk, lane, ask, who) for lane, ask in asks]

    def _hold(self, desk: Desk, lane: Lane, ask: Ask, who: Person) -> Booking:
        if ask.end <= ask.start or ask.end <= desk.now:
            text = f"the end, {spell(ask.end)}, is not after the start or is over"
            raise RefusedError(Answer(reasons=(Reason("ends_first", text),)))
        ask = _from_now(ask, desk.now)
        in_the_way = [one for one in desk.look.on_lanes([lane.id], ask.start) if one.ask.start < ask.end]
        fixed = [one for one in in_the_way if not desk.may_move(one)]
        if fixed:
            raise RefusedError(Answer(reasons=tuple(_blocks(lane, one) for one in fixed)))
        desk.leave_out(lane.id)
        for one in in_the_way:
            answer = desk.place(one)
            if not answer.yes:
                raise RefusedError(Answer(reasons=(_blocks(lane, one), *answer.reasons)))
            desk.save(replace(one, lanes=answer.lanes), *desk.move(answer))
        booking = Booking(
            id=self._new_id(),
            kind=BookingKind.HOLD,
            ask=ask,
            state=S.CONFIRMED,
            user_id=who.user_id,
            user=who.user,
            project_id=who.project_id,
            project=who.project,
            created=desk.now,
            changed=desk.now,
            lanes=(lane.id,),
        )
        saved = desk.add(booking)
        desk.note(who.user, "hold.create", saved, describe(ask))
        return saved

    def _prune(self) -> None:
        """Once a day: forget what nobody asks for any more. Bookings and the audit log stay."""
        now = self.now()
        if self._pruned is None or now - self._pruned > timedelta(days=1):
            self.store.prune(now - KEEP)
            self.store.prune_sessions(now)
            self._reminded = {(id, end) for id, end in self._reminded if end > now}
            self._pruned = now

    def _seen_for(self) -> timedelta:
        """For how long claims have been told of without a break; remembered in the store, for a restart is no break."""
        now = self.now().replace(microsecond=0)
        known = self.store.values("")
        last, since = (moment(int(known.get(key, "0"))) for key in ("claims.last", "claims.since"))
        if now - last > BREAK or max(last, since) > now:  # or the clock was wrong
            since = now
            self.store.set_value("", "claims.last", str(seconds(now)))
            self.store.set_value("", "claims.since", str(seconds(now)))
        if now - last > BREAK / 5:  # not at each look
            self.store.set_value("", "claims.last", str(seconds(now)))
        return now - since

    def _change(self, pool: str, work: Callable[[Desk], T]) -> T:
        """Work on a pool in a transaction; once more, with everything read anew, when the store saw a conflict."""
        try:
            with self._desks.change(pool) as desk:
                result = work(desk)
                wrote = desk.wrote
        except (OverlapError, ConflictError):
            self._desks.forget(pool)
            with self._desks.change(pool) as desk:
                result = work(desk)
                wrote = desk.wrote
        if wrote:
            self.on_change()
        return result

    def _change_one(
        self, id: str, who: Person, version: int | None, change: Callable[[Desk, Booking], Booking]
    ) -> Booking:
        def work(desk: Desk) -> Booking:
            old = desk.look.get(id)
            if old is None:
                raise NoBookingError(f"there is no booking {id}")
            _require_owner(old, who)
            if version is not None and version != old.version:
                raise StaleError(f"booking {id} was changed by somebody else since you read it; look again", old)
            return change(desk, old)

        return self._change(self.get(id).ask.pool, work)

    def _with_other_pools(self, ask: Ask, who: Person, answer: Answer) -> Answer:
        """An answer that says no for want of room, with other pools that have it."""
        if not any(reason.code in NO_ROOM for reason in answer.reasons) or (not answer.alternatives and ask.gpu):
            return answer
        others: list[Alternative] = []
        for pool in self.book.pools:
            if pool == ask.pool or len(others) == MOST_POOLS:
                continue
            wish = replace(ask, pool=pool, gpu="")
            with self._desks.look(pool) as desk:
                if desk.admit(wish, who).yes:
                    others.append(Alternative(wish, f"{ask.gpus} of pool {pool} instead"))
        return replace(answer, alternatives=(*answer.alternatives, *others))

    def _tidy(self, ask: Ask) -> Ask:
        """Whole seconds."""
        return replace(ask, start=ask.start.replace(microsecond=0), end=ask.end.replace(microsecond=0))

    def _require_pool(self, pool: str) -> None:
        if pool not in self.book.pools:
            text = f"there is no pool {pool!r}; there are {', '.join(self.book.pools)}"
            raise RefusedError(Answer(reasons=(Reason("no_such_pool", text),)))


def _release(ids: Collection[str], seen_for: timedelta, desk: Desk) -> None:
    clock.no_shows(desk, ids, seen_for)


def _follow(id: str, lanes: Sequence[int], desk: Desk) -> None:
    booking = desk.look.get(id)
    if booking is not None and booking.state is S.ACTIVE:
        relocate.follow_claim(desk, booking, lanes)


def _prefer(id: str, lanes: Sequence[int], desk: Desk) -> bool:
    booking = desk.look.get(id)
    if booking is None or booking.state not in (S.ACTIVE, S.CONFIRMED, S.OFFERED):
        return False
    moved = relocate.change_lanes(desk, booking, lanes)
    if moved.lanes != booking.lanes:
        desk.note("gpuyard", "booking.moved", moved, "its GPU was not free in time, and another one is")
    return moved.lanes != booking.lanes


def _whole(lane: Lane, start: datetime, end: datetime, comment: str) -> Ask:
    """All of a slot."""
    return Ask(lane.pool, start, end, lane.size, lane.size > 1, lane.size > 1, lane.name, comment)


def _from_now(ask: Ask, now: datetime) -> Ask:
    return replace(ask, start=max(ask.start, now))


def _by(who: Person, booking: Booking, reason: str) -> str:
    by = "" if who.user_id == booking.user_id else f"by {who.user}"
    return ": ".join(part for part in (by, reason) if part)


def _blocks(lane: Lane, booking: Booking) -> Reason:
    text = (
        f"{lane.name} is {'held' if booking.kind is BookingKind.HOLD else 'booked'} by {booking.user} until "
        f"{spell(booking.ask.end)} (booking {booking.id}), and that one cannot go elsewhere"
    )
    return Reason("in_the_way", text)


def _in_series(answer: Answer, ask: Ask) -> Answer:
    reasons = tuple(Reason(one.code, f"on {spell(ask.start)}: {one.text}") for one in answer.reasons)
    return replace(answer, reasons=reasons, alternatives=())


def _require_admin(who: Person, wanted: bool, what: str) -> None:
    if wanted and not who.admin:
        raise ForbiddenError(f"only admins can {what}, and {who.user} has not the role admin in project {who.project}")


def _require_owner(booking: Booking, who: Person) -> None:
    leads = "manager" in who.roles and who.project_id == booking.project_id
    if not (who.user_id == booking.user_id or who.admin or leads) or (
        booking.kind is BookingKind.HOLD and not who.admin
    ):
        raise ForbiddenError(f"booking {booking.id} is {booking.user}'s; only they and admins can change it")
