"""The maintenance of a host (its kernel, its firmware, its cards) as one thing, from the plan to the check. Pure.

Bookings leave the host before it begins; when no server is left somebody works on it; when that is said to be done
the host must be heard of, and what it shows of its GPUs must be well. Only then others get them. It never ends by the
clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gpuyard.health.looks import judge
from gpuyard.health.records import GpuHealth, HealthState, Judgement, Observation, Software
from gpuyard.health.signals import SIGNALS
from gpuyard.model.errors import BlockedError
from gpuyard.model.watch import HostLook


class MaintenanceState(StrEnum):
    """Where a maintenance is."""

    PLANNED = "planned"
    """Its time has not come; nobody can book the host in it."""
    DRAINING = "draining"
    """Nobody new gets a GPU there, and servers are still on it."""
    IN_WORK = "in work"
    """No server is left: somebody works on it."""
    CHECKING = "checking"
    """The work is said to be done; it is not given back before its GPUs were looked at."""
    BACK = "back"
    CANCELLED = "cancelled"


M = MaintenanceState
OVER = frozenset({M.BACK, M.CANCELLED})
ON = frozenset({M.DRAINING, M.IN_WORK, M.CHECKING})
"""Nobody gets a GPU of the host."""

TURNS: dict[tuple[MaintenanceState, MaintenanceState], str] = {
    (M.PLANNED, M.DRAINING): "its time has come, or somebody begins it earlier",
    (M.PLANNED, M.CANCELLED): "it is not needed",
    (M.DRAINING, M.IN_WORK): "no server has a GPU of the host any more",
    (M.DRAINING, M.CANCELLED): "it is not needed",
    (M.DRAINING, M.CHECKING): "somebody says that the work is done",
    (M.IN_WORK, M.CHECKING): "somebody says that the work is done",
    (M.CHECKING, M.IN_WORK): "somebody works on it again",
    (M.CHECKING, M.BACK): "its host was heard of, and its GPUs are well",
    **{(state, M.BACK): "somebody answers for it without a check" for state in (M.DRAINING, M.IN_WORK)},
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
    """What the host ran when it began, as far as that was heard."""
    problems: tuple[str, ...] = ()
    """What speaks against giving it back, as of the last check."""
    holds: bool = True
    """The ledger may have holds of it."""
    version: int = 0
    """Of the record in the store: a write of an older one is refused."""

    @property
    def on(self) -> bool:
        return self.state in ON

    @property
    def open(self) -> bool:
        return self.state not in OVER

    @property
    def title(self) -> str:
        """For everybody to see: ``maintenance of gpu-1: new kernel``."""
        return f"maintenance of {self.host}: {self.why}" if self.why else f"maintenance of {self.host}"

    @property
    def words(self) -> str:
        """Why nobody gets a GPU there, and until when that is expected to be so."""
        return f"{self.title}, until {moment_text(self.until)}"


@dataclass(frozen=True)
class HostNow:
    """What is known of a host at one moment."""

    servers: Collection[str] | None = None
    """Names of servers that have GPUs there; None: the cloud is out of sight."""
    cloud: tuple[str, ...] = ()
    """What is wrong with it in Nova."""
    missing: Collection[str] = ()
    """Addresses of its GPUs that Placement does not have."""
    heard: datetime | None = None
    """When the host itself was heard of last."""
    look: HostLook | None = None
    """What it said then."""
    gpus: Sequence[GpuHealth] = ()
    """Its own."""
    observations: Sequence[Observation] = ()
    """Open ones of its GPUs."""
    stale: Collection[str] = field(default_factory=tuple)
    """Signals after which a GPU is to be accepted, by the rules of the site."""


@dataclass(frozen=True)
class HostWork:
    """What the states of a host's GPUs must know of its maintenance."""

    done: datetime | None
    """When the work was said to be done; None: it goes on."""
    by: str = ""
    """Who said so."""

    def covers(self, seen: Observation) -> bool:
        """Whether nothing follows from it for the GPU alone: seen while somebody worked there, or the check sees it
        too, and the host is not given back before it has passed."""
        return self.done is None or seen.seen <= self.done or seen.code in LASTING


