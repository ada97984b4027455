"""Reports the state of a site: how much there is now, what is out of use, what is planned, and how old all that is.

Visitors without a login get it, too, but see less: neither hosts nor what operators and loops have said (`details`).
The state is UNKNOWN before the cloud was seen at all; STALE when the database does not answer or a loop is late,
whatever else is true; then REDUCED when anything is out of use, else WELL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import StoreError
from gpuyard.dashboard.sources import Sources
from gpuyard.health.maintenance import Maintenance, MaintenanceState
from gpuyard.health.records import KEPT_BACK, GpuHealth
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.api import PoolRow, pool_list
from gpuyard.inventory.web.freshness import is_late
from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane
from gpuyard.model.gpu import Gpu, GpuState
from gpuyard.runtime.control_loops import LoopStatus
from gpuyard.web.documents import Moment

AHEAD = timedelta(days=30)
"""How far ahead plans are shown."""
MOST_PLANNED = 100
MOST_HOLDS = 1000
NOBODYS = frozenset({GpuState.LOST, GpuState.BLOCKED})
"""States in which a GPU is of no use, and that neither a hold nor a record of its health explains."""


class SiteCondition(StrEnum):
    """The state of a site in a word."""

    WELL = "well"
    """Every GPU of the site is used, or could be."""
    REDUCED = "reduced"
    """Some are out of use."""
    STALE = "stale"
    """The cloud, or a part of gpuyard, does not answer: what is told is as old as it says."""
    UNKNOWN = "unknown"
    """The cloud was not seen since gpuyard began."""


class Incident(BaseModel):
    """GPUs of a pool that are out of use for one reason."""

    pool: str
    what: str = Field(description="`lost`, `blocked`, or a state of health: `suspect`, `quarantined`, `in repair` ...")
    gpus: int
    since: Moment | None = Field(description="Of the one that is so for longest; null: not known.")
    hosts: list[str] = Field(description="Where; empty when the site does not tell strangers.")


class Planned(BaseModel):
    """GPUs that operators keep out of use for a time."""

    kind: Literal["maintenance", "hold"]
    start: Moment
    end: Moment = Field(description="When they are expected back.")
    on: bool = Field(description="It has begun.")
    overdue: bool = Field(description="It should be over.")
    gpus: int
    pools: list[str]
    hosts: list[str] = Field(description="Where; empty when the site does not tell strangers.")
    why: str = Field(description="In the words of operators; empty when the site does not tell who asks.")


class LoopRow(BaseModel):
    """A part of gpuyard that looks again and again."""

    name: str
    description: str
    last_success: Moment | None
    age: int | None = Field(description="Seconds since its last good run; null: there was none yet.")
    late: bool = Field(description="It had no good run for longer than it should.")
    failures: int = Field(description="Runs that failed since the last one that went well.")
    error: str = Field(description="What the last run failed with; empty: nothing, or not told to strangers.")


class SiteStatus(BaseModel):
    """The state of a site."""

    site: str
    time: Moment = Field(description="Now; it is made once a second at most.")
    state: SiteCondition
    taken_at: Moment | None = Field(description="When the cloud was looked at last; null: not yet.")
    age: int | None = Field(description="Seconds since then.")
    pools: list[PoolRow] = Field(description="In the order of the GPUs; empty while the cloud was not seen.")
    incidents: list[Incident] = Field(description="By pool.")
    planned: list[Planned] = Field(description="What is on and what comes within 30 days, by start.")
    known: bool = Field(description="False: the database does not answer, so that incidents and plans are not all.")
    loops: list[LoopRow]


@dataclass(frozen=True)
class Withheld:
    """The database's records of GPUs that are out of use, or will be."""

    health: Sequence[GpuHealth] = ()
    maintenances: Sequence[Maintenance] = ()
    holds: Sequence[Booking] = ()
    lanes: Mapping[int, Lane] = field(default_factory=dict)


def read_withheld(sources: Sources, now: datetime) -> Withheld:
    """Read the records of GPUs that are out of use, or will be. Raises StoreError."""
    ledger, service = sources.ledger, sources.health.gpus if sources.health is not None else None
    if ledger is None:
        return Withheld()
    query = Query(
        kinds=frozenset({BookingKind.HOLD}),
        states=frozenset({BookingState.CONFIRMED, BookingState.ACTIVE}),
        start=now,
        end=now + AHEAD,
    )
    return Withheld(
        service.store.gpus(KEPT_BACK) if service is not None else (),
        service.maintenances.open() if service is not None else (),
        ledger.find(query, MOST_HOLDS),
        {lane.id: lane for lane in ledger.lanes()},
    )


