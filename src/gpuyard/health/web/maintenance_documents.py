"""The JSON of /v1/maintenances: documents about maintenances of hosts that admins get and send."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Self

from pydantic import BaseModel, Field, StringConstraints, model_validator

from gpuyard.health.controllers.maintenance import MOST_NAMED, MaintenanceForecast, MaintenanceView
from gpuyard.health.maintenance import Maintenance, MaintenanceState
from gpuyard.health.web.health_documents import AcceptanceOutput, BookingArguments
from gpuyard.model.booking import Booking, BookingKind
from gpuyard.model.gpu import Claim
from gpuyard.web.documents import Line, Moment, Sent

STEPS: dict[MaintenanceState, tuple[str, ...]] = {
    MaintenanceState.PLANNED: ("start", "allow", "extend", "cancel"),
    MaintenanceState.DRAINING: ("done", "allow", "extend", "cancel"),
    MaintenanceState.IN_WORK: ("done", "allow", "extend"),
    MaintenanceState.CHECKING: ("done", "start", "extend"),
    MaintenanceState.BACK: (),
    MaintenanceState.CANCELLED: (),
}
"""The steps that are possible in each state."""


ServerIds = Annotated[
    list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]],
    Field(max_length=MOST_NAMED),
]


class MaintenanceAsk(Sent):
    """A host is to be maintained."""

    host: Line
    start: Moment = Field(description="Now, when it is over.")
    end: Moment = Field(description="When it is expected to be back. It is not given back by the clock.")
    comment: BookingArguments = Field(description="Why, for everybody to see.", examples=["kernel 6.12"])
    may_go_down: ServerIds = Field([], description="Ids of servers that need not leave the host before the work.")


class MaintenanceQuestion(Sent):
    """What would it mean to maintain a host?"""

    host: Line
    start: Moment = Field(description="Now, when it is over.")
    end: Moment


class MaintenanceSaid(Sent):
    """What is done, in words."""

    comment: AcceptanceOutput = ""


class MaintenancePermission(Sent):
    """Servers may be on the host while somebody works on it."""

    servers: ServerIds = Field(min_length=1, description="Their ids. Those that were named before stay named.")
    comment: AcceptanceOutput = ""


class MaintenanceDone(Sent):
    """The work is done."""

    comment: AcceptanceOutput = ""
    unchecked: bool = Field(False, strict=True, description="Give it back at once: who says so answers for it.")

    @model_validator(mode="after")
    def _answers_for_it(self) -> Self:
        if self.unchecked and not self.comment:
            raise ValueError("say in comment why the host need not be checked")
        return self


class MaintenanceExtension(Sent):
    """It is back at another time."""

    end: Moment
    comment: AcceptanceOutput = ""


class MaintenanceServer(BaseModel):
    """A server on the host, with GPUs or without."""

    id: str
    name: str
    status: str = Field(description="As Nova says; empty: Nova does not know it.")
    project: str
    user: str
    may_go_down: bool = Field(False, description="Somebody has said that work may begin while it is there.")


class MaintenanceBooking(BaseModel):
    """A booking, or the lease of a runner, that keeps a GPU of the host in its time."""

    id: str
    kind: BookingKind
    user: str
    project: str
    start: Moment
    end: Moment


class MaintenanceAnswer(BaseModel):
    """What the maintenance of a host in a time would mean, as things are now."""

    host: str
    servers: list[MaintenanceServer] = Field(description="All that are there now, with GPUs or without.")
    servers_known: bool = Field(description="Whether it is known which servers are there.")
    moves: list[MaintenanceBooking] = Field(description="Bookings that would get other GPUs.")
    stays: list[MaintenanceBooking] = Field(
        description="Bookings and leases that have begun or cannot be elsewhere; owners of bookings would be told."
    )


class MaintenanceRow(BaseModel):
    """The maintenance of a host."""

    id: str
    host: str
    state: MaintenanceState
    since: Moment
    start: Moment
    end: Moment = Field(description="When it is expected to be back; later while it is not done.")
    comment: str
    by: str = Field(description="Who planned it.")
    begun: Moment | None
    done: Moment | None = Field(description="When the work was said to be done, the last time.")
    done_by: str
    problems: list[str] = Field(
        description="While it is drained: what the work waits for, beside servers. While it is checked: why it is not "
        "given back yet."
    )
    gpus: int = Field(description="Of the host.")
    servers: list[MaintenanceServer] = Field(description="All that are there now, with GPUs or without.")
    servers_known: bool = Field(description="Whether it is known which servers are there; if not, 'servers' is empty.")
    bookings: list[MaintenanceBooking] = Field(
        description="That keep a GPU there in its time: they have begun, or cannot be elsewhere. Owners were told."
    )
    may: list[str] = Field(description="What you may do now: start, done, allow, extend, cancel.")


class MaintenanceList(BaseModel):
    maintenances: list[MaintenanceRow] = Field(
        description="Those that are not over, by start; then those that are, the newest first."
    )


def maintenance_row(view: MaintenanceView) -> MaintenanceRow:
    maintenance = view.maintenance
    return MaintenanceRow(
        id=maintenance.id,
        host=maintenance.host,
        state=maintenance.state,
        since=maintenance.since,
        start=maintenance.start,
        end=maintenance.until,
        comment=maintenance.why,
        by=maintenance.by,
        begun=maintenance.begun,
        done=maintenance.done,
        done_by=maintenance.done_by,
        problems=list(maintenance.problems),
        gpus=view.gpus,
        servers=[_server(claim, maintenance.may_go_down) for claim in view.servers or ()],
        servers_known=view.servers is not None or not maintenance.open,
        bookings=[_booking(booking) for booking in view.bookings],
        may=[step for step in STEPS[maintenance.state] if step not in _not_now(maintenance)],
    )


def _not_now(maintenance: Maintenance) -> tuple[str, ...]:
    """Work that has not begun is not done, and work that was done is not cancelled."""
    if maintenance.done:
        return ("cancel",)
    return ("done",) if maintenance.state is MaintenanceState.DRAINING else ()


def maintenance_answer(host: str, forecast: MaintenanceForecast) -> MaintenanceAnswer:
    return MaintenanceAnswer(
        host=host,
        servers=[_server(claim) for claim in forecast.servers or ()],
        servers_known=forecast.servers is not None,
        moves=[_booking(booking) for booking in forecast.bookings.moves],
        stays=[_booking(booking) for booking in forecast.bookings.stays],
    )


def _server(claim: Claim, may_go_down: Collection[str] = ()) -> MaintenanceServer:
    return MaintenanceServer(
        id=claim.server_id,
        name=claim.server_name,
        status=claim.server_status,
        project=claim.project,
        user=claim.user,
        may_go_down=claim.server_id in may_go_down,
    )


def _booking(booking: Booking) -> MaintenanceBooking:
    return MaintenanceBooking(
        id=booking.id,
        kind=booking.kind,
        user=booking.server or booking.user,
        project=booking.project,
        start=booking.ask.start,
        end=booking.ask.end,
    )
