"""Loans: a certain GPU for one project, that nobody else gets: not before, not meanwhile and not after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.bookings.enforcement import SETTLE, Controls, SeenProvider, kept_lanes, plan_kept_back, unclear
from gpuyard.bookings.ledger.ledger import ForbiddenError, Ledger, NoBookingError, RefusedError
from gpuyard.bookings.matching import Holder
from gpuyard.bookings.pool_view import Memory, read_memory
from gpuyard.bookings.shortage import shortage
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.rights import Verb, may, verbs_now
from tests.support.ledgers import ADA, DAY, HOUR, NOON, ROOT, Clock, ask, open_ledger
from tests.unit.bookings.test_enforcement import (
    COUNT,
    FREE,
    MINUTE,
    START,
    Pool,
    Scene,
    booking,
    plan_pool,
    server,
    told,
    view,
)

LAB = "lab"
BAD = "quarantined: it does not answer (no-answer)"
LONE = "gpu-1/0000:a3:00.0"


def loan(lanes: tuple[int, ...] = (1,), name: str = "", **more: object) -> Booking:
    values = {"kind": BookingKind.LOAN, "server": name, "project_id": LAB, "project": LAB, "shared": True}
    values |= {"open_until": START + 15 * MINUTE, "ask": {"gpu": "host/1.0", "comment": "acceptance"}}
    return booking("l1", lanes, **{**values, **more})


def lent(*, name: str = "", **more: Any) -> Scene:
    """Lane 1 is kept back, held, and lent; 2 is free and 3 has a server of art's."""
    memory = more.pop("memory", Memory({"host_1.0": 8}))
    providers = {f"host_{lane}.0": SeenProvider(lane == 1, 8) for lane in (1, 2, 3)}
    values = {"kept_back": {1: BAD}, "reserved": frozenset({"host_1.0"}), "seen": providers, "memory": memory}
    values |= {"holders": (server("s3", (3,), "eve", "art"),), "unbooked": {"art": 2}}
    return view([loan(name=name)], rules=FREE, **{**values, **more})


# What is planned.


def test_a_gpu_that_is_kept_back_is_released_for_its_project_alone() -> None:
    plan = plan_pool(lent(limits={("art", COUNT): 2}), START)
    assert [str(step) for step in plan.steps] == [f"limit art {COUNT} -> 0"], "nothing comes off before that"
    settled = lent(memory=Memory({"host_1.0": 8}, lowered=START))
    plan = plan_pool(settled, START + SETTLE)
    assert told(plan.steps) == ["hold host_2.0", "hold host_3.0", f"limit lab {COUNT} -> 1", "release host_1.0"]
    assert plan.usable == {"l1"}
    assert plan.kept[2] == "host/1.0 is lent to project lab: acceptance, and its server must not land here"
    assert unclear(settled, START + SETTLE) == {"host_1.0", "host_2.0", "host_3.0"}


def test_below_its_server_it_is_held_again_before_the_others_are_let_in() -> None:
    memory = Memory({"host_2.0": 8}, lowered=START, opened=frozenset({"l1"}))
    providers = {"host_1.0": SeenProvider(False, 10), "host_2.0": SeenProvider(True, 8)}
    servers = (server("s3", (3,), "eve", "art"), server("s1", (1,), "root", LAB))
    more: dict[str, Any] = {
        "memory": memory,
        "seen": providers,
        "reserved": frozenset({"host_2.0"}),
        "holders": servers,
    }
    plan = plan_pool(lent(limits={(LAB, COUNT): 1}, **more), START + MINUTE)
    assert told(plan.steps) == ["hold host_1.0", f"limit art {COUNT} -> 2", "release host_2.0"]
    old = plan_pool(lent(limits={(LAB, COUNT): 1}, held_below=False, **more), START + MINUTE)
    assert told(old.steps)[0] == "hold host_1.0", "nobody moves this server"
    once = plan_pool(lent(limits={(LAB, COUNT): 1}, held_below=False, once=True, **more), START + MINUTE)
    assert "hold host_1.0" not in told(once.steps), "Nova reserves it itself: it waits for a scrub then"


def test_on_old_releases_what_is_held_below_a_server_stays_so_after_the_loan() -> None:
    after: dict[str, Any] = {"held_below": False, "kept_back": {1: BAD}, "holders": (server("s1", (1,), "root", LAB),)}
    assert set(kept_lanes(view([], memory=Memory({"host_1.0": 8}), **after), START, frozenset())) == {1}
    assert kept_lanes(view([], **after), START, frozenset()) == {}


