"""Where agents in guests say how GPUs are. They are many and come often, so they are answered before all other layers
(front.py), at a fraction of what those take. Nobody logs in here: who has a token may speak for one server, and who has
none is counted by the place that it comes from."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.health.guests import ReplayError
from gpuyard.health.samples import MOST_BYTES, SampleError, report_of
from gpuyard.keeper.agent_desk import BATCH, AgentDesk, AgentRefusedError
from gpuyard.portal.outcomes import TAKEN, Outcomes
from gpuyard.portal.rate_limits import RateLimit
from gpuyard.portal.strangers import Origin, Strangers
from gpuyard.store.errors import StoreError

LOG = logging.getLogger(__name__)
SAMPLES, ENROL = "/v1/agents/samples", "/v1/agents/enrol"
REPORTS = 10
"""Of one server at once; then one in half of the time in which it is to send one sample."""
SAID, SAID_EVERY = 20, 180.0
"""Reports of one server with something wrong in them at once, and seconds until one more: each is written down."""
READ_WITHIN = 10.0
"""Seconds for a body to be here."""
MOST_AT_ONCE = 16 * 1024 * 1024
"""Bytes of bodies that are being read."""
THROTTLED = "throttled"
"""Taken, but what was wrong in it was not written down: too much of one server was lately."""
# The problems that are counted from zero on.
OF_REPORTS = ("no_token", "too_many", "bad_report", "replay", "no_gpus", "no_data_yet", "unavailable")
OF_CODES = ("no_code", "spent", "expired", "too_many", "bad_request", "no_gpus", "no_data_yet", "unavailable")


Take = Callable[[Scope, Receive], Awaitable[tuple[int, dict[str, object] | None]]]


class AgentIntake:
    """Made once per app; runs in its event loop."""

    def __init__(
        self, desk: AgentDesk, gateways: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._desk = desk
        self._reports = RateLimit(REPORTS, desk.rules.period / 2, clock)
        self._said = RateLimit(SAID, SAID_EVERY, clock)
        self._strangers = Strangers(gateways, clock)
        self._held = 0
        self._of_samples = Outcomes("reports of agents", (THROTTLED, *OF_REPORTS))
        self._of_codes = Outcomes("enrolments of agents", OF_CODES)
        self.outcomes = (self._of_samples, self._of_codes)
        self.doors: Mapping[str, ASGIApp] = {SAMPLES: self.samples, ENROL: self.enrol}

    async def samples(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST of a report: 204 when it was taken."""
        await self._answered(self._samples, self._of_samples, scope, receive, send)

    async def enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST of {server, code}: 200 with {token, period, batch}."""
        await self._answered(self._enrol, self._of_codes, scope, receive, send)

    async def _answered(self, take: Take, outcomes: Outcomes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != "POST":
                raise AgentRefusedError(405, "method", "Send it with POST.")
            status, document = await take(scope, receive)
        except AgentRefusedError as refused:
            outcomes.add(refused.code)
            status, document = refused.status, _problem(refused.status, refused.code, str(refused))
        except StoreError as error:
            outcomes.add("unavailable")
            LOG.error("an agent could not be answered: %s", error)
            status, document = 503, _problem(503, "unavailable", "The database cannot be used now; try again later.")
        body = b"" if document is None else json.dumps(document).encode()
        headers = [(b"content-length", str(len(body)).encode())] if status != 204 else []
        kind = b"application/json" if status < 400 else b"application/problem+json"
        headers += [(b"content-type", kind)] if body else []
        headers += [(b"retry-after", b"60")] if status in (429, 503) else []
        headers += [(b"allow", b"POST")] if status == 405 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _samples(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, object] | None]:
        server = await self._who(scope)
        if self._reports.take(server):
            raise AgentRefusedError(429, "too_many", "Too many reports of this server; send them as often as was said.")
        body = await self._body(scope, receive)
        try:
            heard = self._desk.judge(server, report_of(body))
            throttled = bool(heard.observations) and self._said.take(server) > 0
            if heard.observations and not throttled:
                await asyncio.to_thread(self._desk.observe, heard)
            self._desk.take(heard)
        except SampleError as error:
            raise AgentRefusedError(400, "bad_report", f"The report was refused: {error}.") from None
        except ReplayError as error:
            raise AgentRefusedError(409, "replay", f"The report was refused: {error}.") from None
        self._of_samples.add(THROTTLED if throttled else TAKEN)
        return 204, None

    async def _who(self, scope: Scope) -> str:
        """The server whose token it is. Raises AgentRefusedError."""
        sent = _header(scope, b"authorization").decode("latin-1")
        token = sent[7:] if sent[:7].lower() == "bearer " else ""
        if (server := self._desk.server_of(token)) is not None:
            return server
        origin = self._guess(scope)
        server = await asyncio.to_thread(self._desk.look_up, token)
        origin.give_back()
        return server

    async def _enrol(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, object] | None]:
        origin = self._guess(scope)
        body = await self._body(scope, receive)
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            told = None
        server, code = (told.get(key) for key in ("server", "code")) if isinstance(told, dict) else (None, None)
        if not isinstance(server, str) or not isinstance(code, str) or len(told) != 2:
            raise AgentRefusedError(400, "bad_request", "Send {server, code}, as the server's metadata has them.")
        token = await asyncio.to_thread(self._desk.enrol, server, code)
        origin.give_back()
        self._of_codes.add(TAKEN)
        return 200, {"token": token, "period": self._desk.rules.period, "batch": BATCH}

    def _guess(self, scope: Scope) -> Origin:
        """Counted before it is known whether it is right: many at once are no more than one by one. Raises
        AgentRefusedError."""
        origin = self._strangers.origin(HTTPConnection(scope))
        if seconds := origin.take():
            raise AgentRefusedError(429, "too_many", f"Too many tries from here; try again in {seconds} s.")
        return origin

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Raises AgentRefusedError."""
        length = _header(scope, b"content-length")
        too_long = AgentRefusedError(413, "too_long", f"The body may have {MOST_BYTES} bytes.")
        if length and (not length.isdigit() or len(length) > 15):
            raise AgentRefusedError(400, "bad_request", "The length of the body is no number.")
        size = int(length) if length else MOST_BYTES
        if size > MOST_BYTES:
            raise too_long
        if self._held + size > MOST_AT_ONCE:
            raise AgentRefusedError(503, "busy", "Too much is being read; try again in a while.")
        self._held += size
        try:
            return await _read(receive, size)
        except TimeoutError:
            raise AgentRefusedError(408, "too_slow", f"The body has {READ_WITHIN:.0f} s to come.") from None
        except ValueError:
            raise too_long from None
        finally:
            self._held -= size


def _problem(status: int, code: str, detail: str) -> dict[str, object]:
    """As problems.py has it."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "reasons": []}


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


async def _read(receive: Receive, most: int) -> bytes:
    """Raises ValueError when it is longer, and TimeoutError."""
    body = bytearray()
    async with asyncio.timeout(READ_WITHIN):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise AgentRefusedError(400, "bad_request", "The body is not whole.")
            body += message.get("body", b"")
            if len(body) > most:
                raise ValueError
            if not message.get("more_body", False):
                return bytes(body)
