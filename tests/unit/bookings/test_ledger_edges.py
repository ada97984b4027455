"""What would lose a booking, give a GPU twice, stop the controller, or get around a rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from zoneinfo import ZoneInfo

import pytest

from gpuyard.bookings.ledger.ledger import BookingSettings, ForbiddenError, Ledger, RefusedError
from gpuyard.bookings.records import Query
from gpuyard.bookings.recurrence import expand
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Ask, BookingState, Person, Reason, Rules
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, SITE, Clock, Numbers, ask, names, open_ledger

ROME = "Europe/Rome"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, clock=clock)
    yield opened
    opened.close()


def lane_of(ledger: Ledger, name: str) -> int:
    return next(lane.id for lane in ledger.lanes() if lane.name == name)


@pytest.mark.parametrize(
    "rule",
    ["FREQ=DAILY;INTERVAL=0;COUNT=3;BYHOUR=3", "FREQ=HOURLY;COUNT=2;BYMONTH=2;BYMONTHDAY=30",
     "FREQ=MONTHLY;BYDAY=99MO;COUNT=2",
     "FREQ=DAILY;INTERVAL=0;COUNT=3", "FREQ=YEARLY;BYEASTER=1;COUNT=3",
     "FREQ=MONTHLY;INTERVAL=12;BYMONTHDAY=30,31;COUNT=9",
     "FREQ=DAILY;COUNT=2;UNTIL=20270101", "FREQ=DAILY;" * 5000, "FREQ=MONTHLY;INTERVAL=999;COUNT=60"],
)  # fmt: skip
def test_no_rule_keeps_the_processor_busy(rule: str) -> None:
    began = monotonic()
    assert isinstance(expand(ask(), rule, "UTC"), Reason)
    assert monotonic() - began < 5


def test_the_first_booking_of_a_series_is_what_was_asked_for_in_the_hour_that_comes_twice() -> None:
    start = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # the second 02:30 in Rome
    made = expand(Ask("v100", start, start + 2 * HOUR), "FREQ=DAILY;COUNT=2", ROME)
    assert isinstance(made, list)
    assert (made[0].start, made[0].end) == (start, start + 2 * HOUR)
    assert made[1].start.astimezone(ZoneInfo(ROME)).hour == 2


def test_a_host_that_dies_moves_some_and_tells_the_others(ledger: Ledger) -> None:
    """One booking that moves makes room by moving another one, which is on a bad lane too."""
    v100 = [lane.id for lane in ledger.lanes("v100")]
    for start, hours in ((0, 2), (2, 2)):
        for _ in v100:
            ledger.create(ask(start=start, hours=hours), ADA)
    for booking in ledger.find(Query())[:3]:
        ledger.cancel(booking.id, ADA)
    for count in (1, 2, 3):
        ledger.upkeep.set_troubles(dict.fromkeys(v100[:count], "lost"))
        for booking in ledger.find(Query(states=frozenset({BookingState.CONFIRMED}))):
            assert len(booking.lanes) == 1
    ledger.upkeep.set_troubles({})


def test_bookings_of_a_pool_that_left_the_site_end_and_their_gpus_are_not_given_again(
    tmp_path: Path, clock: Clock
) -> None:
    ledger = open_ledger(tmp_path, clock=clock)
    (old,) = ledger.create(ask(start=0, pool="t4", gpu="gpu-2/0000:18:00.0"), ADA)
    ledger.upkeep.advance()
    store = ledger._store
    store.sync_lanes([("tesla", host, addresses) for host, addresses in SITE["t4"]])
    renamed = Ledger(
        store,
        BookingSettings(("tesla",), lambda pool, project: Rules(most_active=9), "UTC"),
        clock,
        Numbers(iter(range(50, 99))),
    )
    renamed.upkeep.set_troubles({})
    assert [lane.trouble for lane in renamed.lanes("tesla")] == [
        "it is still booked as gpu-2/0000:18:00.0 of pool t4",
        "",
    ]
    (other,) = renamed.create(ask(start=1, pool="tesla"), BOB)
    assert renamed.lanes("tesla")[1].id in other.lanes
    renamed.upkeep.record_claims({}, {old.id})
    clock.forward(4)
    renamed.upkeep.advance()
    assert renamed.get(old.id).state is BookingState.ENDED
    renamed.upkeep.set_troubles({})
    assert {lane.trouble for lane in renamed.lanes("tesla")} == {""}
    (again,) = renamed.create(ask(start=5, pool="tesla", gpu="gpu-2/0000:18:00.0"), BOB)
    assert renamed.cancel(again.id, BOB).state is BookingState.CANCELLED
    store.close()


def test_a_group_that_is_listed_otherwise_is_not_given_twice(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock=clock)
    ledger.create(ask(start=0, gpus=2, same_group=True, gpu="gpu-1/0000:27:00.0"), ADA)
    ledger.upkeep.advance()
    ledger._store.sync_lanes([("v100", "gpu-1", ("0000:28:00.0",))])
    again = Ledger(ledger._store, ledger.book, clock, Numbers(iter(range(50, 99))))
    again.upkeep.set_troubles({})
    with pytest.raises(RefusedError, match="cannot be used now"):
        again.create(ask(start=1), BOB)
    ledger.close()


def test_more_active_bookings_than_a_page_are_all_looked_at(tmp_path: Path, clock: Clock) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'x.db'}")
    count = 1050
    store.sync_lanes([("big", f"h{number:04}", ("0000:01:00.0",)) for number in range(count)])
    book = BookingSettings(("big",), lambda pool, project: Rules(most_active=10**6), "UTC")
    ledger = Ledger(store, book, clock, Numbers())
    made = [ledger.create(Ask("big", NOON, NOON + 20 * HOUR), ADA)[0] for _ in range(count)]
    ledger.upkeep.advance()
    claims = {booking.id: booking.lanes for booking in made[:-1]}
    for _ in range(75):
        ledger.upkeep.record_claims(claims, {made[-1].id})
        clock.forward(minutes=4)
    no_shows = ledger.find(Query(states=frozenset({BookingState.NO_SHOW})), 10**6)
    assert [booking.id for booking in no_shows] == [made[-1].id]
    store.close()


def test_a_server_stays_where_it_is_when_its_booking_is_extended(ledger: Ledger, clock: Clock) -> None:
    name = "gpu-1/0000:a3:00.0"
    (mine,) = ledger.create(ask(start=0, hours=4), ADA)
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({mine.id: [lane_of(ledger, name)]})
    assert ledger.get(mine.id).lanes == (lane_of(ledger, name),)
    (later,) = ledger.create(ask(start=5, hours=3), BOB)
    moved = ledger.edit(mine.id, replace(mine.ask, end=NOON + 9 * HOUR), ADA)
    assert moved.lanes == (lane_of(ledger, name),)
    assert set(ledger.get(later.id).lanes).isdisjoint(moved.lanes)
    (pinned,) = ledger.create(ask(start=12, hours=3, gpu=name), BOB)
    with pytest.raises(RefusedError, match=f"GPU {name}, which this booking has, is somebody else's from Tue"):
        ledger.edit(mine.id, replace(mine.ask, end=NOON + 13 * HOUR), ADA)
    more = ledger.edit(mine.id, replace(moved.ask, gpus=2), ADA)
    assert len(more.lanes) == 2
    assert more.lanes[0] == lane_of(ledger, name)
    assert ledger.get(pinned.id).lanes == (lane_of(ledger, name),)


def test_looks_that_change_nothing_wake_nobody(ledger: Ledger) -> None:
    (held,) = ledger.hold(["gpu-1/0000:a3:00.0"], NOON, NOON + DAY, ROOT, "broken")
    woken: list[int] = []
    ledger.upkeep.on_change(lambda: woken.append(1))
    for _ in range(5):
        ledger.upkeep.set_troubles({held.lanes[0]: "lost"})
        ledger.upkeep.advance()
        ledger.upkeep.record_claims({})
    assert woken == [1], "the hold began"
    longer = ledger.edit(held.id, replace(held.ask, end=NOON + 2 * DAY), ROOT)
    assert longer.ask.end == NOON + 2 * DAY, "also of a GPU that is lost"


def test_what_was_approved_is_not_made_more(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(approval=True), clock)
    (made,) = ledger.create(ask(hours=1), ADA)
    ledger.approve(made.id, ROOT)
    with pytest.raises(RefusedError, match="approved by an admin"):
        ledger.edit(made.id, ask(hours=100, gpus=4), ADA)
    assert ledger.edit(made.id, ask(hours=0.5), ADA).state is BookingState.CONFIRMED
    assert ledger.edit(made.id, ask(hours=2), ROOT).state is BookingState.CONFIRMED
    ledger.close()


def test_gpu_hours_that_were_used_count_whatever_is_given_back(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=16), clock)
    (made,) = ledger.create(ask(start=0, gpus=4, hours=4), ADA)
    ledger.upkeep.advance()
    clock.forward(3.5)
    ledger.edit(made.id, replace(made.ask, gpus=1), ADA)
    ledger.end(made.id, ADA)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(start=4, hours=3), ADA)
    assert names(refused.value.answer.reasons) == ["gpu_hours"]
    assert ledger.create(ask(start=4, hours=2), ADA)
    ledger.close()


def test_who_waits_or_asks_for_approval_pays_when_it_is_given(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=4, most_active=99), clock)
    (first,) = ledger.create(ask(gpus=4, hours=1), BOB)
    waiting = [ledger.create(ask(gpus=1, hours=1), ADA, wait=True)[0] for _ in range(4)]
    ledger.cancel(first.id, BOB)
    assert all(ledger.get(booking.id).state is BookingState.OFFERED for booking in waiting)
    for accepted in waiting[:2]:
        ledger.accept(accepted.id, ADA)
    with pytest.raises(RefusedError):
        ledger.create(ask(start=9, hours=1), ADA)
    ledger.close()


def test_more_than_was_booked_needs_notice_too(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(notice=DAY), clock)
    (made,) = ledger.create(ask(start=24), ADA)
    clock.forward(23.9)
    with pytest.raises(RefusedError) as refused:
        ledger.edit(made.id, replace(made.ask, gpus=4), ADA)
    assert names(refused.value.answer.reasons) == ["too_soon"]
    shorter = ledger.edit(made.id, replace(made.ask, end=made.ask.end - HOUR), ADA)
    assert shorter.ask.end == made.ask.end - HOUR
    ledger.close()


def test_a_booking_on_a_gpu_in_trouble_can_be_shortened(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(gpu="gpu-1/0000:a3:00.0"), ADA)
    ledger.upkeep.set_troubles({lane.id: "lost" for lane in ledger.lanes()})
    assert ledger.edit(made.id, replace(made.ask, end=made.ask.end - HOUR), ADA).ask.end == made.ask.end - HOUR


def test_an_end_in_seven_thousand_years_is_one_reason(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=5))
    answer = ledger.check(Ask("v100", NOON + HOUR, datetime(8999, 1, 1, tzinfo=UTC)), ADA)
    assert "too_long" in names(answer.reasons)
    assert len(answer.reasons) < 4
    ledger.close()


def test_the_same_key_in_another_project_is_another_ask(ledger: Ledger) -> None:
    ledger.create(ask(), ADA, key="k")
    elsewhere = Person(ADA.user_id, ADA.user, BOB.project_id, BOB.project, ADA.roles)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(), elsewhere, key="k")
    assert names(refused.value.answer.reasons) == ["key_reused"]


def test_a_window_is_no_longer_because_the_clock_went_back(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, Rules(must_book=False), clock)
    (made,) = ledger.create(ask(0, 8), ADA)
    ledger.upkeep.advance()
    window = timedelta(minutes=15)
    assert ledger.get(made.id).open_until == NOON + window
    clock.forward(hours=-2)
    ledger.upkeep.advance()
    assert ledger.get(made.id).open_until == clock.now + window
    assert ledger.upkeep.advance() == 0, "once"
    ledger.close()


def down(ledger: Ledger, host: str = "gpu-1") -> dict[int, str]:
    return {lane.id: f"nova-compute on {host} is down" for lane in ledger.lanes() if lane.host == host}


def test_what_is_down_now_can_be_booked_for_later_with_a_word_of_warning(ledger: Ledger, clock: Clock) -> None:
    ledger.upkeep.set_troubles(down(ledger))
    now = ledger.check(ask(23.99), ADA)
    assert not now.yes
    assert now.alternatives[0].ask.start == NOON + DAY, "when it is expected to be back"
    later = ledger.check(ask(24), ADA)
    assert later.yes, "the rule says a day"
    warning = "GPU gpu-1/0000:a3:00.0 cannot be used now (nova-compute on gpu-1 is down); it is expected back by"
    assert later.warnings == (f"{warning} Tue 2026-11-24 12:00 UTC",)
    named = ledger.check(ask(1, gpu="gpu-1/0000:a3:00.0"), ADA)
    assert named.reasons[0].text.endswith("is down; it can be booked from Tue 2026-11-24 12:00 UTC on")
    assert ledger.check(ask(24, gpu="gpu-1/0000:a3:00.0"), ADA).yes
    free = dict(ledger.free("v100", NOON, NOON + 2 * DAY, 12 * 3600))
    assert list(free.values()) == [0, 0, 4, 4]
    clock.forward(hours=1)
    assert not ledger.check(ask(24), ADA).yes, "as long as it lasts, from each moment on"
    ledger.upkeep.set_troubles({})
    assert ledger.check(ask(2), ADA).warnings == ()


def test_whoever_changes_places_with_a_server_that_left_a_bad_lane_goes_on_to_another(
    ledger: Ledger, clock: Clock
) -> None:
    """A drain has moved ada's server to the very GPU that bob has booked for later."""
    left, taken = ledger.lanes("v100")[2:]
    mine = ledger.create(ask(0, hours=5, gpu=left.name), ADA)[0]
    his = ledger.create(ask(2), BOB)[0]
    ledger.upkeep.prefer({his.id: (taken.id,)})
    assert ledger.get(his.id).lanes == (taken.id,)
    clock.forward(minutes=1)
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({mine.id: mine.lanes})
    ledger.upkeep.set_troubles({left.id: f"nova-compute on {left.host} is disabled"})
    ledger.upkeep.record_claims({mine.id: (taken.id,)})
    assert ledger.get(mine.id).lanes == (taken.id,)
    assert {left.id, taken.id}.isdisjoint(ledger.get(his.id).lanes)