def test_with_a_server_that_we_start_on_the_host_only_that_host_is_kept() -> None:
    scene = lent(name="accept-1", memory=Memory({"host_1.0": 8}, lowered=START))
    elsewhere = replace(scene, lanes={**scene.lanes, 2: replace(scene.lanes[2], host="other")})
    assert "hold host_2.0" in told(plan_pool(scene, START + SETTLE).steps)
    assert "hold host_2.0" not in told(plan_pool(elsewhere, START + SETTLE).steps)


def test_it_waits_for_its_turn_and_others_for_theirs() -> None:
    other = booking("b2", (2,), open_until=START + 15 * MINUTE, start=START - MINUTE, project_id="maths", user_id="eve")
    both = replace(lent(), bookings=(loan(), other))
    assert [pending.id for pending in both.closing(START)] == ["b2"]
    mine_first = replace(both, memory=replace(both.memory, opened=frozenset({"l1"})))
    assert [pending.id for pending in mine_first.closing(START)] == ["l1"]


def test_it_is_not_released_while_more_is_wrong_than_what_it_is_kept_back_for() -> None:
    def room(**more: Any) -> int:
        scene = lent(**more)
        return scene.room(scene.bookings[0])

    assert room() == 1
    assert room(memory=Memory()) == 0, "somebody else has reserved it"
    assert room(holders=(server("x", (1,), "eve", "art"),)) == 0
    scene = lent()
    lost = replace(scene, lanes={**scene.lanes, 1: replace(scene.lanes[1], trouble="it is lost")})
    assert lost.room(lost.bookings[0]) == 0
    kept_back = replace(scene, lanes={**scene.lanes, 1: replace(scene.lanes[1], trouble=BAD)})
    assert kept_back.room(kept_back.bookings[0]) == 1


def test_only_a_server_on_the_very_gpu_is_its_server() -> None:
    def claims(holder: Holder, name: str = "") -> dict[str, tuple[int, ...]]:
        return dict(view([loan(name=name)], holders=(holder,)).matches.claims)

    assert claims(server("s", (1,), "bob", LAB)) == {"l1": (1,)}, "any member's"
    assert claims(server("s", (2,), "bob", LAB)) == {}
    assert claims(server("s", (1,), "bob", "art")) == {}
    assert claims(server("s", (1,), "bob", LAB), "accept-1") == {}
    assert claims(server("s", (1,), "bob", LAB, name="accept-1"), "accept-1") == {"l1": (1,)}


def test_a_server_of_gpuyards_own_that_has_lost_its_loan_is_nobodys_case() -> None:
    late = server("s1", (1,), "root", LAB)
    assert view([], holders=(late,)).strays == (late,)
    assert view([], holders=(late,), own=frozenset({LAB})).strays == ()


def test_no_booking_is_moved_to_what_is_lent() -> None:
    blocked = booking("b2", (2,))
    servers = (server("x", (2,), "eve", "art"), server("y", (3,), "eve", "art"))
    scene = view([blocked, loan()], rules=FREE, holders=servers, unbooked={"art": 2})
    assert shortage(scene, START).moves == {}


# Nobody slips in.


