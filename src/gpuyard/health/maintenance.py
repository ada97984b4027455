"""Plans the maintenance of a host (its kernel, its firmware, its cards), from the booked time to the check. Pure.

A maintenance goes from planned to draining when its time has come or a person begins it; to in work when no server is
left that may not go down, and no GPU is being scrubbed; to checking when a person says that the work is done; and back
when the host was heard of since then and its GPUs are well. Only then others get them. It never ends by the clock: its
expected end is moved by an hour at a time while it is not back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpuyard.health.host_reports import judge
from gpuyard.health.records import GpuHealth, HealthState, Observation, Software
from gpuyard.health.verdicts import BUILT_IN, SignalVerdicts
from gpuyard.model.errors import BlockedError
from gpuyard.model.host_report import HostReport
from gpuyard.model.moments import minute_text
from gpuyard.model.signals import SIGNALS, Judgement


class MaintenanceState(StrEnum):
    """Where a maintenance is."""

    PLANNED = "planned"
    """Its time has not come; nobody can book the host in it."""
    DRAINING = "draining"
    """Nobody new gets in, and servers are still on it, with GPUs or without."""
    IN_WORK = "in work"
    """No server is left but those that may go down: somebody works on it."""
    CHECKING = "checking"
    """The work is said to be done; it is not given back before its GPUs were looked at."""
    BACK = "back"
    CANCELLED = "cancelled"


EMPTY = "no server is on the host any more that may not go down"
OVER = frozenset({MaintenanceState.BACK, MaintenanceState.CANCELLED})
ON = frozenset({MaintenanceState.DRAINING, MaintenanceState.IN_WORK, MaintenanceState.CHECKING})
"""Nobody gets a GPU of the host."""

TRANSITIONS: dict[tuple[MaintenanceState, MaintenanceState], str] = {
    (MaintenanceState.PLANNED, MaintenanceState.DRAINING): "its time has come, or somebody begins it earlier",
    (MaintenanceState.PLANNED, MaintenanceState.CANCELLED): "it is not needed",
    (MaintenanceState.DRAINING, MaintenanceState.IN_WORK): EMPTY,
    (MaintenanceState.DRAINING, MaintenanceState.CANCELLED): "it is not needed",
    (MaintenanceState.DRAINING, MaintenanceState.CHECKING): "somebody says that the work is done",
    (MaintenanceState.IN_WORK, MaintenanceState.CHECKING): "somebody says that the work is done",
    (
        MaintenanceState.CHECKING,
        MaintenanceState.DRAINING,
    ): "somebody works on it again, once it is empty: servers may have come for the check",
    (MaintenanceState.CHECKING, MaintenanceState.BACK): "its host was heard of, and its GPUs are well",
    **{
        (state, MaintenanceState.BACK): "somebody answers for it without a check"
        for state in (MaintenanceState.DRAINING, MaintenanceState.IN_WORK)
    },
}
"""From, to: what makes it happen."""

SOON, LONGER = timedelta(minutes=15), timedelta(hours=1)
"""One that is not back so long before its end gets so much longer: bookings after it must hear of it in time."""
MOST_PROBLEMS = 20
LASTING = frozenset({"missing", "no-answer", "driver", "link-width", "no-provider"})
"""Signals that each look of a host, or of the cloud, shows as long as they are so."""


class MaintenanceError(BlockedError):
    """A maintenance cannot go where it was asked to."""


@dataclass(frozen=True)
class Maintenance:
    """One host, from `start` until it is back."""

    id: str
    host: str
    start: datetime
    until: datetime
    """When it is expected to be back: what is booked from then on stays."""
    why: str
    by: str
    """Name of who has planned it."""
    state: MaintenanceState
    since: datetime
    created: datetime
    begun: datetime | None = None
    done: datetime | None = None
    """When the work was said to be done, the last time."""
    done_by: str = ""
    software: Software = field(default_factory=Software)
    """The versions that the host ran when it began, as far as they were heard."""
    problems: tuple[str, ...] = ()
    """While it is drained: what keeps work from beginning, beside the servers. While it is checked: what speaks against
    giving it back."""
    may_go_down: tuple[str, ...] = ()
    """Ids of servers that may be on the host while somebody works on it: somebody has named each."""
    holds: bool = True
    """The ledger may have holds of it."""
    due: datetime | None = None
    """When a person has said last that it is back by; `until` goes on by itself when it is not. None: it was planned
    before that was kept."""
    version: int = 0
    """Of the record in the store: a write of an older one is refused."""

    @property
    def on(self) -> bool:
        return self.state in ON

    @property
    def open(self) -> bool:
        return self.state not in OVER

    @property
    def promised(self) -> datetime:
        """The time by which a person has said last that it is back, as far as that is known."""
        return self.due or self.until

    @property
    def title(self) -> str:
        """The maintenance in words for everybody: ``maintenance of gpu-1: new kernel``."""
        return f"maintenance of {self.host}: {self.why}" if self.why else f"maintenance of {self.host}"

    @property
    def words(self) -> str:
        """The reason why nobody gets a GPU there, and until when that is expected to be so."""
        return f"{self.title}, until {minute_text(self.until)}"


@dataclass(frozen=True)
class HostNow:
    """The state of a host at one moment, as far as it is known."""

    servers: Collection[str] | None = None
    """Ids of all servers on it that may not go down, with GPUs or without; None: it is not known which."""
    waits: Sequence[str] = ()
    """Other reasons why work cannot begin: it is open for new servers, one is on its way, Nova does not answer."""
    cloud: tuple[str, ...] = ()
    """Problems of the host in Nova."""
    missing: Collection[str] = ()
    """Addresses of its GPUs that Placement does not have."""
    heard: datetime | None = None
    """When the host itself was heard of last."""
    look: HostReport | None = None
    """Its report then."""
    gpus: Sequence[GpuHealth] = ()
    """Its own."""
    observations: Sequence[Observation] = ()
    """Open ones of its GPUs."""
    stale: Collection[str] = field(default_factory=tuple)
    """Signals after which a GPU is to be accepted, by the rules of the site."""
    verdicts: SignalVerdicts = BUILT_IN
    """The verdicts on signals there."""

    @property
    def is_empty(self) -> bool:
        """Whether it is known that work on it disturbs nobody who has not been asked."""
        return self.servers is not None and not self.servers and not self.waits


@dataclass(frozen=True)
class HostWork:
    """The part of a host's maintenance that the states of its GPUs depend on."""

    done: datetime | None
    """When the work was said to be done; None: it goes on."""
    by: str = ""
    """The person who said so."""

    def covers(self, observation: Observation) -> bool:
        """Return whether nothing follows from an observation for the GPU alone: it is from before the work was done, or
        the check sees it too, and the host is not given back before it has passed."""
        return self.done is None or observation.seen <= self.done or observation.code in LASTING


