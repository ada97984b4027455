"""Who may reach what. A new endpoint fails here until somebody has decided about it and written that down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Route

from gpuyard.model.booking import BookingState, Person
from gpuyard.server.app import create_app
from gpuyard.site.load import load_site
from tests.support.accounting import accounting_portal, accounting_site
from tests.support.health_portals import ADAS, fine, health_portal
from tests.support.inventories import plain_sources
from tests.support.ledgers import ADA, BOB, EVE, HOUR, NOON, ROOT, ask
from tests.support.people import PASSWORD, people
from tests.support.personal_clouds import InMemoryPersonalClouds
from tests.support.portals import BookingPortal, booking_portal
from tests.support.rooms import Knows, room_of
from tests.support.runner_portals import WAITING, fill, runner_portal
from tests.support.sites import plain_site

LOOPBACK = "anyone who can reach the loopback address"
"""Without bookings there is no login: the server refuses to listen elsewhere unless it is told to."""

ACCESS = {
    ("GET", "/"): LOOPBACK,
    ("GET", "/events"): LOOPBACK,
    ("GET", "/static/{name}"): LOOPBACK,
    ("GET", "/docs"): LOOPBACK,
    ("GET", "/docs/{path:path}"): LOOPBACK,
    ("GET", "/v1"): LOOPBACK,
    ("GET", "/v1/gpus"): LOOPBACK,
    ("GET", "/v1/pools"): LOOPBACK,
    ("GET", "/gpus"): LOOPBACK,
    ("GET", "/gpu"): LOOPBACK,
    ("GET", "/host"): LOOPBACK,
    ("GET", "/status"): LOOPBACK,
    ("GET", "/v1/status"): LOOPBACK,
    ("GET", "/openapi.json"): LOOPBACK,
    ("GET", "/healthz"): LOOPBACK,
    ("GET", "/readyz"): LOOPBACK,
    ("GET", "/metrics"): LOOPBACK,
}

NOBODY = "anyone"
READER = "whoever has the role reader, member or admin in a project"
MEMBER = "whoever has the role member or admin in the project"
OWNER = "who made the booking, and admins"
ADMIN = "admins"
HOLDER = "who has a server on the GPU, or had a booking of it in the last week, and admins"

BOOKING_ACCESS = {
    ("GET", "/login"): NOBODY,
    ("POST", "/login"): NOBODY,
    ("POST", "/login/sso"): NOBODY,
    ("GET", "/healthz"): NOBODY,
    ("GET", "/readyz"): NOBODY,
    ("GET", "/metrics"): NOBODY,
    ("GET", "/static/{name}"): NOBODY,
    ("GET", "/docs"): NOBODY,
    ("GET", "/docs/{path:path}"): NOBODY,
    ("GET", "/v1"): NOBODY,
    ("GET", "/status"): NOBODY,  # where the site says so, and less than others see: test_status.py
    ("GET", "/v1/status"): NOBODY,
    ("GET", "/ical/{secret}.ics"): NOBODY,  # who knows the secret
    ("GET", "/"): READER,
    ("GET", "/events"): READER,
    ("GET", "/calendar"): READER,
    ("GET", "/bookings"): READER,
    ("GET", "/mine"): READER,
    ("GET", "/overview"): READER,
    ("GET", "/project"): READER,  # of projects of theirs: test_project_pages.py
    ("GET", "/v1/utilisation"): READER,  # of pools, by no person; the next two as well
    ("GET", "/v1/utilisation/week"): READER,
    ("GET", "/v1/waits"): READER,
    ("GET", "/gpus"): READER,  # what they see there of others: test_portal_others.py
    ("GET", "/gpu"): READER,
    ("GET", "/host"): READER,
    ("GET", "/admin"): ADMIN,
    ("POST", "/logout"): READER,
    ("POST", "/project"): READER,
    ("GET", "/openapi.json"): READER,
    ("GET", "/v1/gpus"): READER,
    ("GET", "/v1/pools"): READER,
    ("GET", "/v1/me"): READER,
    ("GET", "/v1/bookings"): READER,
    ("GET", "/v1/cases"): READER,  # own ones, and admins all
    ("GET", "/v1/uses"): READER,  # own ones, and admins all: test_agents.py tries it
    ("POST", "/v1/bookings"): MEMBER,
    ("POST", "/v1/bookings/check"): READER,
    ("GET", "/v1/bookings/{id}"): READER,
    ("PATCH", "/v1/bookings/{id}"): OWNER,
    ("DELETE", "/v1/bookings/{id}"): OWNER,
    ("POST", "/v1/bookings/{id}/extend"): OWNER,
    ("POST", "/v1/bookings/{id}/cancel"): OWNER,
    ("POST", "/v1/bookings/{id}/end"): OWNER,
    ("POST", "/v1/bookings/{id}/approve"): ADMIN,
    ("POST", "/v1/bookings/{id}/decline"): OWNER,
    ("POST", "/v1/bookings/{id}/accept"): OWNER,
    ("POST", "/v1/bookings/{id}/open"): OWNER,
    ("GET", "/v1/holds"): READER,
    ("GET", "/v1/troubles"): READER,
    ("POST", "/v1/troubles"): ADMIN,
    ("POST", "/v1/holds"): ADMIN,
    ("POST", "/v1/rules/check"): ADMIN,
    ("GET", "/v1/audit"): ADMIN,
    ("GET", "/v1/calendar"): READER,
    ("GET", "/v1/pools/{pool}/rules"): READER,
    ("GET", "/v1/feeds"): READER,
    ("GET", "/v1/sessions"): READER,  # own ones; test_sessions.py tries those of others
    ("DELETE", "/v1/sessions"): READER,
    ("POST", "/v1/feeds"): READER,
    ("DELETE", "/v1/feeds/{id}"): READER,  # own ones; test_feeds.py tries those of others
}

OF_HISTORY = {
    ("GET", path) for path in ("/overview", "/project", "/v1/utilisation", "/v1/utilisation/week", "/v1/waits")
}
"""Of the above, those of a portal that has one."""

USAGE_ACCESS = {
    ("GET", "/v1/usage"): READER,  # what they see there of others: test_usage_api.py
    ("GET", "/v1/usage/intervals"): READER,
    ("GET", "/v1/budgets"): READER,  # of their projects, and admins all
}

RUNNER_ACCESS = {
    ("POST", "/v1/github/webhook"): NOBODY,  # who knows a secret; test_github_webhook.py
    ("GET", "/runners"): READER,  # and anyone where the site says that they are public
    ("GET", "/job"): READER,
    ("GET", "/v1/queue"): READER,
    ("GET", "/v1/jobs"): READER,
    ("GET", "/v1/jobs/{id:path}"): READER,
    ("GET", "/v1/jobs/{id:path}/log"): READER,  # also on a public site
    ("GET", "/v1/runners"): READER,
}
"""What a site with runners has besides; test_runner_pages.py tries who sees how much."""

BOOTABLE_ACCESS = {("GET", "/v1/flavors"): READER, ("GET", "/start"): READER}
"""Of a site whose cloud is asked what could be started; test_flavors_api.py tries whose limits one sees."""

SERVER_ACCESS = {
    ("GET", "/launch"): MEMBER,
    ("POST", "/launch"): MEMBER,
    ("GET", "/servers"): READER,  # their own
    ("GET", "/server"): READER,  # in the person's own name: Nova decides; test_server_pages.py
    ("POST", "/server"): MEMBER,
    ("GET", "/console"): MEMBER,
}
"""Of a site that starts servers from its pages; test_launch_pages.py and test_server_pages.py try who may."""

HEALTH_ACCESS = {
    ("GET", "/health"): ADMIN,
    ("GET", "/v1/health"): READER,  # words of others are for admins: test_health_api.py
    ("GET", "/v1/health/{host}/{address}"): READER,
    ("POST", "/v1/health/{host}/{address}/report"): HOLDER,
    ("GET", "/v1/repairs"): ADMIN,
    ("POST", "/v1/acceptances"): ADMIN,
    ("GET", "/v1/acceptances"): ADMIN,
    ("GET", "/v1/acceptances/{batch}"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/quarantine"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/release"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/start"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/note"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/done"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/abandon"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/lend"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/return"): ADMIN,
    ("POST", "/v1/health/{host}/{address}/repair/clear-baseline"): ADMIN,
    ("POST", "/v1/hosts/{host}/tokens"): ADMIN,
    ("GET", "/v1/maintenances"): ADMIN,
    ("POST", "/v1/maintenances"): ADMIN,
    ("GET", "/v1/maintenances/{id}"): ADMIN,
    ("POST", "/v1/maintenances/check"): ADMIN,
    ("POST", "/v1/maintenances/{id}/start"): ADMIN,
    ("POST", "/v1/maintenances/{id}/allow"): ADMIN,
    ("POST", "/v1/maintenances/{id}/done"): ADMIN,
    ("POST", "/v1/maintenances/{id}/extend"): ADMIN,
    ("POST", "/v1/maintenances/{id}/cancel"): ADMIN,
}
"""What a site that follows the health of its GPUs has besides."""

MACHINE_ACCESS = {
    ("POST", "/v1/hosts/{host}/looks"): "the host, by its token",  # test_health_intake.py
    ("POST", "/v1/hosts/{host}/scrubs"): "the host, by its token",  # test_scrub_intake.py
}
"""And what is for no person."""

AGENT_ACCESS = {
    ("POST", "/v1/agents/samples"): NOBODY,  # who has a token of a server; test_agents.py
    ("POST", "/v1/agents/enrol"): NOBODY,  # who has a code of a server
    ("GET", "/v1/agents"): READER,  # of the project that is looked at, and admins all
}
"""What a site whose servers say how their GPUs are has besides; test_agents.py tries who sees how much."""

WHO: dict[str, tuple[Person | None, ...]] = {
    NOBODY: (None, EVE, BOB, ADA, ROOT),
    READER: (EVE, BOB, ADA, ROOT),
    MEMBER: (BOB, ADA, ROOT),
    OWNER: (ADA, ROOT),
    ADMIN: (ROOT,),
}
"""EVE is a reader, BOB and ADA are members, the booking is ADA's, and ROOT is an admin."""

