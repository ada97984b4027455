"""What admins get and send about maintenances of hosts: the JSON of /v1/maintenances."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

from gpuyard.health.maintenance import MaintenanceState
from gpuyard.keeper.maintenance import MaintenanceForecast, MaintenanceView
from gpuyard.model.booking import Booking, BookingKind
from gpuyard.model.gpu import Claim
from gpuyard.portal.booking_documents import Line, Moment, Sent
from gpuyard.portal.health_documents import Said, Words

M = MaintenanceState
STEPS: dict[MaintenanceState, tuple[str, ...]] = {
    M.PLANNED: ("start", "extend", "cancel"),
    M.DRAINING: ("done", "extend", "cancel"),
    M.IN_WORK: ("done", "extend"),
    M.CHECKING: ("done", "start", "extend"),
    M.BACK: (),
    M.CANCELLED: (),
}
"""What is there to do in each state."""


class MaintenanceAsk(Sent):
    """A host is to be maintained."""

    host: Line
    start: Moment = Field(description="Now, when it is over.")
    end: Moment = Field(description="When it is expected to be back. It is not given back by the clock.")
    comment: Words = Field(description="Why, for everybody to see.", examples=["kernel 6.12"])


class MaintenanceQuestion(Sent):
    """What would it mean to maintain a host?"""

    host: Line
    start: Moment = Field(description="Now, when it is over.")
    end: Moment


class MaintenanceSaid(Sent):
    """What is done, in words."""

    comment: Said = ""


class MaintenanceDone(Sent):
    """The work is done."""

    comment: Said = ""
    unchecked: bool = Field(False, strict=True, description="Give it back at once: who says so answers for it.")

    @model_validator(mode="after")
    def _answers_for_it(self) -> Self:
        if self.unchecked and not self.comment:
            raise ValueError("say in comment why the host need not be checked")
        return self


class MaintenanceExtension(Sent):
    """It is back at another time."""

    end: Moment
    comment: Said = ""


class MaintenanceServer(BaseModel):
    """A server that still has GPUs of the host."""

    id: str
    name: str
    status: str = Field(description="As Nova says; empty: Nova does not know it.")
    project: str
    user: str


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
    servers: list[MaintenanceServer] = Field(description="That have GPUs there now.")
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
    problems: list[str] = Field(description="Why it is not given back yet, as of the last check.")
    gpus: int = Field(description="Of the host.")
    servers: list[MaintenanceServer] = Field(description="That have GPUs there now.")
    bookings: list[MaintenanceBooking] = Field(
        description="That keep a GPU there in its time: they have begun, or cannot be elsewhere. Owners were told."
    )
    may: list[str] = Field(description="What you may do now: start, done, extend, cancel.")


class MaintenanceList(BaseModel):
    maintenances: list[MaintenanceRow] = Field(
        description="Those that are not over, by start; then those that are, the newest first."
    )


def maintenance_row(view: MaintenanceView) -> MaintenanceRow:
    one = view.maintenance
    return MaintenanceRow(
        id=one.id,
        host=one.host,
        state=one.state,
        since=one.since,
        start=one.start,
        end=one.until,
        comment=one.why,
        by=one.by,
        begun=one.begun,
        done=one.done,
        done_by=one.done_by,
        problems=list(one.problems),
        gpus=view.gpus,
        servers=[_server(claim) for claim in view.servers],
        bookings=[_booking(booking) for booking in view.bookings],
        may=list(STEPS[one.state]),
    )


def maintenance_answer(host: str, forecast: MaintenanceForecast) -> MaintenanceAnswer:
    return MaintenanceAnswer(
        host=host,
        servers=[_server(claim) for claim in forecast.servers],
        moves=[_booking(booking) for booking in forecast.bookings.moves],
        stays=[_booking(booking) for booking in forecast.bookings.stays],
    )


def _server(claim: Claim) -> MaintenanceServer:
    return MaintenanceServer(
        id=claim.server_id,
        name=claim.server_name,
        status=claim.server_status,
        project=claim.project,
        user=claim.user,
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
