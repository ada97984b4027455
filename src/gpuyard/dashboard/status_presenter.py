"""Prepares the state of a site for its page: words, cards, lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.dashboard.status import Incident, LoopRow, Planned, SiteCondition, SiteStatus
from gpuyard.health.records import HealthState
from gpuyard.health.web.health_presenter import COLOURS
from gpuyard.inventory.web.presenter import MEANINGS, PoolCard, Since, duration, pool_cards, since
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.text import counted

VERDICTS = {
    SiteCondition.WELL: ("free", "Every GPU works"),
    SiteCondition.REDUCED: ("held", "Some GPUs are out of use"),
    SiteCondition.STALE: ("blocked", "Not known at the moment"),
    SiteCondition.UNKNOWN: ("blocked", "Not known yet"),
}
"""Word -> state of a GPU on the map whose colour it has, and what it means."""
WHATS = {
    HealthState.SUSPECT: "being watched after something was seen; nobody new gets it",
    HealthState.QUARANTINED: "out of use until somebody has looked at it",
    HealthState.IN_REPAIR: "being repaired",
    HealthState.TO_ACCEPT: "waiting to be accepted",
}

OLD = 60
"""Seconds from which on the page says how old its data is."""


@dataclass(frozen=True)
class IncidentLine:
    colour: str
    what: str
    gpus: str
    pool: str
    meaning: str
    hosts: str
    since: Since | None


@dataclass(frozen=True)
class PlannedLine:
    colour: str
    what: str
    """``maintenance, now``"""
    gpus: str
    pools: str
    hosts: str
    why: str
    start: Since
    end: Since
    overdue: bool


@dataclass(frozen=True)
class LoopLine:
    name: str
    description: str
    state: str
    colour: str
    age: str
    error: str


@dataclass(frozen=True)
class StatusPage:
    colour: str
    verdict: str
    seen: Since | None
    old: str
    """The age of that, where it is worth saying."""
    notes: Sequence[str]
    """Reasons not to trust what is shown."""
    pools: Sequence[PoolCard]
    incidents: Sequence[IncidentLine]
    planned: Sequence[PlannedLine]
    loops: Sequence[LoopLine]
    legend: Sequence[tuple[str, str]]
    """States that occur, and what they mean."""


def status_page(status: SiteStatus, gpus: Sequence[GpuStatus], now: datetime) -> StatusPage:
    colour, verdict = VERDICTS[status.state]
    states = {gpu.state for gpu in gpus}
    return StatusPage(
        colour=colour,
        verdict=verdict,
        seen=since(status.taken_at, now) if status.taken_at else None,
        old=duration(status.age) if status.age and status.age >= OLD else "",
        notes=_notes(status),
        pools=pool_cards(gpus),
        incidents=[_incident(incident, now) for incident in status.incidents],
        planned=[_planned(entry, now) for entry in status.planned],
        loops=[_loop(loop) for loop in status.loops],
        legend=[(state.value, MEANINGS[state]) for state in GpuState if state in states],
    )


def _notes(status: SiteStatus) -> list[str]:
    notes = []
    late = [loop.name for loop in status.loops if loop.late]
    if status.state is SiteCondition.UNKNOWN:
        notes.append("OpenStack has not answered since gpuyard began: how many GPUs are free is not known yet.")
    elif status.state is SiteCondition.STALE and late:
        parts = f"{'this part' if len(late) == 1 else 'these parts'} of gpuyard {'has' if len(late) == 1 else 'have'}"
        notes.append(
            f"{parts} not got through for too long: {', '.join(late)}.".capitalize()
            + " What stands here is the last that was seen."
        )
    if not status.known:
        notes.append("The database does not answer: what is out of use and what is planned may not be all.")
    return notes


def _incident(incident: Incident, now: datetime) -> IncidentLine:
    health = next((state for state in WHATS if state.value == incident.what), None)
    return IncidentLine(
        colour=COLOURS[health] if health else incident.what,
        what=incident.what,
        gpus=counted(incident.gpus, "GPU"),
        pool=incident.pool,
        meaning=WHATS[health] if health else MEANINGS[GpuState(incident.what)],
        hosts=", ".join(incident.hosts),
        since=since(incident.since, now) if incident.since else None,
    )


def _planned(entry: Planned, now: datetime) -> PlannedLine:
    return PlannedLine(
        colour="held" if entry.on else "booked",
        what=f"{entry.kind}, {'now' if entry.on else f'in {duration((entry.start - now).total_seconds())}'}",
        gpus=counted(entry.gpus, "GPU"),
        pools=", ".join(entry.pools),
        hosts=", ".join(entry.hosts),
        why=entry.why,
        start=since(entry.start, now),
        end=since(entry.end, now),
        overdue=entry.overdue,
    )


def _loop(loop: LoopRow) -> LoopLine:
    state = "late" if loop.late else "failing" if loop.failures else "well"
    return LoopLine(
        name=loop.name,
        description=loop.description,
        state=state,
        colour={"late": "blocked", "failing": "held", "well": "free"}[state],
        age="never yet" if loop.age is None else f"{loop.age} s ago" if loop.age < 120 else f"{duration(loop.age)} ago",
        error=loop.error,
    )
