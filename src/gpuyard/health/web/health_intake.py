"""The endpoint for reports of hosts, ``POST /v1/hosts/{host}/looks``, and the one where admins make tokens for it.

A host's token is good for that host and one purpose. It gives no access to anything, and reports with it are about GPUs
of that host only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.host_reports import MOST_BYTES, LookRefusedError, StaleLookError
from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.tokens import new_token
from gpuyard.health.web.machine_tokens import MachineTokens
from gpuyard.model.rights import Verb, require
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.bounded_bodies import BoundedBodies
from gpuyard.web.documents import Sent
from gpuyard.web.outcomes import Outcomes
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.problems import Refusal, unavailable

PATH = "/v1/hosts/{host}/looks"
PURPOSE = "watch"
AT_ONCE, EVERY = 10, 1.0
"""Looks that one token may send at once, and seconds until one more."""
MOST_AT_ONCE = 16 * 1024 * 1024
"""Bytes of bodies that are being read, of all hosts."""
REFUSALS = ("unauthorized", "too_many", "stale_look", "bad_look", "no_such_host", "unavailable")
Host = Annotated[str, Path(max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]


class TokenAsk(Sent):
    """What a host's new token shall be good for."""

    purpose: Literal["watch", "scrub"] = Field("watch", description="Saying how its GPUs are, or resetting them.")


class HostToken(BaseModel):
    host: str
    purpose: str
    token: str = Field(description="It is told this once: gpuyard keeps a digest.")


def install(
    app: FastAPI, sources: PortalContext, looks: HostReportIntake, store: HealthStore, ledger: Ledger
) -> Outcomes:
    """Add the endpoints, and return the outcomes of reports."""
    outcomes = Outcomes("looks of hosts", REFUSALS)
    bodies = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)
    tokens = MachineTokens(store, PURPOSE, sources.now, sources.settings.trusted_gateways, AT_ONCE, EVERY)

    @app.post("/v1/hosts/{host}/tokens", tags=["health"], status_code=201, responses=responses(404, headers=False))
    def make_token(who: Who, host: Host, ask: TokenAsk) -> HostToken:
        """A token with which a host says how its GPUs are, or fetches what is to be reset; for admins. The one that it
        had for this is good no more."""
        require(who.person, Verb.ADMINISTER)
        if host not in looks.hosts:
            raise no_such_host(host)
        text, digest = new_token(ask.purpose)
        store.end_tokens(ask.purpose, host)
        store.add_token(HealthToken(digest, ask.purpose, host, sources.now()))
        ledger.note(who.person, "host.token", host, f"a new token for {ask.purpose}")
        return HostToken(host=host, purpose=ask.purpose, token=text)

    def hear(host: str, body: bytes) -> Response:
        try:
            if host not in looks.hosts:
                raise no_such_host(host)
            looks.hear(host, body)
        except StaleLookError as error:
            raise Refusal(409, "stale_look", f"{error}.") from None
        except LookRefusedError as error:
            raise Refusal(422, "bad_look", f"{error}.") from None
        except StoreError as error:
            raise unavailable(error) from None
        return Response(status_code=204)

    async def take_look(request: Request) -> Response:
        host = request.path_params["host"]
        with outcomes.counting():
            await tokens.admit_at_once(request, host)
            async with bodies.read(request, request.receive) as body:
                return await run_in_threadpool(hear, host, body)

    app.router.routes.append(Route(PATH, take_look, methods=["POST"]))
    return outcomes


def no_such_host(host: str) -> Refusal:
    return Refusal(404, "no_such_host", f"The site has no host {host!r}.")
