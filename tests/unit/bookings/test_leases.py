"""Leases: GPUs for runners on the lanes of bookings, which never wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.ledger.ledger import ForbiddenError, Ledger, NoBookingError, RefusedError
from gpuyard.bookings.ledger.runner_leases import HORIZON
from gpuyard.bookings.records import Query
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.model.booking import FOREVER, Booking, BookingKind, BookingState, Rules
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, Clock, ask, names, open_ledger

HOLD = Rules().hold


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, clock=clock)
    yield opened
    opened.close()


def lease(
    ledger: Ledger, server: str, hours: float = 2, gpus: int = 1, *, yields: bool = False, same_group: bool = False
) -> Booking:
    end = ledger.now() + hours * HOUR
    what = f"runner {server} of owner/name"
    return ledger.leases.take("v100", gpus, same_group, end, server, "p-ci", "ci", what, yields=yields)


def current(ledger: Ledger) -> list[str]:
    return [booking.server for booking in ledger.leases.current()]


def test_a_lease_takes_a_lane_from_now_on(ledger: Ledger, clock: Clock) -> None:
    booking = lease(ledger, "r1")
    assert (booking.kind, booking.state, booking.lanes) == (BookingKind.RUNNER, BookingState.ACTIVE, (3,)), (
        "a slot of one GPU first"
    )
    assert (booking.ask.start, booking.ask.end, booking.user_id, booking.project) == (NOON, NOON + 2 * HOUR, "", "ci")
    assert ledger.leases.current() == [booking] == ledger.find(Query(kinds=frozenset({BookingKind.RUNNER})))
    assert ledger.check(ask(start=0, gpus=4), ADA).reasons[0].code == "full"
    ledger.leases.end(booking.id, "its job is over")
    assert (ledger.get(booking.id).state, ledger.get(booking.id).reason) == (BookingState.ENDED, "its job is over")
    ledger.leases.end(booking.id, "again")
    assert ledger.get(booking.id).reason == "its job is over"
    assert ledger.check(ask(start=0, gpus=4), ADA).yes
    assert [(entry.actor, entry.action) for entry in ledger.audit()] == [
        ("gpuyard", "lease.end"),
        ("gpuyard", "lease.take"),
    ]
    assert ledger._store.take_undelivered("test", NOON + DAY, 100) == [], "nobody is told"


def test_taken_again_for_the_same_server_it_is_the_same(ledger: Ledger) -> None:
    assert lease(ledger, "r1") == lease(ledger, "r1", 7)
    assert current(ledger) == ["r1"]


def test_time_ends_a_lease(ledger: Ledger, clock: Clock) -> None:
    booking = lease(ledger, "r1")
    clock.forward(2)
    ledger.upkeep.advance()
    assert ledger.get(booking.id).state is BookingState.ENDED
    with pytest.raises(RefusedError, match="is ended"):
        ledger.leases.extend(booking.id, clock.now + HOUR)
    with pytest.raises(NoBookingError):
        ledger.leases.end("nothing", "")


def test_it_ends_before_the_hold_of_the_booking_that_follows(ledger: Ledger) -> None:
    ledger.create(ask(start=2, gpus=4), ADA)
    with pytest.raises(RefusedError) as refused:
        lease(ledger, "r1", 2)
    assert names(refused.value.answer.reasons) == ["full"]
    booking = lease(ledger, "r1", 2 - HOLD / HOUR)
    assert ledger.leases.extend(booking.id, booking.ask.end - timedelta(minutes=5)).ask.end < booking.ask.end
    with pytest.raises(RefusedError):
        ledger.leases.extend(booking.id, booking.ask.end + timedelta(minutes=1))
    assert ledger.leases.extend(booking.id, booking.ask.end).ask.end == booking.ask.end


def test_bookings_that_have_not_begun_move_and_are_not_delayed(ledger: Ledger) -> None:
    """Two later ones are on the lanes in turn, so a lease has room throughout only when they share one."""
    made = [ledger.create(ask(start=start, hours=2), ADA)[0] for start in (4, 4, 4, 8)]
    long = [lease(ledger, f"r{number}", 12) for number in range(1)]
    assert long[0].lanes[0] not in {lane for booking in made for lane in ledger.get(booking.id).lanes}
    assert [ledger.get(booking.id).ask for booking in made] == [booking.ask for booking in made]
    with pytest.raises(RefusedError):
        lease(ledger, "too long", 12)


def test_several_gpus_are_on_one_host_and_a_group_is_a_slot(ledger: Ledger) -> None:
    assert lease(ledger, "pair", gpus=2, same_group=True).lanes == (1,)
    assert len(lease(ledger, "three", gpus=3).lanes) == 3
    with pytest.raises(RefusedError) as refused:
        ledger.leases.take("t4", 2, False, NOON + HOUR, "two hosts", "p-ci", "ci", "", yields=True)
    assert names(refused.value.answer.reasons) == ["too_big"]
    with pytest.raises(RefusedError) as refused:
        ledger.leases.take("none", 1, False, NOON + HOUR, "x", "p-ci", "ci", "", yields=True)
    assert names(refused.value.answer.reasons) == ["no_such_pool"]


def test_a_booking_ends_the_leases_that_yield_and_that_it_needs(ledger: Ledger, clock: Clock) -> None:
    for number in range(4):
        lease(ledger, f"r{number}", number + 2, yields=number != 1)
    answer = ledger.check(ask(start=0, hours=1), ADA)
    assert answer.yes
    assert [ledger.get(id).server for id in answer.ends] == ["r0"], "that would end soonest"
    assert current(ledger) == ["r0", "r1", "r2", "r3"], "to ask changes nothing"
    assert dict(ledger.free("v100", NOON, NOON + HOUR, 3600)) == {NOON: 3}
    (late,) = ledger.create(ask(start=3, hours=1), ADA)
    assert current(ledger) == ["r0", "r1", "r2", "r3"], "their time is over then"
    (made,) = ledger.create(ask(start=0, hours=1), BOB)
    assert made.lanes == (3,)
    assert current(ledger) == ["r1", "r2", "r3"]
    ended = next(booking for booking in ledger.find(Query(states=frozenset({BookingState.ENDED}))))
    assert (ended.server, ended.reason, ended.yields) == ("r0", MADE_WAY, False)
    ledger.create(ask(start=0, hours=1, gpus=2), BOB)
    assert current(ledger) == ["r1"]
    with pytest.raises(RefusedError):
        ledger.create(ask(start=0, hours=1), BOB)
    assert late.state is BookingState.CONFIRMED


def test_edits_extensions_and_the_waitlist_get_what_yields_too(ledger: Ledger, clock: Clock) -> None:
    (booking,) = ledger.create(ask(start=0, hours=1), ADA)
    ledger.upkeep.advance()
    for number in range(3):
        lease(ledger, f"r{number}", 8)
    (waiting,) = ledger.create(ask(start=1, hours=5, gpus=2), BOB, wait=True)
    assert waiting.state is BookingState.WAITING
    with pytest.raises(RefusedError):
        ledger.edit(booking.id, ask(start=0, hours=1, gpus=2), ADA)
    last = ledger.leases.current()[-1]
    ledger.upkeep.advance()
    assert ledger.leases.extend(last.id, last.ask.end, yields=True).state is BookingState.ENDED, (
        "somebody has waited for it"
    )
    assert ledger.get(waiting.id).state is BookingState.OFFERED
    assert current(ledger) == ["r0", "r1"]
    first = ledger.leases.current()[0]
    ledger.leases.extend(first.id, first.ask.end, yields=True)
    assert len(ledger.edit(booking.id, ask(start=0, hours=1, gpus=3), ADA).lanes) == 3
    assert current(ledger) == ["r1"]


def test_an_operators_hold_ends_a_lease_that_yields(ledger: Ledger) -> None:
    kept, idle = lease(ledger, "kept"), lease(ledger, "idle", yields=True)
    gpus = {lane.id: lane.name for lane in ledger.lanes()}
    ledger.hold([gpus[idle.lanes[0]]], NOON, NOON + HOUR, ROOT, "maintenance")
    assert current(ledger) == ["kept"]
    with pytest.raises(RefusedError, match="has runner kept until"):
        ledger.hold([gpus[kept.lanes[0]]], NOON, NOON + HOUR, ROOT, "maintenance")


def test_a_lease_does_not_end_another_one(ledger: Ledger) -> None:
    for number in range(4):
        lease(ledger, f"r{number}", yields=True)
    with pytest.raises(RefusedError):
        lease(ledger, "one more")


def test_rooms_say_when_lanes_are_free(ledger: Ledger, clock: Clock) -> None:
    (late,) = ledger.create(ask(start=5, hours=1), ADA)
    ledger.create(ask(start=60, hours=1, gpu="gpu-1/0000:27:00.0", gpus=2, same_group=True), ADA)
    booking = lease(ledger, "r1")
    ids = sorted(lane.id for lane in ledger.lanes("v100"))
    bad = next(lane for lane in reversed(ids) if lane not in (*booking.lanes, *late.lanes))
    ledger.upkeep.set_troubles({bad: "lost"})
    room = ledger.leases.rooms()["v100"]
    by_lane = dict(zip((id for id in ids if id != bad), room.lanes, strict=True))
    expected: dict[int, tuple[tuple[datetime, datetime], ...]] = {id: ((NOON, FOREVER),) for id in ids if id != bad}
    expected[booking.lanes[0]] = ((NOON + 2 * HOUR, FOREVER),)
    expected[late.lanes[0]] = (
        ((NOON, NOON + 5 * HOUR - HOLD), (NOON + 6 * HOUR, FOREVER))
        if late.lanes != booking.lanes
        else ((NOON + 2 * HOUR, NOON + 5 * HOUR - HOLD), (NOON + 6 * HOUR, FOREVER))
    )
    assert {id: capacity.free for id, capacity in by_lane.items()} == expected
    assert (room.lanes[0].size, room.lanes[0].host) == (2, "gpu-1")
    assert HORIZON < 60 * HOUR, "what begins after it is not looked at"


def test_nobody_but_gpuyard_changes_a_lease(ledger: Ledger) -> None:
    booking = lease(ledger, "r1")
    acts: tuple[Callable[[], object], ...] = (
        lambda: ledger.end(booking.id, ROOT),
        lambda: ledger.cancel(booking.id, ROOT),
        lambda: ledger.open(booking.id, ROOT),
        lambda: ledger.edit(booking.id, booking.ask, ROOT),
    )
    for act in acts:
        with pytest.raises(ForbiddenError, match="gpuyard's own"):
            act()
