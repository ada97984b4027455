"""The API of GPUs and pools for programs, version 1. It says what the map shows, in the same words."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuyard import installed_version
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.inventory.web.presenter import by_pool, count_states
from gpuyard.inventory.web.shown_servers import server_visibility, view_for
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.web.documents import Link
from gpuyard.web.people import find_visitor
from gpuyard.web.preconditions import not_modified
from gpuyard.web.problems import Refusal, documented, no_data_yet
from gpuyard.web.search import stands_in

ETAG = {"ETag": {"description": "Changes when a GPU changes; send it as If-None-Match.", "schema": {"type": "string"}}}


class Version(BaseModel):
    """What is served here."""

    id: Literal["v1"] = Field(description="The version of the API.")
    status: Literal["CURRENT"]
    version: str = Field(description="The version of gpuyard.")
    site: str = Field(description="The name of the site.")
    links: list[Link]


class ServerRef(BaseModel):
    """The server that holds a GPU."""

    id: str
    name: str = Field(description="Empty when Nova does not show the server (yet, or any more).")
    status: str = Field(description="As Nova has it: ACTIVE, SHUTOFF, ...")


class GpuRow(BaseModel):
    """One GPU."""

    host: str = Field(examples=["gpu-epyc-1"])
    address: str = Field(description="PCI address.", examples=["0000:27:00.0"])
    state: GpuState
    reason: str = Field(description="Why it is in this state; empty when the state says it all.")
    pool: str = Field(examples=["v100"])
    model: str = Field(examples=["Tesla V100 PCIe 16GB"])
    ids: str = Field(description="PCI vendor:product.", examples=["10de:1db4"])
    group: int | None = Field(description="IOMMU group on the host; null when the host has no IOMMU switched on.")
    role: GpuRole = Field(description="Its place in the group: lone, or the leader, or a peer that needs the leader.")
    set: str | None = Field(description="Letter of the set that leader and peers form; null for a lone GPU.")
    numa_node: int | None
    server: ServerRef | None = Field(description="Null when no server holds the GPU.")
    project: str | None
    user: str | None
    since: datetime | None = Field(description="Since when the server holds the GPU.")
    booking: str | None = Field(description="Id of the booking or hold that keeps a GPU that is booked or held.")


class GpuList(BaseModel):
    taken_at: datetime = Field(description="When the cloud was looked at.")
    generation: int = Field(description="Rises when a GPU changes; begins again at 1 when gpuyard is restarted.")
    gpus: list[GpuRow] = Field(description="By host and address.")


class PoolRow(BaseModel):
    """A pool."""

    name: str
    models: list[str]
    total: int
    free: int
    states: dict[GpuState, int] = Field(description="GPUs in each state; every state is there.")


class PoolList(BaseModel):
    taken_at: datetime = Field(description="When the cloud was looked at.")
    generation: int
    pools: list[PoolRow] = Field(description="In the order of the GPUs.")


def _stated(values: Any) -> Any:
    return [value for value in values if value != ""] if isinstance(values, list) else values


Stated = BeforeValidator(_stated)


class GpuFilter(BaseModel):
    """Each parameter can be repeated: a GPU is listed when it matches one value of each. An empty value is as none."""

    model_config = ConfigDict(extra="forbid")

    pool: Annotated[list[str], Stated] = Field([], description="Only these pools.")
    state: Annotated[list[GpuState], Stated] = Field([], description="Only these states.")
    host: Annotated[list[str], Stated] = Field([], description="Only these hosts.")
    q: str = Field("", max_length=200, description="Only those in whose row each of these words stands somewhere.")

    def matches(self, status: GpuStatus) -> bool:
        """Return whether a GPU matches. `status` is as the visitor may see it, so that a search tells nothing else."""
        return (
            (not self.pool or status.gpu.pool in self.pool)
            and (not self.state or status.state in self.state)
            and (not self.host or status.gpu.host in self.host)
            and (not self.q or stands_in(self.q.casefold().split(), _texts_of(status)))
        )


def _texts_of(status: GpuStatus) -> list[str]:
    row = status.as_dict()
    server = row["server"] or {}
    words = (f"{row['host']}/{row['address']}", *row.values(), *server.values())
    return [word for word in words if isinstance(word, str)]


def install(app: FastAPI, sources: InventoryContext) -> None:
    # A generation alone would mean something else after a restart, which begins at 1 again.
    process = secrets.token_hex(4)

    def answer(request: Request, make: Callable[[InventoryView], BaseModel], visibility: str = "") -> Response:
        """The view as a document, or 304 when the client has this generation already. `visibility`: other where it is
        made for others."""
        view = sources.inventory.latest()
        if view is None:
            raise no_data_yet()
        # Weak: the time of the last look differs although nothing else does.
        etag = f'W/"{process}-{view.generation}{visibility}"'
        if not_modified(request, etag):
            return Response(status_code=304, headers={"ETag": etag})
        return Response(make(view).model_dump_json(), media_type="application/json", headers={"ETag": etag})

    @app.get("/v1", tags=["about"])
    def version(request: Request) -> Version:
        """The version document."""
        hrefs = {
            "self": "/v1",
            "gpus": "/v1/gpus",
            "pools": "/v1/pools",
            "status": "/v1/status",
            "describedby": "/openapi.json",
        }
        has = request.app.state
        if has.bootable:
            hrefs |= {"flavors": "/v1/flavors"}
        if has.login:
            hrefs |= {name: f"/v1/{name}" for name in ("me", "bookings", "calendar", "holds", "feeds")}
        if has.runners:
            hrefs |= {name: f"/v1/{name}" for name in ("runners", "jobs", "queue")}
        links = [Link(rel=rel, href=href) for rel, href in hrefs.items()]
        return Version(id="v1", status="CURRENT", version=installed_version(), site=sources.site_name, links=links)

    @app.get("/v1/gpus", tags=["gpus"], response_model=GpuList, responses=_responses(422, 503))
    def list_gpus(request: Request, filters: Annotated[GpuFilter, Query()]) -> Response:
        """Every GPU of the site: its state, why, and who has it."""
        refuse_unknown(filters, sources.gpus)
        who, others = find_visitor(request), sources.settings.others
        return answer(
            request, lambda view: gpu_list(view_for(view, others, who), filters), server_visibility(others, who)
        )

    @app.get("/v1/pools", tags=["gpus"], response_model=PoolList, responses=_responses(503))
    def list_pools(request: Request) -> Response:
        """How many GPUs each pool has, and how many of them are in each state."""
        return answer(request, pool_list)


def gpu_list(view: InventoryView, gpu_filter: GpuFilter) -> GpuList:
    statuses = [status for status in view.statuses if gpu_filter.matches(status)]
    return GpuList(
        taken_at=view.taken_at, generation=view.generation, gpus=[GpuRow(**status.as_dict()) for status in statuses]
    )


def pool_list(view: InventoryView) -> PoolList:
    rows = []
    for name, members in by_pool(view.statuses):
        states = count_states(status.state for status in members)
        models = sorted({status.gpu.model for status in members})
        rows.append(PoolRow(name=name, models=models, total=len(members), free=states[GpuState.FREE], states=states))
    return PoolList(taken_at=view.taken_at, generation=view.generation, pools=rows)


def refuse_unknown(gpu_filter: GpuFilter, gpus: Collection[Gpu]) -> None:
    """Raise Refusal 422 for a pool or host that no GPU has."""
    _refuse_unknown("pool", gpu_filter.pool, (gpu.pool for gpu in gpus))
    _refuse_unknown("host", gpu_filter.host, (gpu.host for gpu in gpus))


def _refuse_unknown(name: str, requested: Iterable[str], existing: Iterable[str]) -> None:
    """A misspelt name must not look like a pool without GPUs."""
    distinct = list(dict.fromkeys(existing))
    reasons = [
        f"{name}: no GPU has {name} {value!r}; there is {', '.join(distinct)}"
        for value in requested
        if value not in distinct
    ]
    if reasons:
        raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", reasons)


def _responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    not_modified = {"description": "The client has this generation already (If-None-Match).", "headers": ETAG}
    return {200: {"headers": ETAG}, 304: not_modified, **documented(*statuses)}
