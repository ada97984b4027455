"""What GitHub, or who stands between, may do to a client: half answers, slow ones, huge ones, storms of refusals."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.runners.github.answers import Hook
from gpuyard.runners.github.api import MOST_PAGES, RestApi, api_base
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble, PollEndedError
from gpuyard.runners.github.messages import expiry, read_message, read_session
from gpuyard.runners.github.scale_sets import ScaleSetClient, SetSession
from gpuyard.runtime.http import HttpClient, HttpClientError, WireAnswer, WireStop
from gpuyard.site.runner_rules import Enrolment
from tests.support.certificates import certificate
from tests.support.scripted_http import Asked, Script, ScriptedAnswer, ScriptedHttp, scripted_http

SECRET = "ghp_that_nobody_may_see"  # noqa: S105 - a test's
RUNNERS = "/api/v3/orgs/o/actions/runners"
NOW = datetime(2026, 11, 22, 6, tzinfo=UTC)
OK = ScriptedAnswer(200, {"runners": []})


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.passed = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    def clock(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds


@pytest.fixture
def server() -> Iterator[ScriptedHttp]:
    with scripted_http() as http:
        yield http


@pytest.fixture
def time_() -> Time:
    return Time()


@pytest.fixture
def client(server: ScriptedHttp, time_: Time, tmp_path: Path) -> Iterator[GitHubClient]:
    path = tmp_path / "token"
    path.write_text(SECRET)
    enrolled = Enrolment.model_validate({"organization": "o", "url": server.url, "token_file": str(path)})
    github_client = GitHubClient(enrolled, RestApi(enrolled, now=time_.now, clock=time_.clock, sleep=time_.sleep))
    yield github_client
    github_client.close()


def fails(call: Callable[[], object]) -> GitHubError:
    with pytest.raises(GitHubError) as error:
        call()
    assert SECRET not in f"{error.value!r} {error.value} {error.value.__cause__} {error.value.__context__!r}"
    return error.value


def bytes_(*pieces: bytes) -> ScriptedAnswer:
    def send(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return ScriptedAnswer(raw=send)


# What is asked, and where


def test_addresses() -> None:
    assert api_base("https://github.com") == "https://api.github.com"
    assert api_base("https://WWW.github.com") == "https://api.github.com"
    assert api_base("https://ghe.example.org:8443") == "https://ghe.example.org:8443/api/v3"
    assert api_base("https://acme.ghe.com") == "https://api.acme.ghe.com"


def test_headers(client: GitHubClient, server: ScriptedHttp) -> None:
    server.on("GET", RUNNERS, OK)
    client.runners()
    sent = server.asked[0].headers
    assert sent["authorization"] == f"token {SECRET}"
    assert sent["x-github-api-version"] == "2022-11-28"
    assert sent["user-agent"].startswith("gpuyard/")
    assert sent["accept-encoding"] == "identity"


@pytest.mark.parametrize("text", ["", "two\nlines", "with space", "é", "x" * 2000, "\x00"])
def test_what_is_no_token_is_not_sent(client: GitHubClient, server: ScriptedHttp, tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    error = fails(client.runners)
    assert (error.kind, server.asked) == (GitHubTrouble.UNAUTHORIZED, [])
    assert str(tmp_path / "token") in str(error)
    (tmp_path / "token").unlink()
    assert "No such file" in str(fails(client.runners))


def test_a_key_that_is_none_is_not_quoted(server: ScriptedHttp, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----\n")
    app = {"id": 5, "key_file": str(path)}
    enrolled = Enrolment.model_validate({"organization": "o", "url": server.url, "app": app})
    error = fails(GitHubClient(enrolled).runners)
    assert error.kind is GitHubTrouble.UNAUTHORIZED
    assert "private RSA key" in str(error)


def test_redirects_stay_with_github(client: GitHubClient, server: ScriptedHttp) -> None:
    with scripted_http() as other:
        other.on("GET", "/x", OK)
        server.on("GET", RUNNERS, ScriptedAnswer(301, headers={"location": f"{other.url}/x"}))
        error = fails(client.runners)
        assert (error.kind, other.asked) == (GitHubTrouble.REFUSED, [])
        assert "another host" in str(error)
        link = {"link": f'<{other.url}/x?page=2>; rel="next"'}
        server.on("GET", RUNNERS, ScriptedAnswer(200, {"runners": []}, link))
        assert fails(client.runners).kind is GitHubTrouble.REFUSED
        assert other.asked == []


def test_a_repository_that_has_moved_is_followed(client: GitHubClient, server: ScriptedHttp) -> None:
    moved = ScriptedAnswer(301, headers={"location": f"{server.url}/api/v3/repositories/5/actions/jobs/7"})
    server.on("GET", "/api/v3/repos/o/old/actions/jobs/7", moved)
    server.on("GET", "/api/v3/repositories/5/actions/jobs/7", ScriptedAnswer(200, {"id": 7, "status": "queued"}))
    update = client.job("o/old", 7)
    assert update is not None
    assert update.repository == "o/old", "by the name that we know"
    server.on("GET", "/api/v3/repositories/5/actions/jobs/7", moved)
    assert "one redirect follows the other" in str(fails(lambda: client.job("o/old", 7)))


def test_a_redirect_of_what_changes_something_is_not_followed(client: GitHubClient, server: ScriptedHttp) -> None:
    path = "/api/v3/repos/o/r/actions/runs/5/cancel"
    server.on("POST", path, ScriptedAnswer(307, headers={"location": f"{server.url}/elsewhere"}))
    assert fails(lambda: client.cancel_run("o/r", 5)).kind is GitHubTrouble.REFUSED
    assert server.count("POST", "/elsewhere") == 0


# Answers that break


BROKEN = [
    b"",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"ru',
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    b"\x16\x03\x01 this is no HTTP at all\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n{}",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
]


@pytest.mark.parametrize("begin", BROKEN)
def test_a_broken_answer_to_a_question_is_asked_again(
    client: GitHubClient, server: ScriptedHttp, time_: Time, begin: bytes
) -> None:
    server.on("GET", RUNNERS, bytes_(begin), OK)
    assert client.runners() == []
    assert time_.slept == [0.5]
    server.on("GET", RUNNERS, bytes_(begin))
    error = fails(client.runners)
    assert (error.kind, error.status) == (GitHubTrouble.RETRY, 0)
    assert server.count("GET", RUNNERS) == 2 + 3


@pytest.mark.parametrize("begin", BROKEN)
def test_a_broken_answer_to_what_changes_something_is_not(
    client: GitHubClient, server: ScriptedHttp, begin: bytes
) -> None:
    path = "/api/v3/repos/o/r/actions/runs/5/cancel"
    server.on("POST", path, bytes_(begin))
    assert fails(lambda: client.cancel_run("o/r", 5)).kind is GitHubTrouble.RETRY
    assert server.count("POST", path) == 1


@pytest.mark.parametrize(
    "told",
    [
        ScriptedAnswer(200, body=b"{not JSON", headers={"content-type": "application/json"}),
        ScriptedAnswer(200, body=b"[" * 100_000, headers={"content-type": "application/json"}),
        ScriptedAnswer(200, body=b"\xff\xfe", headers={"content-type": "application/json; charset=zlib"}),
    ],
)
def test_what_is_no_json_is_an_error(client: GitHubClient, server: ScriptedHttp, told: ScriptedAnswer) -> None:
    server.on("GET", RUNNERS, told)
    assert fails(client.runners).kind is GitHubTrouble.RETRY


@pytest.mark.parametrize("data", [None, [], 5, "x", {"runners": None}, {"other": 1}])
def test_what_has_no_list_is_not_taken_for_an_empty_one(client: GitHubClient, server: ScriptedHttp, data: Any) -> None:
    server.on("GET", RUNNERS, ScriptedAnswer(200, data))
    assert fails(client.runners).kind is GitHubTrouble.RETRY


def test_what_is_no_runner_is_left_out(client: GitHubClient, server: ScriptedHttp) -> None:
    server.on("GET", RUNNERS, ScriptedAnswer(200, {"runners": [5, None, {"id": 3, "name": "x", "labels": 5}]}))
    assert [runner.name for runner in client.runners()] == ["x"]


def test_nobody_listens(client: GitHubClient, server: ScriptedHttp, time_: Time) -> None:
    server.close()
    error = fails(lambda: client.cancel_run("o/r", 5))
    assert error.kind is GitHubTrouble.RETRY
    assert "no connection: Connection refused" in str(error)
    assert len(time_.slept) == 2, "what has not been sent may be tried again"


def test_a_name_that_is_nobodys(tmp_path: Path) -> None:
    with pytest.raises(HttpClientError, match="cannot be resolved") as error:
        HttpClient({}).exchange("GET", "http://nobody.invalid/", {})
    assert not error.value.sent


# TLS and proxies


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[ScriptedHttp, Path]]:
    """A server of https, and the file of its own authority."""
    made = certificate(tmp_path, "127.0.0.1")
    with scripted_http(made.context()) as server:
        yield server, made.authority


def test_an_authority_that_is_not_the_systems(tls: tuple[ScriptedHttp, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server, authority = tls
    server.on("GET", "/", OK)
    with pytest.raises(HttpClientError, match=r"TLS: .*self.signed certificate") as error:
        HttpClient({}).exchange("GET", server.url + "/", {"authorization": SECRET})
    assert (error.value.sent, server.asked) == (False, [])
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    wire = HttpClient({})
    assert [wire.exchange("GET", server.url + "/", {}).status for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("how", ["stop", "total"])
def test_a_poll_over_tls_is_cut(tls: tuple[ScriptedHttp, Path], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    server, authority = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    release, stop, wire = threading.Event(), WireStop(), HttpClient({})
    server.on("GET", "/", held(release))
    if how == "stop":
        threading.Timer(0.4, stop.stop).start()
    began = time.monotonic()
    with pytest.raises(HttpClientError, match="called off" if how == "stop" else "no whole answer"):
        wire.exchange("GET", server.url + "/", {}, stop=stop, read=20, total=20 if how == "stop" else 0.4)
    assert time.monotonic() - began < 5
    release.set()
    server.on("GET", "/", OK)
    assert wire.exchange("GET", server.url + "/", {}).status == 200


def test_a_proxy_is_used_where_the_environment_has_one(server: ScriptedHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", "/x", OK)
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:secret@"))
    wire = HttpClient()
    assert wire.exchange("GET", "http://github.invalid/x", {}).status == 200
    headers = server.asked[0].headers
    assert (headers["host"], headers["proxy-authorization"]) == ("github.invalid", "Basic bWU6c2VjcmV0")
    monkeypatch.setenv("no_proxy", "github.invalid")
    with pytest.raises(HttpClientError, match="cannot be resolved"):
        wire.exchange("GET", "http://github.invalid/x", {})


def test_a_proxy_that_lets_nobody_through(server: ScriptedHttp) -> None:
    server.on("CONNECT", "", ScriptedAnswer(403))
    with pytest.raises(HttpClientError, match="proxy") as error:
        HttpClient({"https": server.url}).exchange("POST", "https://github.invalid/x", {"authorization": SECRET})
    assert not error.value.sent
    assert not any("authorization" in request.headers for request in server.asked)


# Bounds


def test_an_answer_that_never_ends_is_cut(client: GitHubClient, server: ScriptedHttp) -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        try:
            while True:
                connection.sendall(b" " * 65536)
        except OSError:
            pass

    server.on("GET", RUNNERS, ScriptedAnswer(raw=pour))
    error = fails(client.runners)
    assert error.kind is GitHubTrouble.REFUSED
    assert "larger than" in str(error)
    assert server.count("GET", RUNNERS) == 1


def test_compressed_answers_are_not_unpacked(client: GitHubClient, server: ScriptedHttp) -> None:
    server.on("GET", RUNNERS, ScriptedAnswer(200, body=b"\x1f\x8b" + b"0" * 50, headers={"content-encoding": "gzip"}))
    assert fails(client.runners).kind is GitHubTrouble.RETRY


def test_a_file_that_is_too_large_or_no_text(client: GitHubClient, server: ScriptedHttp) -> None:
    path, raw = "/api/v3/repos/o/r/contents/.cirun.yml", {"content-type": "application/vnd.github.raw+json"}
    for body in (b"x" * ((1 << 20) + 1), b"\xff\xfe"):
        server.on("GET", path, ScriptedAnswer(200, body=body, headers=raw))
        assert fails(lambda: client.file("o/r", ".cirun.yml")).kind is GitHubTrouble.REFUSED
    server.on("GET", path, ScriptedAnswer(200, [{"name": "a"}], {"etag": '"1"'}))
    assert client.file("o/r", ".cirun.yml").text is None, "a folder"


def test_an_answer_that_trickles_is_cut_in_time(server: ScriptedHttp) -> None:
    def trickle(connection: socket.socket) -> None:
        try:
            for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
        except OSError:
            pass

    server.on("GET", "/", ScriptedAnswer(raw=trickle))
    began = time.monotonic()
    with pytest.raises(HttpClientError, match="no whole answer in 0 s") as error:
        HttpClient({}).exchange("GET", server.url + "/", {}, read=5, total=0.4)
    assert error.value.sent
    assert time.monotonic() - began < 3


def test_silence_is_cut_in_time(server: ScriptedHttp) -> None:
    server.on("GET", "/", held(threading.Event()))
    with pytest.raises(HttpClientError, match="no answer in 0 s"):
        HttpClient({}).exchange("GET", server.url + "/", {}, read=0.2, total=5)


def test_pages_end(client: GitHubClient, server: ScriptedHttp, time_: Time) -> None:
    def page(request: Asked) -> ScriptedAnswer:
        number = int(request.query.get("page", "1"))
        link = f'<{server.url}{RUNNERS}?per_page=100&page={number + 1}>; rel="next"'
        return ScriptedAnswer(200, {"runners": [{"id": number, "name": "x"}]}, {"link": link})

    server.on("GET", RUNNERS, page)
    error = fails(client.runners)
    assert "more than 100 pages" in str(error)
    assert server.count("GET", RUNNERS) == MOST_PAGES + 1


def test_a_link_that_is_made_to_be_slow(client: GitHubClient, server: ScriptedHttp) -> None:
    server.on("GET", RUNNERS, ScriptedAnswer(200, {"runners": []}, {"link": "<" * 60_000}))
    began = time.monotonic()
    assert client.runners() == []
    assert time.monotonic() - began < 2


# Limits


LIMITED = [
    (ScriptedAnswer(429), 60),
    (ScriptedAnswer(403, {"message": "You have exceeded a secondary rate limit."}), 60),
    (ScriptedAnswer(403, {}, {"retry-after": "7"}), 7),
    (ScriptedAnswer(429, {}, {"retry-after": "999999999"}), 3600),
    (ScriptedAnswer(429, {}, {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}), 60),
    (
        ScriptedAnswer(
            403,
            {},
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1795327200", "date": "Sun, 22 Nov 2026 05:50:00 GMT"},
        ),
        600,
    ),
    (ScriptedAnswer(403, {}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999999999"}), 60),
    (ScriptedAnswer(403, {}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "0"}), 1),
]


@pytest.mark.parametrize(("told", "seconds"), LIMITED)
def test_a_limit_is_kept_by_all_calls(
    client: GitHubClient, server: ScriptedHttp, time_: Time, told: ScriptedAnswer, seconds: int
) -> None:
    server.on("GET", RUNNERS, told, OK)
    error = fails(client.runners)
    assert error.kind is GitHubTrouble.LIMITED
    assert error.retry_at == NOW + timedelta(seconds=seconds)
    for _ in range(50):
        again = fails(lambda: client.runner(5))
        assert (again.kind, again.retry_at) == (GitHubTrouble.LIMITED, error.retry_at)
    assert len(server.asked) == 1, "a storm of refusals is not answered with a storm of questions"
    time_.passed += seconds
    assert client.runners() == []
    assert client.usage().limited == 1


def test_what_github_says_of_its_limit(client: GitHubClient, server: ScriptedHttp, time_: Time) -> None:
    reset = int(NOW.timestamp()) + 1200
    limit_headers = {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "1", "x-ratelimit-reset": str(reset)}
    date = {"date": NOW.strftime("%a, %d %b %Y %H:%M:%S GMT")}
    server.on("GET", RUNNERS, ScriptedAnswer(200, {"runners": []}, limit_headers | date))
    client.runners()
    usage = client.usage()
    assert (usage.limit, usage.remaining, usage.reset, usage.calls) == (5000, 1, NOW + timedelta(seconds=1200), 1)
    server.on(
        "GET", RUNNERS, ScriptedAnswer(200, {"runners": []}, limit_headers | date | {"x-ratelimit-remaining": "0"})
    )
    client.runners()
    assert fails(client.runners).retry_at == NOW + timedelta(seconds=1200)


def test_a_limit_of_other_calls_is_theirs(client: GitHubClient, server: ScriptedHttp) -> None:
    path = RUNNERS + "/registration-token"
    spent = {"x-ratelimit-remaining": "0", "x-ratelimit-resource": "actions_runner_registration"}
    server.on("POST", path, ScriptedAnswer(403, {}, spent))
    assert fails(client.registration_token).kind is GitHubTrouble.LIMITED
    server.on("GET", RUNNERS, OK)
    assert client.runners() == []


@pytest.mark.parametrize("value", ["x", "", "-5", "1e999", "9" * 400])
def test_limits_that_are_no_numbers(client: GitHubClient, server: ScriptedHttp, value: str) -> None:
    names = ("limit", "remaining", "reset")
    server.on("GET", RUNNERS, ScriptedAnswer(200, {"runners": []}, {f"x-ratelimit-{name}": value for name in names}))
    assert client.runners() == []


def test_calls_are_spread(client: GitHubClient, server: ScriptedHttp, time_: Time) -> None:
    path = "/api/v3/repos/o/r/actions/runs/5/cancel"
    server.on("POST", path, ScriptedAnswer(202, {}))
    for _ in range(100):
        client.cancel_run("o/r", 5)
    assert time_.passed == pytest.approx((100 * 5 - 300) / 10, abs=0.6)


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, GitHubTrouble.REFUSED),
        (401, GitHubTrouble.UNAUTHORIZED),
        (403, GitHubTrouble.REFUSED),
        (404, GitHubTrouble.MISSING),
        (408, GitHubTrouble.RETRY),
        (409, GitHubTrouble.CONFLICT),
        (410, GitHubTrouble.MISSING),
        (422, GitHubTrouble.REFUSED),
        (451, GitHubTrouble.REFUSED),
        (500, GitHubTrouble.RETRY),
        (503, GitHubTrouble.RETRY),
        (599, GitHubTrouble.RETRY),
    ],
)
def test_kinds(client: GitHubClient, server: ScriptedHttp, status: int, kind: GitHubTrouble) -> None:
    path = "/api/v3/repos/o/r/actions/runs/5/cancel"
    server.on(
        "POST", path, ScriptedAnswer(status, {"message": "because\n\x1b[2Jof", "errors": ["this", {"message": "that"}]})
    )
    error = fails(lambda: client.cancel_run("o/r", 5))
    assert (error.kind, error.status) == (kind, status)
    assert ": because\\n\\x1b[2Jof: this: that" in str(error)
    assert server.count("POST", path) == 1, "whether it was done is not known"


def test_the_permission_that_lacks_is_named(client: GitHubClient, server: ScriptedHttp) -> None:
    needs = {"x-accepted-github-permissions": "organization_self_hosted_runners=read"}
    server.on("GET", RUNNERS, ScriptedAnswer(403, {"message": "Resource not accessible by integration"}, needs))
    assert "needs one of these permissions: organization_self_hosted_runners=read" in str(fails(client.runners))


def test_who_does_not_answer_is_left_alone_for_a_while(client: GitHubClient, server: ScriptedHttp, time_: Time) -> None:
    server.on("GET", RUNNERS, ScriptedAnswer(503))
    for _ in range(2):
        fails(client.runners)
    request_count = len(server.asked)
    for _ in range(20):
        error = fails(client.runners)
        assert error.kind is GitHubTrouble.RETRY
        assert error.retry_at is not None
    assert len(server.asked) == request_count
    time_.passed += 20
    server.on("GET", RUNNERS, OK)
    assert client.runners() == []


# Scale sets


SERVICE = "/svc/_apis/runtime/runnerscalesets"
QUEUE = "/queue/messages"


@pytest.fixture
def session(server: ScriptedHttp, client: GitHubClient) -> SetSession:
    server.on(
        "POST",
        RUNNERS + "/registration-token",
        ScriptedAnswer(201, {"token": "RT", "expires_at": "2026-11-22T07:00:00Z"}),
    )
    server.on(
        "POST",
        "/api/v3/actions/runner-registration",
        ScriptedAnswer(200, {"url": f"{server.url}/svc/", "token": "ADMIN"}),
    )
    server.on("POST", f"{SERVICE}/7/sessions", ScriptedAnswer(200, facts(server, "Q1")))
    return ScaleSetClient(client).open(7, "us")


def facts(server: ScriptedHttp, token: str) -> dict[str, Any]:
    return {
        "sessionId": "S-1",
        "messageQueueUrl": f"{server.url}{QUEUE}?sessionId=S-1&x=%2F",
        "messageQueueAccessToken": token,
        "statistics": {"totalAssignedJobs": 2, "unknown": "thing"},
    }


def test_the_words_of_the_protocol(session: SetSession, server: ScriptedHttp) -> None:
    """As github.com/actions/scaleset sends them."""
    registration = next(request for request in server.asked if request.path.endswith("runner-registration"))
    assert registration.headers["authorization"] == "RemoteAuth RT"
    assert registration.json == {"url": f"{server.url}/o", "runner_event": "register"}
    opened = server.asked[-1]
    assert (opened.query, opened.json) == ({"api-version": "6.0-preview"}, {"ownerName": "us"})
    assert opened.headers["authorization"] == "Bearer ADMIN"
    assert session.statistics.assigned == 2
    server.on("GET", QUEUE, ScriptedAnswer(202))
    assert session.poll(41, 3) is None
    polled = server.asked[-1]
    assert polled.query == {"sessionId": "S-1", "x": "/", "lastMessageId": "41"}
    assert polled.headers["x-scalesetmaxcapacity"] == "3"
    assert polled.headers["accept"] == "application/json; api-version=6.0-preview"
    assert polled.headers["authorization"] == "Bearer Q1"
    session.poll(0, 3)
    assert "lastMessageId" not in server.asked[-1].query
    server.on("DELETE", QUEUE + "/42", ScriptedAnswer(204))
    session.acknowledge(42)
    assert (server.asked[-1].path, server.asked[-1].query["sessionId"]) == (QUEUE + "/42", "S-1")
    server.on("POST", f"{SERVICE}/7/acquirejobs", ScriptedAnswer(200, {"count": 1, "value": [5, 99]}))
    assert session.acquire((4, 5)) == (5,)
    assert (server.asked[-1].json, server.asked[-1].headers["authorization"]) == ([4, 5], "Bearer Q1")


def test_a_renewed_session_goes_on(session: SetSession, server: ScriptedHttp) -> None:
    server.on("GET", QUEUE, ScriptedAnswer(401), ScriptedAnswer(202))
    server.on("PATCH", f"{SERVICE}/7/sessions/S-1", ScriptedAnswer(200, facts(server, "Q2")))
    assert session.poll(1, 1) is None
    assert server.asked[-1].headers["authorization"] == "Bearer Q2"
    server.on("GET", QUEUE, ScriptedAnswer(401))
    assert fails(lambda: session.poll(1, 1)).kind is GitHubTrouble.UNAUTHORIZED, "it is renewed once, not for ever"


def held(release: threading.Event) -> Script:
    def hold(request: Asked) -> ScriptedAnswer:
        release.wait(20)
        return ScriptedAnswer(202)

    return hold


@pytest.mark.parametrize("how", ["session", "client"])
def test_a_poll_is_called_off(session: SetSession, client: GitHubClient, server: ScriptedHttp, how: str) -> None:
    release = threading.Event()
    server.on("GET", QUEUE, held(release))
    errors: list[BaseException] = []

    def poll() -> None:
        try:
            session.poll(1, 1)
        except (GitHubError, PollEndedError) as error:
            errors.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    while not server.count("GET", QUEUE):
        time.sleep(0.01)
    began = time.monotonic()
    session.stop() if how == "session" else client.close()
    thread.join(10)
    release.set()
    assert time.monotonic() - began < 5
    assert isinstance(errors[0], PollEndedError if how == "session" else GitHubError)
    if how == "session":
        with pytest.raises(PollEndedError):
            session.poll(1, 1)
        server.on("DELETE", f"{SERVICE}/7/sessions/S-1", ScriptedAnswer(204))
        session.close()
        assert server.count("DELETE", f"{SERVICE}/7/sessions/S-1") == 1


def test_a_stop_before_and_after_does_no_harm(server: ScriptedHttp) -> None:
    wire, stop = HttpClient({}), WireStop()
    server.on("GET", "/", ScriptedAnswer(200, {}))
    assert wire.exchange("GET", server.url + "/", {}, stop=stop).status == 200
    stop.stop()
    with pytest.raises(HttpClientError, match="called off"):
        wire.exchange("GET", server.url + "/", {}, stop=stop)
    assert wire.exchange("GET", server.url + "/", {}).status == 200
    wire.close()
    with pytest.raises(HttpClientError, match="called off"):
        wire.exchange("GET", server.url + "/", {})


def test_addresses_of_the_service_are_looked_at(server: ScriptedHttp, client: GitHubClient) -> None:
    server.on(
        "POST",
        RUNNERS + "/registration-token",
        ScriptedAnswer(201, {"token": "RT", "expires_at": "2026-11-22T07:00:00Z"}),
    )
    for url in ("file:///etc/passwd", "ftp://x/", "https://user:secret@x/", "x", ""):
        server.on("POST", "/api/v3/actions/runner-registration", ScriptedAnswer(200, {"url": url, "token": "ADMIN"}))
        fails(lambda: ScaleSetClient(client).set_of(7))


def test_a_registration_that_is_not_known_everywhere_yet(server: ScriptedHttp, client: GitHubClient) -> None:
    server.on(
        "POST",
        RUNNERS + "/registration-token",
        ScriptedAnswer(201, {"token": "RT", "expires_at": "2026-11-22T07:00:00Z"}),
    )
    where = ScriptedAnswer(200, {"url": f"{server.url}/svc/", "token": "ADMIN"})
    server.on("POST", "/api/v3/actions/runner-registration", ScriptedAnswer(401), ScriptedAnswer(403), where)
    server.on("GET", f"{SERVICE}/7", ScriptedAnswer(200, {"id": 7, "name": "x"}))
    assert ScaleSetClient(client).set_of(7).name == "x"


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (409, "GitHub.DistributedTask.WebApi.TaskAgentExistsException", GitHubTrouble.CONFLICT),
        (400, "GitHub.DistributedTask.WebApi.TaskAgentNotFoundException", GitHubTrouble.MISSING),
        (400, "GitHub.DistributedTask.WebApi.TaskAgentJobStillRunningException", GitHubTrouble.CONFLICT),
        (429, "", GitHubTrouble.LIMITED),
        (403, "AccessDeniedException", GitHubTrouble.REFUSED),
    ],
)
def test_errors_of_the_service(
    session: SetSession, server: ScriptedHttp, client: GitHubClient, status: int, name: str, kind: GitHubTrouble
) -> None:
    path = "/svc/_apis/distributedtask/pools/0/agents/5"
    server.on(
        "DELETE",
        path,
        ScriptedAnswer(status, body=b"\xef\xbb\xbf" + json.dumps({"typeName": name, "message": "m"}).encode()),
    )
    sets = ScaleSetClient(client)
    if kind is GitHubTrouble.MISSING:
        assert not sets.delete_runner(5)
    else:
        assert fails(lambda: sets.delete_runner(5)).kind is kind


@pytest.mark.parametrize(("answer", "seconds"), LIMITED)
def test_a_limit_of_the_service_lasts_as_long_as_it_says(
    session: SetSession, server: ScriptedHttp, client: GitHubClient, time_: Time, answer: ScriptedAnswer, seconds: int
) -> None:
    server.on("DELETE", "/svc/_apis/distributedtask/pools/0/agents/5", answer)
    error = fails(lambda: ScaleSetClient(client).delete_runner(5))
    assert (error.kind, error.retry_at) == (GitHubTrouble.LIMITED, time_.now() + timedelta(seconds=seconds))


def test_a_scale_set_whose_making_was_not_answered(
    session: SetSession, server: ScriptedHttp, client: GitHubClient
) -> None:
    row = {"id": 7, "name": "gpu", "runnerGroupId": 1, "labels": [{"name": "gpu", "type": "System"}]}
    server.on(
        "GET",
        SERVICE,
        ScriptedAnswer(200, {"count": 0, "value": []}),
        ScriptedAnswer(200, {"count": 1, "value": [row]}),
    )
    server.on("POST", SERVICE, bytes_(b""))
    assert ScaleSetClient(client).ensure("gpu", "Default").id == 7
    assert server.count("POST", SERVICE) == 1
    made = next(request for request in server.asked if (request.method, request.path) == ("POST", SERVICE))
    assert made.json == {
        "name": "gpu",
        "runnerGroupId": 1,
        "labels": [{"type": "System", "name": "gpu"}],
        "RunnerSetting": {"disableUpdate": True},
    }


# Readers


def message(notices: Any, kind: str = "RunnerScaleSetJobMessages") -> bytes:
    body = notices if isinstance(notices, str) else json.dumps(notices)
    return json.dumps(
        {"messageId": 4, "messageType": kind, "body": body, "statistics": {"totalAssignedJobs": 3}}
    ).encode()


def test_what_is_unknown_in_a_message_is_left_out() -> None:
    good = {"messageType": "JobAssigned", "runnerRequestId": 5, "ownerName": "o", "repositoryName": "r", "new": {}}
    set_message = read_message(message([good, {"messageType": "JobDanced"}, 5, None, good | {"runnerRequestId": None}]))
    assert [(notice.request, notice.repository) for notice in set_message.notices] == [(5, "o/r")]
    assert set_message.statistics.assigned == 3
    assert read_message(message([good], kind="Something new")).notices == ()
    assert read_message(message("")).notices == ()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"{", message("{half"), message("[" * 100_000)])
def test_a_message_that_cannot_be_read_is_not_taken_for_one(body: bytes) -> None:
    with pytest.raises(GitHubError) as error:
        read_message(body)
    assert error.value.kind is GitHubTrouble.RETRY


@given(st.binary(max_size=200), st.text(max_size=100))
def test_readers_bear_anything(body: bytes, text: str) -> None:
    for read in (read_message, read_session, lambda one: read_message(message(text))):
        with contextlib.suppress(GitHubError):
            read(body)
    expiry(text)


def test_when_a_token_ends() -> None:
    assert expiry("e30.eyJleHAiOjE3OTUzMjcyMDB9.c2ln") == datetime(2026, 11, 22, 6, tzinfo=UTC)
    assert expiry("e30.eyJleHAiOjk5OTk5OTk5OTk5OTk5OTk5OX0.x") is None
    assert expiry("no token") is None


class Canned(HttpClient):
    """Every answer is the same."""

    def __init__(self, data: Any) -> None:
        self.body = json.dumps(data).encode()

    def exchange(self, *args: Any, **keywords: Any) -> WireAnswer:
        return WireAnswer(200, {"content-type": "application/json"}, self.body)


WORDS = [
    "id", "name", "full_name", "runners", "labels", "jobs", "workflow_runs", "runner", "encoded_jit_config", "head",
    "repo", "pull_requests", "number", "token", "expires_at", "value", "state", "url", "sessionId", "messageQueueUrl",
    "runner_groups", "guid", "delivered_at", "status_code", "config", "events", "login", "user", "repositories",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> Enrolment:
    path = tmp_path_factory.mktemp("any") / "token"
    path.write_text(SECRET)
    return Enrolment.model_validate({"organization": "o", "token_file": str(path)})


@given(data=JSON)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_calls_bear_any_answer(enrolled: Enrolment, data: Any) -> None:
    time_ = Time()
    api = RestApi(enrolled, wire=Canned(data), now=time_.now, clock=time_.clock, sleep=time_.sleep)
    client = GitHubClient(enrolled, api)
    sets = ScaleSetClient(client)
    calls: list[Callable[[], object]] = [
        client.repositories,
        client.runners,
        client.registration_token,
        client.hooks,
        lambda: client.jit("one", ("gpu",)),
        lambda: client.jit("one", ("gpu",), "o/r"),
        lambda: client.runner(5),
        lambda: client.runner_named("one"),
        lambda: client.file("o/r", ".cirun.yml"),
        lambda: client.job("o/r", 5),
        lambda: client.waiting_runs("o/r"),
        lambda: client.jobs_of("o/r", 5),
        client.pushed_repositories,
        lambda: client.run("o/r", 5),
        lambda: client.pull_requests_of("o/r", "x", "y"),
        lambda: client.role("o/r", "x"),
        lambda: client.in_team("t", "x"),
        lambda: client.deliveries(Hook("/orgs/o/hooks/1/deliveries")),
        lambda: sets.ensure("gpu", "Default"),
        lambda: sets.ensure("gpu", "other"),
        lambda: sets.open(7, "us").poll(0, 1),
        lambda: sets.jit(7, "one"),
        lambda: sets.runner_named("one"),
    ]
    for call in calls:
        with contextlib.suppress(GitHubError):
            call()