TIME = {"start": "2026-11-24T13:00:00Z", "end": "2026-11-24T15:00:00Z"}
BODIES: dict[tuple[str, str], dict[str, object]] = {
    ("POST", "/v1/bookings"): {"pool": "t4", **TIME},
    ("POST", "/v1/bookings/check"): {"pool": "t4", **TIME},
    ("PATCH", "/v1/bookings/{id}"): {"comment": "other"},
    ("POST", "/v1/bookings/{id}/extend"): {"end": "2026-11-23T18:00:00Z"},
    ("POST", "/v1/holds"): {"gpus": ["gpu-2/0000:18:00.0"], **TIME},
    ("POST", "/v1/feeds"): {"scope": "user"},
    ("POST", "/v1/rules/check"): {"rules": [{"pool": "t4", "project": "physics", "rules": {"longest": "3 h"}}]},
    ("POST", "/v1/maintenances"): {"host": "gpu-1", "comment": "kernel", **TIME},
    ("POST", "/v1/maintenances/check"): {"host": "gpu-1", **TIME},
    ("POST", "/v1/maintenances/{id}/allow"): {"servers": ["5e2a0000-0000-4000-8000-000000000001"]},
    ("POST", "/v1/maintenances/{id}/extend"): {"end": "2026-11-23T18:00:00Z"},
    ("POST", "/v1/troubles"): {"gpus": ["gpu-2/0000:18:00.0"]},
}


