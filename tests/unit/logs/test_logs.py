"""One record is one line, and each line says which request or loop it belongs to; so do calls to OpenStack."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.logs.lines import LONGEST, JsonLines, LogFormat, LogLevel, TextLines, set_up
from gpuyard.logs.request_context import HEADER, RequestContext, current, new_request_id, request_id_of, working_for
from gpuyard.openstack.reader import Reader
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.worker_pool import WorkerPool
from gpuyard.server.app import create_app
from tests.support.inventories import plain_sources
from tests.support.ledgers import ADA
from tests.support.portals import booking_portal
from tests.support.scripted_http import ScriptedAnswer, scripted_http
from tests.support.served import serving
from tests.support.small_clouds import cloud_at

MADE = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SENT = "req-0F0F0F0F-1111-2222-3333-444444444444"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the process would write to stderr, as JSON."""
    root, ours, stream = logging.getLogger(), logging.getLogger("gpuyard"), io.StringIO()
    before = root.handlers[:], root.level, ours.level
    root.handlers = []
    set_up(LogFormat.JSON, LogLevel.INFO, stream)
    yield stream
    root.handlers, root.level, ours.level = before


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def record(message: str, *given: object, exception: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(exception), exception, None) if exception else None
    return logging.LogRecord("gpuyard.x", logging.WARNING, "", 1, message, given, exc_info)


# Lines


@given(st.text() | st.sampled_from(["a\nb", "\x1b[2J", "\u2028", "\r", "\u202e"]), st.text())
def test_whatever_is_said_is_one_line_in_json(text: str, error: str) -> None:
    line = JsonLines().format(record("%s", text, exception=ValueError(error)))
    assert line.isprintable()
    read = json.loads(line)
    assert read["message"] == text
    assert (read["level"], read["logger"]) == ("warning", "gpuyard.x")
    assert error in read["exception"]


@given(st.text() | st.sampled_from(["a\nb", "\x1b[2J", "\u2028", "\r", "\u202e"]), st.text())
def test_whatever_is_said_is_one_line_of_text_with_the_traceback_below(text: str, error: str) -> None:
    first, *below = TextLines().format(record("%s", text, exception=ValueError(error))).split("\n")
    assert first.isprintable()
    assert " WARNING gpuyard.x" in first
    assert below
    assert all(line.startswith("    ") and line.isprintable() for line in below)
    assert TextLines().format(record("%s", text)).isprintable()


def test_what_is_too_long_is_cut() -> None:
    line = JsonLines().format(record("%s", "x" * 10**6, exception=ValueError("y" * 10**6)))
    assert len(line) < 3 * LONGEST


def test_libraries_are_not_heard_below_warnings(log: io.StringIO) -> None:
    logging.getLogger("urllib3").info("token secret")
    logging.getLogger("keystoneauth").debug("X-Auth-Token: secret")
    logging.getLogger("gpuyard.x").debug("details")
    logging.getLogger("gpuyard.x").info("heard")
    assert [line["message"] for line in lines(log)] == ["heard"]


# What a line is for


def test_an_id_is_a_uuid_or_none_at_all() -> None:
    assert request_id_of(SENT) == SENT.lower()
    assert request_id_of(SENT.removeprefix("req-")) == SENT.lower()
    assert request_id_of(SENT.removeprefix("req-").replace("-", "")) == SENT.lower(), "as nginx makes them"
    for sent in ("", "req-", "x", f"{SENT}\n", f" {SENT}", SENT[:-1], f"{SENT}0", "req-" + "g" * 32, "\u0661" * 32):
        assert request_id_of(sent) == ""
    assert MADE.fullmatch(new_request_id())


def test_a_run_of_a_loop_has_an_id_and_its_lines_the_name(log: io.StringIO) -> None:
    contexts: list[RequestContext] = []

    def run() -> None:
        contexts.append(current())
        raise ConnectionError("refused\nFORGED")

    loop = Loop("sync", "", 1.0, run)
    loop.run_once("timer")
    loop.run_once("timer")
    assert [line["loop"] for line in lines(log)] == ["sync", "sync"]
    assert [line["request_id"] for line in lines(log)] == [context.request_id for context in contexts]
    assert len({context.request_id for context in contexts}) == 2
    assert current() == RequestContext()


