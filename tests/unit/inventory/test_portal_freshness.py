"""Whether what is shown can be trusted, and how that is said."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.freshness import ERROR_LENGTH, allowed_age, degraded, pulse, unready
from gpuyard.runtime.control_loops import LoopStatus
from tests.support.inventories import NOON, STATUSES

VIEW = InventoryView(1, NOON, STATUSES)


def loop(
    age: float | None = 0, error: str = "", period: float = 1.0, jump: float = 0.0, essential: bool = True
) -> LoopStatus:
    success = None if age is None else NOON - timedelta(seconds=age)
    return LoopStatus(
        "look", "looks at the cloud", period, essential, 5, int(bool(error)), success, 0.1, "timer", error, age, jump
    )


@pytest.mark.parametrize(("period", "allowed"), [(0.1, 30), (3, 30), (60, 600)])
def test_a_loop_may_miss_some_runs(period: float, allowed: float) -> None:
    assert allowed_age(loop(period=period)) == allowed


def test_ready_when_the_cloud_was_seen_and_no_loop_is_late() -> None:
    assert unready(VIEW, [loop(), loop(29, "boom")]) == []


def test_unready_until_the_cloud_was_seen() -> None:
    assert unready(None, [loop(None)]) == [
        "the cloud has not been seen yet",
        "loop look has not had a good run yet",
    ]


def test_unready_when_a_loop_is_late_and_why() -> None:
    assert unready(VIEW, [loop(), loop(31, "boom")]) == [
        "loop look had its last good run 31 s ago, more than 30 s: boom"
    ]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (loop(None, "GitHub is away", essential=False), "loop look has not had a good run yet: GitHub is away"),
        (loop(31, "boom", essential=False), "loop look had its last good run 31 s ago, more than 30 s: boom"),
        (
            loop(jump=60, essential=False),
            "the clock went forward by 0:01:00, and loop look has not had a good run since",
        ),
    ],
)
def test_a_late_loop_that_is_not_essential_degrades_the_portal_and_leaves_it_ready(
    status: LoopStatus, reason: str
) -> None:
    assert (unready(VIEW, [loop(), status]), degraded([loop(), status])) == ([], [reason])


def test_unready_until_a_jump_of_the_clock_is_planned_from() -> None:
    assert unready(VIEW, [loop(), loop(jump=-7200.2)]) == [
        "the clock went back by 2:00:00, and loop look has not had a good run since"
    ]


def test_the_pulse_says_when_the_cloud_was_seen() -> None:
    beat = pulse(VIEW, [loop()], NOON)
    assert (beat.seen, beat.seen_iso, beat.troubles) == ("12:03:10 UTC", "2026-11-21T12:03:10Z", ())
    assert pulse(None, [loop(None)], NOON) == pulse(None, [], NOON)


@pytest.mark.parametrize(
    ("status", "text", "stale"),
    [
        (loop(2, "refused"), "The cloud has not answered since 12:03:08 UTC: refused", False),
        (loop(60, "refused"), "The cloud has not answered since 12:02:10 UTC: refused", True),
        (loop(None, "refused"), "The cloud has not answered yet: refused", True),
        (loop(60), "The cloud has not answered since 12:02:10 UTC: the loop 'look' is still waiting.", True),
        (
            loop(60, "401", essential=False),
            "The loop 'look' has not succeeded since 12:02:10 UTC: 401",
            False,
        ),
        (loop(None, "401", essential=False), "The loop 'look' has not succeeded yet: 401", False),
        (
            loop(60, essential=False),
            "The loop 'look' has not succeeded since 12:02:10 UTC: it is still waiting.",
            False,
        ),
        (loop(2, "two\n  lines"), "The cloud has not answered since 12:03:08 UTC: two lines", False),
    ],
)
def test_troubles(status: LoopStatus, text: str, stale: bool) -> None:
    (trouble,) = pulse(VIEW, [status], NOON).troubles
    assert (trouble.text, trouble.stale) == (text, stale)


def test_an_endless_error_is_cut() -> None:
    (trouble,) = pulse(VIEW, [loop(2, "x" * 10_000)], NOON).troubles
    assert len(trouble.text) < ERROR_LENGTH + 60
    assert trouble.text.endswith("…")


def test_the_same_trouble_stays_the_same_while_time_goes_by() -> None:
    """Or the page would tell it again every second to those who listen to it."""
    status = loop(40, "refused")

    def said(at: datetime) -> object:
        return pulse(VIEW, [status], at).troubles

    assert said(NOON) == said(NOON + timedelta(seconds=100))