def site_status(sources: Sources, *, details: bool, holds: bool = True) -> SiteStatus:
    """Return the state of the site, also when the cloud, the database or both do not answer. `holds`: whether the
    reader sees why GPUs are held."""
    now, view, loops = sources.now(), sources.inventory.latest(), sources.driver.statuses()
    try:
        withheld, is_known = read_withheld(sources, now), True
    except StoreError:
        withheld, is_known = Withheld(), False
    current_incidents = incidents(view, withheld.health, details=details)
    return SiteStatus(
        site=sources.site_name,
        time=now,
        state=word_of(view, current_incidents, loops, is_known=is_known),
        taken_at=view.taken_at if view else None,
        age=max(0, int((now - view.taken_at).total_seconds())) if view else None,
        pools=pool_list(view).pools if view else [],
        incidents=current_incidents,
        planned=planned(withheld, sources.gpus, now, details=details, holds=holds),
        known=is_known,
        loops=[loop_row(loop, details=details) for loop in loops],
    )


def word_of(
    view: InventoryView | None, current_incidents: Sequence[Incident], loops: Sequence[LoopStatus], *, is_known: bool
) -> SiteCondition:
    if view is None:
        return SiteCondition.UNKNOWN
    if not is_known or any(map(is_late, loops)):
        return SiteCondition.STALE
    return SiteCondition.REDUCED if current_incidents else SiteCondition.WELL


def incidents(view: InventoryView | None, health: Iterable[GpuHealth], *, details: bool) -> list[Incident]:
    """Return GPUs that are out of use. Each counts once: a record of its health goes before what the cloud says."""
    gpus_by_state: dict[tuple[str, str], list[tuple[str, datetime | None]]] = {}
    bad = set()
    for record in health:
        bad.add((record.host, record.address))
        gpus_by_state.setdefault((record.pool, record.state.value), []).append((record.host, record.since))
    for status in view.statuses if view else ():
        gpu = status.gpu
        if status.state in NOBODYS and (gpu.host, gpu.address) not in bad:
            gpus_by_state.setdefault((gpu.pool, status.state.value), []).append((gpu.host, None))
    return [
        Incident(
            pool=pool,
            what=what,
            gpus=len(gpus),
            since=min((since for _, since in gpus if since), default=None),
            hosts=sorted({host for host, _ in gpus}) if details else [],
        )
        for (pool, what), gpus in sorted(gpus_by_state.items())
    ]


def planned(
    withheld: Withheld, gpus: Iterable[Gpu], now: datetime, *, details: bool, holds: bool = True
) -> list[Planned]:
    """Return maintenances, and holds that are not part of one; holds with the same times and comment together."""
    all_gpus = list(gpus)
    entries = [
        _maintenance(maintenance, all_gpus, now)
        for maintenance in withheld.maintenances
        if maintenance.start < now + AHEAD
    ]
    own = {maintenance.id for maintenance in withheld.maintenances}
    together: dict[tuple[datetime, datetime, str], list[Lane]] = {}
    for hold in withheld.holds:
        if hold.series not in own:
            key = hold.ask.start, hold.ask.end, hold.ask.comment
            together.setdefault(key, []).extend(withheld.lanes[lane] for lane in hold.lanes if lane in withheld.lanes)
    entries += [_hold(start, end, why if holds else "", lanes, now) for (start, end, why), lanes in together.items()]
    entries.sort(key=lambda entry: (entry.start, entry.end, entry.kind, entry.hosts))
    return [entry if details else entry.model_copy(update={"hosts": [], "why": ""}) for entry in entries[:MOST_PLANNED]]


def _maintenance(maintenance: Maintenance, gpus: Sequence[Gpu], now: datetime) -> Planned:
    mine = [gpu for gpu in gpus if gpu.host == maintenance.host]
    return Planned(
        kind="maintenance",
        start=maintenance.begun or maintenance.start,
        end=maintenance.until,
        on=maintenance.state is not MaintenanceState.PLANNED,
        overdue=maintenance.until < now,
        gpus=len(mine),
        pools=sorted({gpu.pool for gpu in mine}),
        hosts=[maintenance.host],
        why=maintenance.why,
    )


def _hold(start: datetime, end: datetime, why: str, lanes: Sequence[Lane], now: datetime) -> Planned:
    return Planned(
        kind="hold",
        start=start,
        end=end,
        on=start <= now,
        overdue=False,
        gpus=sum(lane.size for lane in lanes),
        pools=sorted({lane.pool for lane in lanes}),
        hosts=sorted({lane.host for lane in lanes}),
        why=why,
    )


def loop_row(loop: LoopStatus, *, details: bool) -> LoopRow:
    return LoopRow(
        name=loop.name,
        description=loop.description,
        last_success=loop.last_success,
        age=None if loop.age is None else int(loop.age),
        late=is_late(loop),
        failures=loop.failures,
        error=loop.error if details else "",
    )