def test_a_lane_that_is_well_is_taken_before_one_that_may_be_by_then(ledger: Ledger) -> None:
    bad = dict(list(down(ledger).items())[2:3])
    ledger.upkeep.set_troubles(bad)
    taken = [ledger.create(ask(48), ADA)[0].lanes[0] for _ in range(4)]
    assert taken[3] in bad
    assert len({*taken}) == 4


def test_an_operator_says_when_it_is_back(ledger: Ledger, clock: Clock) -> None:
    ledger.upkeep.set_troubles(down(ledger))
    with pytest.raises(ForbiddenError):
        ledger.expect_back(["gpu-1"], NOON + 3 * HOUR, ADA)
    assert len(ledger.expect_back(["gpu-1"], NOON + 3 * HOUR, ROOT)) == 4
    assert ledger.check(ask(3), ADA).yes
    assert not ledger.check(ask(2.99), ADA).yes
    ledger.upkeep.set_troubles(down(ledger))
    assert ledger.check(ask(3), ADA).yes, "what was said stays as long as the trouble"
    clock.forward(hours=3)
    assert not ledger.check(ask(4), ADA).yes, "it was not back, so the rule speaks"
    ledger.upkeep.set_troubles({})
    ledger.upkeep.set_troubles(down(ledger))
    assert {lane.back for lane in ledger.lanes("v100")} == {None}, "another trouble is another time"
    for name, code in (("gpu-2", "no_trouble"), ("gpu-9", "no_such_gpu")):
        with pytest.raises(RefusedError) as refused:
            ledger.expect_back([name], None, ROOT)
        assert names(refused.value.answer.reasons) == [code]