def transition(maintenance: Maintenance, to: MaintenanceState, now: datetime) -> Maintenance:
    """Return the maintenance in another state. Raises MaintenanceError."""
    if (maintenance.state, to) not in TRANSITIONS:
        raise MaintenanceError(
            f"the maintenance of {maintenance.host} is {maintenance.state.value} and cannot become {to.value}"
        )
    new = replace(maintenance, state=to, since=now, problems=())
    if to is MaintenanceState.DRAINING:
        new = replace(new, begun=maintenance.begun or now, start=min(maintenance.start, now))
    return new


def next_step(maintenance: Maintenance, host: HostNow, now: datetime) -> tuple[Maintenance, str] | None:
    """Return the maintenance after its next step, and why; None: no step is due. An empty why is not worth a line in
    the records."""
    if not maintenance.open:
        return None
    if maintenance.state is MaintenanceState.PLANNED:
        if now < maintenance.start:
            return None
        return replace(
            transition(maintenance, MaintenanceState.DRAINING, now), software=software_of(host.look)
        ), "its time has come"
    scrubbed = any(gpu.state is HealthState.SCRUBBING for gpu in host.gpus)
    if maintenance.state is MaintenanceState.DRAINING and host.is_empty and not scrubbed:
        return transition(maintenance, MaintenanceState.IN_WORK, now), EMPTY
    if (
        maintenance.state is MaintenanceState.DRAINING
        and (waits := tuple(host.waits)[:MOST_PROBLEMS]) != maintenance.problems
    ):
        return replace(maintenance, problems=waits), ""
    if maintenance.state is MaintenanceState.CHECKING:
        problems = what_is_wrong(maintenance, host)
        if not problems:
            return transition(maintenance, MaintenanceState.BACK, now), _well(maintenance, host)
        if problems != maintenance.problems:
            return replace(maintenance, problems=problems), ""
    if now >= maintenance.until - SOON:
        until = now.replace(second=0, microsecond=0) + SOON + LONGER
        return replace(maintenance, until=until), f"it is not done yet, and takes until {minute_text(until)} at least"
    return None