@pytest.fixture
def app() -> FastAPI:
    return create_app(plain_sources(), ["testserver"])


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


def endpoints(app: FastAPI) -> set[tuple[str, str]]:
    result = set()
    for route in app.routes:
        assert isinstance(route, Route), f"{route} hides its endpoints from this test; add them one by one"
        assert route.methods
        result |= {(method, route.path) for method in route.methods - {"HEAD"}}
    return result


def test_every_endpoint_is_decided_about(app: FastAPI) -> None:
    assert endpoints(app) == set(ACCESS)


def test_every_endpoint_of_a_site_with_bookings_is_decided_about(portal: BookingPortal) -> None:
    assert endpoints(portal.app) == set(BOOKING_ACCESS)


def test_every_endpoint_of_a_site_that_knows_its_room_is_decided_about(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, capacity=Knows(room_of(load_site(plain_site()))))
    assert endpoints(portal.app) == set(BOOKING_ACCESS | BOOTABLE_ACCESS)
    for (method, path), who in BOOTABLE_ACCESS.items():
        for person in (None, EVE, BOB, ADA, ROOT):
            assert is_let_in(portal, person, method, path, "") is (person in WHO[who]), person


def test_every_endpoint_of_a_site_that_accounts_for_use_is_decided_about(tmp_path: Path) -> None:
    portal = accounting_portal(tmp_path, accounting_site(), NOON, NOON + HOUR, []).portal
    assert endpoints(portal.app) == set(BOOKING_ACCESS | USAGE_ACCESS)
    for (method, path), who in USAGE_ACCESS.items():
        for person in (None, EVE, BOB, ADA, ROOT):
            assert is_let_in(portal, person, method, path, "") is (person in WHO[who]), (path, person)


