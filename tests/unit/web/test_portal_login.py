"""Who gets into the portal, for how long, and what a page of another site can do to somebody who is in: nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import sleep

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gpuyard.model.errors import UsageError
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import Login, TokenFacts
from gpuyard.server.server import refuse_no_gateway
from gpuyard.web import token_bucket
from gpuyard.web.access import CHECK_EVERY, MOST_BYTES
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.directory import AGAIN, Directory
from gpuyard.web.gateway import client_address, is_https, up_from
from gpuyard.web.login import after
from gpuyard.web.login_throttle import LoginThrottle, places
from gpuyard.web.sessions import Sessions, digest_of
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import Session
from gpuyard.web.token_bucket import RateLimit
from tests.contract.people import RULES, Bench
from tests.support.ledgers import ADA, BOB, EVE, NOON, ROOT
from tests.support.people import LATER, PASSWORD, InMemoryPeople, people, token_of
from tests.support.personal_clouds import InMemoryPersonalClouds
from tests.support.portals import ROOMY, BookingPortal, Browser, booking_portal, limits_stand_still

WISH = {"pool": "t4", "start": "2026-11-23T13:00:00Z", "end": "2026-11-23T15:00:00Z"}
KEYSTONE = "https://keystone.example.org:5000"


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


# The double


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_people_in_memory_keep_the_rules_of_keystone(rule: Callable[[Bench], None]) -> None:
    keystone = people()
    bob = keystone.users_by_id[BOB.user_id]

    def change(**values: object) -> None:
        for name, value in values.items():
            setattr(bob, name, value)

    rule(
        Bench(
            keystone,
            BOB.user_id,
            BOB.user,
            PASSWORD,
            BOB.email,
            BOB.project_id,
            BOB.project,
            lambda: token_of(BOB)["X-Auth-Token"],
            lambda: change(roles={}),
            lambda: change(enabled=False),
            lambda: keystone.revocations.update({BOB.user_id: datetime.now(UTC)}),
        )
    )


# Logging in


def test_the_login_page_needs_no_login_and_is_kept_by_nobody(portal: BookingPortal) -> None:
    page = portal.browser().client.get("/login")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert '<form method="post" action="login">' in page.text
    assert 'value="Default"' in page.text
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert "single sign-on" not in page.text


def test_whoever_logs_in_gets_to_the_page_that_was_asked_for(portal: BookingPortal) -> None:
    client = portal.browser().client
    location = client.get("/calendar?pool=t4&from=x").headers["location"]
    assert location == "./login?next=/calendar%3Fpool%3Dt4%26from%3Dx"
    page = client.get(location.removeprefix("."))
    next = re.findall(r'name="next" value="([^"]*)"', page.text)[0].replace("&amp;", "&")
    entered = client.post("/login", data={"user": "ada", "password": PASSWORD, "next": next})
    assert (entered.status_code, entered.headers["location"]) == (303, "./calendar?pool=t4&from=x")
    assert client.get("/calendar").status_code == 200


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example.org/",
        "//evil.example.org",
        "/\\evil.example.org",
        "javascript:alert(1)",
        "/\r\nSet-Cookie: x=y",
        "/" + "x" * 5000,
        "\x00",
        "",
    ],
)
def test_a_login_leads_to_no_other_site(portal: BookingPortal, next: str) -> None:
    answer = portal.browser().client.post("/login", data={"user": "ada", "password": PASSWORD, "next": next})
    assert answer.status_code == 303
    assert answer.headers["location"] in ("./", "./evil.example.org")  # a path of ours


@given(st.text())
def test_wherever_a_login_leads_is_a_path_below_the_portal(next: str) -> None:
    assert re.fullmatch(r"\./([A-Za-z0-9._~!$&'()*+,;=:@%?-][^\\\s\x00-\x1f]*)?", after(next))
    assert re.fullmatch(r"\./([A-Za-z0-9._~!$&'()*+,;=:@%?-][^\\\s\x00-\x1f]*)?", after("/" + next))


@pytest.mark.parametrize(
    "form",
    [
        {"user": "ada", "password": "guessed"},
        {"user": "nobody", "password": PASSWORD},
        {"user": "ada", "password": PASSWORD, "domain": "elsewhere"},
    ],
)
def test_a_wrong_login_gets_the_page_again_with_the_reason(portal: BookingPortal, form: dict[str, str]) -> None:
    answer = portal.browser().client.post("/login", data=form)
    assert answer.status_code == 403
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers
    assert f'value="{form["user"]}"' in answer.text
    assert form["password"] not in answer.text


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"user": "ada"},
        {"user": " ", "password": "x"},
        {"user": "x" * 300, "password": "x"},
        {"user": "ada\0", "password": "x"},
        {"user": "ada", "password": "x\0"},
        {"user": "ada", "password": "x", "domain": "\x1b[31m"},
    ],
)
def test_an_incomplete_login_does_not_bother_keystone(portal: BookingPortal, form: dict[str, str]) -> None:
    assert portal.browser().client.post("/login", data=form).status_code == 422
    assert not portal.people.calls


def test_what_is_typed_is_only_text(portal: BookingPortal) -> None:
    page = portal.browser().client.post("/login", data={"user": '"><script>', "password": "x"}).text
    assert "<script>" not in page


def test_who_has_no_role_here_is_told_so(portal: BookingPortal) -> None:
    portal.people.users_by_id[BOB.user_id].roles = {"p-biology": frozenset({"heat_stack_owner"})}
    answer = portal.browser().client.post("/login", data={"user": "bob", "password": PASSWORD})
    assert answer.status_code == 403
    assert "none of the roles reader, member and admin" in answer.text
    assert "set-cookie" not in answer.headers


def test_when_keystone_is_away_the_login_says_so(portal: BookingPortal) -> None:
    portal.people.down = True
    answer = portal.browser().client.post("/login", data={"user": "bob", "password": PASSWORD})
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert 'role="alert"' in answer.text


# The cookie


def cookie_of(client: TestClient) -> str:
    return next(cookie.value or "" for cookie in client.cookies.jar)


def test_the_cookie_is_for_the_browser_alone(portal: BookingPortal) -> None:
    client = portal.browser().client
    header = client.post("/login", data={"user": "ada", "password": PASSWORD}).headers["set-cookie"]
    assert re.fullmatch(r"gpuyard=[\w-]{43}; HttpOnly; Path=/; SameSite=lax", header)


def test_over_tls_the_cookie_never_goes_without(portal: BookingPortal) -> None:
    client = TestClient(portal.app, "https://testserver", follow_redirects=False)
    header = client.post("/login", data={"user": "ada", "password": PASSWORD}).headers["set-cookie"]
    assert header.startswith("__Host-gpuyard=")
    assert header.endswith("; Secure")
    assert client.get("/v1/me").status_code == 200


@pytest.mark.parametrize("trusted", [True, False])
def test_a_gateway_is_believed_when_it_is_named(tmp_path: Path, trusted: bool) -> None:
    portal = booking_portal(tmp_path, settings=replace(ROOMY, trusted_gateways=["testclient"] if trusted else []))
    headers = {"X-Forwarded-Proto": "https"}
    answer = portal.browser().client.post("/login", data={"user": "ada", "password": PASSWORD}, headers=headers)
    assert ("Secure" in answer.headers["set-cookie"]) is trusted


def test_the_store_has_no_cookie_only_its_digest(portal: BookingPortal, tmp_path: Path) -> None:
    ada = portal.browser(ADA)
    cookie = cookie_of(ada.client)
    assert portal.store.get_session(digest_of(cookie), NOON) is not None
    for file in tmp_path.iterdir():
        assert cookie.encode() not in file.read_bytes()


def test_a_login_begins_a_new_session_and_ends_the_old_one(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    old, old_csrf = cookie_of(ada.client), ada.csrf
    ada.log_in("ada")
    new = cookie_of(ada.client)
    assert new != old
    assert ada.csrf != old_csrf
    assert portal.browser().client.get("/v1/me", headers={"Cookie": f"gpuyard={old}"}).status_code == 401
    assert portal.browser().client.get("/v1/me", headers={"Cookie": f"gpuyard={new}"}).status_code == 200


@pytest.mark.parametrize("cookie", ["", "x", "x" * 43, "x" * 5000, "ü", "%00", "'; drop table session; --"])
def test_a_cookie_of_nobody_is_nobody(portal: BookingPortal, cookie: str) -> None:
    headers = {"Cookie": f"gpuyard={cookie}".encode()}
    assert portal.browser().client.get("/v1/me", headers=headers).status_code == 401  # type: ignore[arg-type]


def test_an_idle_session_ends(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    for _ in range(3):
        portal.clock.forward(minutes=59)
        assert ada.client.get("/v1/me").status_code == 200
    portal.clock.forward(hours=1)
    assert ada.client.get("/v1/me").status_code == 401
    assert ada.client.get("/calendar").headers["location"] == "./login?next=/calendar"


def test_a_session_ends_after_a_day_of_work(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    for _ in range(23):
        portal.clock.forward(minutes=30)
        assert ada.client.get("/v1/me").status_code == 200
    portal.clock.forward(minutes=30)
    assert ada.client.get("/v1/me").status_code == 401


def test_logging_out_ends_the_session_on_the_server(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    cookie = cookie_of(ada.client)
    answer = ada.client.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "login")
    assert 'gpuyard=""' in answer.headers["set-cookie"]
    assert portal.browser().client.get("/v1/me", headers={"Cookie": f"gpuyard={cookie}"}).status_code == 401


def test_a_session_that_ends_while_it_is_used_stays_ended(
    portal: BookingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(portal.store, portal.clock, timedelta(hours=12), timedelta(hours=2))
    other = Sessions(portal.store, portal.clock, timedelta(hours=12), timedelta(hours=2))  # another process
    cookie, session = sessions.begin(ADA.user_id, ADA.user, ADA.project_id)
    portal.clock.forward(1)
    put_off = portal.store.put_off

    def meanwhile(digest: str, expires: datetime) -> bool:
        assert other.end_all(ADA.user_id) == 1
        return put_off(digest, expires)

    monkeypatch.setattr(portal.store, "put_off", meanwhile)
    assert sessions.find(cookie) is None
    sessions.switch(session, "p-biology")
    assert other.find(cookie) is None


# Projects


def test_somebody_looks_at_one_project_at_a_time(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    me = ada.client.get("/v1/me").json()
    assert me["project"]["name"] == "physics"  # where there is something to book
    assert [project["name"] for project in me["projects"]] == ["biology", "physics"]
    answer = ada.client.post("/project", data={"project": "p-biology", "next": "/calendar"})
    assert (answer.status_code, answer.headers["location"]) == (303, "./calendar")
    me = ada.client.get("/v1/me").json()
    assert (me["project"]["name"], me["may_book"]) == ("biology", False)
    ada.log_in("ada")
    assert ada.client.get("/v1/me").json()["project"]["name"] == "biology"


def test_nobody_looks_at_a_project_of_others(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    for project in ("p-admin", "", "nonsense", "physics"):
        assert ada.client.post("/project", data={"project": project}).status_code == 403
    assert ada.client.get("/v1/me").json()["project"]["name"] == "physics"


# What Keystone says, a minute later


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[BookingPortal, list[float]]:
    """A portal, and the time on the clock of its caches and rate limits."""
    time = [1000.0]
    # The app has no other use for it, so it does not take it as an argument.
    monkeypatch.setattr("gpuyard.server.capabilities.Authenticator", partial(Authenticator, clock=lambda: time[0]))
    return booking_portal(tmp_path, settings=PortalSettings()), time


def test_a_role_that_is_taken_away_is_gone_within_a_minute(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada, program = portal.browser(ADA), portal.program(ADA)
    assert program.get("/v1/me").status_code == 200
    portal.people.users_by_id[ADA.user_id].roles = {"p-biology": frozenset({"reader"})}
    time[0] += 61
    assert ada.client.get("/v1/me").json()["project"]["name"] == "biology"
    assert ada.client.post("/v1/bookings", json=WISH).status_code == 403
    assert program.get("/v1/me").status_code == 401


def test_a_disabled_user_is_out_within_a_minute_and_stays_out(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada = portal.browser(ADA)
    portal.people.users_by_id[ADA.user_id].enabled = False
    time[0] += 61
    assert ada.client.get("/v1/me").status_code == 401
    portal.people.users_by_id[ADA.user_id].enabled = True
    time[0] += 61
    assert ada.client.get("/v1/me").status_code == 401


def test_keystone_is_not_asked_again_and_again(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada, program = portal.browser(ADA), portal.program(BOB)
    program.get("/v1/me")
    before = len(portal.people.calls)
    for _ in range(20):
        time[0] += 1
        assert ada.client.get("/v1/me").status_code == 200
        assert program.get("/v1/me").status_code == 200
    assert len(portal.people.calls) == before


def test_an_hour_without_keystone_keeps_nobody_from_booking(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada, program = portal.browser(ADA), portal.program(BOB)
    assert program.get("/v1/me").status_code == 200
    portal.people.down = True
    time[0] += 3600
    assert ada.client.post("/v1/bookings", json=WISH).status_code == 201
    assert program.post("/v1/bookings", json=WISH).status_code == 201
    assert portal.program(EVE).get("/v1/me").status_code == 503  # nothing is known of her
    time[0] += 4 * 3600
    answer = ada.client.get("/v1/me")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    portal.people.down = False
    time[0] += 60
    assert ada.client.get("/v1/me").status_code == 200


def test_only_an_outage_makes_old_answers_good(timed: tuple[BookingPortal, list[float]]) -> None:
    """Or somebody who makes Keystone refuse something would keep the roles that he had."""
    portal, time = timed
    ada = portal.browser(ADA)
    portal.people.down = True
    for status, accepted in ((None, True), (500, True), (503, True), (400, False), (401, False), (403, False)):
        portal.people.status = status
        time[0] += 61
        assert ada.client.get("/v1/me").status_code == (200 if accepted else 503), status
    portal.people.down = False
    portal.people.users_by_id[ADA.user_id].enabled = False
    time[0] += 61
    assert ada.client.get("/v1/me").status_code == 401


def test_a_token_that_makes_keystone_fail_keeps_nobody_else_in(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada = portal.browser(ADA)
    time[0] += 61
    portal.people.users_by_id[ADA.user_id].enabled = False
    portal.people.down, portal.people.status = True, 503
    assert portal.browser().client.get("/v1/me", headers={"X-Auth-Token": "odd"}).status_code == 503
    portal.people.down = False
    assert ada.client.get("/v1/me").status_code == 401


def test_a_token_is_worth_nothing_after_its_time(portal: BookingPortal) -> None:
    facts = portal.people.tokens["token-ada-physics"]
    portal.people.tokens["token-ada-physics"] = replace(facts, expires=NOON + timedelta(seconds=30))
    program = portal.program(ADA)
    assert program.get("/v1/me").status_code == 200
    portal.clock.forward(seconds=31)
    assert program.get("/v1/me").status_code == 401


def test_tokens_without_a_project_or_a_role_are_told_so(portal: BookingPortal) -> None:
    facts = portal.people.tokens["token-ada-physics"]
    portal.people.tokens["none"] = TokenFacts(ADA.user_id, "ada", LATER, None)
    assert facts.membership
    portal.people.tokens["other"] = replace(
        facts, membership=replace(facts.membership, roles=frozenset({"heat_stack_owner"}))
    )
    client = portal.browser().client
    for token, code in (("none", "no_project"), ("other", "no_role")):
        answer = client.get("/v1/me", headers={"X-Auth-Token": token})
        assert (answer.status_code, answer.json()["code"]) == (403, code)


def test_a_token_opens_the_api_and_no_pages(portal: BookingPortal) -> None:
    program = portal.program(ADA)
    assert program.get("/v1/bookings").status_code == 200
    assert program.get("/calendar").status_code == 303
    assert program.post("/project", data={"project": "p-biology"}).status_code == 303
    assert program.get("/v1/me").json()["csrf"] == ""


# What pages of other sites can do


def test_nothing_is_changed_by_the_cookie_alone(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    del ada.client.headers["X-CSRF-Token"]
    for token in (None, "", "x", ada.csrf[:-1], ada.csrf + "x", portal.browser(BOB).csrf, "ü"):
        headers = {} if token is None else {"X-CSRF-Token": token.encode()}
        answer = ada.client.post("/v1/bookings", json=WISH, headers=headers)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
    assert ada.client.post("/logout").status_code == 403
    assert not ada.client.get("/v1/bookings").json()["bookings"]


def test_a_form_can_have_the_token_in_a_field(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    del ada.client.headers["X-CSRF-Token"]
    assert ada.client.post("/project", data={"project": "p-biology", "csrf": "x"}).status_code == 403
    assert ada.client.post("/project", data={"project": "p-biology", "csrf": ada.csrf}).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example.org"},
        {"Origin": "http://testserver:8000"},
    ],
)
def test_pages_of_other_sites_change_nothing_even_with_the_token(
    portal: BookingPortal, headers: dict[str, str]
) -> None:
    ada = portal.browser(ADA)
    answer = ada.client.post("/v1/bookings", json=WISH, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    login = portal.browser().client.post("/login", data={"user": "bob", "password": PASSWORD}, headers=headers)
    assert login.status_code == 403
    assert "set-cookie" not in login.headers


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://testserver"}])
def test_our_own_pages_do(portal: BookingPortal, headers: dict[str, str]) -> None:
    assert portal.browser(ADA).client.post("/v1/bookings", json=WISH, headers=headers).status_code == 201


@pytest.mark.parametrize("path", ["", "/", "/gpus/"])
def test_with_a_public_address_its_pages_alone_are_ours(tmp_path: Path, path: str) -> None:
    portal = booking_portal(tmp_path, settings=replace(ROOMY, public_url=f"https://GPU.example.org:443{path}"))
    ada = Browser(TestClient(portal.app, "https://testserver", follow_redirects=False))
    ada.log_in("ada")
    for origin, status in (
        ("https://gpu.example.org", 201),
        ("http://gpu.example.org", 403),
        ("https://testserver", 403),
        ("http://[::1", 403),
    ):
        assert ada.client.post("/v1/bookings", json=WISH, headers={"Origin": origin}).status_code == status


def test_with_a_public_address_of_tls_the_cookie_is_for_tls(tmp_path: Path) -> None:
    """Whatever reaches the portal itself, which is plain HTTP from a gateway."""
    portal = booking_portal(tmp_path, settings=replace(ROOMY, public_url="https://gpu.example.org"))
    client = portal.browser().client
    header = client.post("/login", data={"user": "ada", "password": PASSWORD}).headers["set-cookie"]
    assert header.startswith("__Host-gpuyard=")
    assert header.endswith("; Secure")


@pytest.mark.parametrize(
    ("url", "gateways", "text"),
    [
        ("https://gpu.example.org", (), "name its address with --gateway"),
        ("notaurl", ("127.0.0.1",), "no address of pages"),
        ("https://", ("127.0.0.1",), "no address of pages"),
        ("https://gpu.example.org", ("127.0.0.1",), ""),
        ("http://gpu.example.org", (), ""),
        ("", (), ""),
    ],
)
def test_an_address_of_tls_needs_a_gateway(url: str, gateways: tuple[str, ...], text: str) -> None:
    settings = PortalSettings(public_url=url, trusted_gateways=gateways)
    with pytest.raises(UsageError, match=text) if text else nullcontext():
        refuse_no_gateway(settings)


# How often


def test_passwords_cannot_be_guessed_fast(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    client = portal.browser().client
    tries = PortalSettings().login_tries
    for _ in range(tries):
        assert client.post("/login", data={"user": "ada", "password": "guess"}).status_code == 403
    for password in ("guess", PASSWORD):
        answer = client.post("/login", data={"user": "ADA ", "password": password})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert portal.people.calls.count("log_in") == tries
    portal.browser(BOB)  # others are not kept out
    time[0] += 31
    assert client.post("/login", data={"user": "ada", "password": PASSWORD}).status_code == 303


def test_bad_logins_keep_nobody_out_elsewhere(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=PortalSettings(trusted_gateways=("testclient",)))

    def status(password: str, address: str) -> int:
        form = {"user": "ada", "password": password}
        return portal.browser().client.post("/login", data=form, headers={"X-Forwarded-For": address}).status_code

    guesses = [status("guess", "2001:db8:0:1::1") for _ in range(11)]
    assert guesses == [403] * 10 + [429]
    assert status(PASSWORD, "2001:db8:0:1:ffff::9") == 429, "the same network of one customer"
    assert status(PASSWORD, "2001:db8:0:2::1") == 303
    assert status(PASSWORD, "192.0.2.1") == 303
    for number in range(4):
        assert [status("guess", f"198.51.{number}.1") for _ in range(10)] == [403] * 10
    assert status(PASSWORD, "203.0.113.1") == 429, "from everywhere there is a limit, too"
    assert status(PASSWORD, "192.0.2.1") == 303, "but not for a place from which she has logged in before"
    assert [status("guess", "192.0.2.1") for _ in range(11)] == [403] * 10 + [429], "whose own tries are still counted"


def test_many_guesses_at_once_are_no_more_than_one_by_one(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=PortalSettings())
    log_in = portal.people.log_in

    def slow(user: str, password: str, domain: str) -> Login:
        sleep(0.05)  # as Keystone, which hashes
        return log_in(user, password, domain)

    portal.people.log_in = slow  # type: ignore[method-assign]
    client = portal.browser().client

    def guess(number: int) -> int:
        return client.post("/login", data={"user": "ada", "password": f"guess{number}"}).status_code

    with ThreadPoolExecutor(30) as pool:
        statuses = sorted(pool.map(guess, range(60)))
    assert statuses == [403] * 10 + [429] * 50
    assert portal.people.calls.count("log_in") == 10


def test_what_keystone_does_not_answer_is_no_guess(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    portal.people.down = True
    client = portal.browser().client
    for _ in range(30):
        assert client.post("/login", data={"user": "ada", "password": PASSWORD}).status_code == 503
    portal.people.down = False
    time[0] += 30
    assert client.post("/login", data={"user": "ada", "password": PASSWORD}).status_code == 303


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.77", ("192.0.2.77/32", "192.0.2.0/24")),
        ("::ffff:192.0.2.77", ("192.0.2.77/32", "192.0.2.0/24")),
        ("2001:db8:1:2:3::4", ("2001:db8:1:2::/64", "2001:db8:1::/48")),
        ("fe80::1%eth0", ("fe80::/64", "fe80::/48")),
        ("testclient", ("testclient", "testclient")),
        ("", ("", "")),
    ],
)
def test_places(address: str, found: tuple[str, str]) -> None:
    assert places(address) == found


def test_an_address_cannot_try_many_users(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    client = portal.browser().client
    for number in range(PortalSettings().address_tries):
        assert client.post("/login", data={"user": f"user{number}", "password": "guess"}).status_code == 403
    assert client.post("/login", data={"user": "ada", "password": PASSWORD}).status_code == 429
    answer = portal.program(ADA).get("/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many")
    time[0] += 7
    assert portal.program(ADA).get("/v1/me").status_code == 200


def test_a_good_token_is_good_whatever_others_guess_from_its_address(
    timed: tuple[BookingPortal, list[float]],
) -> None:
    portal, time = timed
    program, client = portal.program(ADA), portal.browser().client
    assert program.get("/v1/me").status_code == 200
    for number in range(PortalSettings().address_tries + 1):
        status = client.get("/v1/me", headers={"X-Auth-Token": f"guess{number}"}).status_code
    assert status == 429
    assert program.get("/v1/me").status_code == 200
    time[0] += 61  # it is asked about again
    for number in range(20):
        status = client.get("/v1/me", headers={"X-Auth-Token": f"again{number}"}).status_code
    assert status == 429
    assert program.get("/v1/me").status_code == 200
    portal.people.users_by_id[ADA.user_id].enabled = False
    time[0] += 5 * 61
    for number in range(60):
        client.get("/v1/me", headers={"X-Auth-Token": f"more{number}"})
    assert [program.get("/v1/me").status_code for _ in range(2)] == [401, 429]


def test_while_keystone_is_away_strangers_do_not_wait_for_it(
    timed: tuple[BookingPortal, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    portal, time = timed
    ada, program, client = portal.browser(ADA), portal.program(BOB), portal.browser().client
    assert program.get("/v1/me").status_code == 200
    calls: list[str] = []

    def black_hole(people: InMemoryPeople, what: str) -> None:
        calls.append(what)
        if people.down:
            raise CloudError("cloud test: no answer")

    monkeypatch.setattr(InMemoryPeople, "_call", black_hole)
    portal.people.down = True

    def strangers() -> list[int]:
        tokens = [client.get("/v1/me", headers={"X-Auth-Token": f"guess{n}"}).status_code for n in range(20)]
        return tokens + [client.post("/login", data={"user": f"u{n}", "password": "x"}).status_code for n in range(20)]

    assert strangers() == [503] * 40
    assert calls == ["token", "log_in"]
    time[0] += AGAIN + 1
    assert strangers() == [503] * 40
    assert calls == ["token", "log_in"] * 2
    for somebody in (ada.client, program):
        assert somebody.get("/v1/me").status_code == 200
    portal.people.down = False
    time[0] += AGAIN + 1
    portal.browser(EVE)
    assert portal.program(EVE).get("/v1/me").status_code == 200


def test_only_one_finds_out_whether_keystone_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    time, down, begun, go_on = [0.0], [True], threading.Event(), threading.Event()

    def slow(token: str) -> None:
        begun.set()
        assert go_on.wait(10)
        if down[0]:
            raise CloudError("no answer")

    keystone = people()
    monkeypatch.setattr(keystone, "token", slow)
    directory = Directory(keystone, lambda: time[0])
    go_on.set()
    with pytest.raises(CloudError, match="no answer"):
        directory.token("first")
    begun.clear()
    go_on.clear()
    time[0] += AGAIN
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(directory.token, "second")
        assert begun.wait(10)
        with pytest.raises(CloudError, match="a moment ago"):
            directory.token("third")
        down[0] = False
        go_on.set()
        assert probe.result(10) is None
    assert directory.token("third") is None


def test_what_gets_no_answer_pushes_out_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.web.directory.MOST", 5)
    keystone = people()
    directory = Directory(keystone, lambda: 0.0)
    token = token_of(ADA)["X-Auth-Token"]
    assert directory.token(token) is not None
    keystone.down = True
    for number in range(20):
        with pytest.raises(CloudError):
            directory.token(f"guess{number}")
    assert directory.knows_token(token)


def test_guessed_tokens_count(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, _ = timed
    client = portal.browser().client
    statuses = [client.get("/v1/me", headers={"X-Auth-Token": f"guess{n}"}).status_code for n in range(60)]
    assert statuses == [401] * 50 + [429] * 10


def test_one_person_cannot_write_without_end(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    ada = portal.browser(ADA)
    answers = [ada.client.post("/v1/bookings/none/cancel") for _ in range(PortalSettings().writes + 1)]
    assert [answer.status_code for answer in answers] == [404] * PortalSettings().writes + [429]
    assert answers[-1].headers["retry-after"] == "1"
    assert portal.browser(BOB).client.post("/v1/bookings", json=WISH).status_code == 201
    assert ada.client.get("/v1/bookings").status_code == 200
    assert ada.client.post("/v1/bookings/check", json=WISH).status_code == 200
    time[0] += 1
    assert ada.client.post("/v1/bookings", json=WISH).status_code == 201


def test_somebody_who_looks_too_often_has_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_stand_still(monkeypatch)
    portal = booking_portal(tmp_path, settings=PortalSettings(reads=5))
    ada, bob = portal.program(ADA), portal.program(BOB)
    assert [ada.get("/v1/me").status_code for _ in range(7)] == [200] * 5 + [429] * 2
    assert bob.get("/v1/me").status_code == 200


@pytest.mark.parametrize("path", ["/", "/openapi.json", "/calendar"])
def test_pages_and_documents_count_as_looks_of_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    limits_stand_still(monkeypatch)
    portal = booking_portal(tmp_path, settings=PortalSettings(reads=5))
    ada, bob = portal.browser(ADA), portal.browser(BOB)
    assert 429 in [ada.client.get(path).status_code for _ in range(7)]
    assert bob.client.get(path).status_code == 200


def test_whoever_opens_live_feeds_looks_and_whoever_keeps_one_open_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_stand_still(monkeypatch)
    monkeypatch.setattr("gpuyard.web.access.CHECK_EVERY", 0.02)
    portal = booking_portal(tmp_path, settings=PortalSettings(reads=3))
    ada, bob, checks = portal.browser(ADA), portal.browser(BOB), list[bool]()
    find = Sessions.find

    def find_until_it_was_checked_often(sessions: Sessions, cookie: str, used: bool = True) -> Session | None:
        checks.append(used)
        return find(sessions, cookie, used) if len(checks) <= 10 else None

    with monkeypatch.context() as patched:
        patched.setattr(Sessions, "find", find_until_it_was_checked_often)
        assert b"event: map" in ada.client.get("/events").read()  # until nobody is logged in any more
    assert checks == [False] * 11
    portal.app.state.feed.close()  # those that are opened now end at once
    assert [ada.client.get("/events").status_code for _ in range(3)] == [200, 429, 429]
    assert ada.client.get("/v1/me").status_code == 429
    assert bob.client.get("/events").status_code == 200


@given(
    st.integers(1, 5),
    st.floats(0.5, 60),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100)), max_size=60),
)
def test_a_limit_never_lets_more_through_than_it_says(
    burst: int, seconds: float, steps: list[tuple[str, float]]
) -> None:
    now = [0.0]
    limit = RateLimit(burst, seconds, lambda: now[0])
    taken: dict[str, list[float]] = {"a": [], "b": []}
    for key, pause in steps:
        now[0] += pause
        wait = limit.take(key)
        if wait == 0:
            taken[key].append(now[0])
        else:
            assert limit.wait(key) == wait
    for times in taken.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + (times[last] - times[first]) / seconds + 1e-6


def test_who_has_had_all_tries_cannot_wash_out_what_is_known_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MOST", 300)
    tries = LoginThrottle(10, 50, lambda: 0.0)
    for place in range(50):
        assert tries.take("admin", f"198.51.{place}.1").wait == 0
    assert tries.take("admin", "192.0.2.1").wait > 0
    assert sum(tries.take(f"invented {number}", "203.0.113.9").wait == 0 for number in range(1000)) == 50
    assert tries.take("admin", "192.0.2.2").wait > 0
    assert all(len(limit._buckets) <= 151 for limit, _ in tries._limits("admin", "192.0.2.1"))


def test_buckets_that_are_full_are_forgotten_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MOST", 2)
    now = [0.0]
    limit = RateLimit(1, 10, lambda: now[0])
    assert [limit.take(key) for key in "abc"] == [0, 0, 10]
    limit.give_back("a")
    assert limit.take("c") == 0
    assert limit.take("b") == 10
    now[0] = 10.0
    assert [limit.take(key) for key in "ab"] == [0, 0]


def test_who_waits_as_long_as_it_says_gets_through() -> None:
    now = [0.0]
    limit = RateLimit(1, 7.5, lambda: now[0])
    assert limit.take("a") == 0
    now[0] += limit.take("a")
    assert limit.take("a") == 0


# Single sign-on


SSO = replace(ROOMY, websso="openid", websso_url=f"{KEYSTONE}/v3/", public_url="http://gpu.example.org")


def test_the_page_leads_to_keystones_single_sign_on(tmp_path: Path) -> None:
    page = booking_portal(tmp_path, settings=SSO).browser().client.get("/login").text
    address = f"{KEYSTONE}/v3/auth/OS-FEDERATION/websso/openid?origin=http%3A%2F%2Fgpu.example.org%2Flogin%2Fsso"
    assert f'href="{address}"' in page


def test_the_page_leads_to_an_identity_provider_that_is_named(tmp_path: Path) -> None:
    settings = replace(SSO, websso="my campus/openid")
    page = booking_portal(tmp_path, settings=settings).browser().client.get("/login").text
    path = "identity_providers/my%20campus/protocols/openid/websso"
    assert f'href="{KEYSTONE}/v3/auth/OS-FEDERATION/{path}?origin=http%3A%2F%2Fgpu.example.org%2Flogin%2Fsso"' in page


def test_whom_keystone_refused_is_told_and_nobody_without_single_sign_on(tmp_path: Path, portal: BookingPortal) -> None:
    page = booking_portal(tmp_path / "sso", settings=SSO).browser().client.get("/login?sso=refused").text
    assert "Keystone does not let you in" in page
    for path in ("/login?sso=no-such-text", "/login?sso=left%0d%0a"):
        assert 'role="alert"' not in booking_portal(tmp_path / "x", settings=SSO).browser().client.get(path).text
    assert 'role="alert"' not in portal.browser().client.get("/login?sso=refused").text


def test_who_logs_out_is_told_of_single_sign_on(tmp_path: Path) -> None:
    for logout in ("", "https://keystone.example.org/redirect_uri?logout=x&y"):
        portal = booking_portal(tmp_path / str(bool(logout)), settings=replace(SSO, websso_logout=logout))
        client = portal.browser(BOB).client
        answer = client.post("/logout")
        assert (answer.status_code, answer.headers["location"]) == (303, "login?sso=left")
        page = client.get("/login?sso=left").text
        assert "Single sign-on still knows this browser" in page
        assert ("redirect_uri?logout=x&amp;y" in page) is bool(logout)
    with pytest.raises(UsageError, match="--websso-logout"):
        booking_portal(tmp_path / "bad", settings=replace(SSO, websso_logout="javascript:alert(1)"))


def test_who_is_only_in_groups_that_keystone_forgets_is_told(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    portal.people.users_by_id[BOB.user_id].roles.clear()
    for in_groups in (False, True):
        facts = TokenFacts(BOB.user_id, "bob", LATER, None, True, audit_id=f"a-{in_groups}", in_groups=in_groups)
        portal.people.tokens["t"] = facts
        answer = portal.browser().client.post("/login/sso", data={"token": "t"}, headers={"Origin": KEYSTONE})
        assert answer.status_code == 403
        assert "none of the roles" in answer.text
        assert ("default_authorization_ttl" in answer.text) is in_groups


@pytest.mark.parametrize("url", ["", "keystone", "javascript:alert(1)"])
def test_single_sign_on_needs_to_know_keystone(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--websso-url"):
        booking_portal(tmp_path, settings=replace(SSO, websso_url=url))


@pytest.mark.parametrize("url", [KEYSTONE, f"{KEYSTONE}/", f"{KEYSTONE}/v3", f"{KEYSTONE}/v3/"])
def test_the_address_of_keystone_may_be_without_its_version(url: str) -> None:
    assert replace(SSO, websso_url=url).keystone_v3 == f"{KEYSTONE}/v3"


def test_keystone_posts_a_token_and_somebody_is_in(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    portal.people.tokens["unscoped"] = TokenFacts(BOB.user_id, "bob", LATER, None, federated=True)
    client = portal.browser().client
    headers = {"Origin": KEYSTONE, "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/login/sso", data={"token": "unscoped"}, headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, ".././")
    assert client.get("/v1/me").json()["user"]["name"] == "bob"
    other = portal.browser().client
    answer = other.post("/login/sso", data={"token": "unscoped"}, headers=headers)
    assert answer.status_code == 403, "a token opens one session"
    assert other.get("/v1/me").status_code == 401


def test_a_token_that_the_session_keeps_stays_valid_and_opens_no_second_session(tmp_path: Path) -> None:
    keystone = people()
    portal = booking_portal(tmp_path, settings=SSO, other_people=keystone, clouds=InMemoryPersonalClouds(keystone))
    keystone.tokens["unscoped"] = TokenFacts(BOB.user_id, "bob", LATER, None, federated=True)
    client = portal.browser().client
    headers = {"Origin": KEYSTONE, "Sec-Fetch-Site": "cross-site"}
    assert client.post("/login/sso", data={"token": "unscoped"}, headers=headers).status_code == 303
    assert "unscoped" in keystone.tokens
    for browser in (client, portal.browser().client):
        assert browser.post("/login/sso", data={"token": "unscoped"}, headers=headers).status_code == 403
    csrf = client.get("/v1/me").json()["csrf"]
    assert client.post("/logout", headers={"X-CSRF-Token": csrf}).status_code == 303
    assert "unscoped" not in keystone.tokens


def test_a_token_that_cannot_be_spent_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    portal.people.tokens["t"] = TokenFacts(BOB.user_id, "bob", LATER, None, federated=True)

    def away(token: str) -> bool:
        raise CloudError("cloud test: cannot be asked")

    monkeypatch.setattr(portal.people, "spend", away)
    client = portal.browser().client
    answer = client.post("/login/sso", data={"token": "t"}, headers={"Origin": KEYSTONE})
    assert answer.status_code == 503
    assert "set-cookie" not in answer.headers


def test_a_session_ends_with_the_token_that_it_is_from(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    portal.people.tokens["t"] = TokenFacts(BOB.user_id, "bob", NOON + timedelta(minutes=50), None, federated=True)
    client = portal.browser().client
    assert client.post("/login/sso", data={"token": "t"}, headers={"Origin": KEYSTONE}).status_code == 303
    for minutes, status in ((30, 200), (19, 200), (1, 401)):
        portal.clock.forward(minutes=minutes)
        assert client.get("/v1/me").status_code == status


def test_single_sign_on_is_for_its_own_tokens(tmp_path: Path) -> None:
    """An application credential, say, may do less than its user."""
    portal = booking_portal(tmp_path, settings=SSO)
    client = portal.browser().client
    answer = client.post("/login/sso", data={"token": "token-root-admin"}, headers={"Origin": KEYSTONE})
    assert answer.status_code == 403
    assert "none of its single sign-on" in answer.text
    assert "token-root-admin" in portal.people.tokens, "which is still good for what it is for"
    assert "set-cookie" not in answer.headers


def test_bad_tokens_of_single_sign_on_keep_only_their_own_address_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SSO, login_tries=10, address_tries=50, trusted_gateways=("testclient",))
    portal = booking_portal(tmp_path, settings=settings)
    portal.people.tokens["t"] = TokenFacts(BOB.user_id, "bob", LATER, None, federated=True)

    def status(token: str, address: str) -> int:
        headers = {"Origin": KEYSTONE, "X-Forwarded-For": address}
        return portal.browser().client.post("/login/sso", data={"token": token}, headers=headers).status_code

    assert [status("guess", "203.0.113.7") for _ in range(51)] == [403] * 50 + [429]
    assert status("t", "203.0.113.7") == 429
    assert status("t", "198.51.100.1") == 303


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example.org", "https://keystone.example.org"])
def test_no_other_site_logs_anybody_in(tmp_path: Path, origin: str | None) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    headers = {"Origin": origin} if origin else {}
    answer = portal.browser().client.post("/login/sso", data={"token": "token-bob-biology"}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert 'action="../login"' in answer.text
    assert "../static/login.css" in answer.text


def test_single_sign_on_wants_a_token_of_keystone(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, settings=SSO)
    for form in ({}, {"token": "guess"}):
        assert portal.browser().client.post("/login/sso", data=form, headers={"Origin": KEYSTONE}).status_code == 403


def test_single_sign_on_is_off_unless_it_is_switched_on(portal: BookingPortal) -> None:
    headers = {"Origin": "http://"}
    answer = portal.browser().client.post("/login/sso", data={"token": "token-bob-biology"}, headers=headers)
    assert answer.status_code == 404


# The gate


def test_bodies_have_a_limit(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    wish = {**WISH, "comment": "x" * MOST_BYTES}
    answer = ada.client.post("/v1/bookings", json=wish)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_long")
    answer = ada.client.post("/v1/bookings", content=(b"x" * 1000 for _ in range(1000)))
    assert answer.status_code == 413
    assert portal.browser().client.post("/login", content=b"x" * (MOST_BYTES + 1)).status_code == 413


def test_a_stream_ends_when_who_listens_is_out(portal: BookingPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHECK_EVERY <= 60
    monkeypatch.setattr("gpuyard.web.access.CHECK_EVERY", 0.1)
    ada, looks = portal.browser(ADA), 0
    cookie = cookie_of(ada.client)
    find = Sessions.find

    def find_a_few_times(sessions: Sessions, cookie: str, used: bool = True) -> Session | None:
        nonlocal looks
        looks += 1
        if looks == 4:
            sessions.end(cookie)
        return find(sessions, cookie, used)

    monkeypatch.setattr(Sessions, "find", find_a_few_times)
    with ada.client.stream("GET", "/events") as answer:
        assert answer.status_code == 200
        assert b"event: map" in answer.read()
    assert looks == 4
    assert portal.app.state.feed.streams == 0
    headers = {"Cookie": f"gpuyard={cookie}"}
    assert portal.browser().client.get("/events", headers=headers).status_code == 401


def test_a_log_out_ends_streams_at_once(portal: BookingPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.web.access.CHECK_EVERY", 3600.0)
    ada, streams = portal.browser(ADA), list[int]()

    def listen() -> None:
        streams.append(ada.client.get("/events").status_code)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    while not portal.app.state.feed.streams:
        sleep(0.01)
    assert ada.client.post("/logout", follow_redirects=False).status_code == 303
    listener.join(30)
    assert (streams, portal.app.state.feed.streams) == ([200], 0)


def test_polls_of_a_page_that_nobody_touches_are_no_use_of_it(portal: BookingPortal) -> None:
    ada = portal.browser(ADA)
    for minutes, status in ((30, 200), (29, 200), (1, 401)):
        portal.clock.forward(minutes=minutes)
        assert ada.client.get("/v1/calendar", headers={"X-Gpuyard-Idle": "yes"}).status_code == status


def test_a_changed_password_ends_the_sessions_from_before(timed: tuple[BookingPortal, list[float]]) -> None:
    portal, time = timed
    early, bob = portal.browser(ADA), portal.browser(BOB)
    portal.clock.forward(minutes=1)
    portal.people.revocations[ADA.user_id] = portal.clock.now
    portal.clock.forward(seconds=1)
    late = portal.browser(ADA)
    time[0] += 61
    assert early.client.get("/v1/me").status_code == 401
    assert late.client.get("/v1/me").status_code == 200
    assert bob.client.get("/v1/me").status_code == 200


def test_a_page_that_is_left_open_is_not_used(portal: BookingPortal) -> None:
    sessions = Sessions(portal.store, portal.clock, timedelta(hours=12), timedelta(hours=2))
    cookie, _ = sessions.begin(ADA.user_id, ADA.user, ADA.project_id)
    portal.clock.forward(minutes=110)
    assert sessions.find(cookie, used=False) is not None
    portal.clock.forward(minutes=10)
    assert sessions.find(cookie) is None


def test_an_admin_is_one_where_the_role_is(portal: BookingPortal) -> None:
    portal.people.users_by_id[ROOT.user_id].roles["p-biology"] = frozenset({"member"})
    root = portal.browser(ROOT)
    assert root.client.get("/v1/audit").status_code == 200  # in admin, which comes first
    root.client.post("/project", data={"project": "p-biology"})
    assert root.client.get("/v1/audit").status_code == 403


def request(headers: dict[str, str], client: str = "10.0.0.1", scheme: str = "http") -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {"type": "http", "headers": raw, "client": (client, 1), "scheme": scheme, "path": "/", "query_string": b""}
    )


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("", "10.0.0.1"),
        ("203.0.113.7", "203.0.113.7"),
        ("1.2.3.4, 203.0.113.7", "203.0.113.7"),  # the first was written by the client
        ("203.0.113.7, 10.0.0.2", "203.0.113.7"),
        ("203.0.113.7:4711, 10.0.0.2:80", "203.0.113.7"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_address_of_who_asks_is_the_one_before_the_gateways(header: str, address: str) -> None:
    incoming = request({"X-Forwarded-For": header} if header else {})
    assert client_address(incoming, ["10.0.0.1", "10.0.0.2"]) == address
    assert client_address(incoming, []) == "10.0.0.1"


def test_tls_is_what_the_last_gateway_says() -> None:
    assert is_https(request({}, scheme="https"), [])
    assert is_https(request({"X-Forwarded-Proto": "https"}), ["10.0.0.1"])
    assert not is_https(request({"X-Forwarded-Proto": "https, http"}), ["10.0.0.1"])
    assert not is_https(request({"X-Forwarded-Proto": "https"}), ["10.0.0.9"])


def test_pages_below_find_the_root() -> None:
    assert [up_from(path) for path in ("/", "/calendar", "/login/sso", "/a/b/c")] == ["./", "./", "../", "../../"]
