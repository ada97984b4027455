"""The API of acceptance: servers that are started on GPUs to check them, and what came of that. For admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path
from pydantic import BaseModel, Field

from gpuyard.health.acceptance import OVER, Try, TryState
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.model.rights import Verb, require
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.documents import Line, Moment, Sent
from gpuyard.web.problems import Refusal

TAG = "health"
PATH = "/v1/acceptances"
MISSING = (
    "This site starts no servers to accept GPUs: write 'project' and 'image' under 'health: acceptance:' in the site "
    "file, as docs/how-to/watch-gpu-health.md shows. Without them a person accepts a GPU: gpuyard gpu repair release."
)
Batch = Annotated[str, Path(max_length=32, pattern=r"^[a-z0-9]+$")]


class AcceptanceRequest(Sent):
    """Which GPUs are to be accepted."""

    targets: list[Line] = Field(
        default_factory=list,
        max_length=200,
        description="GPUs (host/address), hosts and pools; none: all GPUs that are to be accepted.",
    )
    canary: bool = Field(True, description="Of several hosts one first; if that fails the others are not tried.")
    fresh: bool = Field(
        False,
        description="What they show is their baseline, also where that is worse than what they were accepted with.",
    )


class TryRow(BaseModel):
    """One slot that is accepted by a server."""

    id: str
    batch: str = Field(description="The same for all that were asked for at once.")
    host: str
    gpus: list[str] = Field(description="PCI addresses, the leader's first.")
    pool: str
    state: TryState
    over: bool = Field(description="Nothing more comes of it.")
    since: Moment
    begun: Moment
    by: str
    canary: bool = Field(description="The others of its batch wait for it.")
    server: str = Field(description="Name of its server.")
    cause: str = Field(
        description="What was seen, or what went wrong; while it waits for a server that has its GPU, which one. Empty "
        "as long as nobody knows."
    )
    driver: str = Field(description="Version of the driver in the guest; empty: not known.")


class LeftOut(BaseModel):
    """A GPU that is not tried."""

    gpu: str = Field(description="host/address.")
    reason: str


class AcceptanceList(BaseModel):
    tries: list[TryRow]
    left_out: list[LeftOut] = Field(description="What was asked for and is not tried, and why.")


def install(app: FastAPI, service: AcceptanceService | None) -> None:
    def acceptance() -> AcceptanceService:
        if service is None:
            raise Refusal(409, "refused", MISSING, [MISSING], codes=["no_project"])
        return service

    @app.post(PATH, tags=[TAG], status_code=202, responses=responses(409, headers=False))
    def accept_gpus(who: Who, body: AcceptanceRequest) -> AcceptanceList:
        """Start a server on each slot, check its GPUs there, and keep what came of it. For admins."""
        require(who.person, Verb.REPAIR)
        result = acceptance().ask(body.targets, who.person, canary=body.canary, fresh=body.fresh)
        left_out = [LeftOut(gpu=gpu, reason=reason) for gpu, reason in result.left_out.items()]
        return AcceptanceList(tries=[_row(attempt) for attempt in result.tries], left_out=left_out)

    @app.get(PATH, tags=[TAG], responses=responses(409, headers=False))
    def list_acceptances(who: Who) -> AcceptanceList:
        """The last try of every slot that ever had one. For admins."""
        require(who.person, Verb.REPAIR)
        tries = {attempt.id: attempt for attempt in acceptance().latest().values()}
        rows = [_row(attempt) for attempt in sorted(tries.values(), key=lambda attempt: (attempt.host, attempt.gpus))]
        return AcceptanceList(tries=rows, left_out=[])

    @app.get(f"{PATH}/{{batch}}", tags=[TAG], responses=responses(404, 409, headers=False))
    def show_acceptance(batch: Batch, who: Who) -> AcceptanceList:
        """What was asked for at once, and how it goes. For admins."""
        require(who.person, Verb.REPAIR)
        tries = acceptance().batch(batch)
        if not tries:
            raise Refusal(404, "not_found", f"There is no acceptance {batch}.")
        return AcceptanceList(tries=[_row(attempt) for attempt in tries], left_out=[])


def _row(attempt: Try) -> TryRow:
    return TryRow(
        id=attempt.id,
        batch=attempt.batch,
        host=attempt.host,
        gpus=list(attempt.gpus),
        pool=attempt.pool,
        state=attempt.state,
        over=attempt.state in OVER,
        since=attempt.since,
        begun=attempt.begun,
        by=attempt.by,
        canary=attempt.canary,
        server=attempt.name,
        cause=attempt.cause,
        driver=attempt.driver,
    )