def test_bookings_leave_a_bad_lane_only_when_it_is_not_expected_back_in_time(ledger: Ledger, clock: Clock) -> None:
    (soon,), (late,) = ledger.create(ask(2), ADA), ledger.create(ask(48), ADA)
    assert soon.lanes == late.lanes
    ledger.upkeep.set_troubles({soon.lanes[0]: "lost"})
    assert ledger.get(soon.id).lanes != soon.lanes
    assert ledger.get(late.id).lanes == late.lanes
    clock.forward(hours=24.01)
    ledger.upkeep.set_troubles({soon.lanes[0]: "lost"})
    assert ledger.get(late.id).lanes != late.lanes


def test_a_booking_tells_since_when_it_can_be_used(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(0), ADA)
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({}, (), {made.id: False})
    assert ledger.get(made.id).usable_since is None
    clock.forward(seconds=6)
    ledger.upkeep.record_claims({}, {made.id}, {made.id: True})
    since = clock.now
    clock.forward(seconds=6)
    ledger.upkeep.record_claims({}, {made.id}, {made.id: True})
    ledger.upkeep.record_claims({}, {made.id})
    assert ledger.get(made.id).usable_since == since, "a pool that could not be looked at changes nothing"
    ledger.upkeep.record_claims({}, {made.id}, {made.id: False})
    assert ledger.get(made.id).usable_since is None, "its window is over"
    ledger.upkeep.record_claims({}, {made.id}, {made.id: True})
    assert ledger.end(made.id, ADA).usable_since is None


