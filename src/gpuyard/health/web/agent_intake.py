"""Takes the reports of agents in guests.

Agents are many and come often, so they are answered before all other layers (web/fast_path.py), at a fraction of their
cost. Nobody logs in here: a token speaks for one server, and requests without a right one are counted by address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.agent_service import BATCH, AgentRefusedError, AgentService
from gpuyard.health.guests import ReplayError
from gpuyard.health.records import Observation
from gpuyard.health.samples import MOST_BYTES, SampleError, report_of
from gpuyard.model.signals import Judgement
from gpuyard.web.bounded_bodies import BoundedBodies
from gpuyard.web.outcomes import TAKEN, Outcomes
from gpuyard.web.problems import Refusal
from gpuyard.web.token_bucket import RateLimit
from gpuyard.web.unknown_callers import Origin, UnknownCallerThrottle

LOG = logging.getLogger(__name__)
SAMPLES, ENROL = "/v1/agents/samples", "/v1/agents/enrol"
REPORTS = 10
"""Of one server at once; then one in half of the time in which it is to send one sample."""
NOTES, NOTES_EVERY = 20, 180.0
"""Reports of one server with notes in them at once, and seconds until one more: each is a write."""
SAME, SAME_EVERY = 5, 60.0
"""The same suspicion of the same GPU from one server at once, and seconds until one more. Whatever quarantines a GPU is
always written down; how many reports a server may send limits it."""
MOST_AT_ONCE = 16 * 1024 * 1024
"""Bytes of bodies that are being read."""
MOST_OF_CODE = 16 * 1024
"""Bytes of a request with a code. Anybody can send one, so their bodies are counted apart from those of reports."""
THROTTLED = "throttled"
"""Taken, but a note in it, or a suspicion that was just written down, was not: too much of that server was lately."""
# The problems that are counted from zero on.
OF_REPORTS = ("no_token", "too_many", "bad_report", "replay", "no_gpus", "no_data_yet", "unavailable")
OF_CODES = ("no_code", "spent", "expired", "too_many", "bad_request", "no_gpus", "no_data_yet", "unavailable")


Take = Callable[[Scope, Receive], Awaitable[tuple[int, dict[str, object] | None]]]


class AgentIntake:
    """The endpoints of agents. Made once per app; runs in its event loop."""

    def __init__(
        self, service: AgentService, gateways: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._reports = RateLimit(REPORTS, service.rules.period / 2, clock)
        self._notes = RateLimit(NOTES, NOTES_EVERY, clock)
        self._same = RateLimit(SAME, SAME_EVERY, clock)
        self._strangers = UnknownCallerThrottle(gateways, clock)
        self._bodies = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)
        self._bodies_of_codes = BoundedBodies(MOST_OF_CODE, MOST_AT_ONCE)
        self._of_samples = Outcomes("reports of agents", (THROTTLED, *OF_REPORTS))
        self._of_codes = Outcomes("enrolments of agents", OF_CODES)
        self.outcomes = (self._of_samples, self._of_codes)
        self.fast_paths: Mapping[str, ASGIApp] = {SAMPLES: self.samples, ENROL: self.enrol}

    async def samples(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a report by POST: 204 when it was taken."""
        await self._answered(self._samples, self._of_samples, scope, receive, send)

    async def enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Enrol a guest by POST of {server, code}: 200 with {token, period, batch}."""
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
        body = await _body(self._bodies, scope, receive, server)
        try:
            heard = self._service.judge(server, report_of(body))
            observations = self._within_limits(server, heard.observations)
            throttled = len(observations) < len(heard.observations)
            if observations:
                await asyncio.to_thread(self._service.observe, heard, observations)
            self._service.take(heard)
        except SampleError as error:
            raise AgentRefusedError(400, "bad_report", f"The report was refused: {error}.") from None
        except ReplayError as error:
            raise AgentRefusedError(409, "replay", f"The report was refused: {error}.") from None
        self._of_samples.add(THROTTLED if throttled else TAKEN)
        return 204, None

    def _within_limits(self, server: str, observations: Sequence[Observation]) -> list[Observation]:
        """Drop what says nothing new, so that a program that fails over and over does not fill the database. What is
        worse than a note never depends on how many notes came before it."""
        judged = [(observation, self._service.judgement(observation)) for observation in observations]
        noted = any(judgement is Judgement.NOTE for _, judgement in judged)
        notes = noted and self._notes.take(server) == 0
        return [
            observation
            for observation, judgement in judged
            if judgement is Judgement.BAD
            or (
                notes
                if judgement is Judgement.NOTE
                else self._same.take(f"{server} {observation.code} {observation.gpu}") == 0
            )
        ]

    async def _who(self, scope: Scope) -> str:
        """The server whose token it is. Raises AgentRefusedError."""
        sent = _header(scope, b"authorization").decode("latin-1")
        token = sent[7:] if sent[:7].lower() == "bearer " else ""
        if (server := self._service.server_of(token)) is not None:
            return server
        origin = self._guess(scope)
        server = await asyncio.to_thread(self._service.look_up, token)
        origin.give_back()
        return server

    async def _enrol(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, object] | None]:
        origin = self._guess(scope)
        body = await _body(self._bodies_of_codes, scope, receive)
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            payload = None
        server, code = (payload.get(key) for key in ("server", "code")) if isinstance(payload, dict) else (None, None)
        if not isinstance(server, str) or not isinstance(code, str) or len(payload) != 2:
            raise AgentRefusedError(400, "bad_request", "Send {server, code}, as the server's metadata has them.")
        token = await asyncio.to_thread(self._service.enrol, server, code)
        origin.give_back()
        self._of_codes.add(TAKEN)
        return 200, {"token": token, "period": self._service.rules.period, "batch": BATCH}

    def _guess(self, scope: Scope) -> Origin:
        """Counted before it is known whether it is right: many at once are no more than one by one. Raises
        AgentRefusedError."""
        origin = self._strangers.origin(HTTPConnection(scope))
        if seconds := origin.take():
            raise AgentRefusedError(429, "too_many", f"Too many tries from here; try again in {seconds} s.")
        return origin


async def _body(bodies: BoundedBodies, scope: Scope, receive: Receive, client: str = "") -> bytes:
    """Read the body of a request. Raises AgentRefusedError."""
    try:
        async with bodies.read(HTTPConnection(scope), receive, client) as body:
            return body
    except Refusal as refusal:
        raise AgentRefusedError(refusal.status, refusal.code, refusal.detail) from None


def _problem(status: int, code: str, detail: str) -> dict[str, object]:
    """As problems.py has it."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "reasons": []}


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
