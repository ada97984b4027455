# ruff: noqa: RUF001
"""The booking calendar for keys, fingers, small screens, all eyes, and clocks everywhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from gpuyard.model.booking import Ask
from tests.browser.calendars import (
    TUESDAY,
    Site,
    Visits,
    at,
    booked,
    box_of,
    choice,
    drag,
    event,
    fits,
    form,
    lane,
    only,
    track,
    where,
    x_of,
)
from tests.browser.test_map import CONTRAST, STRUCTURE
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, ask
from tests.unit.test_portal_server import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_booking_with_keys_only(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(track(page, "pool v100")).to_be_visible()
    page.locator("#book").focus()
    page.keyboard.press("Tab")
    expect(track(page, "pool v100")).to_be_focused()
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    expect(lane(page, "t4")).to_be_focused()
    for _ in range(8):  # of three hours each, from noon
        page.keyboard.press("ArrowRight")
    expect(page.locator("#say")).to_have_text("Tue 24 Nov, 12:00, gpu-2 0000:18:00.0: free")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Enter")
    expect(form(page).get_by_label("From")).to_have_value("2026-11-24T12:00")
    expect(form(page).get_by_label("To", exact=True)).to_have_value("2026-11-25T00:00")
    fits(page)
    expect(form(page).get_by_label("From")).to_be_focused()
    page.keyboard.press("Enter")
    expect(form(page)).to_be_hidden()
    made = only(site)
    assert (made.ask.start, made.ask.end) == (NOON + DAY, NOON + 36 * HOUR)
    expect(lane(page, "t4")).to_be_focused()  # one is where one was
    if made.lanes != (5,):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#details-title")).to_have_text("Your booking")
    page.keyboard.press("Escape")
    expect(page.locator(".tl-track:focus")).to_have_count(1)
    page.keyboard.press("PageDown")
    expect(page.locator("#range")).to_have_text("30 Nov – 6 Dec 2026")


def test_several_rows_are_selected_with_keys(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    lane(page, "v100 lone").focus()
    for keys in ["ArrowRight"] * 8 + ["Shift+ArrowRight"] * 3 + ["Shift+ArrowDown"] * 2:
        page.keyboard.press(keys)  # the second row down is another pool's, and is left out
    expect(page.locator(".tl-cursor")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(form(page).get_by_label("GPUs", exact=True)).to_have_value("2")
    expect(form(page).get_by_label("From")).to_have_value("2026-11-24T12:00")
    expect(form(page).get_by_label("To", exact=True)).to_have_value("2026-11-25T00:00")


def test_the_focus_stays_although_the_calendar_is_drawn_again(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20), ADA)
    page = visits.enter(site)
    event(page, made).click()
    site.ledger.create(ask(24, 20), BOB)
    page.evaluate("load()")
    expect(page.locator(".tl-event.others.booking")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(event(page, made)).to_be_focused()


def test_fingers(site: Site, visits: Visits) -> None:
    """A tap opens; a long press and a move select, and do not scroll."""
    (made,) = site.ledger.create(ask(24, 20), BOB)
    page = visits.enter(site, touch=True)
    expect(event(page, made)).to_be_visible()
    event(page, made).tap()
    expect(page.locator("#details-title")).to_have_text("Booking of bob")
    page.get_by_role("button", name="Close").tap()
    box = box_of(lane(page, "t4"))
    fingers = page.context.new_cdp_session(page)

    def touch(kind: str, moment: datetime) -> None:
        points = [] if kind == "touchEnd" else [{"x": x_of(page, moment), "y": box["y"] + 10}]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", TUESDAY + 2 * HOUR)
    until(lambda: bool(page.evaluate("timeline.drag?.moving")))
    for hours in range(3, 12):
        touch("touchMove", TUESDAY + hours * HOUR)
    touch("touchEnd", TUESDAY)
    expect(form(page).get_by_label("From")).to_have_value("2026-11-24T02:00")
    expect(form(page).get_by_label("To", exact=True)).to_have_value(re.compile("2026-11-24T1[0-2]:00"))


def test_a_phone_gets_a_list_and_can_book(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20, comment="a comment"), BOB)
    page = visits.enter(site, width=375)
    expect(page.locator(".agenda-day")).to_have_count(7)
    expect(page.locator(f'[data-key="1 {made.id}"]')).to_contain_text("bob1 × v100, booked")
    for view in ("Day", "Week", "Month", "List"):
        page.get_by_role("button", name=view, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, view
    page.get_by_role("button", name="Book t4 on Wed 25 Nov").click()
    box = box_of(form(page))
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375
    expect(form(page).get_by_label("From")).to_have_value("2026-11-25T00:00")
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    until(lambda: len(booked(site, user_id=ADA.user_id)) == 1)
    for path in ("bookings", ""):
        page.goto(f"{site.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def busy(site: Site) -> None:
    """Bookings in every state that is shown."""
    site.ledger.create(ask(1, 4, comment="over soon"), ADA)
    site.ledger.create(ask(1, 40, 2, same_group=True), BOB)
    site.ledger.create(ask(1, 30, 2, "t4"), BOB)
    site.ledger.create(ask(2, 3, pool="t4", comment="waits"), ADA, wait=True)
    site.ledger.create(ask(60, 30, 3, comment="a long comment " * 8), ADA)
    site.ledger.hold(["gpu-3/0000:18:00.0"], NOON + 3 * DAY, NOON + 4 * DAY, ROOT, "fan")
    site.ledger.troubles({6: "lost: nova-compute does not report it"})
    site.clock.forward(6)
    site.ledger.advance()
    site.ledger.create(ask(8, 40), ADA)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_by_everybody(site: Site, visits: Visits, scheme: str) -> None:
    busy(site)
    page = visits.enter(site, ROOT, scheme=scheme)
    for path in ("calendar?view=day", "calendar?view=week", "calendar?view=month", "calendar?view=list"):
        page.goto(f"{site.url}{path}")
        expect(page.locator(".tl-event").first).to_be_visible()
        until(lambda: bool(page.evaluate("page.etag")))
        assert page.evaluate(CONTRAST) == [], path
        assert page.evaluate(STRUCTURE) == [], path
    page.locator(".entry").first.click()
    assert page.evaluate(CONTRAST) == []
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Book GPUs…").click()
    fits(page)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    for path in ("bookings", "admin"):
        page.goto(f"{site.url}{path}")
        expect(page.locator("#past, #audit tr").first).not_to_be_empty()
        assert page.evaluate(CONTRAST) == [], path
        assert page.evaluate(STRUCTURE) == [], path
        assert page.evaluate(NAMELESS) == [], path


NAMELESS = """() => [...document.querySelectorAll('button, input, select, [tabindex]')]
  .filter((e) => e.checkVisibility() && !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby'))
  .filter((e) => !e.textContent.trim() && !e.labels?.length)
  .map((e) => e.outerHTML.slice(0, 80))"""


def test_rows_in_trouble_say_why_and_free_capacity_leaves_them_out(site: Site, visits: Visits) -> None:
    site.ledger.troubles({6: "lost: nova-compute does not report it"})
    page = visits.enter(site)
    row = page.locator(".tl-row.tl-trouble")
    expect(row).to_contain_text("lost: nova-compute does not report it")
    expect(track(page, "pool t4")).to_have_attribute("aria-label", "pool t4, 1 of 1 free")
    (made,) = site.ledger.create(ask(24, 24, pool="t4"), BOB)
    page.evaluate("void load()")
    expect(event(page, made)).to_be_visible()
    expect(track(page, "pool t4").locator(".tl-free em")).to_have_text(["1 free", "none free", "1 free"])


def test_where_slots_have_several_gpus_it_is_slots_that_are_free(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(track(page, "pool v100")).to_have_attribute("aria-label", "pool v100, 4 of 4 slots free")
    (made,) = site.ledger.create(ask(24, 24, gpus=3), BOB)
    page.evaluate("void load()")
    expect(event(page, made)).to_be_visible()
    expect(track(page, "pool v100").locator(".tl-free em")).to_have_text(
        ["4 slots free", "1 slot free", "4 slots free"]
    )


def test_a_map_whose_session_is_over_leads_to_the_login(site: Site, visits: Visits) -> None:
    page = visits.enter(site, path="")
    expect(page.locator("#link")).to_have_attribute("data-link", re.compile("live|behind"))
    site.ledger.store.delete_sessions(ADA.user_id)
    page.evaluate("source.close(); connect()")  # as after a stream that was ended
    page.wait_for_url("**/login")
    expect(page.get_by_label("User")).to_be_visible()
    visits.errors[:] = [error for error in visits.errors if "status of 401" not in error]


# Time zones


def test_times_are_the_viewers_and_can_be_those_of_utc(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(Ask("t4", at("2026-11-24T22:30"), at("2026-11-25T01:00")), ADA)
    page = visits.enter(site, zone="Asia/Kolkata")
    expect(page.locator("#zone option").first).to_have_text("Asia/Calcutta (GMT+5:30)")
    event(page, made).click()
    expect(page.locator("#details-facts")).to_contain_text("Wed 25 Nov, 04:00 – 06:30")
    expect(page.locator("#details-facts")).to_contain_text("2026-11-24 22:30 – 2026-11-25 01:00")
    page.get_by_role("button", name="Close").click()
    choice(page, "Time zone").select_option("UTC")
    event(page, made).click()
    expect(page.locator("#details-facts")).to_contain_text("Tue 24 Nov, 22:30 – Wed 25 Nov, 01:00")
    page.reload()
    expect(choice(page, "Time zone")).to_have_value("UTC")  # it is remembered


@where(now=at("2026-10-24T12:00"))
def test_the_hour_that_comes_twice(site: Site, visits: Visits) -> None:
    page = visits.enter(site, path="calendar?view=day&date=2026-10-25", zone="Europe/Rome")
    expect(page.locator(".tl-axis span")).to_have_count(25)
    expect(page.locator(".tl-axis span").nth(2)).to_have_text("02 CEST")
    expect(page.locator(".tl-axis span").nth(3)).to_have_text("02 CET")
    drag(page, lane(page, "t4"), at("2026-10-25T00:00"), at("2026-10-25T01:30"))
    expect(form(page).get_by_label("From")).to_have_value("2026-10-25T02:00")
    expect(form(page).get_by_label("To", exact=True)).to_have_value("2026-10-25T02:30")
    expect(form(page).get_by_label("First or second time: end")).to_have_value("1")
    expect(page.locator("#f-length")).to_have_text("1 h 30 min")
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    until(lambda: len(booked(site)) == 1)
    made = only(site)
    assert (made.ask.start, made.ask.end) == (at("2026-10-25T00:00"), at("2026-10-25T01:30"))
    expect(event(page, made)).to_be_visible()
    box = box_of(event(page, made))
    assert box["width"] == pytest.approx(x_of(page, made.ask.end) - x_of(page, made.ask.start), abs=1)
    event(page, made).click()
    page.get_by_role("button", name="Change…").click()
    form(page).get_by_label("First or second time: end").select_option("0")
    expect(page.locator("#f-length")).to_have_text("30 min")


@where(now=at("2027-03-27T12:00"))
def test_the_hour_that_does_not_come(site: Site, visits: Visits) -> None:
    page = visits.enter(site, path="calendar?view=day&date=2027-03-28", zone="Europe/Rome")
    expect(page.locator(".tl-axis span")).to_have_count(23)
    page.get_by_role("button", name="Book GPUs…").click()
    form(page).get_by_label("From").fill("2027-03-28T02:30")
    expect(page.locator("#fit")).to_contain_text("Clocks in Europe/Rome skip 02:30 on that day; write 03:00 or later.")
    page.get_by_role("button", name="Book", exact=True).click()
    assert booked(site) == []


ZONES = (
    "UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo",
    "Asia/Kathmandu", "Pacific/Apia", "Pacific/Chatham",
)  # fmt: skip


def midnights(zone: str, first: datetime, days: int) -> list[float]:
    """The first moment of each day, by Python; where midnight is skipped, the moment at which clocks skip it."""
    found = []
    for number in range(days + 1):
        day = (first + timedelta(days=number)).replace(tzinfo=ZoneInfo(zone))
        moment = day.astimezone(UTC)
        while moment.astimezone(ZoneInfo(zone)).date() < day.date():
            moment += timedelta(minutes=1)
        found.append(moment.timestamp() * 1000)
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_days_begin_when_python_says_so(site: Site, visits: Visits, zone: str) -> None:
    page = visits.enter(site)
    expected = midnights(zone, datetime(2026, 1, 1), 800)  # noqa: DTZ001
    found: list[float] = page.evaluate(
        "([zone, start, end]) => new Zone(zone).days(start, end)", [zone, expected[0], expected[-1]]
    )
    assert found == expected
    hours = [expected[0] + 6 * 3600_000 * number for number in range(3200)]
    walls: list[str] = page.evaluate("([zone, hours]) => hours.map((at) => new Zone(zone).input(at))", [zone, hours])
    assert walls == [f"{datetime.fromtimestamp(hour / 1000, ZoneInfo(zone)):%Y-%m-%dT%H:%M}" for hour in hours]


def test_pages_are_not_for_everybodys_cache(site: Site, visits: Visits) -> None:
    answer: Any = visits.enter(site).request.get(f"{site.url}calendar")
    assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in answer.headers["content-security-policy"]
