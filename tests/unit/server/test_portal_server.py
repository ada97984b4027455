"""The running server: where it may listen, what it says, and that open pages neither cost threads nor keep it alive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpuyard import installed_version
from gpuyard.dashboard.live import LiveFeed
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.gpu import GpuState
from gpuyard.runtime.control_loops import Driver
from gpuyard.server.app import create_app
from gpuyard.server.server import PortalServer, bind, refuse_public, server_of, url_of
from gpuyard.server.serving import Process, ServeOptions, answered_names
from gpuyard.web.connections import Connections, is_loopback
from gpuyard.web.settings import PortalSettings
from tests.support.inventories import LONE, NOON, changed, driver, filled, plain_sources
from tests.support.sites import site

ROOT = Path(__file__).parents[3]


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "it did not happen"
        sleep(0.01)


@dataclass
class Running:
    port: int
    inventory: InventoryCache
    feed: LiveFeed
    server: PortalServer

    @property
    def connections(self) -> Connections:
        state = self.server.server_state
        assert isinstance(state, Connections)
        return state


@contextmanager
def running(inventory: InventoryCache | None = None, loops: Driver | None = None, port: int = 0) -> Iterator[Running]:
    """A server in a thread."""
    inventory = inventory or filled()
    app = create_app(plain_sources(inventory=inventory, driver=loops or driver(), now=lambda: NOON))
    with bind("127.0.0.1", port) as listener:
        subject = server_of(app)
        thread = threading.Thread(target=subject.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: subject.started)
            yield Running(listener.getsockname()[1], inventory, app.state.feed, subject)
        finally:
            subject.should_exit = True
            thread.join(10)
        assert not thread.is_alive()


def page(port: int) -> socket.socket:
    """A browser's end of a live feed."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


def hear(connection: socket.socket, text: str) -> bytes:
    heard = b""
    while text.encode() not in heard:
        chunk = connection.recv(65536)
        assert chunk, heard[-200:]
        heard += chunk
    return heard


def test_a_page_hears_of_a_change_over_the_wire() -> None:
    with running() as subject, closing(page(subject.port)) as connection:
        first = hear(connection, "event: pulse")
        assert b"content-type: text/event-stream" in first
        assert b"x-accel-buffering: no" in first
        assert b"content-encoding" not in first
        assert b"server: uvicorn" not in first
        began = monotonic()
        subject.inventory.publish(NOON, changed(LONE, GpuState.HELD, "scrub now"))
        hear(connection, "scrub now")
        assert monotonic() - began < 2


def test_a_hundred_pages_cost_no_threads_and_leave_nothing_behind() -> None:
    with running() as subject, ExitStack() as stack:
        with closing(page(subject.port)) as connection:  # whatever the first page starts once and for all
            hear(connection, "event: map")
        before = threading.active_count()
        pages = [stack.enter_context(closing(page(subject.port))) for _ in range(100)]
        for connection in pages:
            hear(connection, "event: map")
        until(lambda: subject.feed.streams == 100)
        assert threading.active_count() <= before + 4  # the pool that renders, however many pages there are
        for connection in pages:
            connection.close()
        until(lambda: subject.feed.streams == 0)


def stuck(subject: Running) -> socket.socket:
    """A page that does not read what it is sent, which is more than the buffers of a socket hold."""
    connection = page(subject.port)
    until(lambda: subject.feed.streams == 1)
    for letter in "abc":
        subject.inventory.publish(NOON, changed(LONE, GpuState.HELD, letter * 4_000_000))
        sleep(0.5)
    return connection


def test_a_page_that_stops_reading_and_then_goes_is_forgotten() -> None:
    with running() as subject:
        stuck(subject).close()
        until(lambda: subject.feed.streams == 0)


def test_a_page_that_stops_reading_does_not_keep_the_server_alive() -> None:
    with ExitStack() as stack:
        with running() as subject:
            stack.enter_context(closing(stuck(subject)))
            began = monotonic()
        assert monotonic() - began < 2


def test_too_many_pages_are_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.dashboard.live.MOST_STREAMS", 1)
    with running() as subject, closing(page(subject.port)) as first:
        hear(first, "event: map")
        with closing(page(subject.port)) as second:
            answer = hear(second, "too_many_pages")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 30" in answer


def test_head_has_no_body() -> None:
    with running() as subject, closing(HTTPConnection("127.0.0.1", subject.port, timeout=10)) as connection:
        connection.request("HEAD", "/v1/gpus")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        assert int(response.headers["content-length"]) > 1000


