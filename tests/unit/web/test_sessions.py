"""Logins and feeds: one's own, and, for admins, those of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ledgers import ADA, BOB, NOON, ROOT
from tests.support.people import PASSWORD
from tests.support.portals import BookingPortal, booking_portal


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


def test_somebody_sees_and_ends_their_own_sessions(portal: BookingPortal) -> None:
    current, elsewhere, bob = portal.browser(ADA), portal.browser(ADA), portal.browser(BOB)
    rows = current.client.get("/v1/sessions").json()["sessions"]
    assert [row["user"] for row in rows] == ["ada", "ada"]
    assert sorted(row["current"] for row in rows) == [False, True]
    assert rows[0]["begun"] == "2026-11-23T12:00:00Z"
    assert (rows[0]["expires"], rows[0]["latest"]) == ("2026-11-23T13:00:00Z", "2026-11-24T00:00:00Z")
    assert portal.program(ADA).get("/v1/sessions").json()["sessions"] == [{**row, "current": False} for row in rows]
    assert current.client.delete("/v1/sessions").json() == {"ended": 2}
    assert [browser.client.get("/v1/me").status_code for browser in (current, elsewhere, bob)] == [401, 401, 200]


def test_the_page_logs_out_everywhere(portal: BookingPortal) -> None:
    current, elsewhere, bob = portal.browser(ADA), portal.browser(ADA), portal.browser(BOB)
    assert 'name="everywhere"' in current.client.get("/bookings").text
    answer = current.client.post("/logout", data={"everywhere": "yes", "csrf": current.csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "login")
    assert [browser.client.get("/v1/me").status_code for browser in (current, elsewhere, bob)] == [401, 401, 200]
    first, other = portal.browser(ADA), portal.browser(ADA)
    first.client.post("/logout")
    assert other.client.get("/v1/me").status_code == 200


def test_logging_out_everywhere_deletes_feeds(portal: BookingPortal) -> None:
    def leave(how: str) -> int:
        if how == "page":
            page = portal.browser(ADA)
            return page.client.post("/logout", data={"everywhere": "yes", "csrf": page.csrf}).status_code
        return portal.program(ROOT if how else ADA).delete("/v1/sessions", params={"user": how}).status_code

    for how in ("page", "", "ada", "*"):
        path = portal.program(ADA).post("/v1/feeds", json={"scope": "user"}).json()["path"]
        assert portal.browser().client.get(path).status_code == 200
        assert leave(how) in (200, 303)
        assert portal.browser().client.get(path).status_code == 404


def test_a_token_that_is_lent_makes_no_feeds_and_ends_no_sessions(portal: BookingPortal) -> None:
    tokens = portal.people.tokens
    tokens["token-ada-physics"] = replace(tokens["token-ada-physics"], lent=True)
    program = portal.program(ADA)
    for answer in (program.post("/v1/feeds", json={"scope": "user"}), program.delete("/v1/sessions")):
        assert (answer.status_code, answer.json()["code"]) == (403, "lent_token")
    assert program.get("/v1/feeds").status_code == 200


@pytest.mark.parametrize("user", ["bob", BOB.user_id, "*", "root"])
def test_sessions_and_feeds_of_others_are_for_admins(portal: BookingPortal, user: str) -> None:
    ada = portal.browser(ADA).client
    for method, path in (("GET", "sessions"), ("DELETE", "sessions"), ("GET", "feeds")):
        answer = ada.request(method, f"/v1/{path}", params={"user": user})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "sessions and feeds of others" in answer.json()["detail"]


def test_an_admin_ends_sessions_of_others(portal: BookingPortal) -> None:
    bob, ada, root = portal.browser(BOB), portal.browser(ADA), portal.browser(ROOT)
    rows = root.client.get("/v1/sessions", params={"user": "*"}).json()["sessions"]
    assert [row["user"] for row in rows] == ["ada", "bob", "root"]
    assert root.client.delete("/v1/sessions", params={"user": "bob"}).json() == {"ended": 1}
    assert [browser.client.get("/v1/me").status_code for browser in (bob, ada, root)] == [401, 200, 200]
    entry = root.client.get("/v1/audit").json()["entries"][0]
    assert (entry["actor"], entry["action"], entry["target"]) == ("root", "sessions.end", "bob")
    assert root.client.delete("/v1/sessions", params={"user": "nobody"}).status_code == 422
    assert root.client.delete("/v1/sessions", params={"user": "*"}).json() == {"ended": 2}
    assert root.client.get("/v1/me").status_code == 401


def test_an_admin_sees_and_deletes_feeds_of_others(portal: BookingPortal) -> None:
    made = portal.program(ADA).post("/v1/feeds", json={"scope": "user"}).json()
    root = portal.program(ROOT)
    for user in ("ada", "*"):
        (row,) = root.get("/v1/feeds", params={"user": user}).json()["feeds"]
        assert (row["id"], row["owner"]) == (made["id"], ADA.user_id)
        assert "path" not in row
    assert root.get("/v1/feeds").json()["feeds"] == []
    assert root.delete(f"/v1/feeds/{made['id']}").status_code == 204
    assert portal.store.feeds(NOON) == []
    entry = root.get("/v1/audit").json()["entries"][0]
    assert (entry["action"], entry["target"]) == ("feed.delete", made["id"])


def test_an_admin_elsewhere_is_none_here(portal: BookingPortal) -> None:
    portal.people.users_by_id[ROOT.user_id].roles["p-biology"] = frozenset({"member"})
    portal.people.tokens["token-root-biology"] = replace(
        portal.people.tokens["token-bob-biology"], user_id=ROOT.user_id, user="root"
    )
    program = portal.program(replace(ROOT, project="biology"))
    assert program.get("/v1/sessions", params={"user": "*"}).status_code == 403


def test_people_of_domains_that_the_site_does_not_name_see_nothing(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    made = portal.program(BOB).post("/v1/feeds", json={"scope": "pool", "target": "t4"}).json()
    bob, program = portal.browser(BOB), portal.program(BOB)
    assert bob.client.get("/v1/gpus").status_code == program.get("/v1/gpus").status_code == 200
    portal.ledger.book = replace(portal.ledger.book, knows=lambda project: project != "biology")
    for client in (bob.client, program):
        answer = client.get("/v1/gpus")
        assert answer.status_code == 403
    assert answer.json()["code"] == "other_domain"
    assert portal.browser().client.get(made["path"]).status_code == 404
    login = portal.browser().client.post("/login", data={"user": "bob", "password": PASSWORD})
    assert login.status_code == 403
    ada = portal.browser(ADA).client
    assert [project["name"] for project in ada.get("/v1/me").json()["projects"]] == ["physics"]
