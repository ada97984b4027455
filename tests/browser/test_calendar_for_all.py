# ruff: noqa: RUF001
"""The booking calendar for keys, fingers, small screens, all eyes, and clocks everywhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from gpuyard.bookings.records import Overstay
from gpuyard.model.booking import Ask, ReclaimAction
from gpuyard.web.store import PortalStore
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
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, ask
from tests.unit.server.test_portal_server import until

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
    site.ledger.upkeep.set_troubles({6: "lost: nova-compute does not report it"})
    site.clock.forward(6)
    site.ledger.upkeep.advance()
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
    site.ledger.upkeep.set_troubles({6: "lost: nova-compute does not report it"})
    page = visits.enter(site)
    row = page.locator(".tl-row.tl-trouble")
    expect(row).to_contain_text("lost: nova-compute does not report it")
    expect(track(page, "pool t4")).to_have_attribute("aria-label", "pool t4, 1 of 1 GPU free")
    (made,) = site.ledger.create(ask(24, 24, pool="t4"), BOB)
    page.evaluate("void load()")
    expect(event(page, made)).to_be_visible()
    expect(track(page, "pool t4").locator(".tl-free em")).to_have_text(["1 free", "none free", "1 free"])


def test_gpus_are_counted_where_slots_have_several(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(track(page, "pool v100")).to_have_attribute("aria-label", "pool v100, 6 of 6 GPUs free")
    (made,) = site.ledger.create(ask(24, 24, gpus=3), BOB)
    page.evaluate("void load()")
    expect(event(page, made)).to_be_visible()
    expect(track(page, "pool v100").locator(".tl-free em")).to_have_text(["6 free", "2 free", "6 free"])


def test_what_is_looked_for_is_shown_and_all_is_counted(site: Site, visits: Visits) -> None:
    site.ledger.create(ask(24, 24, comment="thesis of zoe"), BOB)
    site.ledger.create(ask(24, 24, pool="t4"), ADA)
    page = visits.enter(site)
    rows = page.locator(".tl-track[data-lane]")
    expect(rows).to_have_count(6)
    page.locator("#find").fill("ZOE")
    expect(rows).to_have_count(1)
    expect(track(page, "pool v100")).to_have_attribute("aria-label", re.compile("of 6 GPUs free"))
    page.locator("#find").fill("")
    page.locator("#only-mine").check()
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-pool", "t4")
    page.locator("#only-mine").uncheck()
    page.locator(".tl-host button").first.click()
    expect(rows).to_have_count(2)
    page.locator(".tl-host button").first.click()
    expect(rows).to_have_count(6)


def test_rows_of_a_host_are_folded_with_keys(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    rows, head = page.locator(".tl-track[data-lane]"), page.locator(".tl-host button").first
    expect(head).to_be_visible()
    page.locator("#book").focus()
    page.keyboard.press("Tab")
    expect(track(page, "pool v100")).to_be_focused()
    page.keyboard.press("Tab")
    expect(head).to_be_focused()
    for key, shown in (("Enter", 2), ("Space", 6)):
        page.keyboard.press(key)
        expect(rows).to_have_count(shown)
        expect(head).to_have_attribute("aria-expanded", str(shown == 6).lower())
        expect(head).to_be_focused()  # although it was drawn again


def test_a_narrow_booking_says_who_has_it(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 0.25, comment="short"), BOB)
    page = visits.enter(site)
    event(page, made).hover()
    expect(page.locator("#say")).to_contain_text("bob, biology")
    expect(page.locator("#say")).to_be_visible()


def test_keys_say_what_the_mouse_does_also_where_there_is_trouble(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(0, 0.25, pool="t4", comment="short"), BOB)
    site.ledger.upkeep.set_troubles(dict.fromkeys((5, 6), "lost: nova-compute does not report it"))
    page = visits.enter(site)
    row, live_region = track(page, f"lane {made.lanes[0]}"), page.locator("#say")
    expect(event(page, made)).to_have_attribute("title", re.compile("^bob, biology, 1 × t4, .*, short$"))
    row.focus()
    page.keyboard.press("Home")
    expect(live_region).to_have_text(re.compile(": lost: nova-compute does not report it$"))
    for _ in range(4):  # of three hours each, to noon
        page.keyboard.press("ArrowRight")
    expect(live_region).to_have_text(
        re.compile(f": lost: nova-compute does not report it; {event(page, made).get_attribute('title')}$")
    )


def test_the_form_has_now_and_an_hour(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    page.locator("#book").click()
    form(page).get_by_role("button", name="now").click()
    form(page).get_by_role("button", name="1 h").click()
    expect(form(page).get_by_label("From")).to_have_value(f"{NOON:%Y-%m-%dT%H:%M}")
    expect(form(page).get_by_label("To", exact=True)).to_have_value(f"{NOON + HOUR:%Y-%m-%dT%H:%M}")
    fits(page)


def test_who_may_not_book_is_told_why(site: Site, visits: Visits) -> None:
    page = visits.enter(site, EVE)
    expect(page.locator("main .notice").first).to_contain_text("that takes the role member")


def test_a_map_whose_session_is_over_leads_to_the_login(site: Site, visits: Visits) -> None:
    page = visits.enter(site, path="")
    expect(page.locator("#link")).to_have_attribute("data-link", re.compile("live|behind"))
    PortalStore(site.ledger.database).delete_sessions(ADA.user_id)
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


def test_sentences_of_the_server_are_in_the_zone_of_the_page(site: Site, visits: Visits) -> None:
    due = at("2026-11-24T23:30")
    site.ledger.upkeep.records.put_overstay(
        Overstay("s1", "vm", "t4", ADA.user_id, "p", "must_book", ReclaimAction.STOP, NOON, warned=NOON, due=due)
    )
    site.ledger.create(Ask("t4", due, due + HOUR, comment="not before 2026-11-24 23:30 UTC"), ADA)
    page = visits.enter(site, path="bookings", zone="Asia/Kolkata")
    expect(page.locator("#zone-name")).to_have_text("Asia/Calcutta (GMT+5:30)")
    expect(page.locator("#cases .urgent")).to_contain_text("at Wed 25 Nov, 05:00.")
    expect(page.locator("#cases")).to_contain_text("Wed 25 Nov, 05:00: this server")
    expect(page.locator("#cases")).not_to_contain_text("UTC")
    expect(page.locator("#upcoming .comment")).to_have_text("not before 2026-11-24 23:30 UTC")  # is not the server's
    page = visits.enter(site, ROOT, path="admin", zone="Asia/Kolkata")
    expect(page.locator("#zone-name")).to_have_text("Asia/Calcutta (GMT+5:30)")
    expect(page.locator("#audit tr")).to_contain_text("from Wed 25 Nov, 05:00 until Wed 25 Nov, 06:00")


def test_an_admin_reads_all_of_the_log_on_a_phone(site: Site, visits: Visits) -> None:
    site.ledger.create(ask(24, 20), ADA)
    page = visits.enter(site, ROOT, path="admin", width=360)
    cells = page.locator("#audit td:not(:empty)")
    expect(cells.first).to_be_visible()
    for box in (box_of(cell) for cell in cells.all()):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


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
    timestamps = []
    for number in range(days + 1):
        day = (first + timedelta(days=number)).replace(tzinfo=ZoneInfo(zone))
        moment = day.astimezone(UTC)
        while moment.astimezone(ZoneInfo(zone)).date() < day.date():
            moment += timedelta(minutes=1)
        timestamps.append(moment.timestamp() * 1000)
    return timestamps


@pytest.mark.parametrize("zone", ZONES)
def test_days_begin_when_python_says_so(site: Site, visits: Visits, zone: str) -> None:
    page = visits.enter(site)
    expected = midnights(zone, datetime(2026, 1, 1), 800)  # noqa: DTZ001
    day_starts: list[float] = page.evaluate(
        "([zone, start, end]) => new Zone(zone).days(start, end)", [zone, expected[0], expected[-1]]
    )
    assert day_starts == expected
    hours = [expected[0] + 6 * 3600_000 * number for number in range(3200)]
    walls: list[str] = page.evaluate("([zone, hours]) => hours.map((at) => new Zone(zone).input(at))", [zone, hours])
    assert walls == [f"{datetime.fromtimestamp(hour / 1000, ZoneInfo(zone)):%Y-%m-%dT%H:%M}" for hour in hours]


def test_pages_are_not_for_everybodys_cache(site: Site, visits: Visits) -> None:
    answer: Any = visits.enter(site).request.get(f"{site.url}calendar")
    assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in answer.headers["content-security-policy"]