# Signals, in a process of its own

PROGRAM = """
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, run
from tests.support.inventories import plain_sources

driver = Driver()
driver.register(Loop("look", "", 60.0, lambda: print("looked", flush=True)))
with bind("127.0.0.1", 0) as listener:
    run(create_app(plain_sources(driver=driver)), driver, listener, "test, 10 GPUs on 3 hosts")
print("cleaned up", flush=True)
"""


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], str, int, float]]:
    """A `run` in a process; what it said when it started, its port, and the seconds within which it must end.

    They are two, or on a slow day as many as it took to start.
    """
    began = monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONWARNINGS": "error"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as started:
        try:
            assert started.stdout
            line = started.stdout.readline()
            assert "http://" in line, line + started.stdout.read()
            yield started, line, int(line.split("http://127.0.0.1:")[1].split()[0]), max(2, monotonic() - began)
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_although_pages_are_open(number: signal.Signals) -> None:
    with process() as (started, line, port, limit), ExitStack() as stack:
        assert (
            line
            == f"gpuyard {installed_version()}: test, 10 GPUs on 3 hosts, at http://127.0.0.1:{port} (Ctrl+C stops)\n"
        )
        pages = [stack.enter_context(closing(page(port))) for _ in range(20)]
        for connection in pages:
            hear(connection, "event: pulse")
        began = monotonic()
        started.send_signal(number)
        assert started.wait(10) == 0
        assert monotonic() - began < limit
        for connection in pages:
            while connection.recv(65536):
                pass  # the stream was ended properly, not torn
        assert started.stdout
        assert started.stdout.read() == "looked\ncleaned up\n"  # one line to begin with, and no noise


def test_a_request_that_is_never_finished_does_not_keep_it_alive() -> None:
    with process() as (started, _, port, limit), closing(page(port)) as connection:
        connection.settimeout(5)
        hear(connection, "event: pulse")
        with closing(socket.create_connection(("127.0.0.1", port))) as half:
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and never the rest
            began = monotonic()
            started.terminate()
            assert started.wait(10) == 0
            assert monotonic() - began < limit


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    refuse_public(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "gpus.example.org", "localhost.example.org"])  # noqa: S104
def test_not_loopback(host: str) -> None:
    with pytest.raises(UsageError, match="no login yet; put it behind a gateway that has one, or pass --public"):
        refuse_public(host)


def options(**more: Any) -> ServeOptions:
    return replace(ServeOptions("127.0.0.1", 0, 1.0, "", False, PortalSettings()), **more)


def test_a_public_address_is_refused_before_anything_else(tmp_path: Path) -> None:
    api: Any = None
    with pytest.raises(UsageError, match="--public"):
        Process(site(tmp_path), api, options(host="0.0.0.0"), InventoryCache())  # noqa: S104


def test_names_that_are_answered() -> None:
    def names(**more: Any) -> list[str]:
        client = TestClient(create_app(plain_sources(), answered_names(options(**more))))
        tried = ("127.0.0.1", "gpus.example.org", "evil.example")
        return [name for name in tried if client.get("/healthz", headers={"Host": name}).status_code == 200]

    behind = PortalSettings(public_url="https://gpus.example.org", trusted_gateways=("192.0.2.1",))
    assert names() == ["127.0.0.1"]
    assert names(settings=behind) == ["127.0.0.1", "gpus.example.org"]
    assert names(public=True, host="0.0.0.0") == ["127.0.0.1", "gpus.example.org", "evil.example"]  # noqa: S104


def test_a_port_in_use_is_said() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GpuyardError, match=f"port {port} of 127.0.0.1 is taken by another program"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.7", 8080, "'192.0.2.7' is not an address of this machine"),
        ("no such host", 8080, "'no such host' is not an address of this machine"),
        ("127.0.0.1", 70000, "70000 is not a port"),
        ("127.0.0.1", -1, "-1 is not a port"),
    ],
)
def test_what_cannot_be_had_is_explained(host: str, port: int, message: str) -> None:
    with pytest.raises(GpuyardError, match=message):
        bind(host, port)


def test_urls() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    if socket.has_ipv6:
        try:
            with bind("::1", 0) as listener:
                assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        except GpuyardError:
            pytest.skip("this machine has no IPv6")


def test_answers_do_not_wait_for_one_another() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
