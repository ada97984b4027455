"""Rules of bookings: how the site file spells them, and what they say at the edges."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from gpuyard.bookings.controllers.site_ledger import book_of, default_database
from gpuyard.bookings.policy import Usage, broken_rules, malformed, months
from gpuyard.bookings.recurrence import expand
from gpuyard.model.booking import Ask, BookingState, QuietHours, Reason, ReclaimAction, Rules, lasting
from gpuyard.model.booking_life import OPEN, TRANSITIONS, LifeError, next_states, require
from gpuyard.model.errors import UsageError
from gpuyard.openstack.people import shown
from gpuyard.site.booking_rules import BookingRules, SiteBooking, resolve
from tests.support.ledgers import ADA, DAY, HOUR, NOON, ask, names
from tests.support.sites import flavor, site

ROME = "Europe/Rome"


def test_later_layers_go_before_earlier_ones() -> None:
    site = SiteBooking.model_validate({"longest": "15 days", "most_active": 3, "reclaim": "delete"})
    pool = BookingRules.model_validate({"longest": "2 days", "no_show": False})
    project = BookingRules.model_validate({"must_book": False, "priority": 5, "users": ["ada"]})
    rules = resolve(site=site, pool=pool, project=project)
    assert rules == replace(
        Rules(),
        longest=2 * DAY,
        most_active=3,
        reclaim=ReclaimAction.DELETE,
        no_show=None,
        must_book=False,
        priority=5,
        users=frozenset({"ada"}),
    )
    assert resolve(site=SiteBooking.model_validate({})) == Rules()
    assert resolve(pool=BookingRules.model_validate({"no_show": True})).no_show == 4 * HOUR


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"longst": "3 days"}, "Extra inputs are not permitted"),
        ({"longest": "3"}, "write a whole number and a unit, as in '15 days'"),
        ({"longest": "0 min"}, "must be more than nothing"),
        ({"longest": "99999 days"}, "is more than 3660 days"),
        ({"longest": "-1 days"}, "is not a duration"),
        ({"quiet_hours": ["22-6"]}, "write it as in '22:00-06:00'"),
        ({"quiet_hours": ["25:00-06:00"]}, "write it as in '22:00-06:00'"),
        ({"quiet_hours": ["10:00-10:00"]}, "write it as in '22:00-06:00'"),
        ({"timezone": "Mars/Base"}, "there is no time zone 'Mars/Base'"),
        ({"reclaim": "kill"}, "Input should be"),
        ({"most_active": 0}, "greater than or equal to 1"),
        ({"most_active": "2"}, "valid integer"),
        ({"no_show": "soon"}, "is not a duration"),
    ],
)
def test_what_is_misspelt_is_an_error(stated: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SiteBooking.model_validate(stated)


def rome(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=ZoneInfo(ROME)).astimezone(UTC)


@pytest.mark.parametrize(
    ("start", "end", "broken"),
    [
        (rome(24, 9), rome(24, 22), 0),
        (rome(24, 9), rome(24, 22, 1), 1),
        (rome(24, 6), rome(25, 6), 0),
        (rome(24, 5, 59), rome(25, 9), 1),
        (rome(24, 23), rome(25, 3), 2),
        (rome(24, 21), rome(25, 9), 0),
    ],
)
def test_quiet_hours_are_of_the_site_s_zone_and_span_midnight(start: datetime, end: datetime, broken: int) -> None:
    rules = Rules(quiet_hours=(QuietHours(22 * 60, 6 * 60),))
    reasons = broken_rules(Ask("v100", start, end), rules, ADA, Usage(), ROME, NOON)
    assert names(reasons) == ["quiet_hours"] * broken


def test_gpu_hours_are_counted_in_each_month_that_a_booking_touches() -> None:
    rules = Rules(gpu_hours_per_month=24)
    start = datetime(2026, 11, 30, 20, tzinfo=UTC)
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    wish = Ask("v100", start, start + timedelta(hours=14), 2)
    assert list(months(wish.start, wish.end)) == [(november, december), (december, datetime(2027, 1, 1, tzinfo=UTC))]
    assert (
        broken_rules(wish, rules, ADA, Usage(booked_seconds={november: 16 * 3600, december: 4 * 3600}), "UTC", NOON)
        == []
    )
    (no,) = broken_rules(wish, rules, ADA, Usage(booked_seconds={december: 4 * 3600 + 1}), "UTC", NOON)
    assert no.code == "gpu_hours"
    assert "20.0 GPU-hours in December 2026" in no.text


def test_limits_are_inclusive() -> None:
    exact = Rules(longest=4 * HOUR, notice=HOUR, ahead=HOUR, most_active=2)
    assert broken_rules(ask(start=1, hours=4), exact, ADA, Usage(active=1), "UTC", NOON) == []


def test_a_booking_that_has_begun_is_not_too_early_or_too_late() -> None:
    strict = Rules(notice=DAY, ahead=2 * DAY)
    assert broken_rules(ask(start=-5, hours=9), strict, ADA, Usage(started=True), "UTC", NOON) == []
    assert malformed(ask(start=-5, hours=9), NOON, started=True) == []


def test_dates_at_the_end_of_time_are_refused() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert names(malformed(Ask("v100", NOON, last), NOON)) == ["too_far"]


@pytest.mark.parametrize(
    ("length", "text"),
    [(15 * DAY, "15 days"), (DAY + 6 * HOUR, "1 day 6 h"), (timedelta(minutes=30), "30 min"), (timedelta(0), "0 min")],
)
def test_lengths_in_words(length: timedelta, text: str) -> None:
    assert lasting(length) == text


def test_the_table_of_transitions_is_a_life() -> None:
    over = set(BookingState) - OPEN
    assert all(next_states(state) for state in OPEN)
    assert not any(next_states(state) for state in over)
    reached = {BookingState.REQUESTED, BookingState.WAITING, BookingState.CONFIRMED}
    while new := {to for state in reached for to in next_states(state)} - reached:
        reached |= new
    assert reached == set(BookingState)
    assert all(reason for reason in TRANSITIONS.values())


def test_a_transition_that_is_not_in_the_table_says_what_is() -> None:
    from tests.unit.bookings.test_ledger import booking

    with pytest.raises(LifeError, match="is ended and cannot become active: it is over"):
        require(booking(BookingState.ENDED), BookingState.ACTIVE)
    with pytest.raises(LifeError, match="is active and cannot become cancelled: it has begun: end it instead"):
        require(booking(BookingState.ACTIVE), BookingState.CANCELLED)


def test_weekly_bookings_keep_their_local_time_when_clocks_change() -> None:
    start = datetime(2027, 3, 22, 9, tzinfo=ZoneInfo(ROME))
    made = expand(Ask("v100", start.astimezone(UTC), (start + 3 * HOUR).astimezone(UTC)), "FREQ=WEEKLY;COUNT=3", ROME)
    assert isinstance(made, list)
    local = [
        (occurrence.start.astimezone(ZoneInfo(ROME)), occurrence.end.astimezone(ZoneInfo(ROME))) for occurrence in made
    ]
    assert [f"{a:%m-%d %H:%M}-{b:%H:%M}" for a, b in local] == [
        "03-22 09:00-12:00",
        "03-29 09:00-12:00",
        "04-05 09:00-12:00",
    ]
    assert [occurrence.start.hour for occurrence in made] == [8, 7, 7]


@pytest.mark.parametrize(
    "rule",
    ["FREQ=WEEKLY", "FREQ=SECONDLY;COUNT=3", "nonsense;COUNT=2", "FREQ=DAILY;COUNT=x", "FREQ=DAILY;COUNT=1000",
     "FREQ=WEEKLY;BYDAY=SU;COUNT=3", "FREQ=DAILY;COUNT=3\nDTSTART:20200101", "FREQ=DAILY;COUNT=3;FOO=1", "COUNT=3",
     "FREQ=YEARLY;UNTIL=99991231T000000Z", "FREQ=DAILY;UNTIL=x", "FREQ=DAILY;COUNT"],
)  # fmt: skip
def test_rules_that_make_no_sense_say_so(rule: str) -> None:
    result = expand(ask(), rule, "UTC")
    assert isinstance(result, Reason), result
    assert result.code == "repeat"


def test_until_in_utc_is_inclusive() -> None:
    made = expand(ask(start=0), "FREQ=DAILY;UNTIL=20261125T120000Z", ROME)
    assert isinstance(made, list)
    assert len(made) == 3
    assert isinstance(expand(ask(), "FREQ=DAILY;COUNT=2", "Nowhere/Land"), Reason)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"booking": {}, "gpu_quotas": False}, "bookings need limits on GPUs"),
        ({"booking": {}, "pci_in_placement": "report"}, "'gpuyard site rollout' says what it takes"),
        ({"projects": {"physics": {"booking": {"priority": 3}}}}, "projects.physics.booking: rules of bookings"),
    ],
)
def test_bookings_need_what_enforces_them(tmp_path: Path, stated: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        site(tmp_path, stated)


def test_a_project_that_sees_no_flavor_of_a_pool_cannot_book_there(tmp_path: Path) -> None:
    stated = {"booking": {"priority": 1}, "flavors": {"one": flavor(gpus={"v100": 1}, projects=["physics"])}}
    book = book_of(site(tmp_path, stated).compiled)
    assert book.rules("v100", "physics") == Rules(priority=1)
    assert not book.rules("v100", "biology").may_book
    assert default_database("lab", {"STATE_DIRECTORY": "/var/lib/gpuyard:/x"}) == "sqlite:////var/lib/gpuyard/lab.db"
    assert default_database("lab", {"HOME": "/home/ada"}) == "sqlite:////home/ada/.local/state/gpuyard/lab.db"


@pytest.mark.parametrize(
    ("project", "domains", "may"),
    [
        ("physics", [], True),
        ("unnamed", [], True),
        ("physics@evil", [], False),
        ("physics@evil", ["good"], False),
        ("physics@evil", ["evil"], True),
        ("physics@good@evil", ["good"], False),
        ("known@partner", [], True),
        ("physics@evil@default", [], True),
    ],
)
def test_projects_of_other_domains_book_where_they_are_named(
    tmp_path: Path, project: str, domains: list[str], may: bool
) -> None:
    stated = {"booking": {"domains": domains}, "projects": {"known@partner": {}}}
    book = book_of(site(tmp_path, stated).compiled)
    assert book.knows(project) is may
    rules = book.rules("v100", project)
    assert rules.may_book is may
    assert rules.origins.get("may_book") == (None if may else "domains")


def test_a_project_with_an_at_sign_shares_no_rules_with_one_of_another_domain(tmp_path: Path) -> None:
    stated = {"booking": {"domains": ["evil"]}, "projects": {"physics@evil": {"booking": {"priority": 7}}}}
    book = book_of(site(tmp_path, stated).compiled)
    evil, ours = (
        shown("physics", {"id": "0f", "name": "evil"}),
        shown("physics@evil", {"id": "default", "name": "Default"}),
    )
    assert [book.rules("v100", project).priority for project in (evil, ours, "physics")] == [7, 0, 0]