class LentPool(Pool):
    """A pool in which the last lane's GPU is kept back and lent now and then, whoever else tries at every moment."""

    PROJECTS = ("physics", "art", "maths", LAB)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        lanes = random.choice((3, 4, 5))
        self.generation = dict.fromkeys(range(1, lanes + 1), 1)
        self.reserved = {}
        self.bad = lanes
        self.name = random.choice(("", LAB))
        self.once = random.random() < 0.3
        self.below = not self.once and random.random() < 0.7
        self.bookings = [booking for booking in self.bookings if booking.lanes != (lanes,)]
        self.stale: Scene | None = None
        self.lab_servers = 0
        self._look(None)

    def happen(self, steps: int) -> None:
        events: list[Callable[[], None]] = [
            self.time_passes,
            self.everybody_posts,
            self.nova_schedules,
            self.somebody_deletes,
            self.somebody_sets_a_limit_by_hand,
            self.the_controller_runs,
            self.the_controller_is_killed,
            self.a_runner_is_started,
            self.it_is_lent,
            self.it_is_opened_again,
            self.the_loan_ends,
            self.it_is_held_at_once,
            self.gpuyard_lets_the_lab_in,
        ]
        weights = (25, 20, 25, 10, 5, 40, 20, 15, 10, 5, 3, 10, 10)
        for event in self.random.choices(events, weights, k=steps):
            event()

    def _loan(self) -> Booking | None:
        return next(
            (
                booking
                for booking in self.bookings
                if booking.kind is BookingKind.LOAN and booking.state is BookingState.ACTIVE
            ),
            None,
        )

    def it_is_lent(self) -> None:
        if self._loan() is None:
            end = self.now + timedelta(seconds=self.random.choice((60, 600, 6000)))
            until = min(end, self.now + 15 * MINUTE)
            mine = loan((self.bad,), self.name, start=self.now, end=end, open_until=until)
            self.bookings = [booking for booking in self.bookings if booking.id != mine.id] + [mine]

    def it_is_opened_again(self) -> None:
        if mine := self._loan():
            self._change(mine.id, open_until=min(mine.ask.end, self.now + 15 * MINUTE))

    def the_loan_ends(self) -> None:
        if mine := self._loan():
            self._change(mine.id, state=BookingState.ENDED)

    def it_is_held_at_once(self) -> None:
        """By the view of the last look, with what is remembered by now."""
        if self.stale is not None:
            stale = replace(self.stale, memory=read_memory(self.memory))
            names = {f"host_{self.bad}.0"} - stale.memory.holds.keys() - stale.reserved
            providers = {name: SeenProvider(self.bad in self.reserved, self.generation[self.bad]) for name in names}
            for step in plan_kept_back(stale, Controls((), {}, providers)) if names else ():
                self._do(step)

    def gpuyard_lets_the_lab_in(self) -> None:
        """Calm, for once: so that it comes to where it matters."""
        if self.flying or self._loan() is None:
            return
        for _ in range(3):
            self._look(None)
            self.now += SETTLE + timedelta(seconds=1)
            self._advance()
        self.everybody_posts()

    def nova_schedules(self) -> None:
        if not self.flying:
            return
        project, _ = self.flying.pop(self.random.randrange(len(self.flying)))
        taken = {lane for _, lane in self.servers.values()}
        free = [lane for lane in self.generation if lane not in taken and lane not in self.reserved]
        if project == LAB and self.name:
            free = [lane for lane in free if self._host(lane) == self._host(self.bad)]
        if not free:
            return
        lane = self.random.choice(free)
        assert lane != self.bad or project == LAB, f"{project} got the GPU that is kept back"
        assert lane == self.bad or project != LAB or "opened" not in self.memory, "its server landed elsewhere"
        self.lab_servers += project == LAB
        self.servers[max(self.servers, default=0) + 1] = (project, lane)
        self.generation[lane] += 1
        if self.once:
            self.reserved[lane] = 2
        if project == LAB and self.random.random() < 0.8:  # deleted soon
            self._look(None)

    def _host(self, lane: int) -> str:
        return "even" if lane % 2 == 0 else "odd"

    def _view(self) -> Scene:
        base = super()._view()
        lanes = {id: replace(lane, host=self._host(id)) for id, lane in base.lanes.items()}
        scene = replace(
            base, lanes=lanes, kept_back={self.bad: BAD}, held_below=self.below, once=self.once, one_time_use=self.once
        )
        names = unclear(scene, self.now)
        providers = {
            f"host_{lane}.0": SeenProvider(lane in self.reserved, number)
            for lane, number in self.generation.items()
            if f"host_{lane}.0" in names
        }
        return replace(scene, seen=providers)

    def a_runner_is_started(self) -> None:
        super().a_runner_is_started()
        for lease in self.bookings:
            if lease.kind is BookingKind.RUNNER and lease.lanes == (self.bad,):  # no lease is taken of it
                self.bookings.remove(lease)
                self.flying.remove((lease.id, lease.ask.start))

    def _change_places(self, id: str, new: tuple[int, ...]) -> None:
        old = next(booking.lanes for booking in self.bookings if booking.id == id)
        if self.bad not in (*old, *new):  # a loan is of one GPU
            super()._change_places(id, new)

    def _look(self, steps: int | None) -> None:
        self.stale = self._view()
        super()._look(steps)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_nobody_but_its_project_gets_what_is_lent(seed: int) -> None:
    LentPool(Random(seed)).happen(60)


def test_the_model_lets_the_project_in() -> None:
    pools = [LentPool(Random(seed)) for seed in range(40)]
    for pool in pools:
        pool.happen(60)
    assert sum(pool.lab_servers for pool in pools) > 10


# In the ledger.


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, clock=clock)
    yield opened
    opened.close()


def lend(ledger: Ledger, gpu: str = LONE, hours: float = 2, server: str = "") -> Booking:
    return ledger.loans.lend(gpu, "p-lab", LAB, ledger.now() + hours * HOUR, "acceptance", ROOT, server=server)


