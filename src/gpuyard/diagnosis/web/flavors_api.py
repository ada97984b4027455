"""The API of flavors that could be started now: for a person's own projects, or any project for admins.

Without a login there is no project, and limits are not applied.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field

from gpuyard.diagnosis.capacity.answer import row_of
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.diagnosis.why.facts import Asker
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.inventory.web.shown_servers import hidden_view
from gpuyard.openstack.errors import CloudError
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.documents import Line, Moment
from gpuyard.web.people import Visitor, find_visitor
from gpuyard.web.problems import Refusal, documented, no_data_yet, unavailable
from gpuyard.web.projects import acting_for
from gpuyard.web.visibility import hides, projects_of


class SpanRow(BaseModel):
    """Some of the servers that would start now."""

    servers: int
    until: Moment | None = Field(description="Null: nothing is known that would end them.")
    booking: str | None = Field(description="Id of the booking of the project that they would be on.")


class PlaceRow(BaseModel):
    host: str
    servers: int


class CauseRow(BaseModel):
    """What keeps the next one from starting, wherever it would be."""

    code: str = Field(description="As of 'gpuyard gpu why'.", examples=["quota", "access"])
    reason: str
    remedy: str


class RestRow(BaseModel):
    """What no server of the flavor could have, and why; what is alike is one."""

    code: str = Field(description="A state of a GPU, or a code of 'gpuyard gpu why', or peer, left-over, taken.")
    reason: str
    gpus: int = Field(description="0 of a flavor without GPUs.")
    hosts: list[str] = Field(description="The first 50.")
    host_count: int


class NextBooking(BaseModel):
    """The project's next booking of the pool that has not begun."""

    id: str
    start: Moment
    end: Moment
    gpus: int


class FlavorRow(BaseModel):
    """A flavor, and what the project could start of it."""

    name: str
    id: str
    pool: str = Field(description="Of its GPUs; empty for one without.")
    gpus: int = Field(description="That one server has.")
    vcpus: int
    ram: int = Field(description="MiB.")
    disk: int = Field(description="GiB.")
    ephemeral: int = Field(description="GiB.")
    public: bool
    now: int | None = Field(description="Servers that would start now; null where that cannot be known.")
    until: Moment | None = Field(description="Until when all of them could stay; null: nothing is known that ends it.")
    spans: list[SpanRow] = Field(description="Until when how many of them; empty where GPUs cannot be booked.")
    answer: str = Field(description="All of that in one line.", examples=["2 now, until Fri 2026-11-27 08:00 UTC"])
    where: list[PlaceRow] = Field(description="Hosts that would take most, limits of the project apart; 50 of them.")
    hosts: int = Field(description="How many would take one.")
    causes: list[CauseRow]
    others: list[RestRow] = Field(description="Why not more, by how much is kept back by it.")
    doubts: list[str] = Field(description="What was not looked at, and may have Nova decide otherwise.")
    next_booking: NextBooking | None


class FlavorList(BaseModel):
    taken_at: Moment = Field(description="When the cloud was looked at.")
    problem: str = Field(description="Why that is not newer; empty when all is well.")
    project: str = Field(description="Whose limits were looked at; empty: none's.")
    flavors: list[FlavorRow] = Field(description="Those that the project sees, with GPUs first.")


def install(
    app: FastAPI, sources: InventoryContext, capacity: CapacityService, authenticator: Authenticator | None
) -> None:
    @app.get("/v1/flavors", tags=["gpus"], responses=documented(401, 403, 422, 503))
    def list_flavors(
        request: Request,
        project: Annotated[Line, Query(description="Name or id; the one that is looked at when left out.")] = "",
        pool: Annotated[Line, Query(description="Only flavors with GPUs of this pool.")] = "",
    ) -> FlavorList:
        """How many servers of each flavor the project could start now, until when, and why not more."""
        pools = dict.fromkeys(gpu.pool for gpu in sources.gpus)
        if pool and pool not in pools:
            text = f"pool: no GPU has pool {pool!r}; there is {', '.join(pools)}"
            raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [text])
        return flavor_list(sources, capacity, find_visitor(request), project, pool, authenticator)


def flavor_list(
    sources: InventoryContext,
    capacity: CapacityService,
    who: Visitor | None,
    project: str,
    pool: str,
    authenticator: Authenticator | None,
) -> FlavorList:
    """Return the document. Raises Refusal."""
    asker = None
    if who is not None and authenticator is not None:
        person = acting_for(who, project, authenticator.people)
        asker = Asker(person.project_id, person.project)
    elif project:
        text = "project: this site has no login, so nobody has a project here; ask 'gpuyard flavor list' as an admin"
        raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [text])
    view = sources.inventory.latest()
    if view is None:
        raise no_data_yet()
    others, mine = sources.settings.others, projects_of(who)
    hidden = hides(others, who)
    try:
        bootable_now = capacity.told(hidden_view(view, others, mine) if hidden else view, asker, mine if hidden else ())
    except CloudError as error:
        raise unavailable(error) from None
    rows = [row_of(entry, ahead) for entry, ahead in bootable_now.flavors if pool in ("", entry.pool)]
    return FlavorList(
        taken_at=bootable_now.taken_at,
        problem=bootable_now.problem,
        project=asker.name if asker else "",
        flavors=[FlavorRow.model_validate(row) for row in rows],
    )
