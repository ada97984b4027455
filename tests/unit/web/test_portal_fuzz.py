"""Whatever is sent to the portal: an answer that says what is wrong, and never a 5xx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.ledgers import ADA, ROOT
from tests.support.portals import BookingPortal, Browser, booking_portal


def _words(text: str) -> list[str]:
    return text.split()


FIELDS = _words("""
    user password domain next csrf project token pool start end gpus gpu comment from to step limit marker
    state kind mine series repeat timezone scope target reason same_group override
""")
HEADERS = _words("""
    origin sec-fetch-site if-none-match if-match cookie content-type content-length x-csrf-token x-auth-token
    x-forwarded-for x-forwarded-proto idempotency-key accept accept-encoding range referer
""")
PATHS = _words("""
    / /login /login/sso /logout /project /events /calendar /bookings /admin /v1 /v1/gpus /v1/pools /v1/me
    /v1/bookings /v1/bookings/check /v1/bookings/b1 /v1/bookings/b1/extend /v1/bookings/b1/cancel /v1/calendar
    /v1/bookings/b1/end /v1/bookings/b1/approve /v1/bookings/b1/accept /v1/holds /v1/audit /v1/feeds
    /v1/feeds/a /v1/pools/t4/rules /v1/pools/%00/rules /ical/x.ics /static/x /openapi.json /healthz /%ff
""")
NASTY = ["", "\0", "é", "\u202e", "\ud800", "http://[::1", "http://[", "*", "t4", "2026-11-23T13:00:00Z", "0", "-1",
    "1e400", "9" * 30, "=1+1", "a" * 5000, "%", "%00", "b1", "application/json", "application/x-www-form-urlencoded",
    "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "FREQ=DAILY;COUNT=3", "Europe/Rome", "../x", "\x1b[31m",
    '"1"', "W/", "true", "null"]  # fmt: skip
texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=40))
names = st.one_of(st.sampled_from(FIELDS), texts)
pairs = st.one_of(
    st.lists(st.tuples(names, texts), max_size=8),
    st.just([(str(number), "1") for number in range(150)]),
)
headers = st.dictionaries(
    st.sampled_from(HEADERS),
    st.one_of(st.sampled_from(NASTY), st.text("\t !\"#;=,/*[]:()ab01\\\xff", max_size=60)),
    max_size=4,
)  # fmt: skip
values = st.recursive(
    st.one_of(texts, st.none(), st.booleans(), st.integers(), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=6,
)
documents = st.one_of(st.dictionaries(names, values, max_size=6), values)
methods = st.sampled_from(["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"])
fuzz = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> BookingPortal:
    made = booking_portal(Path(tmp_path_factory.mktemp("portal")))
    made.program(ADA).post(
        "/v1/bookings", json={"pool": "t4", "start": "2026-11-23T13:00:00Z", "end": "2026-11-23T15:00:00Z"}
    )
    return made


@pytest.fixture(scope="module")
def clients(portal: BookingPortal) -> list[Browser]:
    return [portal.browser(ROOT), portal.browser()]


def ask(browser: Browser, method: str, path: str, headers: dict[str, str], **body: Any) -> None:
    if path == "/events":
        method = "HEAD"  # the other one never ends
    encoded = [(name.encode(), value.encode("utf-8", "replace")) for name, value in headers.items()]
    answer = browser.client.request(method, path, headers=encoded, **body)
    assert answer.status_code < 500, (method, path, headers, body, answer.text)
    if answer.status_code >= 400 and answer.content and answer.headers["content-type"] == "application/problem+json":
        assert answer.json()["reasons"]


@fuzz
@given(st.integers(0, 1), methods, st.sampled_from(PATHS), headers)
@example(0, "POST", "/v1/feeds", {"origin": "http://[::1"})
@example(1, "POST", "/login", {"origin": "http://[::1"})
def test_headers(clients: list[Browser], who: int, method: str, path: str, headers: dict[str, str]) -> None:
    ask(clients[who], method, path, headers)


@fuzz
@given(st.integers(0, 1), st.sampled_from(PATHS), pairs)
def test_queries(clients: list[Browser], who: int, path: str, query: list[tuple[str, str]]) -> None:
    ask(clients[who], "GET", path, {}, params=[(_utf8(name), _utf8(value)) for name, value in query])


@fuzz
@given(st.integers(0, 1), st.sampled_from(PATHS), pairs)
def test_forms(clients: list[Browser], who: int, path: str, form: list[tuple[str, str]]) -> None:
    if path != "/logout":
        ask(clients[who], "POST", path, {}, data={_utf8(name): _utf8(value) for name, value in form})


@fuzz
@given(st.integers(0, 1), methods, st.sampled_from(PATHS), documents)
def test_documents(clients: list[Browser], who: int, method: str, path: str, document: object) -> None:
    if path != "/logout":
        content = json.dumps(document).encode("utf-8", "replace")
        ask(clients[who], method, path, {"content-type": "application/json"}, content=content)


@fuzz
@given(st.integers(0, 1), methods, st.sampled_from(PATHS), st.binary(max_size=200))
def test_bytes(clients: list[Browser], who: int, method: str, path: str, content: bytes) -> None:
    if path != "/logout":
        for kind in ("application/json", "application/x-www-form-urlencoded"):
            ask(clients[who], method, path, {"content-type": kind}, content=content)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