def test_what_other_threads_do_for_a_loop_is_for_it() -> None:
    contexts: list[RequestContext] = []
    with working_for(RequestContext("req-1", "runners")):
        WorkerPool(executor := ThreadPoolExecutor(1)).start("one", lambda: contexts.append(current()))
    executor.shutdown()
    assert contexts == [RequestContext("req-1", "runners")]


def test_calls_to_openstack_carry_the_id_also_those_of_threads() -> None:
    with scripted_http() as http:
        http.on("GET", "/servers", ScriptedAnswer(200, {"servers": []}))
        api = cloud_at(http.url)
        api.get("compute", "/servers")
        with working_for(RequestContext(SENT)), Reader(api) as reader:
            reader.each(lambda key: api.get("compute", "/servers", key=key), range(20))
            reader.later(api.get, "compute", "/servers").result()
        first, *others = [request.headers.get(HEADER.lower()) for request in http.asked]
    assert first is None, "what nobody asked for has none"
    assert others == [SENT] * 21


# Requests


def client() -> TestClient:
    app = create_app(plain_sources(), ["testserver"])
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("header", [HEADER, "X-Request-ID"])
def test_a_sane_id_is_taken_and_given_back(log: io.StringIO, header: str) -> None:
    answer = client().get("/v1/gpus", headers={header: SENT})
    assert answer.headers[HEADER] == SENT.lower()
    (line,) = lines(log)
    assert line["request_id"] == SENT.lower()
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/gpus", 200)
    assert 0 <= line["seconds"] < 60
    assert line["message"] == "GET /v1/gpus: 200"


@pytest.mark.parametrize("sent", ["x", "req-<script>", "a" * 5000, "req-\u0661"])
def test_another_one_is_not(log: io.StringIO, sent: str) -> None:
    answer = client().get("/v1/gpus", headers={HEADER.encode(): sent.encode()})
    assert MADE.fullmatch(answer.headers[HEADER])
    assert sent not in log.getvalue()


def test_the_gateways_id_helps_when_the_clients_is_none() -> None:
    answer = client().get("/v1/gpus", headers={HEADER: "none", "X-Request-Id": SENT})
    assert answer.headers[HEADER] == SENT.lower()


def test_probes_are_in_the_log_only_when_something_is_wrong(log: io.StringIO) -> None:
    subject = client()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert subject.get(path).status_code in (200, 503)
    assert [line["route"] for line in lines(log) if line["status"] < 400] == []


def test_refusals_of_every_layer_have_an_id(log: io.StringIO, tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    subject = TestClient(portal.app, raise_server_exceptions=False)
    answers = [
        subject.get("/v1/bookings"),
        subject.get("/v1/gpus", headers={"Host": "evil.example.org"}),
        subject.get("/v1/gpus", headers={"X-Long": "x" * 10000}),
        portal.program(ADA).get("/v1/nowhere"),
    ]
    assert [answer.status_code for answer in answers] == [401, 400, 431, 404]
    assert [line["request_id"] for line in lines(log)] == [answer.headers[HEADER] for answer in answers]


def test_addresses_that_are_secrets_are_in_no_line(log: io.StringIO, tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    TestClient(portal.app).get("/ical/gyf_secret.ics?token=secret")
    TestClient(portal.app).get("/v1/bookings", headers={"X-Auth-Token": "secret", "Cookie": "session=secret"})
    assert len(lines(log)) == 2
    assert "secret}" in lines(log)[0]["route"]
    assert "secret" not in log.getvalue().replace("{secret}", "")


def test_a_bug_is_found_by_the_id_of_its_answer(log: io.StringIO) -> None:
    app = create_app(plain_sources(), ["*"])

    @app.get("/bug")
    def bug() -> None:
        raise RuntimeError("boom\nFORGED 2026")

    with serving(app) as url, pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{url}/bug", headers={HEADER: SENT}))
    refused.value.close()
    assert refused.value.headers[HEADER] == SENT.lower()
    logged = [line for line in lines(log) if line.get("request_id") == SENT.lower()]
    assert any(line.get("status") == 500 for line in logged)
    assert any("RuntimeError: boom" in line.get("exception", "") for line in logged)
    assert all("FORGED" not in line.get("message", "") for line in logged)