def test_a_booking_is_empty_since_its_owner_could_have_another_server(ledger: Ledger, clock: Clock) -> None:
    (made,) = ledger.create(ask(0, hours=20), ADA)
    ledger.upkeep.advance()

    def look(has_server: bool, ready: bool) -> datetime | None:
        claims = {made.id: made.lanes} if has_server else {}
        clock.forward(seconds=6)
        ledger.upkeep.record_claims(claims, {made.id} if ready else (), {made.id: ready})
        return ledger.get(made.id).empty_since

    assert look(has_server=False, ready=True) is None, "no server has come yet"
    assert look(has_server=True, ready=False) is None
    assert look(has_server=False, ready=False) is None, "somebody else is on its GPU"
    since = look(has_server=False, ready=True)
    assert since == look(has_server=False, ready=True) == clock.now - timedelta(seconds=6)
    ledger.upkeep.record_claims({})
    assert ledger.get(made.id).empty_since == since, "a pool that could not be looked at changes nothing"
    assert look(has_server=False, ready=False) is None
    clock.forward(hours=-1)
    assert look(has_server=False, ready=True) == clock.now
    clock.forward(hours=-1)
    assert look(has_server=False, ready=True) == clock.now, "the clock has gone back"
    assert look(has_server=True, ready=True) is None, "it has room for a second one"
    look(has_server=False, ready=True)
    assert ledger.end(made.id, ADA).empty_since is None
