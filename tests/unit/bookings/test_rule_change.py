"""What changed rules would mean for bookings that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.model.booking import BookingState, QuietHours, Rules
from gpuyard.model.finding import Severity
from gpuyard.site.booking_rules import BookingRules, resolve
from tests.support.ledgers import ADA, BOB, DAY, HOUR, ROOT, Clock, ask, open_ledger

MINUTE = timedelta(minutes=1)
BEFORE = Rules(most_active=3, longest=10 * DAY)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path, BEFORE, clock)
    yield ledger
    ledger.close()


@pytest.fixture
def told(ledger: Ledger) -> Callable[..., list[tuple[str, str]]]:
    """Rule and severity of what changed rules of physics would take."""

    def told(zone: str = "UTC", **changes: object) -> list[tuple[str, str]]:
        after = replace(BEFORE, **changes)  # type: ignore[arg-type]
        findings = ledger.changed_rules({("v100", "physics"): after}, zone)
        return [(finding.payload["rule"], finding.severity.value) for finding in findings]

    return told


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"longest": 4 * HOUR}, ""),
        ({"longest": 4 * HOUR - MINUTE}, "too_long"),
        ({"ahead": 2 * HOUR}, ""),
        ({"ahead": 2 * HOUR - MINUTE}, "too_far"),
        ({"notice": 2 * HOUR}, ""),
        ({"notice": 2 * HOUR + MINUTE}, "too_soon"),
        ({"may_book": False}, "not_bookable"),
        ({"users": frozenset({"ada"})}, ""),
        ({"users": frozenset({"bob"})}, "not_among_users"),
        ({"gpu_hours_per_month": 4}, ""),
        ({"gpu_hours_per_month": 3}, "gpu_hours"),
        ({"quiet_hours": (QuietHours(14 * 60, 14 * 60 + 1),)}, "quiet_hours"),
        ({"quiet_hours": (QuietHours(15 * 60, 15 * 60 + 1),)}, ""),
        ({"quiet_hours": (QuietHours(15 * 60, 15 * 60 + 1),), "zone": "Europe/Rome"}, "quiet_hours"),
        ({"no_show": 4 * HOUR}, ""),
        ({"no_show": 4 * HOUR - MINUTE}, "no_show"),
        ({"no_show": None}, ""),
        ({"hold": 9 * MINUTE}, "hold"),
        ({"hold": 11 * MINUTE}, ""),
        ({"window": 14 * MINUTE}, ""),
        ({"window": 14 * MINUTE, "must_book": False}, "window"),
    ],
)
def test_each_rule(
    ledger: Ledger, clock: Clock, told: Callable[..., object], changes: dict[str, object], rule: str
) -> None:
    """Judged as when it was made, two hours before its start, however late the question comes."""
    ledger.create(ask(2), ADA)
    clock.forward(1.5)
    assert told(**changes) == ([(rule, "warning")] if rule else [])


def test_more_bookings_than_a_user_may_have(ledger: Ledger, told: Callable[..., object]) -> None:
    for start in (1, 10):
        ledger.create(ask(start), ADA)
    assert told(most_active=2) == []
    assert told(most_active=1) == [("too_many", "warning")] * 2


def test_what_the_rules_forbade_already_is_not_told(ledger: Ledger, told: Callable[..., object]) -> None:
    ledger.create(ask(1, hours=11 * 24), ROOT, override=True)
    after = {("v100", "admin"): replace(BEFORE, longest=5 * DAY)}
    assert ledger.changed_rules(after, "UTC") == []
    ledger.create(ask(1, hours=6 * 24), ROOT)
    assert [changed_rule.payload["rule"] for changed_rule in ledger.changed_rules(after, "UTC")] == ["too_long"]


def test_whoever_waits_gets_nothing_any_more(ledger: Ledger, told: Callable[..., object]) -> None:
    ledger.create(ask(1, gpus=4), BOB)
    (waits,) = ledger.create(ask(1, hours=5), ADA, wait=True)
    assert waits.state is BookingState.WAITING
    assert told(longest=4 * HOUR) == [("too_long", "error")]


def test_what_is_over_or_of_others_or_in_use_loses_nothing(
    ledger: Ledger, clock: Clock, told: Callable[..., object]
) -> None:
    (over,) = ledger.create(ask(1), ADA)
    ledger.cancel(over.id, ADA)
    ledger.create(ask(1, hours=5), BOB)
    assert told(longest=HOUR, hold=MINUTE, no_show=MINUTE) == []
    (used,) = ledger.create(ask(1), ADA)
    clock.forward(1)
    ledger.upkeep.advance()
    ledger.upkeep.record_claims({used.id: used.lanes})
    assert told(hold=MINUTE, no_show=MINUTE, window=MINUTE, must_book=False, notice=5 * HOUR) == []
    ledger.upkeep.record_claims({}, {used.id})
    assert told(no_show=MINUTE) == [("no_show", "warning")], "its server is gone"


def test_a_pool_that_leaves(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(1), ADA)
    (finding,) = ledger.changed_rules({("v100", "physics"): None, ("k80", "physics"): None}, "UTC")
    assert (finding.code, finding.severity, finding.object) == ("pool-gone", Severity.ERROR, f"booking {made.id}")


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(no_show=None, users=frozenset({"ada", "bob"}), gpu_hours_per_month=0, longest=90 * MINUTE),
        Rules(quiet_hours=(QuietHours(22 * 60, 6 * 60 + 30),), notice=26 * HOUR, users=frozenset(), must_book=False),
    ],
)
def test_rules_travel_in_the_words_of_the_site_file(rules: Rules) -> None:
    sent = BookingRules.of(rules).model_dump_json(exclude_none=True)
    assert resolve(site=BookingRules.model_validate_json(sent)) == rules
