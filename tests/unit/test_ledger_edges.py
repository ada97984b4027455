"""What would lose a booking, give a GPU twice, stop the keeper, or get around a rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from zoneinfo import ZoneInfo

import pytest

from gpuyard.ledger.ledger import Book, Ledger, RefusedError
from gpuyard.ledger.records import Query
from gpuyard.ledger.recurrence import expand
from gpuyard.ledger.store import Store
from gpuyard.model.booking import Ask, BookingState, Person, Reason, Rules
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, SITE, Clock, Numbers, ask, names, open_ledger

S = BookingState
ROME = "Europe/Rome"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, clock=clock)
    yield opened
    opened.store.close()


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
    for one in ledger.find(Query())[:3]:
        ledger.cancel(one.id, ADA)
    for count in (1, 2, 3):
        ledger.troubles(dict.fromkeys(v100[:count], "lost"))
        for one in ledger.find(Query(states=frozenset({S.CONFIRMED}))):
            assert len(one.lanes) == 1
    ledger.troubles({})


def test_bookings_of_a_pool_that_left_the_site_end_and_their_gpus_are_not_given_again(
    tmp_path: Path, clock: Clock
) -> None:
    ledger = open_ledger(tmp_path, clock=clock)
    (old,) = ledger.create(ask(start=0, pool="t4", gpu="gpu-2/0000:18:00.0"), ADA)
    ledger.advance()
    store = ledger.store
    store.sync_lanes([("tesla", host, addresses) for host, addresses in SITE["t4"]])
    renamed = Ledger(
        store, Book(("tesla",), lambda pool, project: Rules(most_active=9), "UTC"), clock, Numbers(iter(range(50, 99)))
    )
    renamed.troubles({})
    assert [lane.trouble for lane in renamed.lanes("tesla")] == [
        "it is still booked as gpu-2/0000:18:00.0 of pool t4",
        "",
    ]
    (other,) = renamed.create(ask(start=1, pool="tesla"), BOB)
    assert renamed.lanes("tesla")[1].id in other.lanes
    renamed.claimed({}, {old.id})
    clock.forward(4)
    renamed.advance()
    assert renamed.get(old.id).state is S.ENDED
    renamed.troubles({})
    assert {lane.trouble for lane in renamed.lanes("tesla")} == {""}
    (again,) = renamed.create(ask(start=5, pool="tesla", gpu="gpu-2/0000:18:00.0"), BOB)
    assert renamed.cancel(again.id, BOB).state is S.CANCELLED
    store.close()


def test_a_group_that_is_listed_otherwise_is_not_given_twice(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock=clock)
    ledger.create(ask(start=0, gpus=2, same_group=True, gpu="gpu-1/0000:27:00.0"), ADA)
    ledger.advance()
    ledger.store.sync_lanes([("v100", "gpu-1", ("0000:28:00.0",))])
    again = Ledger(ledger.store, ledger.book, clock, Numbers(iter(range(50, 99))))
    again.troubles({})
    with pytest.raises(RefusedError, match="cannot be used now"):
        again.create(ask(start=1), BOB)
    ledger.store.close()


def test_more_active_bookings_than_a_page_are_all_looked_at(tmp_path: Path, clock: Clock) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'x.db'}")
    count = 1050
    store.sync_lanes([("big", f"h{number:04}", ("0000:01:00.0",)) for number in range(count)])
    book = Book(("big",), lambda pool, project: Rules(most_active=10**6), "UTC")
    ledger = Ledger(store, book, clock, Numbers())
    made = [ledger.create(Ask("big", NOON, NOON + 20 * HOUR), ADA)[0] for _ in range(count)]
    ledger.advance()
    claims = {one.id: one.lanes for one in made[:-1]}
    for _ in range(75):
        ledger.claimed(claims, {made[-1].id})
        clock.forward(minutes=4)
    found = ledger.find(Query(states=frozenset({S.NO_SHOW})), 10**6)
    assert [one.id for one in found] == [made[-1].id]
    store.close()


def test_a_server_stays_where_it_is_when_its_booking_is_extended(ledger: Ledger, clock: Clock) -> None:
    name = "gpu-1/0000:a3:00.0"
    (mine,) = ledger.create(ask(start=0, hours=4), ADA)
    ledger.advance()
    ledger.claimed({mine.id: [lane_of(ledger, name)]})
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
    ledger.on_change = lambda: woken.append(1)
    for _ in range(5):
        ledger.troubles({held.lanes[0]: "lost"})
        ledger.advance()
        ledger.claimed({})
    assert woken == [1], "the hold began"
    longer = ledger.edit(held.id, replace(held.ask, end=NOON + 2 * DAY), ROOT)
    assert longer.ask.end == NOON + 2 * DAY, "also of a GPU that is lost"


def test_what_was_approved_is_not_made_more(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(approval=True), clock)
    (made,) = ledger.create(ask(hours=1), ADA)
    ledger.approve(made.id, ROOT)
    with pytest.raises(RefusedError, match="approved by an admin"):
        ledger.edit(made.id, ask(hours=100, gpus=4), ADA)
    assert ledger.edit(made.id, ask(hours=0.5), ADA).state is S.CONFIRMED
    assert ledger.edit(made.id, ask(hours=2), ROOT).state is S.CONFIRMED
    ledger.store.close()


def test_gpu_hours_that_were_used_count_whatever_is_given_back(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=16), clock)
    (made,) = ledger.create(ask(start=0, gpus=4, hours=4), ADA)
    ledger.advance()
    clock.forward(3.5)
    ledger.edit(made.id, replace(made.ask, gpus=1), ADA)
    ledger.end(made.id, ADA)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(start=4, hours=3), ADA)
    assert names(refused.value.answer.reasons) == ["gpu_hours"]
    assert ledger.create(ask(start=4, hours=2), ADA)
    ledger.store.close()


def test_who_waits_or_asks_for_approval_pays_when_it_is_given(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=4, most_active=99), clock)
    (first,) = ledger.create(ask(gpus=4, hours=1), BOB)
    waiting = [ledger.create(ask(gpus=1, hours=1), ADA, wait=True)[0] for _ in range(4)]
    ledger.cancel(first.id, BOB)
    assert all(ledger.get(one.id).state is S.OFFERED for one in waiting)
    for one in waiting[:2]:
        ledger.accept(one.id, ADA)
    with pytest.raises(RefusedError):
        ledger.create(ask(start=9, hours=1), ADA)
    ledger.store.close()


def test_more_than_was_booked_needs_notice_too(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, Rules(notice=DAY), clock)
    (made,) = ledger.create(ask(start=24), ADA)
    clock.forward(23.9)
    with pytest.raises(RefusedError) as refused:
        ledger.edit(made.id, replace(made.ask, gpus=4), ADA)
    assert names(refused.value.answer.reasons) == ["too_soon"]
    shorter = ledger.edit(made.id, replace(made.ask, end=made.ask.end - HOUR), ADA)
    assert shorter.ask.end == made.ask.end - HOUR
    ledger.store.close()


def test_a_booking_on_a_gpu_in_trouble_can_be_shortened(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(gpu="gpu-1/0000:a3:00.0"), ADA)
    ledger.troubles({lane.id: "lost" for lane in ledger.lanes()})
    assert ledger.edit(made.id, replace(made.ask, end=made.ask.end - HOUR), ADA).ask.end == made.ask.end - HOUR


def test_an_end_in_seven_thousand_years_is_one_reason(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Rules(gpu_hours_per_month=5))
    answer = ledger.check(Ask("v100", NOON + HOUR, datetime(8999, 1, 1, tzinfo=UTC)), ADA)
    assert "too_long" in names(answer.reasons)
    assert len(answer.reasons) < 4
    ledger.store.close()


def test_the_same_key_in_another_project_is_another_ask(ledger: Ledger) -> None:
    ledger.create(ask(), ADA, key="k")
    elsewhere = Person(ADA.user_id, ADA.user, BOB.project_id, BOB.project, ADA.roles)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(), elsewhere, key="k")
    assert names(refused.value.answer.reasons) == ["key_reused"]
