"""Calendars by secret address: what other programs make of them, and who can read them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from icalendar import Calendar

from gpuyard.bookings.web import feeds
from gpuyard.bookings.web.feeds import MOST_FEEDS, ical
from gpuyard.dashboard.sources import Sources
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.text import printable
from gpuyard.server.app import create_app
from gpuyard.web.sessions import digest_of
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import ADA, BOB, HOUR, NOON, ROOT, ask
from tests.support.portals import BookingPortal, booking_portal


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


@pytest.fixture
def ada(portal: BookingPortal) -> TestClient:
    return portal.program(ADA)


def feed(client: TestClient, scope: str, target: str = "") -> dict[str, Any]:
    answer = client.post("/v1/feeds", json={"scope": scope, "target": target})
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


def read(portal: BookingPortal, made: dict[str, Any]) -> dict[str, Any]:
    """Events by UID, as a program without a login reads them."""
    answer = portal.browser().client.get(made["path"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
    events: list[Any] = Calendar.from_ical(answer.content).walk("VEVENT")
    return {str(event["uid"]): event for event in events}


def test_a_feed_has_the_bookings_of_its_user(portal: BookingPortal, ada: TestClient) -> None:
    (own,) = portal.ledger.create(ask(comment="for; the, thesis"), ADA)
    portal.ledger.create(ask(), BOB)
    made = feed(ada, "user")
    events = read(portal, made)
    assert list(events) == [f"{own.id}@test-site"]
    (event,) = events.values()
    assert event["dtstart"].dt == own.ask.start
    assert event["dtend"].dt == own.ask.end
    assert (event["sequence"], str(event["status"])) == (1, "CONFIRMED")
    assert "for; the, thesis" in str(event["description"])
    assert made["url"] == f"http://testserver{made['path']}"
    assert event["url"] == "http://testserver/bookings"
    alarms = {alarm["trigger"].params["RELATED"]: alarm["trigger"].dt for alarm in event.walk("VALARM")}
    assert alarms == {"START": -timedelta(minutes=15), "END": -timedelta(hours=1)}
    portal.ledger.cancel(own.id, ADA)
    (gone,) = read(portal, made).values()
    assert not gone.walk("VALARM")


def test_what_changes_keeps_its_uid_and_what_is_cancelled_says_so(portal: BookingPortal, ada: TestClient) -> None:
    (booking,) = portal.ledger.create(ask(), ADA)
    made = feed(ada, "user")
    uid = f"{booking.id}@test-site"
    portal.ledger.edit(booking.id, ask(hours=6), ADA)
    event = read(portal, made)[uid]
    assert (event["sequence"], event["dtend"].dt) == (2, NOON + 7 * HOUR)
    portal.ledger.cancel(booking.id, ADA)
    event = read(portal, made)[uid]
    assert (event["sequence"], str(event["status"])) == (3, "CANCELLED")


def test_feeds_of_pools_and_gpus(portal: BookingPortal, ada: TestClient) -> None:
    (on_t4,) = portal.ledger.create(ask(pool="t4", gpus=2), BOB)
    (on_v100,) = portal.ledger.create(ask(pool="v100", gpu="gpu-1/0000:27:00.0"), BOB)
    (held,) = portal.ledger.hold(["gpu-3/0000:18:00.0"], NOON + 9 * HOUR, NOON + 10 * HOUR, ROOT, "new fan")
    assert set(read(portal, feed(ada, "pool", "t4"))) == {f"{booking.id}@test-site" for booking in (on_t4, held)}
    assert set(read(portal, feed(ada, "gpu", "gpu-2/0000:18:00.0"))) == {f"{on_t4.id}@test-site"}
    assert set(read(portal, feed(ada, "gpu", "gpu-1/0000:28:00.0"))) == {f"{on_v100.id}@test-site"}
    hold = read(portal, feed(ada, "gpu", "gpu-3/0000:18:00.0"))[f"{held.id}@test-site"]
    assert str(hold["summary"]).startswith("Hold: ")


def test_a_feed_that_has_not_changed_is_not_sent_again(portal: BookingPortal, ada: TestClient) -> None:
    made = feed(ada, "user")
    client = portal.browser().client
    tag = client.get(made["path"]).headers["etag"]
    portal.clock.forward(hours=1)
    again = client.get(made["path"], headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    portal.ledger.create(ask(3), ADA)
    assert client.get(made["path"], headers={"If-None-Match": tag}).status_code == 200


def test_a_feed_that_has_not_changed_is_not_rendered(
    portal: BookingPortal, ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, client = feed(ada, "user"), portal.browser().client
    tag = client.get(made["path"]).headers["etag"]
    monkeypatch.setattr(feeds, "ical", None)
    assert client.get(made["path"], headers={"If-None-Match": tag}).status_code == 304


def test_feeds_are_not_read_without_end(portal: BookingPortal, ada: TestClient) -> None:
    made, other, client = feed(ada, "user"), feed(ada, "user"), portal.browser().client
    answers = [client.get(made["path"]).status_code for _ in range(31)]
    assert answers == [200] * 30 + [429]
    assert client.get(other["path"]).status_code == 200
    answers = [client.get(f"/ical/{number}.ics").status_code for number in range(240)]
    assert (answers[0], answers[-1]) == (404, 429)


def test_of_too_many_bookings_those_that_are_over_go_first(
    portal: BookingPortal, ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MOST_EVENTS", 2)
    made = feed(ada, "user")
    booked = [booking for start in (1, 50, 60) for booking in portal.ledger.create(ask(start), ADA)]
    assert list(read(portal, made)) == [f"{booking.id}@test-site" for booking in booked[:2]]
    portal.clock.forward(hours=40)
    assert list(read(portal, made)) == [f"{booking.id}@test-site" for booking in booked[1:]]


def test_a_feed_says_when_it_was_read_and_ends(portal: BookingPortal, ada: TestClient) -> None:
    made = ada.post("/v1/feeds", json={"scope": "user", "days": 2}).json()
    assert (made["expires"], made["used"]) == ("2026-11-25T12:00:00Z", None)
    client = portal.browser().client
    for hours, used in ((0, "2026-11-23T12:00:00Z"), (1, "2026-11-23T12:00:00Z"), (3, "2026-11-23T16:00:00Z")):
        portal.clock.forward(hours=hours)
        assert client.get(made["path"]).status_code == 200
        assert portal.program(ADA).get("/v1/feeds").json()["feeds"][0]["used"] == used
    portal.clock.forward(hours=44)
    assert client.get(made["path"]).status_code == 404
    assert ada.get("/v1/feeds").json()["feeds"] == []
    assert ada.post("/v1/feeds", json={"scope": "user", "days": 366}).status_code == 422


# Secrets


def test_the_secret_is_told_once_and_kept_nowhere(portal: BookingPortal, ada: TestClient, tmp_path: Path) -> None:
    made = feed(ada, "user")
    match = re.fullmatch(r"/ical/([\w-]{43})\.ics", made["path"])
    assert match
    secret = match.group(1)
    assert secret not in ada.get("/v1/feeds").text
    assert ada.get("/v1/feeds").json()["feeds"] == [
        {key: value for key, value in made.items() if key not in ("path", "url")}
    ]
    assert portal.store.get_feed(digest_of(secret), NOON) is not None
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_a_feed_that_is_deleted_does_not_answer_any_more(portal: BookingPortal, ada: TestClient) -> None:
    made = feed(ada, "user")
    bob = portal.program(BOB)
    assert bob.delete(f"/v1/feeds/{made['id']}").status_code == 404
    assert not bob.get("/v1/feeds").json()["feeds"]
    assert ada.delete(f"/v1/feeds/{made['id']}").status_code == 204
    assert ada.delete(f"/v1/feeds/{made['id']}").status_code == 404
    assert portal.browser().client.get(made["path"]).status_code == 404


def test_the_feeds_of_who_is_disabled_or_has_left_do_not_answer(portal: BookingPortal, ada: TestClient) -> None:
    of_ada, of_bob = feed(ada, "pool", "t4"), feed(portal.program(BOB), "pool", "t4")
    portal.people.users_by_id[BOB.user_id].enabled = False
    portal.people.users_by_id[ADA.user_id].roles = {}
    # Another process, which does not remember what Keystone said before.
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=GPUS,
            ledger=portal.ledger,
            sessions=portal.store,
            people=portal.people,
        ),
        ["testserver"],
    )
    other = TestClient(app)
    for made in (of_ada, of_bob):
        assert other.get(made["path"]).status_code == 404


@pytest.mark.parametrize("secret", ["x", "", "..", "%2e%2e%2fx", "%00", "x" * 43, "x" * 5000, "ü"])
def test_guesses_find_nothing(portal: BookingPortal, secret: str) -> None:
    assert portal.browser().client.get(f"/ical/{secret}.ics").status_code in (404, 414, 422)


@pytest.mark.parametrize(
    "wish",
    [
        {"scope": "pool", "target": "h100"},
        {"scope": "pool"},
        {"scope": "gpu", "target": "gpu-9/0000:18:00.0"},
        {"scope": "gpu", "target": "\x00"},
        {"scope": "user", "target": "u-bob"},
        {"scope": "everything"},
        {},
        {"scope": "user", "colour": "red"},
    ],
)
def test_a_feed_of_nothing_is_refused(ada: TestClient, wish: dict[str, Any]) -> None:
    answer = ada.post("/v1/feeds", json=wish)
    assert answer.status_code == 422
    assert answer.json()["reasons"]
    assert not ada.get("/v1/feeds").json()["feeds"]


def test_nobody_has_feeds_without_end(ada: TestClient) -> None:
    for _ in range(MOST_FEEDS):
        feed(ada, "user")
    assert ada.post("/v1/feeds", json={"scope": "user"}).status_code == 409


# The format

LINES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=200)
BOOKINGS = st.builds(
    Booking,
    id=st.uuids().map(str),
    kind=st.sampled_from(BookingKind),
    ask=st.builds(lambda hours, comment: ask(1, hours, comment=comment), st.integers(1, 100), LINES),
    state=st.sampled_from(BookingState),
    user_id=st.just("u"),
    user=LINES,
    project_id=st.just("p"),
    project=LINES,
    created=st.just(NOON),
    changed=st.integers(0, 10**6).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    version=st.integers(1, 99),
    reason=LINES,
)


@given(st.lists(BOOKINGS, max_size=4, unique_by=lambda booking: booking.id), LINES)
def test_any_booking_is_an_event_that_other_programs_can_read(bookings: list[Booking], title: str) -> None:
    raw = ical(bookings, "site", title, "https://gpus.example.org/bookings")
    assert raw == ical(bookings, "site", title, "https://gpus.example.org/bookings")
    assert all(len(line) <= 75 for line in raw.split(b"\r\n"))
    calendar: Any = Calendar.from_ical(raw)
    assert not calendar.errors
    events: list[Any] = calendar.walk("VEVENT")
    assert [str(event["uid"]) for event in events] == [f"{booking.id}@site" for booking in bookings]
    for event, booking in zip(events, bookings, strict=True):
        assert event["dtstart"].dt == booking.ask.start
        assert event["dtend"].dt == booking.ask.end
        assert event["dtstamp"].dt == booking.changed
        assert printable(booking.ask.comment) in str(event["description"])
        assert (str(event["status"]) == "CANCELLED") == (
            booking.state in (BookingState.CANCELLED, BookingState.NO_SHOW, BookingState.EXPIRED)
        )