def test_every_endpoint_of_a_site_that_starts_servers_is_decided_about(tmp_path: Path) -> None:
    keystone = people()
    portal = booking_portal(tmp_path, other_people=keystone, clouds=InMemoryPersonalClouds(keystone))
    assert endpoints(portal.app) == set(BOOKING_ACCESS | SERVER_ACCESS)


def test_every_endpoint_of_a_site_with_runners_is_decided_about(tmp_path: Path) -> None:
    assert endpoints(runner_portal(tmp_path).app) == set(BOOKING_ACCESS | RUNNER_ACCESS)


@pytest.mark.parametrize("public", [False, True], ids=["closed", "public"])
def test_who_gets_to_runners(tmp_path: Path, public: bool) -> None:
    portal = runner_portal(tmp_path, public=public)
    fill(portal)
    for (method, path), who in RUNNER_ACCESS.items():
        address = path.replace("{id:path}", WAITING.id)
        address += f"?id={WAITING.id}" if path == "/job" else ""
        open_to = WHO[NOBODY] if public and not path.endswith("/log") else WHO[who]
        for person in (None, EVE, ADA, ROOT):
            if method == "GET":
                assert is_let_in(portal, person, method, address, "") is (person in open_to), (path, person)


def test_every_endpoint_of_a_site_that_follows_health_is_decided_about(tmp_path: Path) -> None:
    assert endpoints(health_portal(tmp_path).app) == set(BOOKING_ACCESS | HEALTH_ACCESS | MACHINE_ACCESS)


