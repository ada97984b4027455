"""Limits of the bodies of requests, and that a token is looked at before a body is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from gpuyard.runners.webhook import MOST_BYTES
from gpuyard.web.bounded_bodies import SHARES, BoundedBodies
from gpuyard.web.problems import Refusal
from tests.support.agent_portals import agent_portal
from tests.support.health_portals import health_portal
from tests.support.portals import booking_portal
from tests.support.runner_portals import HOOK, job_hook, runner_portal, signed

Receive = Callable[[], Awaitable[dict[str, Any]]]


def request(path: str = "/", headers: dict[str, str] | None = None) -> Request:
    return Request({
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "https",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("192.0.2.1", 4711), "server": ("testserver", 443),
    })  # fmt: skip


def sends(*pieces: bytes) -> Receive:
    """A client that sends these pieces of a body and then hangs up."""
    rest = [{"type": "http.request", "body": piece, "more_body": n < len(pieces)} for n, piece in enumerate(pieces, 1)]

    async def receive() -> dict[str, Any]:
        return rest.pop(0) if rest else {"type": "http.disconnect"}

    return receive


async def never() -> dict[str, Any]:
    await asyncio.sleep(3600)
    return {}


async def cut_off() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def read(bodies: BoundedBodies, receive: Receive, **headers: str) -> bytes:
    async def whole() -> bytes:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with bodies.read(request(headers=sent), receive) as body:
            return body

    return asyncio.run(whole())


def test_a_body_comes_in_pieces() -> None:
    assert read(BoundedBodies(5, 5), sends(b"ab", b"", b"cde")) == b"abcde"


@pytest.mark.parametrize(
    ("receive", "length", "status"),
    [
        (sends(b"abc", b"def"), None, 413),
        (sends(b"ab"), "6", 413),
        (sends(b"abc"), "2", 413),
        (sends(b"ab"), "x", 400),
        (sends(b"ab"), "1" * 16, 400),
        (cut_off, None, 400),
        (never, None, 408),
    ],
)
def test_what_is_too_long_too_slow_or_cut_off_is_refused(receive: Receive, length: str | None, status: int) -> None:
    bodies = BoundedBodies(5, 5, within=0.01)
    with pytest.raises(Refusal) as refused:
        read(bodies, receive, **({} if length is None else {"content_length": length}))
    assert refused.value.status == status
    assert read(bodies, sends(b"abcde")) == b"abcde", "it counts no more"


def test_bodies_that_are_in_use_are_bounded_together() -> None:
    bodies = BoundedBodies(5, 8)

    def body(size: int) -> AbstractAsyncContextManager[bytes]:
        return bodies.read(request(headers={"Content-Length": str(size)}), sends(b"a" * size))

    async def three() -> None:
        async with body(4), body(4), body(1):
            pass

    with pytest.raises(Refusal) as refused:
        asyncio.run(three())
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "10"})
    assert read(bodies, sends(b"abcde")) == b"abcde"


def test_one_client_has_a_share_of_the_bodies_that_are_read_at_once() -> None:
    bodies = BoundedBodies(1, 2 * SHARES)

    def body(client: str) -> AbstractAsyncContextManager[bytes]:
        return bodies.read(request(), sends(b"a"), client)

    async def three() -> str:
        async with body("ada"), body("ada"):
            async with body("bob"), body(""), body(""), body(""):
                pass
            with pytest.raises(Refusal) as refused:
                async with body("ada"):
                    pass
        async with body("ada"):
            return refused.value.code

    assert asyncio.run(three()) == "busy"


def test_a_stranger_with_many_slow_bodies_keeps_nobody_from_logging_in(tmp_path: Path) -> None:
    """300 connections, as many as 16 MiB of bodies without a length are, and one from elsewhere."""
    app = booking_portal(tmp_path).app

    async def log_in(place: str, receive: Receive) -> int:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = dict(request("/login", {"Host": "testserver"}).scope) | {"client": (place, 4711)}
        await app(scope, receive, send)
        return int(sent[0]["status"])

    async def both() -> int:
        slow = [asyncio.ensure_future(log_in("192.0.2.1", never)) for _ in range(300)]
        await asyncio.sleep(0)
        try:
            return await log_in("198.51.100.1", sends(b"user=x"))
        finally:
            for task in slow:
                task.cancel()
            await asyncio.wait(slow)

    assert asyncio.run(both()) == 422


def test_strangers_with_codes_keep_out_no_reports_of_agents(tmp_path: Path) -> None:
    portal = agent_portal(tmp_path)
    headers = {"Host": "testserver", "Authorization": f"Bearer {portal.token('s1')}"}

    async def post(path: str, place: str, receive: Receive) -> int:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await portal.app(dict(request(path, headers).scope) | {"client": (place, 4711)}, receive, send)
        return int(sent[0]["status"])

    async def both() -> int:
        codes = [asyncio.ensure_future(post("/v1/agents/enrol", f"10.0.{n}.1", never)) for n in range(256)]
        await asyncio.sleep(0)
        try:
            return await post("/v1/agents/samples", "192.0.2.1", sends(b"no report"))
        finally:
            for code in codes:
                code.cancel()
            await asyncio.wait(codes)

    assert asyncio.run(both()) == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/hosts/gpu-1/looks"),
        ("POST", "/v1/hosts/gpu-1/scrubs"),
        ("POST", "/v1/bookings"),
        ("PATCH", "/v1/bookings/1"),
    ],
)
def test_nobody_reads_the_body_of_a_stranger(tmp_path: Path, method: str, path: str) -> None:
    assert status_without_a_body(health_portal(tmp_path).app, method, path, {"Authorization": "Bearer x"}) == 401


def test_a_webhook_that_is_not_signed_in_the_right_form_is_not_read(tmp_path: Path) -> None:
    headers = signed(job_hook()) | {"Content-Length": str(MOST_BYTES), "X-Hub-Signature-256": "sha256=0"}
    assert status_without_a_body(runner_portal(tmp_path).app, "POST", HOOK, headers) == 401


def status_without_a_body(app: Any, method: str, path: str, headers: dict[str, str]) -> int:
    """The answer to a request whose body never comes."""
    sent: list[MutableMapping[str, Any]] = []
    scope = dict(request(path, {"Host": "testserver", **headers}).scope) | {"method": method}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        async with asyncio.timeout(5):
            await app(scope, never, send)

    asyncio.run(ask())
    return int(sent[0]["status"])
