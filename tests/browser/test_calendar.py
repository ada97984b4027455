# ruff: noqa: RUF001
"""The booking calendar in a real browser, on the real ledger: what people book, change, wait for and are told."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from gpuyard.model.booking import Ask, BookingState, Rules
from tests.browser.calendars import (
    TUESDAY,
    WEDNESDAY,
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
    serving,
    track,
    where,
    x_of,
)
from tests.support.inventories import NASTY
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, ask
from tests.unit.server.test_portal_server import until

pytestmark = pytest.mark.browser


# Booking


def test_a_drag_over_free_time_books(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    drag(page, lane(page, "v100 lone"), TUESDAY + 9 * HOUR, WEDNESDAY + 17 * HOUR)
    expect(form(page)).to_be_visible()
    expect(choice(form(page), "Pool")).to_have_value("v100")
    expect(form(page).get_by_label("From")).to_have_value("2026-11-24T09:00")
    expect(form(page).get_by_label("To", exact=True)).to_have_value("2026-11-25T17:00")
    expect(page.locator("#f-length")).to_have_text("1 d 8 h")
    form(page).get_by_label("Comment").fill("for the paper")
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    expect(page.locator("#toast")).to_contain_text("1 × v100, Tue 24 Nov, 09:00 – Wed 25 Nov, 17:00, is booked.")
    made = only(site)
    assert (made.ask.start, made.ask.end) == (TUESDAY + 9 * HOUR, WEDNESDAY + 17 * HOUR)
    assert (made.user, made.project, made.ask.comment) == ("ada", "physics", "for the paper")
    expect(event(page, made)).to_have_class("tl-event is-confirmed booking mine can-move")
    expect(event(page, made)).to_contain_text("for the paper")


def test_a_drag_over_several_rows_books_as_many_gpus(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    drag(page, lane(page, "t4"), TUESDAY, WEDNESDAY, to=track(page, "lane 6"))
    expect(form(page).get_by_label("GPUs", exact=True)).to_have_value("2")
    expect(choice(form(page), "Which GPU")).to_have_value("")
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    until(lambda: len(booked(site)) == 1)
    assert set(only(site).lanes) == {5, 6}


def test_the_row_of_a_group_books_the_whole_group(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(page.locator(".tl-row", has=lane(page, "v100 pair"))).to_contain_text("2 GPUs, one group")
    drag(page, lane(page, "v100 pair"), TUESDAY, WEDNESDAY)
    expect(form(page).get_by_label("GPUs", exact=True)).to_have_value("2")
    expect(form(page).get_by_label("one whole group")).to_be_checked()
    fits(page)


def test_a_no_has_its_reason_and_what_else_would_be_possible(site: Site, visits: Visits) -> None:
    site.ledger.create(ask(2, 30, 2, "t4"), BOB)
    page = visits.enter(site)
    page.get_by_role("button", name="Book GPUs…").click()
    choice(form(page), "Pool").select_option("t4")
    form(page).get_by_label("From").fill("2026-11-23T16:00")
    form(page).get_by_label("To", exact=True).fill("2026-11-23T20:00")
    expect(page.locator("#fit.bad")).to_contain_text("t4")
    alternative = page.locator("#fit .alternative").first
    expect(alternative).to_have_text("from Tue 24 Nov, 20:00")
    page.get_by_role("button", name="Book", exact=True).click()  # the answer of the booking itself is as good
    expect(page.locator("#fit.bad .alternative").first).to_be_visible()
    assert [booking.user for booking in booked(site)] == ["bob"]
    alternative.click()
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    expect(form(page)).to_be_hidden()
    made = only(site, user_id=ADA.user_id)
    assert (made.ask.start, made.ask.end) == (at("2026-11-24T20:00"), at("2026-11-25T00:00"))


def test_one_pool_is_shown_and_others_can_be_booked(site: Site, visits: Visits) -> None:
    page = visits.enter(site, path="calendar?pool=t4")
    expect(page.locator(".tl-pool b")).to_have_text(["t4"])
    expect(choice(page.locator("main"), "Pool").locator("option")).to_have_text(["all pools", "v100", "t4"])
    page.get_by_role("button", name="Book GPUs…").click()
    expect(choice(form(page), "Pool")).to_have_value("t4")
    choice(form(page), "Pool").select_option("v100")
    fits(page)
    page.keyboard.press("Escape")
    choice(page.locator("main"), "Pool").select_option("")
    expect(page.locator(".tl-pool b")).to_have_text(["v100", "t4"])


def test_recurring_bookings(site: Site, visits: Visits) -> None:
    page = visits.enter(site, zone="Europe/Rome")
    page.get_by_role("button", name="Book GPUs…").click()
    form(page).get_by_label("From").fill("2026-11-24T09:00")
    form(page).get_by_label("To", exact=True).fill("2026-11-24T12:00")
    choice(form(page), "Repeat").select_option("every week")
    form(page).get_by_label("Times").fill("3")
    fits(page)
    page.get_by_role("button", name="Book", exact=True).click()
    expect(page.locator("#toast")).to_contain_text("3 bookings made")
    first = at("2026-11-24T08:00")
    assert [booking.ask.start for booking in booked(site)] == [first, first + 7 * DAY, first + 14 * DAY]


def test_who_may_only_read_is_told_so(site: Site, visits: Visits) -> None:
    page = visits.enter(site, EVE)
    expect(track(page, "pool v100")).to_be_visible()
    expect(page.get_by_role("button", name="Book GPUs…")).to_be_hidden()
    drag(page, lane(page, "t4"), TUESDAY, WEDNESDAY)
    expect(page.locator("#toast")).to_contain_text("that takes the role member")
    expect(form(page)).to_be_hidden()


# Changing


def test_a_drag_moves_a_booking_and_a_stretch_makes_it_longer(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20), ADA)
    page = visits.enter(site)
    start, end = made.ask.start, made.ask.end
    drag(page, event(page, made), start + 6 * HOUR, start + 30 * HOUR, inset=0)
    expect(page.locator("#toast")).to_contain_text("is booked")
    moved = site.ledger.get(made.id)
    assert (moved.ask.start, moved.ask.end) == (start + DAY, end + DAY)
    expect(page.locator(".tl-event.moving")).to_have_count(0)
    box = box_of(event(page, made))
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(x_of(page, end + DAY + 10 * HOUR), box["y"] + 5, steps=6)
    page.mouse.up()
    until(lambda: site.ledger.get(made.id).ask.end == end + DAY + 10 * HOUR)
    assert site.ledger.get(made.id).ask.start == start + DAY


def test_a_drag_to_another_row_asks_for_that_gpu(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20, pool="t4"), ADA)
    other = 6 if made.lanes == (5,) else 5
    page = visits.enter(site)
    middle = made.ask.start + 10 * HOUR
    drag(page, event(page, made), middle, middle, to=track(page, f"lane {other}"), inset=0.1)
    until(lambda: site.ledger.get(made.id).lanes == (other,))
    assert site.ledger.get(made.id).ask.gpu.endswith("/0000:18:00.0")


def test_what_is_refused_goes_back_and_says_why(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(4, 12, 2, "t4"), ADA)
    site.ledger.create(ask(30, 20, pool="t4"), BOB)
    page = visits.enter(site)
    before = box_of(event(page, made))
    drag(page, event(page, made), made.ask.start + 2 * HOUR, made.ask.start + 30 * HOUR)
    expect(page.locator("#toast .bad")).to_contain_text("t4")
    until(lambda: box_of(event(page, made)) == before)
    assert site.ledger.get(made.id) == made
    page.locator("#toast .alternative").first.click()
    expect(page.locator("#booking-title")).to_have_text("Change booking")
    fits(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(form(page)).to_be_hidden()
    assert site.ledger.get(made.id).version > made.version


def test_two_tabs_cannot_overwrite_each_other(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20), ADA)
    page = visits.enter(site)
    event(page, made).click()
    page.get_by_role("button", name="Change…").click()
    form(page).get_by_label("Comment").fill("mine")
    edited_ask = Ask(**{**vars(made.ask), "end": made.ask.end + 2 * HOUR})
    site.ledger.edit(made.id, edited_ask, ADA)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#fit")).to_contain_text("Somebody has changed this booking")
    expect(page.locator("#fit")).to_contain_text("end was Wed 25 Nov, 08:00, is Wed 25 Nov, 10:00")
    assert site.ledger.get(made.id).ask.comment == ""
    page.get_by_role("button", name="Show theirs").click()
    expect(form(page).get_by_label("To", exact=True)).to_have_value("2026-11-25T10:00")
    form(page).get_by_label("Comment").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(form(page)).to_be_hidden()
    assert site.ledger.get(made.id).ask == Ask(**{**vars(edited_ask), "comment": "mine"})


def test_mine_can_be_saved_over_theirs(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(24, 20), ADA)
    page = visits.enter(site)
    event(page, made).click()
    page.get_by_role("button", name="Change…").click()
    site.ledger.edit(made.id, Ask(**{**vars(made.ask), "comment": "theirs"}), ADA)
    form(page).get_by_label("Comment").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Save mine over it").click()
    expect(form(page)).to_be_hidden()
    assert site.ledger.get(made.id).ask.comment == "mine"


def test_an_active_booking_is_extended_and_ended(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(1, 4), ADA)
    site.clock.forward(2)
    site.ledger.upkeep.advance()
    page = visits.enter(site)
    event(page, made).click()
    page.get_by_role("button", name="Extend or change…").click()
    expect(form(page).get_by_label("From")).to_be_disabled()
    form(page).get_by_label("To", exact=True).fill("2026-11-23T20:00")
    fits(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(form(page)).to_be_hidden()
    assert site.ledger.get(made.id).ask.end == at("2026-11-23T20:00")
    event(page, made).click()
    page.get_by_role("button", name="End now").click()
    page.get_by_role("dialog").get_by_role("button", name="End now").click()
    until(lambda: site.ledger.get(made.id).state is BookingState.ENDED)


def test_a_booking_that_began_within_a_minute_is_changed(site: Site, visits: Visits) -> None:
    """Fields have no seconds, and its start must stay what it is."""
    site.clock.forward(seconds=37)
    (made,) = site.ledger.create(ask(37 / 3600, 4), ADA)
    site.clock.forward(minutes=5)
    site.ledger.upkeep.advance()
    page = visits.enter(site, path="bookings")
    page.get_by_role("button", name="Extend or change…").click()
    fits(page)
    form(page).get_by_label("To", exact=True).fill("2026-11-23T20:00")
    fits(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(form(page)).to_be_hidden()
    changed = site.ledger.get(made.id)
    assert (changed.ask.start, changed.ask.end) == (made.ask.start, NOON + 8 * HOUR)


@where(rules=Rules(must_book=False, most_active=9))
def test_a_server_is_let_in_where_unbooked_use_is_allowed(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(1, 4), ADA)
    site.clock.forward(2)
    site.ledger.upkeep.advance()
    page = visits.enter(site, path="bookings")
    page.get_by_role("button", name="Let my server in now").click()
    expect(page.locator("#toast .good")).to_be_visible()
    assert site.ledger.get(made.id).open_until == site.clock.now + timedelta(minutes=15)
    expect(page.locator("#upcoming")).to_contain_text("Its GPUs are being released for you")
    site.ledger.upkeep.record_claims({}, ready=[made.id], usable={made.id: True})
    page.reload()
    expect(page.locator("#upcoming")).to_contain_text("Your server is let in until Mon 23 Nov, 14:15.")
    expect(page.locator("#upcoming")).not_to_contain_text("being released")


def test_others_changes_appear_by_themselves(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(page.locator(".tl-event")).to_have_count(6)  # the key to the colours
    page.evaluate("window.same = true")
    (made,) = site.ledger.create(ask(24, 20, comment=NASTY), BOB)
    expect(event(page, made)).to_contain_text(NASTY, timeout=15_000)
    expect(event(page, made)).to_have_class("tl-event is-confirmed booking others")
    assert page.evaluate("window.same")
    event(page, made).click()
    expect(page.locator("#details-facts")).to_contain_text("bob in biology")
    expect(page.locator("#details-buttons button")).to_have_text(["Close"])  # it is not mine


def test_a_lost_connection_is_told(tmp_path: Path, visits: Visits) -> None:
    with serving(tmp_path) as site:
        page = visits.enter(site)
        expect(track(page, "pool v100")).to_be_visible()
    page.evaluate("void load()")
    expect(page.locator("#lost")).to_contain_text("cannot be reached")
    assert all("ERR_" in error for error in visits.errors)
    visits.errors.clear()


# Waiting, my bookings


def test_the_waitlist_and_an_offer(site: Site, visits: Visits) -> None:
    (theirs,) = site.ledger.create(ask(2, 30, 2, "t4"), BOB)
    page = visits.enter(site)
    drag(page, lane(page, "t4"), NOON + 4 * HOUR, NOON + 8 * HOUR)
    expect(page.locator("#fit.bad")).to_be_visible()
    page.get_by_role("button", name="Wait for it: join the waitlist").click()
    page.get_by_role("button", name="Book", exact=True).click()
    expect(page.locator("#toast")).to_contain_text("is on the waitlist")
    made = only(site, user_id=ADA.user_id)
    assert made.state is BookingState.WAITING
    expect(page.locator(".tl-waiting .tl-event")).to_have_count(1)
    site.ledger.cancel(theirs.id, BOB)
    site.ledger.upkeep.advance()
    page.goto(f"{site.url}bookings")
    expect(page.locator("#offers .card")).to_contain_text("1 × t4")
    expect(page.locator("#offers")).to_contain_text("Answer by Mon 23 Nov, 14:00")
    page.get_by_role("button", name="Accept").click()
    expect(page.locator("#upcoming .card")).to_contain_text("1 × t4")
    expect(page.locator("#offers-part")).to_be_hidden()
    assert site.ledger.get(made.id).state is BookingState.CONFIRMED


def test_my_bookings(site: Site, visits: Visits) -> None:
    (soon,) = site.ledger.create(ask(2, 5), ADA)
    (later,) = site.ledger.create(ask(50, 5, comment="later"), ADA)
    site.ledger.create(ask(2, 5), BOB)
    page = visits.enter(site, path="bookings")
    expect(page.locator("#upcoming .card")).to_have_count(2)
    card = page.locator(f'.card[data-id="{soon.id}"]')
    card.get_by_role("button", name="Cancel booking").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    assert site.ledger.get(soon.id).state is BookingState.CONFIRMED
    card.get_by_role("button", name="Cancel booking").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel booking").click()
    expect(page.locator("#past .card")).to_contain_text("cancelled")
    page.locator(f'.card[data-id="{later.id}"]').get_by_role("button", name="Change…").click()
    form(page).get_by_label("GPUs", exact=True).fill("2")
    fits(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#upcoming .card h3")).to_have_text("2 × v100")


def test_a_feed_is_made_read_and_ended(site: Site, visits: Visits) -> None:
    (made,) = site.ledger.create(ask(2, 5), ADA)
    page = visits.enter(site, path="bookings")
    page.get_by_role("button", name="Create address").click()
    address = page.locator("#feed-url")
    expect(address).to_be_visible()
    url = address.input_value()
    text = page.request.get(url).text()
    assert f"UID:{made.id}@" in text
    expect(page.locator("#feeds")).to_contain_text(
        "my bookings since Mon 23 Nov, 12:00, until Tue 23 Nov 2027, 12:00, never read"
    )
    page.reload()
    expect(page.locator("#feeds")).to_contain_text(", last read Mon 23 Nov, 12:00")
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("button", name="End feed").click()
    expect(page.locator("#feeds")).to_have_text("There is none.")
    assert page.request.get(url).status == 404


# Admins


@where(rules=Rules(approval=True, most_active=9))
def test_an_admin_approves_holds_and_reads_what_was_done(site: Site, visits: Visits) -> None:
    (approved,) = site.ledger.create(ask(2, 5), ADA)
    (two,) = site.ledger.create(ask(24, 5), BOB)
    page = visits.enter(site, ROOT, "admin")
    expect(page.locator("#requests .card")).to_have_count(2)
    page.locator(f'.card[data-id="{approved.id}"]').get_by_role("button", name="Approve").click()
    expect(page.locator("#requests .card")).to_have_count(1)
    page.locator(f'.card[data-id="{two.id}"]').get_by_role("button", name="Decline").click()
    page.get_by_role("dialog").get_by_role("button", name="Decline").click()
    expect(page.locator("#requests")).to_have_text("Nobody is waiting for your answer.")
    assert site.ledger.get(approved.id).state is BookingState.CONFIRMED
    assert site.ledger.get(two.id).state is BookingState.CANCELLED
    page.get_by_role("listbox", name="GPUs").select_option("gpu-2/0000:18:00.0")
    page.get_by_label("Why").fill("fan")
    page.get_by_role("button", name="Hold", exact=True).click()
    expect(page.locator("#holds .card")).to_contain_text("gpu-2/0000:18:00.0")
    page.goto(f"{site.url}calendar")
    expect(page.locator(".tl-row .tl-event.hold")).to_contain_text("fan")
    page.goto(f"{site.url}admin")
    page.get_by_role("button", name="End hold").click()
    page.get_by_role("dialog").get_by_role("button", name="End hold").click()
    expect(page.locator("#holds")).to_have_text("No GPU is held.")
    expect(page.locator("#audit tr").first).to_contain_text("root")


@where(rules=Rules(longest=timedelta(hours=4), most_active=9))
def test_an_override_is_only_for_admins(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    drag(page, lane(page, "t4"), TUESDAY, WEDNESDAY)
    expect(page.locator("#fit.bad")).to_be_visible()
    expect(page.get_by_label("set rules aside")).to_be_hidden()
    page = visits.enter(site, ROOT)
    drag(page, lane(page, "t4"), TUESDAY, WEDNESDAY)
    page.get_by_label("set rules aside").check()
    page.get_by_role("button", name="Book", exact=True).click()
    until(lambda: len(booked(site)) == 1)
    assert only(site).override


def test_only_admins_see_their_page(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(
        ["Map", "Calendar", "My GPUs", "My bookings", "Status"]
    )
    assert page.request.get(f"{site.url}admin").status == 403


# Who looks


def test_the_map_has_the_same_navigation_and_one_can_log_out(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    page.get_by_role("link", name="Map").click()
    expect(page.locator("#map .gpu").first).to_be_visible()
    page.get_by_role("link", name="Calendar").click()
    expect(track(page, "pool v100")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login*")
    page.goto(f"{site.url}calendar?view=day")
    page.wait_for_url(re.compile(r"/login[?]next=(/|%2F)calendar"))


def test_the_project_is_switched_and_one_comes_back_to_the_page(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(choice(page.locator("header"), "Project")).to_have_value("p-physics")
    choice(page.locator("header"), "Project").select_option("biology")
    page.get_by_role("button", name="Switch").click()
    expect(choice(page.locator("header"), "Project")).to_have_value("p-biology")
    assert page.url.startswith(f"{site.url}calendar")


def test_a_session_that_has_ended_leads_to_the_login(site: Site, visits: Visits) -> None:
    page = visits.enter(site)
    expect(track(page, "pool v100")).to_be_visible()
    page.context.clear_cookies()
    page.evaluate("void load(true)")
    page.wait_for_url(re.compile(r"/login[?]next=(/|%2F)calendar"))
    visits.errors.clear()  # the browser writes the 401 down


def test_a_runner_is_shown_as_one_and_is_nobodys(site: Site, visits: Visits) -> None:
    what = "runner gpuyard-v100-x1 of owner/name"
    lease = site.ledger.leases.take(
        "v100", 1, False, NOON + 8 * HOUR, "gpuyard-v100-x1", "p-ci", "ci", what, yields=False
    )
    page = visits.enter(site)
    shown = event(page, lease)
    expect(shown).to_contain_text(what)
    expect(shown.locator("b")).to_have_text("runner")
    expect(shown).to_have_class("tl-event is-active runner others")
    shown.click()
    expect(page.locator("#details-title")).to_have_text("Runner")
    expect(page.locator("#details-facts")).to_contain_text("runner on gpu-1/")
    expect(page.locator("#details-buttons button")).to_have_text(["Close"])
