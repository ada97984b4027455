"""Prepares a person's servers, bookings and GPUs for their page. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.bookings.web.booking_documents import BookingRow, CaseRow
from gpuyard.health.records import HealthState
from gpuyard.health.web.card_use import UseLine
from gpuyard.health.web.health_documents import HealthRow
from gpuyard.health.web.health_presenter import COLOURS, PLAIN
from gpuyard.inventory.web.presenter import Since, duration, gpu_href, since
from gpuyard.model.booking import BookingState
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.text import counted

BOOKING_COLOURS = {
    BookingState.REQUESTED: "held",
    BookingState.WAITING: "held",
    BookingState.OFFERED: "stranded",
    BookingState.CONFIRMED: "booked",
    BookingState.ACTIVE: "claimed",
}
"""State of an open booking -> state of a GPU on the map whose colour it has."""
NOTHING: Mapping[str, UseLine] = {}


@dataclass(frozen=True)
class GpuLink:
    name: str
    href: str
    use: UseLine | None = None
    """The GPU's activity, where its server reports it."""


@dataclass(frozen=True)
class ServerLine:
    """A server of the person that has GPUs."""

    name: str
    id: str
    status: str
    project: str
    since: Since | None
    pool: str
    gpus: Sequence[GpuLink]
    until: str
    """Its known end: ``booked until …``, ``without a booking of yours``."""
    warning: str
    """The warning of a server that is to give its GPUs back."""


@dataclass(frozen=True)
class MineBooking:
    id: str
    state: str
    colour: str
    what: str
    """``2 of v100``."""
    user: str
    project: str
    comment: str
    start: Since
    end: Since
    left: str
    """``ends in 5 h``, ``begins in 2 d``."""
    gpus: Sequence[GpuLink]
    unused: bool
    """It is active, and no server has used it yet."""
    command: str
    flavor: str
    """The flavor to start a server with; empty: none fits, or it has a server."""
    trouble: str
    releasing: bool
    """True from its start until OpenStack lets its server in, some seconds later."""


@dataclass(frozen=True)
class Notice:
    """A problem with one of the person's GPUs."""

    gpu: GpuLink
    state: str
    colour: str
    cause: str


@dataclass(frozen=True)
class MinePage:
    summary: str
    servers: Sequence[ServerLine]
    bookings: Sequence[MineBooking]
    notices: Sequence[Notice]


def mine_page(
    statuses: Iterable[GpuStatus],
    bookings: Sequence[BookingRow],
    cases: Sequence[CaseRow],
    health: Iterable[HealthRow],
    now: datetime,
    uses: Mapping[str, UseLine] = NOTHING,
) -> MinePage:
    """Return the page. `statuses`: of GPUs that servers of theirs have. `bookings`: theirs that are open. `health`: of
    all GPUs that the servers and the bookings have. `uses`: what GPUs do, as far as it is known."""
    servers = _servers(list(statuses), bookings, cases, now, uses)
    ends = sorted(booking.end for booking in bookings if booking.state is BookingState.ACTIVE)
    next_end = f"; the next booking ends in {duration((ends[0] - now).total_seconds())}" if ends else ""
    gpus = sum(len(server.gpus) for server in servers)
    return MinePage(
        summary=f"{counted(len(servers), 'server')} with {counted(gpus, 'GPU')}{next_end}",
        servers=servers,
        bookings=[mine_booking(booking, now) for booking in bookings],
        notices=[
            Notice(_link(f"{row.host}/{row.address}"), row.state.value, COLOURS[row.state], _cause(row))
            for row in health
            if row.state not in PLAIN or row.maintenance or row.silent
        ],
    )


def _servers(
    statuses: Sequence[GpuStatus],
    bookings: Sequence[BookingRow],
    cases: Sequence[CaseRow],
    now: datetime,
    uses: Mapping[str, UseLine],
) -> list[ServerLine]:
    ends = {
        name: booking.end for booking in bookings if booking.state is BookingState.ACTIVE for name in booking.gpu_names
    }
    warnings = {case.server_id: case.text for case in cases}
    statuses_by_server: dict[str, list[GpuStatus]] = {}
    for status in statuses:
        if status.claim is not None:
            statuses_by_server.setdefault(status.claim.server_id, []).append(status)
    lines = []
    for id, mine in statuses_by_server.items():
        claim, names = mine[0].claim, [f"{gpu_status.gpu.host}/{gpu_status.gpu.address}" for gpu_status in mine]
        assert claim is not None
        booked = min((ends[name] for name in names if name in ends), default=None)
        lines.append(
            ServerLine(
                name=claim.server_name or id,
                id=id,
                status="" if claim.server_status == "ACTIVE" else claim.server_status,
                project=claim.project,
                since=since(claim.since, now) if claim.since else None,
                pool=", ".join(sorted({gpu_status.gpu.pool for gpu_status in mine})),
                gpus=[_link(name, uses.get(name)) for name in names],
                until=f"booked until {since(booked, now).exact[:16]} UTC" if booked else "without a booking of yours",
                warning=warnings.get(id, ""),
            )
        )
    return sorted(lines, key=lambda line: (line.name, line.id))


def mine_booking(booking: BookingRow, now: datetime) -> MineBooking:
    on = booking.state is BookingState.ACTIVE
    moment, verb = (booking.end, "ends") if on else (booking.start, "begins")
    return MineBooking(
        id=booking.id,
        state=booking.state.value,
        colour=BOOKING_COLOURS[booking.state],
        what=f"{booking.gpus} of {booking.pool}",
        user=booking.user,
        project=booking.project,
        comment=booking.comment,
        start=since(booking.start, now),
        end=since(booking.end, now),
        left=f"{verb} in {duration((moment - now).total_seconds())}" if moment > now else "",
        gpus=[_link(name) for name in booking.gpu_names] if on else [],
        unused=on and booking.claimed is None,
        command=booking.command if on and booking.claimed is None else "",
        flavor=next(iter(booking.flavors), "") if on and booking.claimed is None else "",
        trouble=booking.trouble,
        releasing=on and booking.claimed is None and booking.usable_since is None,
    )


def _cause(row: HealthRow) -> str:
    if row.maintenance:
        return row.maintenance
    if row.silent and row.state in PLAIN:
        return "its host was not heard from for a while: how it is now is not known"
    return row.cause or HEALTH_WORDS.get(row.state, "")


HEALTH_WORDS = {
    HealthState.SUSPECT: "something was seen that may pass",
    HealthState.QUARANTINED: "it is out of use until somebody has looked at it; move your work to another one",
}


def _link(name: str, use: UseLine | None = None) -> GpuLink:
    host, _, address = name.partition("/")
    return GpuLink(name, gpu_href(host, address), use)


def is_theirs(status: GpuStatus, user_id: str, projects: Collection[str]) -> bool:
    """Return whether a server of the person has a GPU. `projects`: ids of theirs."""
    claim = status.claim
    if status.state is not GpuState.CLAIMED or claim is None:
        return False
    return claim.user_id == user_id and claim.project_id in projects


def servers_of(statuses: Iterable[GpuStatus]) -> set[str]:
    """Return ids of the servers that have these GPUs."""
    return {status.claim.server_id for status in statuses if status.claim is not None}
