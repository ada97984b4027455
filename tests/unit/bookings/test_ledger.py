"""The ledger on SQLite: what people do, what the clock does, what the world does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.ledger.ledger import ForbiddenError, Ledger, NoBookingError, RefusedError, StaleError
from gpuyard.bookings.records import Query
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Person, Rules
from gpuyard.model.booking_life import LifeError
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, SITE, Clock, Numbers, ask, names, open_ledger


def booking(state: BookingState) -> Booking:
    return Booking("b1", BookingKind.BOOKING, ask(), state, "u", "user", "p", "project", NOON, NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, clock=clock)
    yield opened
    opened.close()


def refusal(ledger: Ledger, *args: object, **more: object) -> list[str]:
    with pytest.raises(RefusedError) as refused:
        ledger.create(*args, **more)  # type: ignore[arg-type]
    return names(refused.value.answer.reasons)


def state(ledger: Ledger, booking: Booking) -> BookingState:
    return ledger.get(booking.id).state


def events(ledger: Ledger) -> list[tuple[str, str]]:
    return [
        (delivery.event.kind, delivery.event.booking)
        for delivery in ledger._store.take_undelivered("test", NOON + 1000 * DAY, 1000)
    ]


def audit(ledger: Ledger) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.action, entry.rule) for entry in reversed(ledger.audit(1000))]


def test_a_booking_is_there_at_once(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(comment="training"), ADA)
    assert made.state is BookingState.CONFIRMED
    assert ledger.get(made.id) == made
    assert ledger.find(Query(user_id=ADA.user_id)) == [made]
    assert [occupied.booking for occupied in ledger.occupied("v100", NOON, NOON + DAY)] == [made.id]
    assert ledger.free("v100", NOON, NOON + 6 * HOUR, 3600) == [
        (NOON + n * HOUR, free) for n, free in enumerate([4, 3, 3, 3, 3, 4])
    ]
    with pytest.raises(NoBookingError, match="there is no booking nothing"):
        ledger.get("nothing")


def test_the_last_gpu_goes_to_one_and_the_other_hears_what_else(ledger: Ledger) -> None:
    ledger.create(ask(gpus=4), ADA)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(start=2, hours=2), BOB)
    answer = refused.value.answer
    assert names(answer.reasons) == ["full"]
    assert [alternative.text for alternative in answer.alternatives] == [
        "from Mon 2026-11-23 17:00 UTC",
        "1 of pool t4 instead",
    ]
    for other in answer.alternatives:
        assert ledger.create(other.ask, BOB)
    assert ledger.check(ask(start=2, hours=2), BOB).reasons == answer.reasons


def test_a_start_of_a_moment_ago_is_now(ledger: Ledger, clock: Clock) -> None:
    clock.now = NOON + timedelta(seconds=20, microseconds=17)
    (made,) = ledger.create(ask(start=0, gpus=4), ADA)
    assert made.ask == ask(start=0, gpus=4), "as long as it was asked for"
    assert refusal(ledger, ask(start=-0.1), ADA) == ["past"]
    assert refusal(ledger, ask(pool="h100"), ADA) == ["no_such_pool"]


def test_most_active_counts_what_is_not_over(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=2), clock)
    first, second = (ledger.create(ask(start=n), ADA)[0] for n in (1, 30))
    assert refusal(ledger, ask(start=60), ADA) == ["too_many"]
    assert refusal(ledger, ask(start=60), ADA, repeat="FREQ=DAILY;COUNT=2") == ["too_many"]
    ledger.create(ask(start=60, pool="t4"), ADA)
    assert ledger.edit(first.id, replace(first.ask, comment="x"), ADA).ask.comment == "x"
    assert ledger.edit(first.id, ask(start=2), ADA).ask == ask(start=2)
    ledger.cancel(second.id, ADA)
    ledger.create(ask(start=60), ADA)
    ledger.close()


def named(start: float, gpu: str, gpus: int = 1, same_group: bool = False) -> Ask:
    return ask(start, 2, gpus, gpu=f"gpu-1/0000:{gpu}:00.0", same_group=same_group)


def test_bookings_that_name_a_gpu_count_on_it(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=2), clock)
    first, _ = (ledger.create(named(start, "A3"), ADA)[0] for start in (1, 30))
    assert refusal(ledger, named(60, "a3"), ADA) == ["too_many_on_gpu"]
    assert refusal(ledger, named(60, "43", gpus=2, same_group=True), ADA, repeat="FREQ=DAILY;COUNT=3") == [
        "too_many_on_gpu"
    ], "each of a series counts"
    ledger.create(named(60, "c3"), ADA)
    ledger.create(named(70, "a3"), BOB)
    anything = ledger.create(ask(start=60), ADA)[0]
    assert refusal(ledger, replace(anything.ask, gpu=first.ask.gpu), ADA) == ["too_many_on_gpu"]
    with pytest.raises(
        RefusedError, match=r"you have 2 bookings on GPU gpu-1/0000:a3:00\.0 that are not over, and may have 2"
    ):
        ledger.edit(anything.id, replace(anything.ask, gpu="gpu-1/0000:a3:00.0"), ADA)
    assert ledger.edit(first.id, named(2, "a3"), ADA).ask.start == named(2, "a3").start, (
        "it does not count against itself"
    )
    ledger.create(named(60, "a3"), ROOT, override=True)
    ledger.cancel(first.id, ADA)
    ledger.create(named(64, "a3"), ADA)
    ledger.close()


def test_a_booking_that_has_begun_counts_where_it_is(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=1, no_show=None), clock)
    begun = ledger.create(ask(start=0, hours=9), ADA)[0]
    ledger.upkeep.advance()
    (lane,) = [lane for lane in ledger.lanes("v100") if lane.id in begun.lanes]
    assert refusal(ledger, ask(start=20, gpu=lane.name), ADA) == ["too_many_on_gpu"]
    ledger.create(ask(start=20, gpu=lane.name), BOB)
    ledger.end(begun.id, ADA)
    ledger.create(ask(start=30, gpu=lane.name), ADA)
    ledger.close()


def test_a_booking_of_any_gpu_is_given_another_one(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=1), clock)
    lanes = {lane.name[-7:-5]: lane.id for lane in ledger.lanes("v100")}
    for gpu in ("a3", "c3", "27"):
        ledger.create(named(40, gpu), ADA)
    assert ledger.create(ask(start=1), ADA)[0].lanes == (lanes["43"],)
    assert ledger.create(ask(start=1), BOB)[0].lanes in {(lanes["a3"],), (lanes["c3"],)}
    assert refusal(ledger, ask(start=20, gpus=2), ADA) == ["too_many_on_gpu"]
    assert ledger.create(ask(start=20, gpus=2), ROOT, override=True)[0].lanes
    reason = ledger.check(ask(start=20, gpus=2), ADA).reasons[0]
    assert reason.text == (
        "on 3 of the 4 that could be had in pool v100 you have as many bookings that are not over as you may have on "
        "one GPU: end or cancel one"
    )
    ledger.close()


def test_an_offer_from_the_waitlist_is_of_another_one_too(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=1), clock)
    lanes = {lane.name[-7:-5]: lane.id for lane in ledger.lanes("v100")}
    for gpu in ("a3", "c3", "27"):
        ledger.create(named(40, gpu), ADA)
    others = {gpu: ledger.create(named(2, gpu), BOB)[0] for gpu in ("a3", "c3", "27")}
    others["43"] = ledger.create(named(2, "43", gpus=2, same_group=True), BOB)[0]
    (waits,) = ledger.create(ask(start=2, hours=1), ADA, wait=True)
    ledger.cancel(others["a3"].id, BOB)
    assert ledger.get(waits.id).state is BookingState.WAITING, "there she has as many as she may have"
    ledger.cancel(others["43"].id, BOB)
    offered = ledger.get(waits.id)
    assert (offered.state, offered.lanes) == (BookingState.OFFERED, (lanes["43"],))
    ledger.close()


def test_a_booking_of_any_gpu_moves_to_none_where_its_owner_has_as_many_as_he_may(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=1), clock)
    lanes = {lane.name[-7:-5]: lane.id for lane in ledger.lanes("v100")}
    ledger.create(named(40, "a3"), ADA)
    anything = ledger.create(ask(start=5, hours=2), ADA)[0]
    assert anything.lanes == (lanes["c3"],)
    ledger.create(named(5, "c3"), BOB)
    assert ledger.get(anything.id).lanes == (lanes["27"],), "a3 is free, but there she has one"
    ledger.create(named(5, "43", gpus=2, same_group=True), BOB)
    assert refusal(ledger, named(5, "27"), BOB) == ["full"], "hers could only move to a3"
    clock.forward(hours=5)
    ledger.upkeep.advance()
    begun = ledger.get(anything.id)
    assert (begun.state, begun.lanes) == (BookingState.ACTIVE, (lanes["27"],))
    ledger.close()


def test_a_booking_of_any_gpu_stays_where_its_owner_named_the_gpu_later(tmp_path: Path, clock: Clock) -> None:
    """It does not count there before it begins, so others may move around it."""
    ledger = open_ledger(tmp_path, Rules(most_active=99, most_active_per_gpu=1), clock)
    lanes = {lane.name[-7:-5]: lane.id for lane in ledger.lanes("v100")}
    anything, bobs = (ledger.create(ask(start=5, hours=2), who)[0] for who in (ADA, BOB))
    (hers,), (his,) = ([gpu for gpu, lane in lanes.items() if lane in booking.lanes] for booking in (anything, bobs))
    ledger.create(named(40, hers), ADA)
    ledger.create(named(5, his), BOB)
    assert ledger.get(bobs.id).lanes != bobs.lanes
    assert ledger.get(anything.id).lanes == anything.lanes
    ledger.close()


def test_an_admin_obeys_too_unless_they_override_and_that_is_written_down(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(longest=HOUR), clock)
    assert refusal(ledger, ask(), ROOT) == ["too_long"]
    with pytest.raises(ForbiddenError, match="only admins can set rules aside"):
        ledger.create(ask(), ADA, override=True)
    (made,) = ledger.create(ask(gpus=4), ROOT, override=True)
    assert made.override
    assert audit(ledger) == [("root", "booking.create", ""), ("root", "booking.override", "too_long")]
    assert refusal(ledger, ask(), ROOT, override=True) == ["full"]
    ledger.close()


def test_one_key_makes_one_booking(ledger: Ledger) -> None:
    first = ledger.create(ask(), ADA, key="k1")
    assert ledger.create(ask(), ADA, key="k1") == first
    assert refusal(ledger, ask(hours=2), ADA, key="k1") == ["key_reused"]
    assert ledger.create(ask(), BOB, key="k1") != first
    assert len(ledger.find(Query())) == 2


def test_recurring_bookings_are_made_all_or_none(ledger: Ledger) -> None:
    made = ledger.create(ask(), ADA, repeat="FREQ=DAILY;COUNT=3")
    assert [booking.ask.start - NOON for booking in made] == [HOUR, HOUR + DAY, HOUR + 2 * DAY]
    assert len({booking.series for booking in made}) == 1
    ledger.create(ask(start=25, gpus=3), BOB)
    with pytest.raises(RefusedError, match=r"on Tue 2026-11-24 13:00 UTC: no GPU of pool v100 is free"):
        ledger.create(ask(), BOB, repeat="FREQ=DAILY;COUNT=3")
    assert len(ledger.find(Query())) == 4
    assert ledger.check(ask(gpus=3), BOB).yes, "the timetable has nothing of what was not made"
    assert refusal(ledger, ask(), ADA, repeat="FREQ=DAILY") == ["repeat"]


def test_only_its_owner_an_admin_or_the_project_s_manager_changes_a_booking(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(), ADA)
    for stranger in (BOB, EVE):
        for act in (ledger.cancel, ledger.end, ledger.accept, ledger.open):
            with pytest.raises(ForbiddenError, match="somebody else's"):
                act(made.id, stranger)
        with pytest.raises(ForbiddenError):
            ledger.edit(made.id, ask(hours=1), stranger)
    with pytest.raises(ForbiddenError, match="only admins can approve"):
        ledger.approve(made.id, ADA)
    manager = replace(BOB, project_id=ADA.project_id, roles=frozenset({"manager", "member"}))
    assert ledger.edit(made.id, ask(hours=1), manager).user == "ada"
    assert ledger.cancel(made.id, ROOT, reason="maintenance").reason == "by root: maintenance"


def test_two_who_edit_one_booking(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(), ADA)
    ledger.edit(made.id, ask(hours=2), ADA, made.version)
    with pytest.raises(StaleError) as stale:
        ledger.edit(made.id, ask(hours=3), ADA, made.version)
    assert stale.value.current.ask.end - NOON == 3 * HOUR
    assert stale.value.current.version == 2


def test_an_edit_that_cannot_be_leaves_all_as_it_was(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(gpus=2), ADA)
    ledger.create(ask(start=3, gpus=2), BOB)
    for wish in (ask(gpus=3), ask(gpus=5), ask(hours=-1), ask(pool="t4")):
        with pytest.raises(RefusedError):
            ledger.edit(made.id, wish, ADA)
    assert ledger.get(made.id) == made
    moved = ledger.edit(made.id, ask(start=7, gpus=4), ADA)
    assert len(moved.lanes) == 4
    assert len(ledger.edit(made.id, ask(start=7, gpus=1), ADA).lanes) == 1
    assert ledger.check(ask(start=1, hours=2, gpus=4), BOB).yes, "its old time is free"


def test_an_edit_keeps_its_gpus_where_it_can(ledger: Ledger) -> None:
    ledger.create(ask(start=0.5, hours=1), BOB)
    (made,) = ledger.create(ask(start=1), ADA)
    assert ledger.edit(made.id, ask(start=2, hours=9), ADA).lanes == made.lanes


def test_life_by_the_clock(ledger: Ledger, clock: Clock) -> None:
    ledger._store.take_undelivered("test", NOON)
    (made,) = ledger.create(ask(hours=8), ADA)
    assert ledger.upkeep.advance() == 0
    clock.forward(1)
    assert ledger.upkeep.advance() == 1
    assert ledger.upkeep.advance() == 0
    assert state(ledger, made) is BookingState.ACTIVE
    clock.forward(4)
    ledger.upkeep.advance()
    assert ("booking.ending", made.id) in events(ledger)
    clock.forward(3.99)
    ledger.upkeep.advance()
    clock.forward(0.01)
    assert ledger.upkeep.advance() == 1
    assert state(ledger, made) is BookingState.ENDED
    assert ledger.get(made.id).lanes == made.lanes, "history keeps what it used"
    with pytest.raises(LifeError, match="it is over"):
        ledger.cancel(made.id, ADA)


def test_after_an_outage_everything_that_was_due_is_done(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(), ADA)
    clock.forward(100)
    assert ledger.upkeep.advance() == 2
    assert state(ledger, made) is BookingState.ENDED


def test_what_ends_early_is_free_at_once(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(gpus=4, hours=10), ADA)
    clock.forward(3)
    ledger.upkeep.advance()
    assert refusal(ledger, ask(start=3), BOB) == ["full"]
    with pytest.raises(LifeError, match="it has begun: end it instead"):
        ledger.cancel(made.id, ADA)
    ended = ledger.end(made.id, ADA)
    assert ended.ask.end == clock.now
    assert ledger.create(ask(start=3, gpus=4), BOB)


def test_an_active_booking_is_extended_and_shortened_but_not_moved(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(), ADA)
    clock.forward(2)
    ledger.upkeep.advance()
    assert ledger.edit(made.id, ask(hours=9), ADA).ask.end - NOON == 10 * HOUR
    with pytest.raises(RefusedError, match="its start cannot change"):
        ledger.edit(made.id, ask(start=3), ADA)
    ledger.create(ask(start=20, gpus=4), BOB)
    with pytest.raises(RefusedError, match="no GPU of pool v100 is free throughout"):
        ledger.edit(made.id, ask(hours=30), ADA)


def test_the_waitlist_is_served_in_order_and_an_offer_ends(ledger: Ledger, clock: Clock) -> None:
    (first,) = ledger.create(ask(gpus=4, hours=20), ADA)
    (second,) = ledger.create(ask(start=2, gpus=3), BOB, wait=True)
    (third,) = ledger.create(ask(start=2, gpus=2), ROOT, wait=True)
    assert second.state is third.state is BookingState.WAITING
    assert second.lanes == ()
    ledger.cancel(first.id, ADA)
    offered = ledger.get(second.id)
    assert offered.state is BookingState.OFFERED
    assert offered.offer_until == NOON + 2 * HOUR
    assert state(ledger, third) is BookingState.WAITING
    assert refusal(ledger, ask(start=2, gpus=2), ADA) == ["full"], "what is offered is kept"
    clock.forward(2)
    ledger.upkeep.advance()
    assert state(ledger, second) is BookingState.EXPIRED
    assert state(ledger, third) is BookingState.OFFERED
    with pytest.raises(LifeError):
        ledger.accept(second.id, BOB)
    assert ledger.accept(third.id, ROOT).state is BookingState.CONFIRMED


def test_the_highest_priority_comes_first(tmp_path: Path, clock: Clock) -> None:
    rules = {"biology": Rules(priority=5), "physics": Rules()}
    ledger = open_ledger(tmp_path, rules, clock)
    (first,) = ledger.create(ask(gpus=4), ADA)
    (low,) = ledger.create(ask(gpus=4), ADA, wait=True)
    (high,) = ledger.create(ask(gpus=4), BOB, wait=True)
    ledger.cancel(first.id, ADA)
    assert (state(ledger, low), state(ledger, high)) == (BookingState.WAITING, BookingState.OFFERED)
    ledger.close()


def test_nobody_waits_for_what_can_never_be(ledger: Ledger) -> None:
    assert refusal(ledger, ask(gpus=5), ADA, wait=True) == ["too_big"]
    assert refusal(ledger, ask(hours=24 * 16), ADA, wait=True) == ["too_long"]


def test_who_waits_in_vain_expires(ledger: Ledger, clock: Clock) -> None:
    ledger.create(ask(gpus=4, hours=20), ADA)
    (waits,) = ledger.create(ask(), BOB, wait=True)
    clock.forward(5)
    ledger.upkeep.advance()
    assert state(ledger, waits) is BookingState.EXPIRED
    assert "no GPU became free" in ledger.get(waits.id).reason


def test_approval_looks_for_gpus_when_it_is_given(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(approval=True, most_active=9), clock)
    first, other, late = (ledger.create(ask(gpus=3), who)[0] for who in (ADA, BOB, ADA))
    assert first.state is BookingState.REQUESTED
    assert first.lanes == ()
    assert ledger.approve(first.id, ROOT).state is BookingState.CONFIRMED
    with pytest.raises(RefusedError, match="only 1 of 3"):
        ledger.approve(other.id, ROOT)
    with pytest.raises(LifeError):
        ledger.approve(first.id, ROOT)
    assert ledger.cancel(other.id, ROOT, reason="not now").state is BookingState.CANCELLED
    clock.forward(5)
    ledger.upkeep.advance()
    assert state(ledger, late) is BookingState.EXPIRED
    ledger.close()


def test_a_no_show_is_released_and_a_claim_is_none(ledger: Ledger, clock: Clock) -> None:
    first, other = (ledger.create(ask(gpus=2, hours=20), who)[0] for who in (ADA, BOB))
    ledger.upkeep.record_claims({})
    for _ in range(130):
        clock.forward(minutes=2.5)
        ledger.upkeep.advance()
        ledger.upkeep.record_claims({first.id: first.lanes[:1]}, {other.id})
    assert ledger.get(first.id).claimed is not None
    assert state(ledger, first) is BookingState.ACTIVE
    assert state(ledger, other) is BookingState.NO_SHOW
    assert ledger.get(other.id).ask.end <= NOON + 5 * HOUR + timedelta(minutes=5)
    assert ledger.check(ask(start=6, gpus=2), ROOT).yes


def test_nobody_is_a_no_show_because_the_cloud_was_out_of_sight(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(hours=48), ADA)
    clock.forward(2)
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({}, {made.id})
    clock.forward(8)
    ledger.upkeep.record_claims({}, {made.id})
    assert state(ledger, made) is BookingState.ACTIVE
    for _ in range(62):
        clock.forward(minutes=4)
        ledger.upkeep.record_claims({}, {made.id})
    assert state(ledger, made) is BookingState.NO_SHOW


def test_who_is_not_let_in_yet_is_no_no_show(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(start=0, hours=20), ADA)
    for _ in range(200):
        clock.forward(minutes=4)
        ledger.upkeep.advance()
        ledger.upkeep.record_claims({})
    assert state(ledger, made) is BookingState.ACTIVE, "somebody else's server was on its GPU all the time"
    for _ in range(62):
        ledger.upkeep.record_claims({}, {made.id})
        clock.forward(minutes=4)
    assert state(ledger, made) is BookingState.NO_SHOW


def test_a_clock_that_was_wrong_stops_no_release(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(start=0, hours=20), ADA)
    right = clock.now
    clock.now = right + 400 * DAY
    ledger.upkeep.record_claims({})
    clock.now = right
    for _ in range(65):
        ledger.upkeep.advance()
        ledger.upkeep.record_claims({}, {made.id})
        clock.forward(minutes=4)
    assert state(ledger, made) is BookingState.NO_SHOW


def test_a_gpu_that_goes_bad_is_replaced_silently_or_its_owner_is_told_once(ledger: Ledger) -> None:
    ledger._store.take_undelivered("test", NOON)
    (made,) = ledger.create(ask(), ADA)
    assert ledger.upkeep.set_troubles({made.lanes[0]: "lost"}) == 1
    moved = ledger.get(made.id)
    assert moved.lanes != made.lanes
    assert [lane.trouble for lane in ledger.lanes("v100") if lane.id in made.lanes] == ["lost"]
    everything = {lane.id: "the host is down" for lane in ledger.lanes("v100")}
    for _ in range(3):
        assert ledger.upkeep.set_troubles(everything) == 0
    assert [kind for kind, _ in events(ledger)].count("booking.trouble") == 1
    assert refusal(ledger, ask(), BOB) == ["too_big"]
    assert ledger.upkeep.set_troubles({}) == 0
    assert ledger.create(ask(gpus=3), BOB)


def test_lanes_follow_what_nova_chose(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(start=0, hours=5), ADA)
    (later,) = ledger.create(ask(start=2, hours=20), BOB)
    assert later.lanes != made.lanes
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({made.id: later.lanes})
    assert ledger.get(made.id).lanes == later.lanes
    assert ledger.get(later.id).lanes == made.lanes
    assert ledger.get(made.id).claimed == clock.now
    before = ledger.get(made.id)
    ledger.upkeep.record_claims({made.id: later.lanes})
    assert ledger.get(made.id) == before


def test_a_server_on_a_gpu_of_its_own_is_no_pair(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(pool="v100", start=0), ADA)
    assert [lane.size for lane in ledger.lanes("v100") if lane.id in made.lanes] == [1]
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({made.id: made.lanes})
    with pytest.raises(RefusedError, match=r"its servers are on gpu-1/0000:a3:00\.0, which is no group of 2 GPUs"):
        ledger.edit(made.id, replace(made.ask, gpus=2, same_group=True), ADA)
    more = ledger.edit(made.id, replace(made.ask, gpus=2), ADA)
    assert {*made.lanes} < {*more.lanes}


def test_a_hold_moves_who_can_go_and_names_who_cannot(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(), ADA)
    name = next(lane.name for lane in ledger.lanes() if lane.id == made.lanes[0])
    with pytest.raises(ForbiddenError, match="only admins can hold GPUs"):
        ledger.hold([name], NOON, NOON + DAY, ADA, "")
    (held,) = ledger.hold([name], NOON, NOON + DAY, ROOT, "new riser card")
    assert held.kind is BookingKind.HOLD
    assert ledger.get(made.id).lanes != made.lanes
    assert refusal(ledger, ask(gpu=name), BOB) == ["full"]
    with pytest.raises(RefusedError, match=r"no GPU gpu-9/0000:00:00.0"):
        ledger.hold(["gpu-9/0000:00:00.0"], NOON, NOON + DAY, ROOT, "")
    (named,) = ledger.create(ask(start=30, gpu=name), BOB)
    others = [lane.name for lane in ledger.lanes("t4")]
    with pytest.raises(RefusedError, match=f"booked by bob until .*booking {named.id}"):
        ledger.hold([*others, name], NOON + 29 * HOUR, NOON + 40 * HOUR, ROOT, "")
    assert ledger.find(
        Query(kinds=frozenset({BookingKind.HOLD}), states=frozenset({BookingState.CONFIRMED, BookingState.ACTIVE}))
    ) == [held]
    clock.forward(1)
    ledger.upkeep.advance()
    with pytest.raises(ForbiddenError):
        ledger.cancel(held.id, ADA)
    assert ledger.cancel(held.id, ROOT).state is BookingState.ENDED
    assert ledger.create(ask(start=1, gpu=name), BOB)


def test_pools_with_unbooked_use_open_a_window(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(must_book=False), clock)
    (made,) = ledger.create(ask(), ADA)
    with pytest.raises(RefusedError, match="is confirmed; its GPUs can be released while it is active"):
        ledger.open(made.id, ADA)
    clock.forward(1)
    ledger.upkeep.advance()
    assert ledger.get(made.id).open_until == clock.now + timedelta(minutes=15)
    clock.forward(1)
    assert ledger.open(made.id, ADA).open_until == clock.now + timedelta(minutes=15)
    ledger.close()


def test_two_ledgers_on_one_store_never_disagree(tmp_path: Path, clock: Clock) -> None:
    ledger, other = open_ledger(tmp_path, clock=clock), open_ledger(tmp_path, clock=clock)
    other._new_id = Numbers(iter(range(1000, 2000)))
    (made,) = ledger.create(ask(gpus=3), ADA)
    assert refusal(other, ask(gpus=2), BOB) == ["full"]
    other.create(ask(), BOB)
    assert refusal(ledger, ask(), BOB) == ["full"]
    other.cancel(made.id, ADA)
    assert ledger.create(ask(gpus=3), ADA)
    ledger.close()
    other.close()


def test_the_site_s_lanes_are_rows_of_the_calendar(ledger: Ledger) -> None:
    assert [lane.name for lane in ledger.lanes("v100")] == [f"{host}/{slots[0]}" for host, slots in SITE["v100"]]
    assert {lane.size for lane in ledger.lanes("v100")} == {1, 2}


def test_a_person_s_email_is_kept_for_messages(ledger: Ledger) -> None:
    assert (
        ledger.create(ask(), Person("u", "x", "p", "y", frozenset({"admin"}), "x@example.org"))[0].email
        == "x@example.org"
    )
