"""The endpoint where hosts fetch scrub orders and send results: ``POST /v1/hosts/{host}/scrubs``.

A host has a token that is good for this and for itself only. With it it can only send the result of an order that is
open for it; anything else changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.scrubs import ScrubService
from gpuyard.health.host_reports import MOST_BYTES
from gpuyard.health.store import HealthStore
from gpuyard.health.web.health_intake import MOST_AT_ONCE, no_such_host
from gpuyard.health.web.machine_tokens import MachineTokens
from gpuyard.model.scrub import ScrubOutcome, ScrubResult
from gpuyard.model.text import printable
from gpuyard.web.bounded_bodies import BoundedBodies
from gpuyard.web.outcomes import Outcomes
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.problems import Refusal, unavailable

PATH = "/v1/hosts/{host}/scrubs"
PURPOSE = "scrub"
AT_ONCE, EVERY = 30, 1.0
"""Requests that one token may send at once, and seconds until one more."""
REFUSALS = ("unauthorized", "too_many", "bad_results", "no_such_host", "unavailable")
MOST_RESULTS, MOST_FUNCTIONS, MOST_LINES = 64, 64, 128

Address = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
Line = Annotated[str, StringConstraints(max_length=1000)]
Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)  # a newer host may say more


class SentResult(_Told):
    order: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]
    address: Address
    outcome: Literal["clean", "failed", "refused", "busy", "unknown"]
    reason: Line = ""
    functions: list[Address] = Field(default_factory=list, max_length=MOST_FUNCTIONS)
    method: Annotated[str, StringConstraints(max_length=100)] = ""
    seconds: Seconds = 0.0
    reset_seconds: Seconds = 0.0
    evidence: list[Line] = Field(default_factory=list, max_length=MOST_LINES)

    def result(self) -> ScrubResult:
        return ScrubResult(
            self.order, self.address, ScrubOutcome(self.outcome), printable(self.reason), tuple(self.functions),
            printable(self.method), self.seconds, self.reset_seconds, tuple(map(printable, self.evidence)),
        )  # fmt: skip


class SentResults(_Told):
    results: list[SentResult] = Field(max_length=MOST_RESULTS)


def read_results(body: bytes) -> list[ScrubResult]:
    """Parse the results of a request. Raises Refusal."""
    try:
        return [result.result() for result in SentResults.model_validate_json(body).results]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Refusal(422, "bad_results", f"{printable(where)[:100]}: {first['msg'][:200]}.") from None
    except (ValueError, RecursionError):
        raise Refusal(422, "bad_results", "The body cannot be read.") from None


def install(app: FastAPI, sources: PortalContext, service: ScrubService, store: HealthStore) -> Outcomes:
    """Add the endpoint, and return the outcomes of the requests of hosts."""
    outcomes = Outcomes("results of scrubs", REFUSALS)
    bodies = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)
    tokens = MachineTokens(store, PURPOSE, sources.now, sources.settings.trusted_gateways, AT_ONCE, EVERY)

    def exchange(host: str, body: bytes) -> Response:
        try:
            if host not in service.hosts:
                raise no_such_host(host)
            orders = service.exchange(host, read_results(body))
        except StoreError as error:
            raise unavailable(error) from None
        return JSONResponse({"orders": [{"id": order.id, "address": order.address} for order in orders]})

    async def take_results(request: Request) -> Response:
        host = request.path_params["host"]
        with outcomes.counting():
            await tokens.admit_at_once(request, host)
            async with bodies.read(request, request.receive) as body:
                return await run_in_threadpool(exchange, host, body)

    app.router.routes.append(Route(PATH, take_results, methods=["POST"]))
    return outcomes
