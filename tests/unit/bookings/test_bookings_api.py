"""Bookings over HTTP: the right answer to every ask, and a clear one to every wrong one."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gpuyard.bookings.reclaim import PAST_THE_END
from gpuyard.bookings.records import Overstay
from gpuyard.bookings.store import Store, StoreError
from gpuyard.model.booking import ReclaimAction, Rules
from gpuyard.model.moments import iso_text
from gpuyard.web.documents import Moment
from tests.support.ledgers import ADA, BOB, EVE, HOUR, NOON, ROOT, ask
from tests.support.portals import BookingPortal, booking_portal

WISH: dict[str, Any] = {"pool": "t4", "start": "2026-11-23T13:00:00Z", "end": "2026-11-23T15:00:00Z"}


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


@pytest.fixture
def ada(portal: BookingPortal) -> TestClient:
    return portal.program(ADA)


@pytest.fixture
def bob(portal: BookingPortal) -> TestClient:
    return portal.program(BOB)


@pytest.fixture
def root(portal: BookingPortal) -> TestClient:
    return portal.program(ROOT)


def made(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/bookings", json={**WISH, **more})
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


def path(row: dict[str, Any], verb: str = "") -> str:
    return f"/v1/bookings/{row['id']}{'/' if verb else ''}{verb}"


# Booking


def test_a_booking_is_made_and_everybody_sees_it(portal: BookingPortal, ada: TestClient, bob: TestClient) -> None:
    answer = ada.post("/v1/bookings", json={**WISH, "gpus": 2, "comment": "thesis"})
    row = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == path(row)
    assert answer.headers["etag"] == '"1"'
    assert row == {
        "id": "b1",
        "kind": "booking",
        "state": "confirmed",
        "pool": "t4",
        "gpus": 2,
        "same_group": False,
        "same_host": False,
        "gpu": "",
        "start": "2026-11-23T13:00:00Z",
        "end": "2026-11-23T15:00:00Z",
        "user": "ada",
        "project": "physics",
        "comment": "thesis",
        "reason": "",
        "lanes": [5, 6],
        "gpu_names": ["gpu-2/0000:18:00.0", "gpu-3/0000:18:00.0"],
        "mine": True,
        "may": ["change", "cancel"],
        "version": 1,
        "created": "2026-11-23T12:00:00Z",
        "changed": "2026-11-23T12:00:00Z",
        "series": "",
        "offer_until": None,
        "open_until": None,
        "override": False,
        "claimed": None,
        "usable_since": None,
        "shared": False,
        "server": "",
        "trouble": "",
        "flavors": [],
        "command": "",
    }
    assert ada.get(path(row)).json() == row
    assert bob.get(path(row)).json() == {**row, "mine": False, "may": []}
    assert portal.program(ROOT).get(path(row)).json() == {**row, "mine": False}


def test_a_no_has_its_reasons_codes_and_what_would_be_possible(ada: TestClient, bob: TestClient) -> None:
    made(ada, gpus=2)
    answer = bob.post("/v1/bookings", json={**WISH, "gpus": 2})
    problem = answer.json()
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["codes"] == ["full"]
    assert len(problem["reasons"]) == 1
    assert len(problem["alternatives"]) >= 2
    for alternative in problem["alternatives"]:
        assert alternative["text"]
        assert bob.post("/v1/bookings/check", json=alternative["ask"]).json()["fits"]


def test_a_check_says_the_same_and_keeps_nothing(ada: TestClient, bob: TestClient) -> None:
    fits = ada.post("/v1/bookings/check", json=WISH).json()
    assert (fits["fits"], fits["reasons"], len(fits["lanes"])) == (True, [], 1)
    assert not ada.get("/v1/bookings").json()["bookings"]
    row = made(ada, gpus=2)
    full = bob.post("/v1/bookings/check", json=WISH).json()
    assert (full["fits"], [reason["code"] for reason in full["reasons"]]) == (False, ["full"])
    assert ada.post(f"/v1/bookings/check?without={row['id']}", json=WISH).json()["fits"]
    nowhere = bob.post("/v1/bookings/check", json={**WISH, "pool": "h100"}).json()
    assert [reason["code"] for reason in nowhere["reasons"]] == ["no_such_pool"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"end": "2026-11-23T13:00:00Z"}, "ends_first"),
        ({"end": "2026-11-23T12:30:00Z"}, "ends_first"),
        ({"start": "2026-11-20T13:00:00Z", "end": "2026-11-21T13:00:00Z"}, "past"),
        ({"gpus": 0}, "no_gpus"),
        ({"gpus": 3}, "too_big"),
        ({"gpus": 1_000_000}, "too_big"),
        ({"pool": "h100"}, "no_such_pool"),
        ({"gpu": "gpu-9/0000:18:00.0"}, "no_such_gpu"),
        ({"repeat": "FREQ=WEEKLY"}, "repeat"),
        ({"repeat": "FREQ=WEEKLY;COUNT=2", "timezone": "Europe/Atlantis"}, "repeat"),
        ({"start": "2027-11-23T13:00:00Z", "end": "2027-11-23T15:00:00Z"}, "too_far"),
        ({"end": "2026-12-23T13:00:00Z"}, "too_long"),
    ],
)
def test_what_cannot_be_booked_is_refused_with_a_code(ada: TestClient, change: dict[str, Any], code: str) -> None:
    answer = ada.post("/v1/bookings", json={**WISH, **change})
    assert answer.status_code == 409, answer.text
    assert code in answer.json()["codes"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"start": "2026-11-23T13:00:00"}, "start: Value error, is no time with its offset"),
        ({"start": "tomorrow"}, "start"),
        ({"start": 1764000000}, "start"),
        ({"start": None}, "start"),
        ({"start": "0001-01-01T00:00:00+23:59"}, "start"),
        ({"end": "9999-12-31T23:59:59-23:59"}, "end"),
        ({"start": "2026-02-30T00:00:00Z"}, "start"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 10**30}, "gpus"),
        ({"gpus": "1"}, "gpus"),
        ({"gpus": 1.5}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"pool": ""}, None),
        ({"pool": "t4\x00"}, "pool"),
        ({"comment": "one\ntwo"}, "comment"),
        ({"comment": "x" * 1001}, "comment"),
        ({"wait": "yes"}, "wait"),
        ({"gpu": "not a gpu"}, "gpu"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_body_that_is_wrong_is_told_where(ada: TestClient, change: dict[str, Any], word: str | None) -> None:
    answer = ada.post("/v1/bookings", json={**WISH, **change})
    if word is None:
        assert answer.status_code == 409
        return
    assert answer.status_code == 422, answer.text
    (reason,) = answer.json()["reasons"]
    assert reason.startswith(word)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"pool": "\\ud800"}', b"1e999"])
def test_what_is_no_body_is_told_so(ada: TestClient, body: bytes) -> None:
    answer = ada.post("/v1/bookings", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["reasons"]


@given(st.datetimes().map(lambda time: time.replace(year=min(max(time.year, 1980), 8000))), st.integers(-1439, 1439))
def test_times_come_back_as_the_same_moment_in_utc(time: Any, minutes: int) -> None:
    moment = TypeAdapter(Moment)
    sign, (hours, rest) = ("-" if minutes < 0 else "+"), divmod(abs(minutes), 60)
    text = f"{time:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f"{sign}{hours:02}:{rest:02}"
    parsed = moment.validate_python(text)
    assert parsed == time.replace(microsecond=0, tzinfo=NOON.tzinfo) - minutes * HOUR / 60
    assert moment.validate_python(iso_text(parsed)) == parsed
    assert moment.validate_python(text.replace("+", " ")) == parsed  # a plus in an address


@given(st.text(max_size=40))
def test_what_is_no_time_is_told_so(text: str) -> None:
    moment = TypeAdapter(Moment)
    if re.match(r"\d{4}-\d\d-\d\d[Tt ]", text):
        return  # tried above
    with pytest.raises(ValidationError, match="is no time"):
        moment.validate_python(text)


def test_the_project_can_be_named(portal: BookingPortal) -> None:
    portal.people.users_by_id[ADA.user_id].roles["p-biology"] = frozenset({"member"})
    browser = portal.browser(ADA).client
    assert browser.post("/v1/bookings", json={**WISH, "project": "physics"}).json()["project"] == "physics"
    assert browser.post("/v1/bookings", json={**WISH, "project": "p-physics"}).json()["project"] == "physics"


def test_one_key_books_once(ada: TestClient, bob: TestClient) -> None:
    headers = {"Idempotency-Key": "f7d2a1"}
    first = ada.post("/v1/bookings", json=WISH, headers=headers)
    again = ada.post("/v1/bookings", json=WISH, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(ada.get("/v1/bookings").json()["bookings"]) == 1
    other = ada.post("/v1/bookings", json={**WISH, "gpus": 2}, headers=headers)
    assert (other.status_code, other.json()["codes"]) == (409, ["key_reused"])
    assert bob.post("/v1/bookings", json=WISH, headers=headers).json()["id"] != first.json()["id"]
    assert ada.post("/v1/bookings", json=WISH, headers={"Idempotency-Key": "x" * 300}).status_code == 422


def test_of_many_who_ask_at_once_one_gets_it(portal: BookingPortal) -> None:
    wish = {**WISH, "gpus": 2}
    clients = [portal.program(person) for person in (ADA, BOB) * 8]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda client: client.post("/v1/bookings", json=wish).status_code, clients))
    assert sorted(answers) == [201] + [409] * 15


def test_a_recurring_booking_is_several(ada: TestClient) -> None:
    answer = ada.post("/v1/bookings", json={**WISH, "repeat": "FREQ=DAILY;COUNT=3", "timezone": "Europe/Rome"})
    assert answer.status_code == 201
    rows = answer.json()["bookings"]
    assert [row["start"][:10] for row in rows] == ["2026-11-23", "2026-11-24", "2026-11-25"]
    (series,) = {row["series"] for row in rows}
    assert len(ada.get("/v1/bookings", params={"series": series}).json()["bookings"]) == 3


def test_who_waits_gets_an_offer_and_accepts(portal: BookingPortal, ada: TestClient, bob: TestClient) -> None:
    row = made(ada, gpus=2)
    waiting = made(bob, gpus=2, wait=True)
    assert (waiting["state"], waiting["lanes"]) == ("waiting", [])
    assert ada.delete(path(row)).json()["state"] == "cancelled"
    offered = bob.get(path(waiting)).json()
    assert offered["state"] == "offered"
    assert offered["offer_until"]
    assert ada.post(path(waiting, "accept")).status_code == 403
    accepted = bob.post(path(waiting, "accept"), json={})
    assert accepted.json()["state"] == "confirmed"
    assert accepted.headers["etag"] == f'"{accepted.json()["version"]}"'
    assert bob.post(path(waiting, "accept")).json()["codes"] == ["state"]


def test_requests_are_approved_or_declined_by_admins(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, Rules(approval=True, most_active=9))
    ada, root = portal.program(ADA), portal.program(ROOT)
    one, two = made(ada), made(ada)
    assert one["state"] == "requested"
    assert ada.post(path(one, "approve")).status_code == 403
    assert root.post(path(one, "approve")).json()["state"] == "confirmed"
    declined = root.post(path(two, "decline"), json={"reason": "maintenance"}).json()
    assert (declined["state"], declined["reason"]) == ("cancelled", "by root: maintenance")
    assert root.post(path(one, "decline")).json()["codes"] == ["state"]


# Changing


def test_a_change_needs_the_version_that_was_read(ada: TestClient) -> None:
    row = made(ada)
    address, changes = path(row), {"comment": "new"}
    missing = ada.patch(address, json=changes)
    assert (missing.status_code, missing.json()["code"]) == (428, "if_match_needed")
    changed = ada.patch(address, json=changes, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"], changed.json()["comment"]) == (200, '"2"', "new")
    for tag in ('"1"', '"99"', '"x"', "2", "", '"-1"', f'"{10**30}"', '"1", "2"'):
        stale = ada.patch(address, json={"comment": "lost"}, headers={"If-Match": tag})
        assert stale.status_code == 412, tag
        assert stale.headers["etag"] == '"2"'
        assert stale.json()["current"] == changed.json()
    for tag in ('W/"2"', "*"):
        assert ada.patch(address, json={"comment": tag}, headers={"If-Match": tag}).status_code in (200, 412)
    assert ada.get(address).json()["comment"] == "*"


def test_two_tabs_do_not_overwrite_each_other(ada: TestClient) -> None:
    row = made(ada)
    headers = {"If-Match": '"1"'}
    assert ada.patch(path(row), json={"end": "2026-11-23T16:00:00Z"}, headers=headers).status_code == 200
    assert ada.patch(path(row), json={"end": "2026-11-23T17:00:00Z"}, headers=headers).status_code == 412
    for verb in ("extend", "cancel", "end", "open"):
        body = {"end": "2026-11-23T18:00:00Z"} if verb == "extend" else {}
        assert ada.post(path(row, verb), json=body, headers=headers).status_code == 412, verb
    assert ada.delete(path(row), headers=headers).status_code == 412
    assert ada.get(path(row)).json()["end"] == "2026-11-23T16:00:00Z"


def test_what_is_left_out_of_a_change_stays(ada: TestClient) -> None:
    row = made(ada, comment="thesis", gpus=2)
    changed = ada.patch(path(row), json={"end": "2026-11-23T16:00:00+01:00"}, headers={"If-Match": '"1"'})
    assert changed.status_code == 200, changed.text
    now = changed.json()
    assert now["end"] == "2026-11-23T15:00:00Z"
    assert {key for key in row if row[key] != now[key]} <= {"end", "version", "changed"}


@pytest.mark.parametrize("changes", [{"end": None}, {"colour": 1}, {"gpus": "2"}, [], {"pool": None}])
def test_a_wrong_change_is_told_so(ada: TestClient, changes: Any) -> None:
    row = made(ada)
    answer = ada.patch(path(row), json=changes, headers={"If-Match": '"1"'})
    assert answer.status_code == 422
    assert ada.get(path(row)).json() == row


def test_a_change_that_does_not_fit_leaves_all_as_it_was(ada: TestClient, bob: TestClient) -> None:
    row = made(ada, gpus=2)
    made(bob, gpus=2, start="2026-11-23T15:00:00Z", end="2026-11-23T17:00:00Z")
    answer = ada.post(path(row, "extend"), json={"end": "2026-11-23T15:00:01Z"})
    assert (answer.status_code, answer.json()["codes"]) == (409, ["full"])
    answer = ada.patch(path(row), json={"pool": "v100"}, headers={"If-Match": "*"})
    assert answer.json()["codes"] == ["other_pool"]
    assert ada.get(path(row)).json() == row


def test_an_active_booking_is_extended_and_ended(portal: BookingPortal, ada: TestClient) -> None:
    row = made(ada)
    portal.clock.forward(hours=1)
    portal.ledger.upkeep.advance()
    assert ada.get(path(row)).json()["state"] == "active"
    longer = ada.post(path(row, "extend"), json={"end": "2026-11-23T16:00:00Z"}).json()
    assert longer["end"] == "2026-11-23T16:00:00Z"
    opened = ada.post(path(row, "open")).json()
    assert opened["open_until"] == "2026-11-23T13:15:00Z"
    portal.clock.forward(minutes=30)
    ended = ada.delete(path(row)).json()
    assert (ended["state"], ended["end"], ended["may"]) == ("ended", "2026-11-23T13:30:00Z", [])
    assert ada.delete(path(row)).status_code == 409


def test_there_is_a_clear_answer_when_there_is_no_booking(ada: TestClient) -> None:
    nothing = {"id": "nothing"}
    assert ada.get(path(nothing)).status_code == 404
    assert ada.patch(path(nothing), json={}, headers={"If-Match": '"1"'}).status_code == 404
    assert ada.delete(path(nothing)).status_code == 404
    for verb in ("cancel", "end", "approve", "decline", "accept", "open"):
        answer = ada.post(path(nothing, verb))
        assert answer.status_code in (403, 404), verb
    assert ada.get("/v1/bookings/a%00b").status_code == 422
    assert ada.get("/v1/bookings/" + "x" * 100).status_code == 422
    assert ada.post(path(nothing, "explode")).status_code == 404
    assert ada.put(path(nothing)).json()["detail"].startswith("PUT is not for /v1/bookings/nothing: it takes")


def test_what_the_client_has_is_not_sent_again(ada: TestClient) -> None:
    row = made(ada)
    for header in ('"1"', 'W/"1"', '"0", "1"', "*"):
        answer = ada.get(path(row), headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", '"1"')
    assert ada.get(path(row), headers={"If-None-Match": '"11"'}).status_code == 200


# Lists


def test_lists_are_filtered(portal: BookingPortal, ada: TestClient, bob: TestClient) -> None:
    first = made(ada, comment="first")
    second = made(bob, start="2026-11-24T13:00:00Z", end="2026-11-24T15:00:00Z")
    third = made(ada, pool="v100", start="2026-11-25T13:00:00Z", end="2026-11-25T15:00:00Z")
    ada.delete(path(third))

    def ids(**query: Any) -> list[str]:
        answer = ada.get("/v1/bookings", params=query)
        assert answer.status_code == 200, answer.text
        return [row["id"] for row in answer.json()["bookings"]]

    everything = [first["id"], second["id"], third["id"]]
    assert ids() == everything
    assert ids(pool="t4") == everything[:2]
    assert ids(mine=True) == [first["id"], third["id"]]
    assert ids(user="bob") == ids(user="u-bob") == [second["id"]]
    assert ids(user="bob", mine=True) == ids(user="nobody") == []
    assert ids(project="biology") == ids(project="p-biology") == [second["id"]]
    assert ids(project="nonsense") == []
    assert ids(state=["cancelled", "expired"]) == [third["id"]]
    assert ids(kind="hold") == []
    assert ids(**{"from": "2026-11-23T15:00:00Z"}) == everything[1:]
    assert ids(to="2026-11-24T13:00:00Z") == everything[:1]
    assert ids(**{"from": "2026-11-24T15:59:59+01:00", "to": "2026-11-25T00:00:00Z"}) == [second["id"]]
    assert ids(pool="", mine="", user="", project="", marker="", **{"from": "", "to": ""}) == everything


def test_lists_come_in_pages(portal: BookingPortal, ada: TestClient) -> None:
    everything = []
    for number in range(7):
        (booking,) = portal.ledger.create(ask(1 + number % 3, 1, pool="v100" if number < 4 else "t4"), BOB)
        everything.append(booking)
    address: str | None = "/v1/bookings?limit=3&user=bob&state=confirmed"
    ids, pages = [], 0
    while address:
        page = ada.get(address).json()
        ids += [row["id"] for row in page["bookings"]]
        pages += 1
        address = page["links"][0]["href"] if page["links"] else None
    assert pages == 3
    assert ids == [expected.id for expected in sorted(everything, key=lambda one: (one.ask.start, one.id))]


@pytest.mark.parametrize(
    "query",
    (
        "limit=0 limit=1001 limit=x state=lost kind=x from=x to=2026 colour=red mine=perhaps marker=nothing marker=%00 "
        "pool=%00 user=" + "x" * 300
    ).split(),
)
def test_a_wrong_filter_is_told_so(ada: TestClient, query: str) -> None:
    answer = ada.get(f"/v1/bookings?{query}")
    assert answer.status_code == 422, answer.text
    assert answer.json()["reasons"]


# Operators


def test_an_operator_holds_gpus(portal: BookingPortal, ada: TestClient, root: TestClient) -> None:
    made(ada, gpu="gpu-2/0000:18:00.0")
    hold = {"gpus": ["gpu-3/0000:18:00.0"], "start": WISH["start"], "end": WISH["end"], "comment": "new fan"}
    assert ada.post("/v1/holds", json=hold).status_code == 403
    answer = root.post("/v1/holds", json=hold)
    assert answer.status_code == 201
    (row,) = answer.json()["bookings"]
    assert (row["kind"], row["gpu_names"], row["comment"]) == ("hold", hold["gpus"], "new fan")
    assert ada.get("/v1/holds").json()["bookings"] == [{**row, "mine": False, "may": []}]
    taken = root.post("/v1/holds", json={**hold, "gpus": ["gpu-2/0000:18:00.0"]})
    assert (taken.status_code, taken.json()["codes"]) == (409, ["in_the_way"])
    assert root.post("/v1/holds", json={**hold, "gpus": ["gpu-9/0000:18:00.0"]}).status_code == 409
    assert root.post("/v1/holds", json={**hold, "gpus": []}).status_code == 422
    assert ada.post(path(row, "cancel")).status_code == 403
    assert root.post(path(row, "cancel"), json={}).json()["state"] == "cancelled"
    assert not ada.get("/v1/holds").json()["bookings"]


def test_the_audit_log_is_for_admins_and_comes_in_pages(ada: TestClient, root: TestClient) -> None:
    for _ in range(3):
        ada.delete(path(made(ada, comment="secret")))
    assert ada.get("/v1/audit").status_code == 403
    first = root.get("/v1/audit?limit=4").json()
    assert [entry["action"] for entry in first["entries"]][:2] == ["booking.cancel", "booking.create"]
    assert {entry["actor"] for entry in first["entries"]} == {"ada"}
    second = root.get(first["links"][0]["href"]).json()
    assert len(second["entries"]) == 2
    assert not second["links"]
    assert root.get("/v1/audit?limit=0").status_code == 422


# The calendar


def test_the_calendar_has_all_that_its_page_needs(portal: BookingPortal, ada: TestClient, bob: TestClient) -> None:
    row = made(ada)
    gone = made(bob)
    bob.delete(path(gone))
    times = {"from": "2026-11-23T12:00:00Z", "to": "2026-11-23T16:00:00Z"}
    answer = ada.get("/v1/calendar", params={"pool": "t4", **times})
    calendar = answer.json()
    assert answer.headers["etag"]
    assert [lane["host"] for lane in calendar["lanes"]] == ["gpu-2", "gpu-3"]
    assert calendar["lanes"][0] == {
        "id": 5,
        "pool": "t4",
        "host": "gpu-2",
        "gpus": ["0000:18:00.0"],
        "size": 1,
        "model": "",
        "trouble": "",
        "state": None,
    }
    assert calendar["bookings"] == [row]
    assert [free["lanes"] for free in calendar["free"]] == [2, 1, 1, 2]
    assert calendar["free"][0] == {"pool": "t4", "start": "2026-11-23T12:00:00Z", "lanes": 2}
    assert not calendar["truncated"]
    both = ada.get("/v1/calendar", params=times).json()
    assert {lane["pool"] for lane in both["lanes"]} == {"t4", "v100"}
    assert ada.get("/v1/calendar").json()["start"] == "2026-11-23T00:00:00Z"


def test_a_calendar_that_has_not_changed_is_not_sent_again(ada: TestClient, bob: TestClient) -> None:
    tag = ada.get("/v1/calendar?pool=t4").headers["etag"]
    again = ada.get("/v1/calendar?pool=t4", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    made(bob)
    assert ada.get("/v1/calendar?pool=t4", headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        {"pool": "h100"},
        {"from": "2026-11-23T12:00:00Z", "to": "2026-11-23T12:00:00Z"},
        {"from": "2026-11-23T12:00:00Z", "to": "2029-11-23T12:00:00Z"},
        {"from": "2026-11-23T12:00:00Z", "to": "2027-11-23T12:00:00Z", "step": 60},
        {"step": 1},
        {"colour": "red"},
    ],
)
def test_a_wrong_calendar_is_told_so(ada: TestClient, query: dict[str, Any]) -> None:
    assert ada.get("/v1/calendar", params=query).status_code == 422


def test_the_rules_of_a_pool_are_complete(tmp_path: Path) -> None:
    portal = booking_portal(
        tmp_path, {"physics": Rules(longest=2 * HOUR, users=frozenset({"bob", "ada"}), no_show=None)}
    )
    rules = portal.program(ADA).get("/v1/pools/t4/rules").json()
    assert set(rules) == {"pool", "project", "timezone", *vars(Rules())}
    assert (rules["longest"], rules["users"], rules["no_show"]) == (7200, ["ada", "bob"], None)
    assert portal.program(BOB).get("/v1/pools/t4/rules").json()["longest"] == 15 * 86400
    assert portal.program(ROOT).get("/v1/pools/t4/rules?project=physics").json()["longest"] == 7200
    assert portal.program(BOB).get("/v1/pools/t4/rules?project=physics").status_code == 403
    assert portal.program(BOB).get("/v1/pools/h100/rules").status_code == 404


def test_readers_look_and_do_not_book(portal: BookingPortal, ada: TestClient) -> None:
    made(ada)
    eve = portal.program(EVE)
    assert eve.get("/v1/bookings").json()["bookings"]
    assert not eve.get("/v1/me").json()["may_book"]
    answer = eve.post("/v1/bookings", json=WISH)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_role")
    assert [reason["code"] for reason in eve.post("/v1/bookings/check", json=WISH).json()["reasons"]] == ["no_role"]


def test_when_the_database_is_away_it_says_so(
    portal: BookingPortal, ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise StoreError("the database at secret-host cannot be reached")

    monkeypatch.setattr(portal.ledger, "find", fail)
    answer = ada.get("/v1/bookings")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "secret-host" not in answer.text


def test_the_owner_of_an_overdue_server_sees_what_becomes_of_it(
    portal: BookingPortal, ada: TestClient, bob: TestClient, root: TestClient
) -> None:
    overstay = Overstay("s1", "training", "t4", ADA.user_id, ADA.project_id, PAST_THE_END, ReclaimAction.SHELVE, NOON)
    store = Store(portal.ledger.database)
    store.put_overstay(overstay)
    assert ada.get("/v1/cases").json() == {"cases": []}  # not warned yet
    store.put_overstay(replace(overstay, warned=NOON, due=NOON + HOUR, dry_run=False))
    (row,) = ada.get("/v1/cases").json()["cases"]
    assert row == {
        "server_id": "s1",
        "server": "training",
        "pool": "t4",
        "mine": True,
        "warned": "2026-11-23T12:00:00Z",
        "due": "2026-11-23T13:00:00Z",
        "action": "shelve",
        "dry_run": False,
        "text": row["text"],
    }
    assert row["text"].startswith("2026-11-23 13:00 UTC: this server is shelved")
    assert bob.get("/v1/cases").json() == {"cases": []}
    assert root.get("/v1/cases").json() == {"cases": [{**row, "mine": False}]}
    store.put_overstay(replace(overstay, warned=NOON, due=NOON + HOUR, cleared=NOON))
    assert ada.get("/v1/cases").json() == {"cases": []}


def test_a_check_without_anothers_booking_is_refused(ada: TestClient, bob: TestClient) -> None:
    row = made(bob)
    assert ada.post(f"/v1/bookings/check?without={row['id']}", json=WISH).status_code == 403
    assert ada.post("/v1/bookings/check?without=b", json=WISH).status_code == 200


def test_runners_are_in_the_calendar_and_listed_only_when_asked_for(portal: BookingPortal, root: TestClient) -> None:
    made(root)
    what = "runner gpuyard-t4-x1 of owner/name"
    take = portal.ledger.leases.take
    ids = [take("t4", 1, False, NOON + HOUR, f"gpuyard-t4-x{n}", "p-ci", "ci", what, yields=True).id for n in (1, 2)]
    portal.ledger.leases.end(ids[1], "its job is over")
    rows = root.get("/v1/bookings").json()["bookings"]
    assert {row["kind"] for row in rows} == {"booking"}
    (row, _) = root.get("/v1/bookings?kind=runner").json()["bookings"]
    assert (row["server"], row["comment"], row["user"], row["may"]) == ("gpuyard-t4-x1", what, "gpuyard", [])
    assert [row["state"] for row in root.get(f"/v1/bookings?id={ids[1]}").json()["bookings"]] == ["ended"]
    calendar = root.get("/v1/calendar?pool=t4&from=2026-11-23T00:00:00Z&to=2026-11-24T00:00:00Z").json()
    assert [row["id"] for row in calendar["bookings"] if row["kind"] == "runner"] == ids[:1], (
        "what is over is not shown"
    )
    later = root.get("/v1/calendar?pool=t4&from=2026-11-24T00:00:00Z&to=2026-11-25T00:00:00Z").json()
    assert later["bookings"] == []
    for verb in ("cancel", "end", "open"):
        answer = root.post(f"/v1/bookings/{ids[0]}/{verb}", headers={"If-Match": "*"})
        assert answer.status_code in (403, 404), answer.text
    assert portal.ledger.leases.current()[0].id == ids[0]