def turn(one: Maintenance, to: MaintenanceState, now: datetime) -> Maintenance:
    """In another state. Raises MaintenanceError."""
    if (one.state, to) not in TURNS:
        raise MaintenanceError(f"the maintenance of {one.host} is {one.state.value} and cannot become {to.value}")
    new = replace(one, state=to, since=now, problems=())
    if to is M.DRAINING:
        new = replace(new, begun=now, start=min(one.start, now))
    return new


def next_step(one: Maintenance, host: HostNow, now: datetime) -> tuple[Maintenance, str] | None:
    """What becomes of it now, and why; None: nothing. An empty why is no news for the records."""
    if not one.open:
        return None
    if one.state is M.PLANNED:
        if now < one.start:
            return None
        return replace(turn(one, M.DRAINING, now), software=software_of(host.look)), "its time has come"
    scrubbed = any(gpu.state is HealthState.SCRUBBING for gpu in host.gpus)
    if one.state is M.DRAINING and host.servers is not None and not host.servers and not scrubbed:
        return turn(one, M.IN_WORK, now), "no server has a GPU of the host any more"
    if one.state is M.CHECKING:
        problems = what_is_wrong(one, host)
        if not problems:
            return turn(one, M.BACK, now), _well(one, host)
        if problems != one.problems:
            return replace(one, problems=problems), ""
    if now >= one.until - SOON:
        until = now.replace(second=0, microsecond=0) + SOON + LONGER
        return replace(one, until=until), f"it is not done yet, and takes until {moment_text(until)} at least"
    return None


def what_is_wrong(one: Maintenance, host: HostNow) -> tuple[str, ...]:
    """Why the host is not given back yet; empty: it may be.

    GPUs that were out of use before, and those that somebody repairs or has quarantined, do not keep the others back.
    """
    found = list(host.cloud)
    done = one.done or one.since
    if host.heard is None or host.heard <= done or host.look is None:
        found.append(f"{one.host} has not been heard from since the work was done, {moment_text(done)}")
        shown: list[Observation] = []
    else:
        shown, _ = judge(None, host.look, {gpu.address: gpu for gpu in host.gpus}, host.heard)
    bad = {
        (seen.address, seen.code)
        for seen in (*shown, *host.observations)
        if _judged(seen.code) in (Judgement.BAD, Judgement.SUSPECT)
    }
    for gpu in host.gpus:
        if _set_aside(gpu, one):
            continue
        if gpu.state in (HealthState.QUARANTINED, HealthState.SUSPECT):
            found.append(f"{gpu.address} is {gpu.state.value}: {gpu.cause}")
            continue
        found += [
            f"{gpu.address}: {SIGNALS[code].threshold} ({code})"
            for address, code in sorted(bad)
            if address == gpu.address
        ]
        if gpu.address in host.missing:
            found.append(f"{gpu.address}: Placement does not have it")
        # What is stale is said of the GPU before others get it: there must be no moment in between.
        waits = any(s.address == gpu.address and s.code in host.stale for s in host.observations)
        if waits and gpu.state in (HealthState.FINE, HealthState.CHECKED):
            found.append(f"{gpu.address} is about to be accepted anew: its host has changed")
    return tuple(found[:MOST_PROBLEMS])


def works(maintenances: Iterable[Maintenance]) -> dict[str, HostWork]:
    """By host, of those that are on."""
    return {
        one.host: HostWork(one.done if one.state is M.CHECKING else None, one.done_by or one.by)
        for one in maintenances
        if one.on
    }


def software_of(look: HostLook | None) -> Software:
    return Software(look.kernel, look.firmware, look.qemu) if look else Software()


def moment_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def refuse_times(start: datetime, until: datetime, now: datetime) -> None:
    """Raises MaintenanceError for what is no time to come."""
    if until <= max(start, now):
        raise MaintenanceError(
            f"the end, {moment_text(until)}, is not after the start, {moment_text(start)}, or is over"
        )


def _set_aside(gpu: GpuHealth, one: Maintenance) -> bool:
    if gpu.state is HealthState.IN_REPAIR or (gpu.state is HealthState.QUARANTINED and gpu.by):
        return True
    out = gpu.state in (HealthState.QUARANTINED, HealthState.SUSPECT)
    return out and gpu.since < (one.begun or one.start)


def _judged(code: str) -> Judgement | None:
    return SIGNALS[code].judgement if code in SIGNALS else None


def _well(one: Maintenance, host: HostNow) -> str:
    """What the check found, with what is other than before."""
    now, before = software_of(host.look), one.software
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