def test_who_gets_to_health(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fine(portal)
    for (method, path), who in HEALTH_ACCESS.items():
        address = path.replace("{host}/{address}", f"gpu-1/{ADAS}").replace("{host}", "gpu-1")
        address = address.replace("{id}", "m-1")
        address = address.replace("{batch}", "abc")
        address += f"?name=gpu-1/{ADAS}" if path == "/gpu" else ""
        open_to = (ADA, ROOT) if who == HOLDER else WHO[who]
        for person in (None, EVE, BOB, ADA, ROOT):
            browser = portal.browser(person).client
            field = "words" if path.endswith("/report") else "comment"
            payload = BODIES.get((method, path), {} if path.endswith(("/tokens", "/acceptances")) else {field: "x"})
            body = {"json": payload} if method == "POST" else {}
            answer = browser.request(method, address, **body)  # type: ignore[arg-type]
            assert answer.status_code < 500
            refused = answer.status_code in (401, 403) or "login" in answer.headers.get("location", "")
            assert refused is (person not in open_to), (method, path, person)


def test_what_is_for_machines_is_for_no_person(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    for method, path in MACHINE_ACCESS:
        for person in (None, EVE, BOB, ADA, ROOT):
            answer = portal.browser(person).client.request(method, path.replace("{host}", "gpu-1"), json={})
            assert answer.status_code == 401, (method, path, person)


def test_nothing_can_be_changed(app: FastAPI) -> None:
    assert {method for method, _ in ACCESS} == {"GET"}
    client = TestClient(app)
    for _, path in ACCESS:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response = client.request(method, path.replace("{name}", "live.js"))
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] in ("GET", "GET, HEAD", "HEAD, GET")


def is_let_in(portal: BookingPortal, person: Person | None, method: str, path: str, id: str) -> bool:
    """Whether a request of somebody in a browser gets past what is about who it is."""
    browser = portal.browser(person)
    names = {"{id}": "0" * 64 if "feeds" in path else id, "{name}": "live.js", "{secret}": "x", "{pool}": "t4"}
    for name, value in names.items():
        path = path.replace(name, value)
    keywords: dict[str, object] = {"headers": {"If-Match": "*"}}
    if path in ("/login", "/logout", "/project") and method == "POST":
        keywords["data"] = {"user": "ada", "password": PASSWORD, "project": person.project_id if person else ""}
    elif body := BODIES.get((method, path.replace(id, "{id}"))):
        keywords["json"] = body
    if path == "/events":
        portal.app.state.feed.closed = True  # so that it ends
    response = browser.client.request(method, path, **keywords)  # type: ignore[arg-type]
    assert response.status_code != 500
    to_login = response.status_code == 303 and response.headers["location"].startswith("./login")
    return response.status_code not in (401, 403) and not to_login


@pytest.mark.parametrize(("method", "path"), sorted(BOOKING_ACCESS))
def test_they_and_nobody_else_get_in(portal: BookingPortal, method: str, path: str) -> None:
    if path == "/login/sso":
        pytest.skip("needs a token of Keystone's page; tried in test_portal_login.py")
    allowed = WHO[BOOKING_ACCESS[method, path]]
    for number, person in enumerate((None, EVE, BOB, ADA, ROOT)):
        (booking,) = portal.ledger.create(ask(1 + 5 * number), ADA)
        assert is_let_in(portal, person, method, path, booking.id) is (person in allowed), person


def states() -> list[tuple[str, Callable[[BookingPortal, str], None]]]:
    """What a booking can be when somebody else lays hands on it."""
    return [
        ("confirmed", lambda portal, id: None),
        ("active", lambda portal, id: portal.clock.forward(hours=1)),
        ("cancelled", lambda portal, id: portal.ledger.cancel(id, ADA) and None),
    ]


@pytest.mark.parametrize(("state", "make"), states(), ids=[state for state, _ in states()])
def test_a_booking_of_somebody_else_stays_as_it_is(
    portal: BookingPortal, state: str, make: Callable[[BookingPortal, str], None]
) -> None:
    (booking,) = portal.ledger.create(ask(), ADA)
    make(portal, booking.id)
    portal.ledger.upkeep.advance()
    before = portal.ledger.get(booking.id)
    assert before.state is BookingState(state)
    for person in (EVE, BOB):
        browser = portal.browser(person)
        for (method, path), who in BOOKING_ACCESS.items():
            if who in (OWNER, ADMIN) and "{id}" in path:
                body = BODIES.get((method, path), {})
                address = path.replace("{id}", booking.id)
                response = browser.client.request(method, address, json=body, headers={"If-Match": "*"})
                assert response.status_code in (403, 409), (method, path)
    assert portal.ledger.get(booking.id) == before


def test_only_admins_set_rules_aside_and_act_for_others(portal: BookingPortal) -> None:
    wish = {"pool": "t4", **TIME}
    ada, root = portal.browser(ADA).client, portal.browser(ROOT).client
    assert ada.post("/v1/bookings", json={**wish, "override": True}).status_code == 403
    assert ada.post("/v1/bookings", json={**wish, "project": "biology"}).status_code == 403  # a reader there
    assert ada.post("/v1/bookings", json={**wish, "project": "admin"}).status_code == 403
    made = root.post("/v1/bookings", json={**wish, "override": True, "project": "biology"})
    assert (made.status_code, made.json()["project"]) == (201, "biology")
    assert root.post("/v1/bookings", json={**wish, "project": "nonsense"}).status_code == 422


def test_who_has_left_a_project_does_not_book_on_in_it(portal: BookingPortal) -> None:
    (booking,) = portal.ledger.create(ask(), ADA)
    portal.people.users_by_id[ADA.user_id].roles = {"p-biology": frozenset({"member"})}
    ada = portal.browser(ADA).client
    path = f"/v1/bookings/{booking.id}"
    assert ada.post(f"{path}/extend", json={"end": "2026-11-23T18:00:00Z"}).status_code == 403
    assert ada.patch(path, json={"comment": "x"}, headers={"If-Match": "*"}).status_code == 403
    assert ada.delete(path).status_code == 200  # gives back what she had


@pytest.mark.parametrize("roles", [{}, {"p-physics": frozenset({"reader"})}], ids=["left", "reader"])
@pytest.mark.parametrize("verb", ["open", "accept"])
def test_who_may_book_no_more_in_a_project_cannot_make_more_of_what_is_booked_there(
    portal: BookingPortal, roles: dict[str, frozenset[str]], verb: str
) -> None:
    portal.ledger.create(ask(pool="t4", gpus=2), BOB)
    waits, pool = verb == "accept", "t4" if verb == "accept" else "v100"
    (booking,) = portal.ledger.create(ask(pool=pool), ADA, wait=waits)
    if waits:
        portal.ledger.cancel("b1", BOB)
    else:
        portal.clock.forward(hours=1)
    portal.ledger.upkeep.advance()
    before = portal.ledger.get(booking.id)
    assert before.state is (BookingState.OFFERED if waits else BookingState.ACTIVE)
    portal.people.users_by_id[ADA.user_id].roles = {"p-biology": frozenset({"member"}), **roles}
    for _ in range(2):
        answer = portal.browser(ADA).client.post(f"/v1/bookings/{booking.id}/{verb}")
        assert (answer.status_code, answer.json()["code"]) == (403, "no_role")
    assert portal.ledger.get(booking.id) == before
    portal.people.users_by_id[ADA.user_id].roles |= {"p-physics": frozenset({"member"})}
    portal.clock.forward(seconds=1)
    portal.people.calls.clear()
    ada = portal.browser(ADA).client
    assert ada.post(f"/v1/bookings/{booking.id}/{verb}").status_code == 200


@pytest.mark.parametrize("give_back", ["delete", "cancel", "end", "decline"])
def test_who_looks_at_another_project_gives_back_as_well_as_changes(portal: BookingPortal, give_back: str) -> None:
    (booking,) = portal.ledger.create(ask(), ADA)
    path = f"/v1/bookings/{booking.id}"
    ada = portal.browser(ADA)
    assert ada.client.post("/project", data={"project": "p-biology"}).status_code == 303  # a reader there
    assert ada.client.patch(path, json={"comment": "x"}, headers={"If-Match": "*"}).status_code == 200
    answer = ada.client.delete(path) if give_back == "delete" else ada.client.post(f"{path}/{give_back}")
    # It has not begun, so there is nothing to end, and nobody asks whether to take it.
    assert answer.status_code == (409 if give_back in ("end", "decline") else 200)


def test_a_token_gives_back_no_more_than_its_roles_let_it(portal: BookingPortal) -> None:
    (booking,) = portal.ledger.create(ask(), ADA)
    facts = portal.people.tokens["token-ada-physics"]
    assert facts.membership is not None
    reads = replace(facts, membership=replace(facts.membership, roles=frozenset({"reader"})))
    portal.people.tokens["token-ada-physics"] = reads
    for program in (portal.program(ADA), portal.program(replace(ADA, project="biology"))):
        assert program.delete(f"/v1/bookings/{booking.id}").status_code == 403
        assert program.post(f"/v1/bookings/{booking.id}/cancel").status_code == 403
    assert portal.ledger.get(booking.id).state is BookingState.CONFIRMED


def test_an_admin_of_one_project_is_none_in_another(portal: BookingPortal) -> None:
    (booking,) = portal.ledger.create(ask(), BOB)
    both = {"p-admin": frozenset({"admin", "member", "reader"}), "p-physics": frozenset({"member"})}
    portal.people.users_by_id[ADA.user_id].roles = both
    ada = portal.browser(replace(ADA))
    assert ada.client.post("/project", data={"project": "p-physics"}).status_code == 303
    assert ada.client.post(f"/v1/bookings/{booking.id}/cancel").status_code == 403
    ada.client.post("/project", data={"project": "p-admin"})
    assert ada.client.post(f"/v1/bookings/{booking.id}/cancel").status_code == 200
