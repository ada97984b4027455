"""The running portal under those who want it to stop: over real sockets, and with few files to open."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.routing import Route

from gpuyard.dashboard import live
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import GpuState
from gpuyard.server.app import create_app
from gpuyard.web import connections, request_sizes
from gpuyard.web.connections import Connections, Sparingly, most_connections, raise_file_limit
from gpuyard.web.login_throttle import EVERYWHERE
from gpuyard.web.open_reads import OpenReadsMiddleware
from gpuyard.web.problems import Refusal
from tests.support.inventories import LONE, NOON, changed, filled, plain_sources
from tests.support.ledgers import ADA, BOB
from tests.support.portals import booking_portal
from tests.unit.server.test_portal_server import PROGRAM, ROOT, hear, page, running, until

FEW_FILES = """
import logging, resource, sys
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import GpuState
from gpuyard.web import connections
connections.OWN_FILES, connections.REQUEST_SECONDS, connections.SAY_AGAIN = {own}, {seconds}, 3600.0
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 320))
logging.basicConfig(level=logging.INFO)
"""


def status_of(path: str, port: int, headers: Mapping[str, str] | None = None, patience: float = 10) -> int:
    """The status of a GET, asked again until `patience` seconds are over."""
    deadline = monotonic() + patience
    while True:
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
                connection.request("GET", path, headers=headers or {})
                return connection.getresponse().status
        except OSError:
            if monotonic() > deadline:
                raise


@contextmanager
def narrow(log: Path, own: int, seconds: float) -> Iterator[int]:
    """A portal in a process with 128 files at first, and at most 320; its port."""
    program = FEW_FILES.format(own=own, seconds=seconds) + PROGRAM
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as started,
    ):  # fmt: skip
        try:
            assert started.stdout
            match = re.search(r"http://127.0.0.1:(\d+)", started.stdout.readline())
            assert match, log.read_text()
            yield int(match.group(1))
        finally:
            started.kill()


def idle(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    return [stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(count)]


def big() -> InventoryCache:
    """Of which there is more to say than the buffers of a socket hold."""
    inventory = filled()
    inventory.publish(NOON, changed(LONE, GpuState.HELD, "a" * 12_000_000))
    return inventory


def unread(port: int) -> socket.socket:
    """Asks for something and reads nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    connection.settimeout(4)
    connection.connect(("127.0.0.1", port))
    connection.sendall(b"GET /v1/gpus HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


def test_idle_connections_make_room_for_those_who_ask(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with narrow(log, own=250, seconds=600) as port, ExitStack() as stack:
        idle(stack, port, 400)
        for _ in range(20):
            assert status_of("/healthz", port) == 200
        assert log.read_text().count("there are 70 connections, which is the most that this process can have") == 1
        assert log.stat().st_size < 2000


def test_connections_that_cannot_be_accepted_are_said_once_and_served_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with narrow(log, own=-1000, seconds=3) as port, ExitStack() as stack:  # counts on more files than it has
        idle(stack, port, 600)
        until(lambda: "cannot be accepted" in log.read_text())
        assert status_of("/healthz", port, patience=30) == 200
        assert log.read_text().count("cannot be accepted: [Errno 24] Too many open files") == 1
        assert log.stat().st_size < 2000


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
def test_a_request_that_does_not_arrive_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with running() as subject, closing(socket.create_connection(("127.0.0.1", subject.port), 4)) as connection:
        connection.sendall(sent)
        began = monotonic()
        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
        assert 0.2 < monotonic() - began < 3


def test_nor_is_a_second_request_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with running() as subject, closing(socket.create_connection(("127.0.0.1", subject.port), 4)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        hear(connection, "ok")
        connection.sendall(b"G")  # which ends uvicorn's own time for keeping it alive
        with suppress(ConnectionResetError):
            assert connection.recv(10) == b""


def test_a_stream_outlives_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(live, "HEARTBEAT", 0.5)
    with running() as subject, closing(page(subject.port)) as connection:
        hear(connection, "heartbeat")


def test_one_address_has_its_share_and_gateways_are_not_one_address() -> None:
    async def judge() -> None:
        subject = Connections(100, gateways=["192.0.2.1"], of_place=2)
        for address in ("198.51.100.7", "192.0.2.1", "127.0.0.1", "::1"):
            subject.count(address, 2)
        assert not subject.admit("198.51.100.7")
        assert all(subject.admit(address) for address in ("198.51.100.8", "192.0.2.1", "127.0.0.1", "::1"))
        subject.count("198.51.100.7", -1)
        assert subject.admit("198.51.100.7")

    asyncio.run(judge())


def test_addresses_of_one_network_are_not_many_strangers() -> None:
    async def admitted(subject: Connections, addresses: list[str]) -> int:
        count = 0
        for address in addresses:
            if subject.admit(address):
                subject.count(address, 1)
                count += 1
        return count

    machine = [f"2001:db8::{number:x}" for number in range(200)]
    network = [f"2001:db8:0:{number:x}::1" for number in range(200)]
    assert asyncio.run(admitted(Connections(6000, of_place=10), machine)) == 10
    assert asyncio.run(admitted(Connections(6000, of_place=10), network)) == 10 * EVERYWHERE
    assert asyncio.run(admitted(Connections(6000, of_place=10), ["2001:db8:a::1", "2001:db8:b::1"] * 10)) == 20


def test_who_does_not_take_the_answer_is_dropped_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600.0)
    with running(big()) as subject, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(closing(unread(subject.port)))
        state = subject.connections
        until(lambda: len(state.waiting) == 2)
        state._most = 2
        assert status_of("/healthz", subject.port) == 200
        until(lambda: len(subject.connections.connections) <= 2)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    with running(big()) as subject, closing(unread(subject.port)):
        until(lambda: len(subject.connections.connections) == 1)
        until(lambda: not subject.connections.connections)


def test_who_takes_the_answer_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    with running(big()) as subject, closing(unread(subject.port)) as connection:
        got = 0
        for _ in range(25):
            sleep(0.1)
            got += len(connection.recv(64 * 1024))
        assert got > 15 * 1024
        assert len(subject.connections.connections) == 1


def test_only_a_few_requests_may_be_ahead() -> None:
    with running() as subject, closing(socket.create_connection(("127.0.0.1", subject.port), 4)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
        got = b""
        with suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                got += chunk
        assert 0 < got.count(b"HTTP/1.1 200") <= connections.MOST_AHEAD + 1


def test_connections_over_the_share_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "is_loopback", lambda host: False)
    monkeypatch.setattr(Connections.__init__, "__defaults__", ((), 3))
    with running() as subject, ExitStack() as stack:
        held = idle(stack, subject.port, 3)
        with closing(socket.create_connection(("127.0.0.1", subject.port), 4)) as fourth:
            assert fourth.recv(1000).startswith(b"HTTP/1.1 503")
        held[0].close()
        assert status_of("/healthz", subject.port) == 200


def test_the_file_limit_is_raised_as_far_as_it_goes() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_file_limit(300) == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        assert raise_file_limit(200) == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [most_connections(files) for files in (10, 1024, 1_000_000)] == [16, 768, connections.MOST_CONNECTIONS]


def test_the_same_complaint_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    say = Sparingly(lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        say("no file for %s", "you")
    assert caplog.messages == ["no file for you"] * 2


# Streams


def test_one_user_cannot_have_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_OF_USER", 2)
    portal = booking_portal(tmp_path)
    ada, bob = portal.browser(ADA), portal.browser(BOB)
    feed = portal.app.state.feed

    async def look() -> None:
        streams = [feed.stream(feed.shares("192.0.2.7", ADA.user_id)) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        answer = await asyncio.to_thread(ada.client.get, "/events")
        assert answer.status_code == 429
        assert answer.json()["detail"] == "You have 2 pages open; close some, and load this one again."
        assert feed.exhausted(feed.shares("192.0.2.8", ADA.user_id)) == 2
        assert not feed.exhausted(feed.shares("192.0.2.7", BOB.user_id))
        for stream in streams:
            await stream.aclose()
        assert not feed.exhausted(feed.shares("192.0.2.7", ADA.user_id))

    asyncio.run(look())
    assert bob.client.get("/v1/me").status_code == 200


def test_one_address_cannot_have_all_streams() -> None:
    feed = create_app(plain_sources()).state.feed
    for _ in range(live.MOST_OF_PLACE):
        feed._of.update(list(feed.shares("2001:db8::1", "")))
    assert feed.exhausted(feed.shares("2001:db8::2", "")) == live.MOST_OF_PLACE < live.MOST_STREAMS
    assert not feed.exhausted(feed.shares("2001:db8:0:1::1", ""))
    for _ in range(live.MOST_OF_NETWORK - live.MOST_OF_PLACE):
        feed._of.update(list(feed.shares("2001:db8:0:1::1", "")))
    assert feed.exhausted(feed.shares("2001:db8:0:2::1", "")) == live.MOST_OF_NETWORK < live.MOST_STREAMS
    assert not feed.exhausted(feed.shares("2001:db8:1::1", ""))
    assert not feed.shares("127.0.0.1", "")


def test_streams_that_are_asked_for_at_once_count_at_once() -> None:
    app = create_app(plain_sources())
    feed = app.state.feed
    events = next(route.endpoint for route in app.routes if isinstance(route, Route) and route.path == "/events")
    scope = {"type": "http", "path": "/events", "headers": [], "client": ("192.0.2.7", 1), "state": {}}

    async def ask() -> None:
        answers = [await events(Request(scope)) for _ in range(live.MOST_OF_PLACE)]
        assert feed.streams == live.MOST_OF_PLACE
        with pytest.raises(Refusal, match="close some"):
            await events(Request(scope))
        for answer in answers:
            await answer.body_iterator.aclose()
        assert feed.streams == 0

    asyncio.run(ask())


# Headers


def test_a_header_that_stopped_the_process_is_answered_at_once() -> None:
    with running() as subject:
        began = monotonic()
        assert status_of("/v1/gpus", subject.port, {"If-None-Match": "a" + " " * 60_000 + "b"}) == 431
        assert status_of("/v1/gpus", subject.port, {"If-None-Match": "a" + " " * 8_000 + "b"}) == 200
        assert monotonic() - began < 2


def test_one_address_can_keep_no_portal_without_login_busy() -> None:
    """Neither with its pages, nor by opening the feed again and again; who comes from elsewhere is answered."""
    portal = create_app(plain_sources(), ["testserver"])
    assert "OpenReadsMiddleware" in str(portal.user_middleware)
    app = OpenReadsMiddleware(portal, (), clock=lambda: 0.0)  # no time passes, in which it would be given some back
    busy, other, near = (TestClient(app, client=(host, 1)) for host in ("192.0.2.7", "198.51.100.7", "127.0.0.1"))
    assert {busy.get("/static/none").status_code for _ in range(1000)} == {404}
    for path in ("/", "/events", "/v1/gpus", "/metrics"):
        answer = busy.get(path)
        assert (answer.status_code, int(answer.headers["retry-after"])) == (429, 1)
    assert other.get("/v1/gpus").status_code == near.get("/v1/gpus").status_code == 200


def test_requests_that_bring_too_much_are_refused() -> None:
    client = TestClient(create_app(plain_sources(), ["testserver"]))
    limits = request_sizes
    many = {f"X-{number}": "1" for number in range(limits.MOST_HEADERS)}
    long = {f"X-{number}": "1" * 8000 for number in range(5)}
    for status, path, headers in (
        (431, "/v1/gpus", many),
        (431, "/v1/gpus", long),
        (431, "/v1/gpus", {"Cookie": "a" * (limits.LONGEST_HEADER + 1)}),
        (414, "/" + "a" * limits.LONGEST_PATH, {}),
        (414, "/?a=" + "a" * limits.LONGEST_QUERY, {}),
        (200, "/v1/gpus", {"Cookie": "a" * limits.LONGEST_HEADER}),
    ):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert "content-security-policy" in answer.headers
