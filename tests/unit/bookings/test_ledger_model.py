"""The ledger beside a model without any cleverness: a list of bookings, and every lane looked at for every minute.

Two ledgers share one store and are used in turn, so each must notice what the other one did.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpuyard.bookings.ledger.ledger import ForbiddenError, Ledger, RefusedError
from gpuyard.bookings.records import Query
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Person, Rules
from gpuyard.model.booking_life import OPEN, TAKES_LANES, LifeError
from tests.support.ledgers import ADA, BOB, NOON, ROOT, Clock, Numbers, ask, open_ledger

RULES = Rules(most_active=10**6, no_show=timedelta(hours=3), must_book=False)
WHO = st.sampled_from([ADA, BOB, ROOT])
NAMED = {"gpu": "gpu-1/0000:a3:00.0"}
WISHES = st.tuples(
    st.integers(0, 10),
    st.integers(1, 9),
    st.sampled_from([{}, {}, {"gpus": 2}, {"gpus": 2, "same_group": True}, NAMED]),
)
Wish = tuple[int, int, dict[str, object]]
RUNNER = BookingKind.RUNNER
LEASED = [(1, False), (1, False), (2, True), (2, False), (3, False)]
"""GPUs, and whether they are one group."""
SECOND = timedelta(seconds=1)
EXAMPLES = int(os.environ.get("GPUYARD_TEST_EXAMPLES", "100"))
"""Lives of a ledger, of fifty events each."""
TEMPLATE: list[Path] = []


def empty_store() -> Path:
    """A database with its tables, copied: making them takes longer than a whole example."""
    if not TEMPLATE:
        folder = Path(tempfile.mkdtemp(prefix="gpuyard-model-"))
        open_ledger(folder).close()
        TEMPLATE.append(folder / "ledger.db")
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-model-"))
    shutil.copy(TEMPLATE[0], folder)
    return folder


class LedgerMachine(RuleBasedStateMachine):
    """Everything that people, the clock and the world do, in any order."""

    @initialize(approval=st.booleans(), per_gpu=st.sampled_from([None, None, 1, 2]))
    def begin(self, approval: bool, per_gpu: int | None) -> None:
        self.folder = empty_store()
        self.clock = Clock()
        limited = replace(RULES, most_active_per_gpu=per_gpu)
        rules = {"physics": replace(limited, approval=approval), "biology": replace(limited, priority=3)}
        self.per_gpu = {ADA.user_id: per_gpu, BOB.user_id: per_gpu}
        self.ledgers = [open_ledger(self.folder, rules, self.clock) for _ in range(2)]
        self.ledgers[1]._new_id = self.ledgers[1].leases._new_id = Numbers(iter(range(10**6, 10**7)))
        self.servers = Numbers()
        self.lanes = {lane.id: lane for lane in self.ledgers[0].lanes("v100")}
        self.turn = 0
        self.seen: dict[str, Booking] = {}

    @property
    def ledger(self) -> Ledger:
        self.turn += 1
        return self.ledgers[self.turn % 2]

    def wish(self, wish: Wish) -> Ask:
        start, hours, kind = wish
        return ask(start=(self.clock.now - NOON).total_seconds() / 3600 + start, hours=hours, **kind)  # type: ignore[arg-type]

    def some(self, index: int, *states: BookingState, kind: BookingKind = BookingKind.BOOKING) -> Booking | None:
        bookings = [
            booking
            for booking in self.seen.values()
            if booking.state in (states or tuple(BookingState)) and booking.kind is kind
        ]
        return bookings[index % len(bookings)] if bookings else None

    def leases(self) -> dict[str, Booking]:
        """Those that are on."""
        return {
            booking.id: booking
            for booking in self.seen.values()
            if booking.kind is RUNNER and booking.state is BookingState.ACTIVE
        }

    def yielding(self) -> set[str]:
        return {lease.id for lease in self.leases().values() if lease.yields}

    def at_limit(self, user_id: str, without: str = "") -> set[int]:
        """Lanes on which somebody has as many bookings as he may have."""
        most = self.per_gpu.get(user_id)
        if most is None:
            return set()
        mine = [
            booking
            for booking in self.seen.values()
            if booking.user_id == user_id
            and booking.state in OPEN
            and booking.id != without
            and booking.kind is BookingKind.BOOKING
        ]
        return {
            lane.id
            for lane in self.lanes.values()
            if sum(
                booking.ask.gpu == lane.name or (booking.state is BookingState.ACTIVE and lane.id in booking.lanes)
                for booking in mine
            )
            >= most
        }

    def free_lanes(
        self,
        wish: Ask,
        gone: Collection[str] = (),
        among: Collection[Booking] | None = None,
        without: Collection[int] = (),
    ) -> int:
        """How many lanes could serve it now: none of what takes them overlaps, but for what is `gone`."""
        fitting = [
            lane
            for lane in self.lanes.values()
            if (lane.troubled_until(self.clock.now, RULES.trouble) or wish.start) <= wish.start
            and (not wish.same_group or lane.size == wish.gpus)
            and (not wish.gpu or wish.gpu == lane.name)
            and lane.id not in without
        ]
        return sum(
            not any(
                lane.id in booking.lanes and booking.ask.start < wish.end and wish.start < booking.ask.end
                for booking in (self.seen.values() if among is None else among)
                if booking.state in TAKES_LANES and booking.id not in gone
            )
            for lane in fitting
        )

    def attempt(self, act: Callable[[], object]) -> RefusedError | None:
        try:
            act()
        except RefusedError as refused:
            return refused
        except (LifeError, ForbiddenError):
            pass
        return None

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=6), who=WHO, wait=st.booleans(), override=st.booleans())
    def create(self, wishes: list[Wish], who: Person, wait: bool, override: bool) -> None:
        for wish in wishes:
            ask = self.wish(wish)
            full = set() if override and who is ROOT else self.at_limit(who.user_id)
            able = self.free_lanes(ask, self.yielding(), without=full) >= ask.lanes
            before, leases = list(self.seen.values()), self.leases()
            refused = self.attempt(partial(self.ledger.create, ask, who, wait=wait, override=override and who is ROOT))
            assert not (able and refused), f"{ask} was possible: {refused}"
            names_full = any(self.lanes[id].name == ask.gpu for id in full)
            assert refused or not names_full, f"{who.user} has as many on {ask.gpu} as he may have"
            self.nothing_is_given_twice_and_all_have_what_they_asked_for()
            ended = leases.keys() - self.leases().keys()
            for id in ended:
                assert leases[id].yields
                others = self.free_lanes(ask, ended - {id}, before, full)
                assert others < ask.lanes, f"lease {id} ended in vain for {ask}"

    @rule(wish=WISHES, who=WHO, count=st.integers(2, 4))
    def repeat(self, wish: Wish, who: Person, count: int) -> None:
        before = len(self.ledger.find(Query(pool="v100"), 10**6))
        refused = self.attempt(partial(self.ledger.create, self.wish(wish), who, repeat=f"FREQ=DAILY;COUNT={count}"))
        made = len(self.ledger.find(Query(pool="v100"), 10**6)) - before
        assert made == (0 if refused else count), "all or none"

    @rule(index=st.integers(0, 50), wish=WISHES, comment=st.booleans())
    def edit(self, index: int, wish: Wish, comment: bool) -> None:
        old = self.some(index, *OPEN)
        if old is None:
            return
        ask = replace(self.wish(wish), start=old.ask.start) if old.state is BookingState.ACTIVE else self.wish(wish)
        if comment:
            ask = replace(old.ask, comment="changed")
        able = old.state is not BookingState.OFFERED and ask.end > self.clock.now
        full = self.at_limit(old.user_id, old.id)
        full -= set() if ask.gpu else set(old.lanes)
        able &= comment or self.free_lanes(ask, {old.id, *self.yielding()}, without=full) >= ask.lanes
        # Servers stay where they are, so a booking that has some becomes a group only where it is one.
        able &= not (old.claimed and ask.same_group) or self.lanes[old.lanes[0]].size == ask.gpus
        refused = self.attempt(lambda: self.ledger.edit(old.id, ask, ROOT, old.version))
        assert not (able and refused), f"{old} -> {ask} was possible: {refused}"

    @rule(index=st.integers(0, 50), verb=st.sampled_from(["cancel", "end", "accept", "open", "approve"]))
    def act(self, index: int, verb: str) -> None:
        preferred = {
            "accept": BookingState.OFFERED,
            "approve": BookingState.REQUESTED,
            "end": BookingState.ACTIVE,
            "open": BookingState.ACTIVE,
        }
        old = self.some(index, preferred[verb]) if verb in preferred else self.some(index)
        if old is not None:
            self.attempt(lambda: getattr(self.ledger, verb)(old.id, ROOT))

    @rule(minutes=st.integers(1, 300))
    def time_passes(self, minutes: int) -> None:
        self.clock.forward(minutes=minutes)
        self.ledger.upkeep.advance()
        assert self.ledger.upkeep.advance() == 0, "what is done twice is done once"

    @rule(bad=st.sets(st.integers(0, 3), max_size=2))
    def gpus_go_bad_and_come_back(self, bad: set[int]) -> None:
        ids = sorted(self.lanes)
        self.ledger.upkeep.set_troubles({ids[number]: "lost" for number in bad})

    @rule(index=st.integers(0, 50), lane=st.integers(0, 3), kind=st.sampled_from([BookingKind.BOOKING, RUNNER]))
    def nova_chooses(self, index: int, lane: int, kind: BookingKind) -> None:
        booking = self.some(index, BookingState.ACTIVE, kind=kind)
        chosen = sorted(self.lanes)[lane]
        others = [b for b in self.seen.values() if b.state is BookingState.ACTIVE and b.claimed and chosen in b.lanes]
        if booking is not None and not booking.ask.same_group and not others:
            self.ledger.upkeep.record_claims({booking.id: [chosen]})

    @rule(index=st.integers(0, 3), hours=st.integers(1, 12))
    def hold(self, index: int, hours: int) -> None:
        name = self.lanes[sorted(self.lanes)[index]].name
        self.attempt(
            lambda: self.ledger.hold([name], self.clock.now, self.clock.now + timedelta(hours=hours), ROOT, "")
        )

    @rule(minutes=st.integers(1, 600), wish=st.sampled_from(LEASED), yields=st.booleans())
    def take_a_lease(self, minutes: int, wish: tuple[int, bool], yields: bool) -> None:
        end, (gpus, same_group) = self.clock.now + timedelta(minutes=minutes), wish
        padded = Ask("v100", self.clock.now, end + RULES.hold, gpus, same_group)
        able, server = self.free_lanes(padded) >= padded.lanes, self.servers()
        with self.everybody_keeps_the_time():
            refused = self.attempt(
                lambda: self.ledger.leases.take(
                    "v100", gpus, same_group, end, server, "p-ci", "ci", server, yields=yields
                )
            )
        assert not (able and refused), f"{padded} was possible: {refused}"

    @rule(index=st.integers(0, 50), minutes=st.integers(-60, 600), yields=st.sampled_from([None, True, False]))
    def extend_a_lease(self, index: int, minutes: int, yields: bool | None) -> None:
        old = self.some(index, BookingState.ACTIVE, kind=RUNNER)
        if old is None:
            return
        end = old.ask.end + timedelta(minutes=minutes)
        makes_way = yields is True and not old.yields
        with self.everybody_keeps_the_time(offers=makes_way) as offered:
            refused = self.attempt(lambda: self.ledger.leases.extend(old.id, end, yields=yields))
        new = self.ledger.get(old.id)
        if new.state is BookingState.ENDED:
            assert offered, "it makes way for those who wait only"
            return
        assert new.lanes == old.lanes
        assert new == old if refused else new.ask.end == max(end, self.clock.now, old.ask.start + SECOND)
        taken = [
            booking
            for booking in self.seen.values()
            if booking.id != old.id and booking.state in TAKES_LANES and {*booking.lanes} & {*old.lanes}
        ]
        free = all(booking.ask.end <= old.ask.start or booking.ask.start >= end + RULES.hold for booking in taken)
        assert not (free and refused), f"{old} until {end} was possible: {refused}"

    @rule(index=st.integers(0, 50))
    def end_a_lease(self, index: int) -> None:
        lease = self.some(index, kind=RUNNER)
        if lease is not None:
            self.ledger.leases.end(lease.id, "over")
            assert self.ledger.get(lease.id).state is BookingState.ENDED

    @contextmanager
    def everybody_keeps_the_time(self, offers: bool = False) -> Iterator[list[Booking]]:
        """A lease changes nothing of a booking but its lanes, and these only before it begins. `offers`: it makes way,
        and those who wait may be offered what it had; who was is in the list afterwards."""
        before = [booking for booking in self.seen.values() if booking.kind is not RUNNER]
        offered: list[Booking] = []
        yield offered
        for old in before:
            new = self.ledger.get(old.id)
            if offers and (old.state, new.state) == (BookingState.WAITING, BookingState.OFFERED):
                offered.append(new)
                continue
            moved = (
                new.lanes != old.lanes
                and old.state in (BookingState.CONFIRMED, BookingState.OFFERED)
                and not old.ask.gpu
            )
            assert new == (replace(old, lanes=new.lanes, version=new.version, changed=new.changed) if moved else old)

    @invariant()
    def nothing_is_given_twice_and_all_have_what_they_asked_for(self) -> None:
        if not hasattr(self, "folder"):
            return
        bookings = self.ledger.find(Query(pool="v100"), 10**6)
        self.lanes = {lane.id: lane for lane in self.ledger.lanes("v100")}
        taken: dict[int, list[tuple[object, object, str]]] = {}
        for current in bookings:
            before = self.seen.get(current.id)
            assert before is None or before.version <= current.version
            assert before is None or before.state in OPEN or current == before, "what is over does not change"
            if current.state not in TAKES_LANES:
                assert current.state in (BookingState.ENDED, BookingState.NO_SHOW) or not current.lanes
                continue
            sizes = [self.lanes[lane].size for lane in current.lanes]
            assert (
                sizes == [current.ask.gpus] if current.ask.same_group else len(set(current.lanes)) == current.ask.gpus
            )
            for lane in current.lanes:
                for start, end, other in taken.get(lane, []):
                    overlap = start < current.ask.end and current.ask.start < end  # type: ignore[operator]
                    assert not overlap, f"{current.id} and {other} on lane {lane}"
                taken.setdefault(lane, []).append((current.ask.start, current.ask.end, current.id))
        self.seen = {booking.id: booking for booking in bookings}
        for (user, most), gpu in itertools.product(self.per_gpu.items(), self.lanes.values()):
            named = [
                booking
                for booking in bookings
                if booking.user_id == user and booking.state in OPEN and booking.ask.gpu == gpu.name
            ]
            assert most is None or len(named) <= most, f"{user} on {gpu.name}: {[booking.id for booking in named]}"
        for ledger in self.ledgers:
            free = dict(ledger.free("v100", self.clock.now, self.clock.now + timedelta(hours=30), 3600))
            for start, lanes in free.items():
                expected = self.free_lanes(Ask("v100", start, start + timedelta(hours=1)), self.yielding())
                assert lanes == expected, f"{start}: {lanes} free, not {expected}"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for ledger in self.ledgers:
                ledger.close()
            shutil.rmtree(self.folder)


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_any_order_of_events() -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(max_examples=25, stateful_step_count=30, suppress_health_check=CHECKS),
    )


@pytest.mark.slow
def test_any_order_of_thousands_of_events() -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=50, suppress_health_check=CHECKS),
    )
