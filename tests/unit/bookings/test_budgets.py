"""Budgets: what is carried over, what fades, and what the ledger answers when one is used up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.budget_check import BookedTime
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.records import AuditQuery
from gpuyard.database.times import seconds
from gpuyard.site.accounting_rules import BudgetRules
from gpuyard.site.tariff_clock import TariffClock
from gpuyard.usage.budgets import ProjectBudget, period_of
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, Clock, ask, open_ledger

ROME = TariffClock(ZoneInfo("Europe/Rome"))
UTC_CLOCK = TariffClock(ZoneInfo("UTC"))
AN_HOUR = 3600


def budget(
    used: Mapping[date, int] | None = None, clock: TariffClock = UTC_CLOCK, until: datetime = NOON, **rules: Any
) -> ProjectBudget:
    """Of physics; `used` in GPU-hours by day."""
    by_day = {day: count * AN_HOUR for day, count in (used or {}).items()}
    stated = BudgetRules.model_validate({"gpu_hours": 100, **rules})
    return ProjectBudget("physics", stated, clock, by_day, date(2026, 1, 1), until)


def window(start: datetime, hours: float, gpus: int = 1) -> BookedTime:
    return BookedTime(seconds(start), seconds(start + hours * HOUR), gpus)


@pytest.mark.parametrize(
    ("every", "start", "end"),
    [
        ("day", date(2026, 11, 25), date(2026, 11, 26)),
        ("week", date(2026, 11, 23), date(2026, 11, 30)),
        ("month", date(2026, 11, 1), date(2026, 12, 1)),
        ("quarter", date(2026, 10, 1), date(2027, 1, 1)),
        ("year", date(2026, 1, 1), date(2027, 1, 1)),
    ],
)
def test_a_period_is_one_of_the_calendar(every: str, start: date, end: date) -> None:
    assert period_of(date(2026, 11, 25), every) == (start, end)


@given(st.dates(date(2000, 1, 1), date(2099, 1, 1)), st.sampled_from(["day", "week", "month", "quarter", "year"]))
def test_periods_follow_each_other(day: date, every: str) -> None:
    start, end = period_of(day, every)
    assert start <= day < end
    assert period_of(end, every)[0] == end
    assert period_of(end - DAY, every) == (start, end)


def test_what_is_left_is_carried_over_up_to_a_bound() -> None:
    # January: 100 of which 90 are used, 10 are left. February: 110, nothing used, 110 left, 20 are carried at most.
    used = {date(2026, 1, 5): 90, date(2026, 3, 1): 115}
    project_budget = budget(used, carry_over=20)
    carried = [project_budget.carried_into(date(2026, month, 1)) / AN_HOUR for month in range(1, 6)]
    assert carried == [0, 10, 20, 5, 20]
    assert budget(used).carried_into(date(2026, 4, 1)) == 0
    assert budget({date(2026, 1, 5): 500}, carry_over=20).carried_into(date(2026, 2, 1)) == 0  # no debt
    assert budget(used, carry_over=20, since="2026-03-01").carried_into(date(2026, 3, 1)) == 0
    assert budget(used, carry_over=20, since="2026-03-01").used_between(date(2026, 1, 1), date(2026, 3, 1)) == 0


def test_a_status_says_all_numbers() -> None:
    project_budget = budget({date(2026, 10, 5): 70, date(2026, 11, 2): 50}, carry_over=10)
    ahead = [window(NOON - HOUR, 2, 4), window(NOON + 5 * DAY, 72, 1)]  # one has begun; one goes on in December
    status = project_budget.status(NOON, ahead)
    assert (status.limit, status.carried, status.used) == (110 * AN_HOUR, 10 * AN_HOUR, 50 * AN_HOUR)
    assert status.ahead / AN_HOUR == 4 + 60
    assert status.left == 0
    assert status.percent == pytest.approx(100 * 50 / 110)
    assert (status.start, status.end) == (UTC_CLOCK.begin(date(2026, 11, 1)), UTC_CLOCK.begin(date(2026, 12, 1)))
    assert budget(gpu_hours=0).status(NOON).percent == 0
    assert budget({NOON.date(): 1}, gpu_hours=0).status(NOON).percent == 100


def test_a_booking_must_fit_into_each_period() -> None:
    project_budget = budget({date(2026, 11, 2): 90})
    assert project_budget.objections(window(NOON, 10), []) == []
    (text,) = project_budget.objections(window(NOON, 11), [])
    assert text == (
        "it takes 11.0 GPU-hours of the budget of project physics until Tue 2026-12-01 00:00 UTC, and 10.0 of 100.0 "
        "are left: 90.0 are used, 0.0 are booked"
    )
    (text,) = project_budget.objections(window(NOON, 10), [window(NOON + DAY, 5)])
    assert "5.0 of 100.0 are left: 90.0 are used, 5.0 are booked" in text
    over_the_end = window(datetime(2026, 11, 30, 20, tzinfo=NOON.tzinfo), 4 + 101)
    (text,) = project_budget.objections(over_the_end, [])
    assert "it takes 101.0 GPU-hours of the budget of project physics until Fri 2027-01-01" in text


def test_what_a_booking_that_is_on_has_used_does_not_count_twice() -> None:
    """Somebody who makes it longer asks for all of it, and what it has used so far is among what was used."""
    project_budget = budget({NOON.date(): 40})  # eight GPUs for five hours until now
    assert project_budget.objections(window(NOON - 5 * HOUR, 5 + 7.5, 8), []) == []
    (text,) = project_budget.objections(window(NOON - 5 * HOUR, 5 + 8, 8), [])
    assert "it takes 64.0 GPU-hours" in text
    assert "60.0 of 100.0 are left: 40.0 are used" in text


def test_a_booking_for_a_later_period_cannot_count_on_what_will_be_carried_over() -> None:
    project_budget = budget(carry_over=100, gpu_hours=100)
    assert project_budget.status(NOON).limit == 200 * AN_HOUR
    assert project_budget.objections(window(NOON, 150), []) == []
    (text,) = project_budget.objections(window(NOON + 10 * DAY, 150), [])
    assert "100.0 of 100.0 are left" in text


def test_periods_are_those_of_the_site_s_clocks() -> None:
    project_budget = budget(clock=ROME, every="day", gpu_hours=1)
    midnight = datetime(2026, 11, 23, 23, tzinfo=NOON.tzinfo)  # in Rome
    assert project_budget.objections(window(midnight - HOUR, 2), []) == []
    assert len(project_budget.objections(window(midnight - HOUR, 2, 2), [])) == 2


def test_use_fades_by_half() -> None:
    project_budget = budget({NOON.date() - 14 * DAY: 64}, half_life="14 days", until=NOON)
    day_end = seconds(UTC_CLOCK.begin(NOON.date() - 13 * DAY))
    middle = day_end - 12 * AN_HOUR
    assert project_budget.decayed(middle + 14 * 86400) / AN_HOUR == pytest.approx(32, rel=1e-3)
    assert project_budget.decayed(middle + 28 * 86400) / AN_HOUR == pytest.approx(16, rel=1e-3)
    assert project_budget.decayed(day_end) / AN_HOUR == pytest.approx(64, rel=0.03)


def test_with_a_half_life_no_moment_may_have_too_much() -> None:
    project_budget = budget(half_life="1 day", gpu_hours=24)
    ever = 24 / 0.6931  # GPU-hours that one GPU counts for when it is used for ever: its rate, times its mean life
    assert project_budget.objections(window(NOON, 24), []) == []
    assert ever > 24
    (text,) = project_budget.objections(window(NOON, 24 * 30), [])
    assert "which halves every 1 day" in text
    assert "may be 24.0" in text
    later = window(NOON + 2 * DAY, 20)
    assert project_budget.objections(window(NOON, 24), [later]) == []
    assert project_budget.objections(window(NOON + DAY, 24), [later])  # fits itself, and the one after it not any more


windows = st.builds(
    lambda start, length, gpus: BookedTime(seconds(NOON) + start, seconds(NOON) + start + length, gpus),
    st.integers(-86400, 40 * 86400),
    st.integers(1, 10 * 86400),
    st.integers(1, 8),
)
kinds = st.sampled_from([{"carry_over": 50}, {"every": "week"}, {"every": "day"}, {"half_life": "3 days"}])


@given(st.lists(windows, max_size=5), windows, kinds, st.integers(0, 200))
def test_what_does_not_fit_does_not_fit_with_more_beside_it(
    ahead: list[BookedTime], asked: BookedTime, kind: dict[str, Any], used: int
) -> None:
    """Less use, less booked, fewer GPUs: never a worse answer."""
    full = budget({NOON.date() - 2 * DAY: used}, **kind)
    empty = budget(**kind)
    if not full.objections(asked, ahead):
        assert not full.objections(asked, ahead[1:])
        assert not empty.objections(asked, ahead)
        assert not full.objections(asked._replace(gpus=max(1, asked.gpus - 1)), ahead)
        assert not full.objections(asked._replace(end=asked.start + (asked.end - asked.start + 1) // 2), ahead)


@given(st.lists(windows, max_size=4), windows, st.integers(1, 9))
def test_two_parts_are_as_good_as_the_whole(ahead: list[BookedTime], asked: BookedTime, tenths: int) -> None:
    """A booking fits exactly when its two parts do, one after the other."""
    project_budget = budget(every="week")
    cut = asked.start + max(1, (asked.end - asked.start) * tenths // 10)
    first, second = asked._replace(end=cut), asked._replace(start=cut)
    in_parts = not project_budget.objections(first, ahead) and (
        second.start >= second.end or not project_budget.objections(second, [*ahead, first])
    )
    assert in_parts == (not project_budget.objections(asked, ahead))


@given(
    st.dictionaries(st.dates(date(2026, 1, 1), date(2026, 11, 22)), st.integers(0, 300), max_size=20),
    st.integers(0, 150),
)
def test_what_is_carried_is_what_a_step_by_step_reckoning_says(used: dict[date, int], bound: int) -> None:
    project_budget = budget(used, carry_over=bound)
    carried = 0.0
    for month in range(1, 11):
        spent = sum(count for day, count in used.items() if day.month == month)
        carried = min(bound, max(0.0, 100 + carried - spent))
    assert project_budget.status(NOON).carried == carried * AN_HOUR


def test_the_ledger_refuses_what_does_not_fit_and_an_admin_may_override(tmp_path: Path) -> None:
    mine = budget({date(2026, 11, 2): 90}, until=NOON)
    ledger = open_ledger(tmp_path, clock=Clock(), allowance=lambda id, name: mine if id == ADA.project_id else None)
    ledger.create(ask(1, 4), ADA)
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(1, 4, 2, pool="t4"), ADA)  # of another pool: the budget is of all
    (reason,) = refused.value.answer.reasons
    assert reason.code == "budget"
    assert "6.0 of 100.0 are left: 90.0 are used, 4.0 are booked" in reason.text
    assert [reason.code for reason in ledger.check(ask(1, 7), ADA).reasons] == ["budget"]
    ledger.create(ask(1, 4, 2), BOB)  # who has none
    (made,) = ledger.create(ask(1, 4, 2, pool="t4"), ADA, by=ROOT, override=True)
    assert made.override
    (entry,) = [
        audit_entry for audit_entry in ledger.audit(query=AuditQuery()) if audit_entry.action == "booking.override"
    ]
    assert entry.rule == "budget"


def test_an_edit_counts_in_place_of_what_it_changes(tmp_path: Path) -> None:
    mine = budget({date(2026, 11, 2): 90})
    ledger = open_ledger(tmp_path, clock=Clock(), allowance=lambda id, name: mine)
    (made,) = ledger.create(ask(1, 8), ADA)
    longer = ledger.edit(made.id, ask(1, 10), ADA)
    with pytest.raises(RefusedError, match="budget of project physics"):
        ledger.edit(made.id, ask(1, 11), ADA, longer.version)
    assert ledger.edit(made.id, ask(1, 2), ADA).ask.gpu_hours == 2


def test_a_series_is_counted_as_a_whole(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, clock=Clock(), allowance=lambda id, name: budget({date(2026, 11, 2): 90}))
    with pytest.raises(RefusedError, match=r"on Thu 2026-11-26 13:00 UTC: it takes 3\.0 .* 1\.0 of 100\.0 are left"):
        ledger.create(ask(1, 3), ADA, repeat="FREQ=DAILY;COUNT=4")
    assert len(ledger.create(ask(1, 3), ADA, repeat="FREQ=DAILY;COUNT=3")) == 3


def test_what_has_ended_since_the_last_count_still_counts(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock=clock, allowance=lambda id, name: budget({date(2026, 11, 2): 90}))
    (made,) = ledger.create(ask(0, 8), ADA)
    clock.forward(1)
    ledger.upkeep.advance()
    clock.forward(5)
    ledger.end(made.id, ADA)
    assert ledger.check(ask(7, 4), ADA).yes  # 6 h were booked until now
    assert not ledger.check(ask(7, 5), ADA).yes
    assert timedelta(hours=6) == clock.now - NOON
