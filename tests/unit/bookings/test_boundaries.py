"""Rules at their very bounds: what is exactly as long, as early, as late, or as much as allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.admission import STEP, PoolLanes, nearest
from gpuyard.bookings.enforcement import SETTLE
from gpuyard.bookings.ledger.ledger import Ledger, RefusedError
from gpuyard.bookings.policy import PATIENCE, Usage, broken_rules, malformed, months
from gpuyard.bookings.pool_view import PREPARE, Memory
from gpuyard.bookings.timetable import Timetable
from gpuyard.database.times import seconds
from gpuyard.model.booking import FOREVER, Ask, BookingKind, BookingState, QuietHours, Rules
from gpuyard.model.booking_life import become
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, Clock, ask, lanes, names, open_ledger
from tests.unit.bookings.test_enforcement import COUNT, START, booking, plan_pool, told, unbooked, view

SECOND = timedelta(seconds=1)
ENOUGH = Rules(most_active=100)
NOTHING = Usage()


def between(start: datetime, end: datetime, **more: object) -> Ask:
    return replace(ask(), start=start, end=end, **more)  # type: ignore[arg-type]


def broken(wish: Ask, rules: Rules, facts: Usage = NOTHING) -> list[str]:
    return names(broken_rules(wish, rules, ADA, facts, "UTC", NOON))


@pytest.mark.parametrize(
    ("start", "end", "wrong"),
    [
        (NOON, NOON, ["ends_first"]),
        (NOON, NOON + SECOND, []),
        (NOON - 30 * SECOND, NOON, ["past"]),
        (NOON - 30 * SECOND, NOON + SECOND, []),
        (NOON - PATIENCE, NOON + HOUR, []),
        (NOON - PATIENCE - SECOND, NOON + HOUR, ["past"]),
        (NOON, FOREVER, []),
        (NOON, FOREVER + SECOND, ["too_far"]),
    ],
)
def test_a_time_is_a_time(start: datetime, end: datetime, wrong: list[str]) -> None:
    assert names(malformed(between(start, end), NOON)) == wrong


def test_notice_and_ahead() -> None:
    rules = Rules(notice=HOUR, ahead=DAY)
    for start, wrong in (
        (NOON + HOUR, []),
        (NOON + HOUR - SECOND, ["too_soon"]),
        (NOON + DAY, []),
        (NOON + DAY + SECOND, ["too_far"]),
    ):
        assert broken(between(start, start + HOUR), rules) == wrong


def test_longest_and_most_active() -> None:
    assert broken(between(NOON, NOON + DAY), Rules(longest=DAY)) == []
    assert broken(between(NOON, NOON + DAY + SECOND), Rules(longest=DAY)) == ["too_long"]
    assert broken(ask(), Rules(most_active=2), Usage(active=1)) == []
    assert broken(ask(), Rules(most_active=2), Usage(active=2)) == ["too_many"]


def test_gpu_hours_of_a_month() -> None:
    rules, month = Rules(gpu_hours_per_month=10, longest=4 * HOUR), NOON.replace(day=1, hour=0)
    assert broken(ask(hours=4), rules, Usage(booked_seconds={month: 6 * 3600})) == []
    assert broken(ask(hours=4), rules, Usage(booked_seconds={month: 6 * 3600 + 1})) == ["gpu_hours"], "also the longest"


def test_a_month_that_a_time_only_reaches_is_not_touched() -> None:
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    assert list(months(NOON, december)) == [(november, december)]
    assert len(list(months(NOON, december + SECOND))) == 2
    assert list(months(december, december)) == []


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        ("21:59", "22:00", 0),  # ends at the very moment when quiet begins
        ("06:00", "07:00", 0),
        ("22:00", "08:00", 1),
        ("05:59", "08:00", 1),
        ("21:00", "22:01", 1),
        ("21:00", "06:00", 0),
        ("21:00", "05:59", 1),
    ],
)
def test_quiet_hours(start: str, end: str, count: int) -> None:
    def at(clock: str, day: int) -> datetime:
        hour, minute = map(int, clock.split(":"))
        return datetime(2026, 11, 24 + day, hour, minute, tzinfo=UTC)

    wish = between(at(start, 0), at(end, int(end <= start)))
    assert broken(wish, Rules(quiet_hours=(QuietHours(22 * 60, 6 * 60),))) == ["quiet_hours"] * count


def test_another_time_may_be_the_very_last_that_the_rules_allow() -> None:
    """On a whole quarter of an hour when that is still allowed, and as early as can be when not."""
    table, lane = Timetable(), lanes("t4")[0]
    table.add(lane.id, seconds(NOON), seconds(NOON) + 2 * STEP - 60)
    wish, pool = replace(ask(0, 1, pool="t4"), start=NOON, end=NOON + HOUR), PoolLanes((lane,), table)
    for ahead, start in ((2 * STEP, 2 * STEP), (2 * STEP - 1, 2 * STEP - 60), (2 * STEP - 60, 2 * STEP - 60)):
        alternative = next(iter(nearest(wish, pool, Rules(ahead=timedelta(seconds=ahead)), NOON)))
        assert alternative.ask.start == NOON + timedelta(seconds=start)
    short = list(nearest(wish, pool, Rules(ahead=timedelta(seconds=2 * STEP - 61)), NOON))
    assert [candidate for candidate in short if candidate.ask.start > NOON] == []


def test_what_ends_now_keeps_the_end_that_it_had_or_gets_this_one() -> None:
    original = booking(start=START, end=START + HOUR)
    for now, end in (
        (START, START + SECOND),
        (START + SECOND, START + SECOND),
        (START + 2 * SECOND, START + 2 * SECOND),
        (START + HOUR, START + HOUR),
        (START + HOUR + SECOND, START + HOUR),
    ):
        assert become(original, BookingState.ENDED, now, ENOUGH).ask.end == end


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, Rules(most_active=100, offer=HOUR, no_show=2 * HOUR, end_soon=HOUR), clock)
    yield opened
    opened.close()


def test_an_offer_ends_when_it_ends(ledger: Ledger, clock: Clock) -> None:
    first = ledger.create(ask(0, 8, 2, "t4"), ADA)[0]
    waiting = [ledger.create(ask(2, 4, 1, "t4"), BOB, wait=True)[0] for _ in range(2)]
    ledger.cancel(first.id, ADA)
    clock.now = NOON + HOUR - SECOND
    assert ledger.accept(waiting[0].id, BOB).state is BookingState.CONFIRMED
    assert ledger.upkeep.advance() == 0
    clock.now = NOON + HOUR
    with pytest.raises(RefusedError) as refused:
        ledger.accept(waiting[1].id, BOB)
    assert names(refused.value.answer.reasons) == ["offer_over"]
    ledger.upkeep.advance()
    assert ledger.get(waiting[1].id).state is BookingState.EXPIRED


def test_it_begins_at_its_start_and_ends_at_its_end(ledger: Ledger, clock: Clock) -> None:
    made = ledger.create(ask(1, 4), ADA)[0]
    for hours, before, after in (
        (1, BookingState.CONFIRMED, BookingState.ACTIVE),
        (5, BookingState.ACTIVE, BookingState.ENDED),
    ):
        clock.now = NOON + hours * HOUR - SECOND
        ledger.upkeep.advance()
        assert ledger.get(made.id).state is before
        clock.now += SECOND
        ledger.upkeep.advance()
        assert ledger.get(made.id).state is after


def test_a_no_show_is_one_after_exactly_that_time(ledger: Ledger, clock: Clock) -> None:
    made = ledger.create(ask(0, 8), ADA)[0]
    ledger.upkeep.advance()
    for _ in range(120):
        ledger.upkeep.record_claims({}, {made.id})
        clock.forward(minutes=1)
    clock.now -= SECOND
    ledger.upkeep.record_claims({}, {made.id})
    assert ledger.get(made.id).state is BookingState.ACTIVE
    clock.now += SECOND
    ledger.upkeep.record_claims({}, {made.id})
    assert ledger.get(made.id).state is BookingState.NO_SHOW


def test_its_owner_is_reminded_exactly_that_time_before_the_end(ledger: Ledger, clock: Clock) -> None:
    outbox = ledger.upkeep.outbox
    outbox.take_undelivered("test", NOON)
    ledger.create(ask(0, 3), ADA)
    ledger.create(ask(0, 1), BOB)  # as short as the notice: needs none

    def kinds(days: int) -> list[str]:
        """Each look is a day later, for what is taken is not given again at once."""
        return [delivery.event.kind for delivery in outbox.take_undelivered("test", clock.now + days * DAY)]

    clock.now = NOON + 2 * HOUR - SECOND
    ledger.upkeep.advance()
    assert "booking.ending" not in kinds(1)
    clock.now += SECOND
    ledger.upkeep.advance()
    assert kinds(2).count("booking.ending") == 1


def test_holds_begin_and_end_on_the_second() -> None:
    soon = view([booking(state=BookingState.CONFIRMED)])
    assert told(plan_pool(soon, START - 10 * 60 * SECOND).steps) == ["hold host_1.0"]
    assert told(plan_pool(soon, START - 10 * 60 * SECOND - SECOND).steps) == []
    by_hand = view([booking(kind=BookingKind.HOLD, state=BookingState.CONFIRMED)])
    assert told(plan_pool(by_hand, START).steps) == ["hold host_1.0"]
    assert told(plan_pool(by_hand, START - SECOND).steps) == []
    on = view([booking(kind=BookingKind.HOLD)])
    assert told(plan_pool(on, START + 4 * HOUR - SECOND).steps) == ["hold host_1.0"]
    assert told(plan_pool(on, START + 4 * HOUR).steps) == []


def test_limits_that_are_right_are_left_alone_and_none_at_all_goes_down() -> None:
    assert told(plan_pool(view([booking()], limits={("physics", COUNT): 1}), START).steps) == []
    plan = plan_pool(unbooked([booking(open_until=START + HOUR)], limits={("art", COUNT): -1}), START)
    assert told(plan.steps)[0] == "hold host_1.0"
    assert told(plan.steps)[1] == f"limit art {COUNT} -> 0", "-1 is more than any number, so it is lowered first"


def test_a_release_is_prepared_and_settled_to_the_moment() -> None:
    soon = booking(state=BookingState.CONFIRMED)
    assert unbooked([soon]).closing(START - PREPARE) == [soon]
    assert unbooked([soon]).closing(START - PREPARE - SECOND) == []
    on = unbooked([booking(open_until=START + HOUR)], memory=Memory(lowered=START))
    assert plan_pool(on, START + SETTLE).usable == {"b1"}
    assert plan_pool(on, START + SETTLE - timedelta(milliseconds=1)).usable == frozenset()


def test_a_window_is_over_when_it_is_over() -> None:
    quarter = timedelta(minutes=15)
    on = booking(open_until=START + quarter)
    assert unbooked([on]).window(on, START + quarter - SECOND) == (START, START + quarter)
    assert unbooked([on]).window(on, START + quarter) is None