def test_what_is_lent_is_one_slot_from_now_on(ledger: Ledger, clock: Clock) -> None:
    ledger.upkeep.set_troubles({3: BAD})
    loan = lend(ledger)
    assert (loan.kind, loan.state, loan.lanes, loan.ask.gpu) == (BookingKind.LOAN, BookingState.ACTIVE, (3,), LONE)
    assert (loan.project, loan.user, loan.shared) == (LAB, "root", True)
    assert loan.open_until == NOON + 15 * MINUTE
    assert ledger.loans.current() == [loan] == [ledger.loans.of(LONE)]
    whole = lend(ledger, "gpu-1/0000:28:00.0")
    assert (whole.lanes, whole.ask.gpus, whole.ask.same_group) == ((1,), 2, True)
    with pytest.raises(RefusedError, match="is lent by root until"):
        lend(ledger)
    with pytest.raises(RefusedError, match="there is no GPU"):
        lend(ledger, "gpu-9/0000:28:00.0")
    with pytest.raises(RefusedError):
        lend(ledger, "gpu-1/0000:c3:00.0", hours=-1)
    assert [entry.action for entry in ledger.audit()] == ["loan.create", "loan.create"]
    assert ledger._store.take_undelivered("test", NOON + DAY, 100) == [], "nobody is told"


def test_lent_again_for_the_same_server_it_is_the_same(ledger: Ledger) -> None:
    assert lend(ledger, server="accept-1") == lend(ledger, server="accept-1")
    assert len(ledger.loans.current()) == 1


def test_bookings_make_way_and_those_that_cannot_are_named(ledger: Ledger) -> None:
    (later,) = ledger.create(ask(start=1), ADA)
    assert later.lanes == (3,)
    lend(ledger, hours=3)
    assert ledger.get(later.id).lanes == (4,)
    (pinned,) = ledger.create(ask(start=1, gpu="gpu-2/0000:18:00.0", pool="t4"), ADA)
    with pytest.raises(RefusedError, match=f"is booked by ada until .* {pinned.id}"):
        lend(ledger, "gpu-2/0000:18:00.0", hours=3)


def test_it_stays_on_its_bad_gpu_and_is_nobodys_no_show(ledger: Ledger, clock: Clock) -> None:
    loan = lend(ledger, hours=48)
    ledger.upkeep.set_troubles({3: BAD})
    ledger.upkeep.record_claims({}, ready=[loan.id], usable={loan.id: True})
    assert ledger.get(loan.id).usable_since == NOON
    for _ in range(10):
        clock.forward(1)
        ledger.upkeep.advance()
        ledger.upkeep.record_claims({}, ready=[loan.id], usable={loan.id: True})
    assert (ledger.get(loan.id).state, ledger.get(loan.id).lanes) == (BookingState.ACTIVE, (3,))
    ledger.upkeep.record_claims({loan.id: (3,)})
    assert ledger.get(loan.id).claimed == clock.now
    assert ledger._store.take_undelivered("test", NOON + 30 * DAY, 100) == []


def test_it_ends_when_it_is_said_and_by_time(ledger: Ledger, clock: Clock) -> None:
    loan = lend(ledger)
    ledger.loans.end(loan.id, "it passed", "gpuyard")
    ledger.loans.end(loan.id, "again", "gpuyard")
    assert (ledger.get(loan.id).state, ledger.get(loan.id).reason) == (BookingState.ENDED, "it passed")
    other = lend(ledger, hours=1)
    clock.forward(1)
    ledger.upkeep.advance()
    assert ledger.get(other.id).state is BookingState.ENDED
    (booked,) = ledger.create(ask(), ADA)
    for wrong in (booked.id, "nothing"):
        with pytest.raises(NoBookingError):
            ledger.loans.end(wrong, "", "root")


def test_only_admins_open_and_end_it(ledger: Ledger, clock: Clock) -> None:
    loan = lend(ledger)
    assert verbs_now(ROOT, loan) == (Verb.OPEN, Verb.END)
    assert verbs_now(ADA, loan) == ()
    assert "end it, and lend it anew" in may(ROOT, Verb.CHANGE, loan).why
    clock.forward(0.5)
    assert ledger.open(loan.id, ROOT).open_until == clock.now + 15 * MINUTE
    with pytest.raises(ForbiddenError, match="only admins can quarantine"):
        ledger.end(loan.id, ADA)
    assert ledger.end(loan.id, ROOT).state is BookingState.ENDED
