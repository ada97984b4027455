"""The pages about bookings have every rule, reason, state and event that the code has."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import gpuyard
from gpuyard.client.times import parse_time
from gpuyard.model.booking import BookingState, ReclaimAction
from gpuyard.model.events import EVENTS
from gpuyard.notifications.mail import PASSWORD
from gpuyard.site.booking_rules import BookingRules, SiteBooking

SOURCES = Path(gpuyard.__file__).parent
PAGES = SOURCES.parents[1] / "docs/how-to"


def page(name: str) -> str:
    return (PAGES / name).read_text()


def first_cells(text: str) -> set[str]:
    """Every `word` in the first cells of a page's tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def codes() -> set[str]:
    """Codes of all reasons that the ledger makes, out of its source."""
    reason_codes = set()
    for path in [*(SOURCES / "bookings").glob("*.py"), *(SOURCES / "bookings/ledger").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason":
                code = node.args[0]
                if isinstance(code, ast.Attribute):  # a reason that is said again in other words
                    continue
                assert isinstance(code, ast.Constant), path
                reason_codes.add(str(code.value))
    return reason_codes


def test_every_reason_of_a_refusal_is_explained() -> None:
    assert {"full", "too_long", "no_role"} <= codes()
    assert codes() - first_cells(page("book-a-gpu.md")) == set()


def test_every_state_is_explained() -> None:
    assert {state.value for state in BookingState} <= first_cells(page("book-a-gpu.md"))


def test_every_rule_is_explained() -> None:
    words = first_cells(page("run-bookings.md"))
    assert set(SiteBooking.model_fields) - set(BookingRules.model_fields) - words == set()
    assert {action.value for action in ReclaimAction} <= words


def test_every_event_is_explained() -> None:
    assert {f"gpu.{kind}" for kind in EVENTS} == {
        word for word in first_cells(page("receive-events.md")) if word.startswith("gpu.")
    }


@pytest.mark.parametrize("name", ["book-a-gpu.md", "run-bookings.md"])
def test_times_in_examples_are_times(name: str) -> None:
    times = re.findall(r"--(?:start|end) ('[^']+'|\S+)", page(name))
    assert times
    for text in times:
        parse_time(text.strip("'"), ZoneInfo("Europe/Rome"), datetime(2026, 11, 1, tzinfo=UTC))


def test_variables_are_named_as_they_are() -> None:
    assert PASSWORD in page("run-bookings.md")
    assert "GPUYARD_WEBHOOK_SECRET" in page("receive-events.md")
    assert "GPUYARD_URL" in page("book-a-gpu.md")
