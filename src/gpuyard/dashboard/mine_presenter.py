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
    trouble: str


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
            Notice(_link(f"{one.host}/{one.address}"), one.state.value, COLOURS[one.state], _cause(one))
            for one in health
            if one.state not in PLAIN or one.maintenance or one.silent
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
    found: dict[str, list[GpuStatus]] = {}
    for status in statuses:
        if status.claim is not None:
            found.setdefault(status.claim.server_id, []).append(status)
    lines = []
    for id, mine in found.items():
        claim, names = mine[0].claim, [f"{one.gpu.host}/{one.gpu.address}" for one in mine]
        assert claim is not None
        booked = min((ends[name] for name in names if name in ends), default=None)
        lines.append(
            ServerLine(
                name=claim.server_name or id,
                id=id,
                status="" if claim.server_status == "ACTIVE" else claim.server_status,
                project=claim.project,
                since=since(claim.since, now) if claim.since else None,
                pool=", ".join(sorted({one.gpu.pool for one in mine})),
                gpus=[_link(name, uses.get(name)) for name in names],
                until=f"booked until {since(booked, now).exact[:16]} UTC" if booked else "without a booking of yours",
                warning=warnings.get(id, ""),
            )
        )
    return sorted(lines, key=lambda line: (line.name, line.id))


def mine_booking(one: BookingRow, now: datetime) -> MineBooking:
    on = one.state is BookingState.ACTIVE
    moment, verb = (one.end, "ends") if on else (one.start, "begins")
    return MineBooking(
        id=one.id,
        state=one.state.value,
        colour=BOOKING_COLOURS[one.state],
        what=f"{one.gpus} of {one.pool}",
        user=one.user,
        project=one.project,
        comment=one.comment,
        start=since(one.start, now),
        end=since(one.end, now),
        left=f"{verb} in {duration((moment - now).total_seconds())}" if moment > now else "",
        gpus=[_link(name) for name in one.gpu_names] if on else [],
        unused=on and one.claimed is None,
        command=one.command if on and one.claimed is None else "",
        trouble=one.trouble,
    )


def _cause(one: HealthRow) -> str:
    if one.maintenance:
        return one.maintenance
    if one.silent and one.state in PLAIN:
        return "its host was not heard from for a while: how it is now is not known"
    return one.cause or HEALTH_WORDS.get(one.state, "")


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
