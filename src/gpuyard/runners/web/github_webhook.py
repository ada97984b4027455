"""Endpoint for GitHub's webhooks: signed ones are stored, and answered once they are on the disk.

Nobody logs in here, so every step costs a stranger more than us: what is not signed in the right form is refused
unread, bodies are bounded one by one and together, and wrong signatures are counted by the place they come from. All
strangers get the same answer, whatever was wrong.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.database.errors import StoreError
from gpuyard.runners import fields
from gpuyard.runners.records import HookDelivery
from gpuyard.runners.web.group_commit import GroupCommit
from gpuyard.runners.webhook import JOB_EVENT, MOST_BYTES, SIGNATURE, HookRefusedError, delivery_of, signed_by
from gpuyard.site.runner_rules import Enrolment
from gpuyard.web.access import GITHUB_WEBHOOK
from gpuyard.web.bounded_bodies import BoundedBodies
from gpuyard.web.problems import Refusal, response_to, unavailable
from gpuyard.web.unknown_callers import UnknownCallerThrottle

PATH = GITHUB_WEBHOOK
MOST_AT_ONCE = 64 * 1024 * 1024
"""Bytes of bodies that are read, or wait to be written, at once."""
OUTCOMES = ("kept", "ignored", "refused", "failed")
"""The outcomes of requests, for the metrics: stored; signed, but about nothing that is of use here; refused; could not
be stored, so that GitHub has to deliver it again."""


class Intake:
    """Checks and stores webhooks. Made once per app; everything but the writing runs in the event loop."""

    def __init__(
        self,
        keep: Callable[[Sequence[HookDelivery]], None],
        secrets: Callable[[], Mapping[str, Sequence[bytes]]],
        enrolments: Sequence[Enrolment],
        now: Callable[[], datetime],
        stored: Callable[[], None] = lambda: None,
        gateways: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` makes deliveries durable, `stored` is called after it has, and may be called from any thread."""
        self._enrolments = {enrolment.name: enrolment for enrolment in enrolments}
        self._secrets, self._now = secrets, now
        self._strangers = UnknownCallerThrottle(gateways, clock)
        # GitHub waits for ten seconds for an answer, so longer than that no body needs to be waited for.
        self.bodies = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))

        def write(deliveries: Sequence[HookDelivery]) -> None:
            keep(deliveries)
            stored()

        self._commits = GroupCommit(write)

    async def take(self, request: Request) -> int:
        """Take a request. Returns the status of the answer: 202 when it is stored, 200 when there is nothing to store.
        Raises Refusal."""
        try:
            taken = await self._take(request)
        except Refusal:
            self.outcomes["refused"] += 1
            raise
        except StoreError as error:
            self.outcomes["failed"] += 1
            raise unavailable(error) from None
        self.outcomes["kept" if taken else "ignored"] += 1
        return 202 if taken else 200

    async def _take(self, request: Request) -> bool:
        origin = self._strangers.origin(request)
        if seconds := origin.wait():
            raise Refusal(429, "too_many", f"Too many requests; try again in {seconds} s.", retry_after=seconds)
        signature = request.headers.get("x-hub-signature-256", "")
        if not SIGNATURE.fullmatch(signature):
            raise unsigned()
        try:
            async with self.bodies.read(request, request.receive) as body:
                names = signed_by(body, signature, self._secrets())
                if not names:
                    raise unsigned()
                return await self._keep(request, body, names)
        except Refusal as refusal:
            if refusal.code in ("too_slow", "unsigned"):
                origin.take()
            raise

    async def _keep(self, request: Request, body: bytes, names: Sequence[str]) -> bool:
        try:
            guid, event = delivery_of(request.headers)
        except HookRefusedError as error:
            raise Refusal(error.status, "bad_webhook", f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        scope = names[0] if len(names) == 1 else self._whose(body, names)
        if event != JOB_EVENT or not scope:
            return False
        await self._commits.add(HookDelivery(guid, scope, event, self._now(), body))
        return True

    def _whose(self, body: bytes, names: Sequence[str]) -> str:
        """Return the enrolment that has the repository, of several with one secret, as of one app; empty when none
        has."""
        try:
            payload = fields.row(fields.document(body))
        except ValueError:
            raise Refusal(400, "bad_webhook", "The body is not JSON.") from None
        repository = fields.repository(fields.row(payload, "repository"), "full_name")
        return next((name for name in names if self._enrolments[name].includes(repository)), "")


def unsigned() -> Refusal:
    return Refusal(401, "unsigned", "The request is not signed with a secret that is known here.")


async def answered(intake: Intake, request: Request) -> Response:
    try:
        status = await intake.take(request)
    except Refusal as refusal:
        return response_to(refusal)
    return PlainTextResponse("kept\n" if status == 202 else "nothing to do\n", status)


def fast_paths(intake: Intake) -> Mapping[str, ASGIApp]:
    """Return the endpoint for `FastPath`, which answers before the middleware for people and pages, in half of the
    time."""

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        answer = await answered(intake, Request(scope, receive))
        await answer(scope, receive, send)

    return {PATH: take}


def install(app: FastAPI, intake: Intake) -> None:
    """Register the route with the app, so that it is known there: POST is answered by `fast_paths` before."""

    async def github_webhook(request: Request) -> Response:
        return await answered(intake, request)

    app.router.routes.insert(0, Route(PATH, github_webhook, methods=["POST"]))