def what_is_wrong(maintenance: Maintenance, host: HostNow) -> tuple[str, ...]:
    """Return why the host is not given back yet; empty: it may be.

    GPUs that were out of use before, and those that somebody repairs or has quarantined, do not keep the others back.
    """
    problems = list(host.cloud)
    done = maintenance.done or maintenance.since
    if host.heard is None or host.heard <= done or host.look is None:
        problems.append(f"{maintenance.host} has not been heard from since the work was done, {minute_text(done)}")
        shown: list[Observation] = []
    else:
        shown, _ = judge(None, host.look, {gpu.address: gpu for gpu in host.gpus}, host.heard, host.verdicts)
    pools = {gpu.address: gpu.pool for gpu in host.gpus}
    judged = [
        (observation, host.verdicts.of(observation.code, observation.gpu, pools.get(observation.address, "")))
        for observation in (*shown, *host.observations)
        if observation.code in SIGNALS
    ]
    bad = {
        (observation.address, observation.code): verdict.cause
        for observation, verdict in judged
        if verdict.in_force in (Judgement.BAD, Judgement.SUSPECT)
    }
    stale = {
        observation.address
        for observation, verdict in judged
        if verdict.in_force is Judgement.STALE and observation.code in host.stale and observation in host.observations
    }
    for gpu in host.gpus:
        if _set_aside(gpu, maintenance):
            continue
        if gpu.state in (HealthState.QUARANTINED, HealthState.SUSPECT):
            problems.append(f"{gpu.address} is {gpu.state.value}: {gpu.cause}")
            continue
        problems += [
            f"{gpu.address}: {cause} ({code})"
            for (address, code), cause in sorted(bad.items())
            if address == gpu.address
        ]
        if gpu.address in host.missing:
            problems.append(f"{gpu.address}: Placement does not have it")
        # What is stale is said of the GPU before others get it: there must be no moment in between.
        if gpu.address in stale and gpu.state in (HealthState.FINE, HealthState.CHECKED):
            problems.append(f"{gpu.address} is about to be accepted anew: its host has changed")
    return tuple(problems[:MOST_PROBLEMS])


def works(maintenances: Iterable[Maintenance]) -> dict[str, HostWork]:
    """Return the work on each host whose maintenance is on."""
    return {
        maintenance.host: HostWork(
            maintenance.done if maintenance.state is MaintenanceState.CHECKING else None,
            maintenance.done_by or maintenance.by,
        )
        for maintenance in maintenances
        if maintenance.on
    }


def software_of(look: HostReport | None) -> Software:
    return Software(look.kernel, look.firmware, look.qemu) if look else Software()


def refuse_times(start: datetime, until: datetime, now: datetime) -> None:
    """Raise MaintenanceError for an end that is past, or not after the start."""
    if until <= max(start, now):
        raise MaintenanceError(
            f"the end, {minute_text(until)}, is not after the start, {minute_text(start)}, or is over"
        )


def _set_aside(gpu: GpuHealth, maintenance: Maintenance) -> bool:
    if gpu.state is HealthState.IN_REPAIR or (gpu.state is HealthState.QUARANTINED and gpu.by):
        return True
    out = gpu.state in (HealthState.QUARANTINED, HealthState.SUSPECT)
    return out and gpu.since < (maintenance.begun or maintenance.start)


def _well(maintenance: Maintenance, host: HostNow) -> str:
    """What the check found, with what is other than before."""
    now, before = software_of(host.look), maintenance.software
    names: Mapping[str, tuple[str, str]] = {
        "kernel": (before.kernel, now.kernel),
        "firmware": (before.firmware, now.firmware),
        "QEMU": (before.qemu, now.qemu),
    }
    changed = [f"{name} {new}, and {old} before" for name, (old, new) in names.items() if old and new and old != new]
    accept = sum(gpu.state is HealthState.TO_ACCEPT for gpu in host.gpus)
    return "; ".join(
        [
            "its host was heard from, and its GPUs are well",
            *changed,
            *([f"{accept} of them must be accepted before anybody gets them"] if accept else []),
        ]
    )
