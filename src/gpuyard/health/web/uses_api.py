"""The API of the use of booked GPUs, for their owners and admins; "not known" where no agent reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.matching import may_use
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import gpu_names, gpus_of
from gpuyard.bookings.web.bookings_api import TAG
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.idle import UseSeen
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.gpu import provider_name
from gpuyard.model.rights import Verb, may
from gpuyard.model.world import Snapshot
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.documents import Moment
from gpuyard.web.projects import in_project_of

MOST = 500
"""Bookings in one answer."""


class GpuUseRow(BaseModel):
    """What one GPU does; null: not known."""

    gpu: str = Field(description="host/address; empty: one of its server's, and it is not known which.")
    server: str = Field(description="Id of the booking's server that has it; empty: none has.")
    heard: Moment | None = Field(description="When the server's agent was heard last.")
    lately: int | None = Field(description="Percent of use, of the last minutes.")
    minutes: int = Field(description="How many those are: without a gap until now, an hour at most.")
    whole: int | None = Field(
        description="Percent of use since the booking has a server, as the one that has it now tells."
    )
    hours: float = Field(description="For how long that was heard.")
    idle_since: Moment | None = Field(description="It has done nothing since, without a gap in what was heard.")


class UseRow(BaseModel):
    """What the GPUs of a booking do that is on; null: not known of each of them."""

    booking: str
    pool: str
    user: str
    project: str
    gpus: list[GpuUseRow]
    lately: int | None = Field(description="Percent, of all of its GPUs.")
    minutes: int = Field(description="Of so many minutes; the least.")
    whole: int | None
    hours: float = Field(description="The least.")
    idle_since: Moment | None = Field(description="None of its GPUs has done anything since.")


class UseList(BaseModel):
    asked: bool = Field(description="Whether this site asks servers what their GPUs do.")
    uses: list[UseRow] = Field(description="Of bookings that are on, by start: one's own, and for admins all.")


class UseFilter(BaseModel):
    """Of which bookings."""

    model_config = ConfigDict(extra="forbid")

    booking: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9-]*$", description="Only this one, by its id.")
    mine: bool = Field(False, description="Only those of who asks.")


def install(app: FastAPI, ledger: Ledger, agents: AgentService | None) -> None:
    @app.get("/v1/uses", tags=[TAG], responses=responses(headers=False))
    def list_uses(who: Who, filters: Annotated[UseFilter, Query()]) -> UseList:
        """What the GPUs of bookings do that are on now: of one's own, for admins of all."""
        if agents is None:
            return UseList(asked=False, uses=[])
        query = BookingQuery(
            id=filters.booking,
            user_id=who.person.user_id if filters.mine or not (who.person.admin or filters.booking) else "",
            kinds=frozenset({BookingKind.BOOKING}),
            states=frozenset({BookingState.ACTIVE}),
        )
        bookings = [
            booking for booking in ledger.find(query, MOST) if may(in_project_of(who, booking), Verb.SEE_USE, booking)
        ]
        names, snapshot = gpu_names(ledger.lanes()), agents.seen()
        return UseList(asked=True, uses=[_row(booking, names, agents, snapshot) for booking in bookings])


def _row(booking: Booking, names: Mapping[int, list[str]], agents: AgentService, snapshot: Snapshot | None) -> UseRow:
    gpus = gpus_of(booking, names)
    of: dict[str, list[tuple[str, str]]] = {}
    for gpu in gpus:
        host, _, address = gpu.partition("/")
        of.setdefault(_server(booking, provider_name(host, address), snapshot), []).append((host, address))
    since = max(booking.ask.start, booking.claimed or booking.ask.start)
    uses = [UseSeen("/".join(place)) for place in of.pop("", [])]
    for server, places in of.items():
        uses += agents.use_of(server, places, since)
    return UseRow(
        booking=booking.id, pool=booking.ask.pool, user=booking.user, project=booking.project,
        gpus=[_gpu_row(use) for use in sorted(uses, key=lambda use: (use.gpu, use.server))],
        lately=_mean([use.lately for use in uses]),
        minutes=min((use.minutes for use in uses), default=0),
        whole=_mean([use.whole for use in uses]),
        hours=min((_hours(use) for use in uses), default=0.0),
        idle_since=max((use.idle_since for use in uses if use.idle_since), default=None)
        if all(use.idle_since for use in uses) else None,
    )  # fmt: skip


def _server(booking: Booking, provider: str, snapshot: Snapshot | None) -> str:
    """The server of the booking's that has a GPU; empty when none has: also when somebody else's does, still."""
    server = snapshot.servers.get(snapshot.holders.get(provider, "")) if snapshot is not None else None
    return server.id if server is not None and may_use(server, booking) else ""


def _gpu_row(use: UseSeen) -> GpuUseRow:
    return GpuUseRow(
        gpu=use.gpu, server=use.server, heard=use.heard, lately=use.lately, minutes=use.minutes, whole=use.whole,
        hours=_hours(use), idle_since=use.idle_since,
    )  # fmt: skip


def _hours(use: UseSeen) -> float:
    return round(use.seconds / 3600, 2)


def _mean(percents: Sequence[int | None]) -> int | None:
    measured = [percent for percent in percents if percent is not None]
    return round(sum(measured) / len(measured)) if measured and len(measured) == len(percents) else None
