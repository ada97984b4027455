"""Finds what moved servers leave behind on a host: allocations in Placement, and records of Nova's. Pure.

A finding that is safe to clean carries a step; the others say who cleans it, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuyard.model.finding import Finding, Severity
from gpuyard.model.pci import ADDRESS
from gpuyard.model.world import HostService
from gpuyard.nova.server_states import FINISHED, GONE_FROM_HOST, MigrationSeen, is_settled

EVACUATION = "evacuation"
DONE = "done"
"""Status of an evacuation whose old host has not been back."""
STEP = "step"
"""Key of a finding's payload: what would clean it."""


@dataclass(frozen=True)
class Consumer:
    """A consumer that has something of a host in Placement: a server, or a migration of one."""

    id: str
    amounts: Mapping[str, Mapping[str, int]]
    """Name of a provider of the host -> class -> amount."""
    status: str | None = None
    """Status of a server; None where Nova has no server of that id."""
    name: str = ""
    task: str = ""
    host: str | None = None
    asks: int = 0
    """How many PCI devices its flavor asks for by an alias."""

    @property
    def busy(self) -> bool:
        return not is_settled(self.status or "", self.task)


@dataclass(frozen=True)
class LeftoverFacts:
    """The facts of one observation of a host."""

    host: str
    service: HostService | None
    consumers: tuple[Consumer, ...]
    migrations: Mapping[str, MigrationSeen]
    """Migrations by id: those that began or ended on the host."""
    movers: Mapping[str, Consumer] = field(default_factory=dict)
    """Servers of those migrations, by id."""

    @property
    def has_restarted(self) -> bool:
        """Whether the host's nova-compute has started since servers were evacuated from it."""
        mine = (migration for migration in self.migrations.values() if migration.source == self.host)
        return not any(migration.kind == EVACUATION and migration.status == DONE for migration in mine)


@dataclass(frozen=True)
class TakeAway:
    """A step that removes all that a consumer has of a host."""

    consumer: str
    host: str
    providers: tuple[str, ...]
    """Names of the providers."""


@dataclass(frozen=True)
class Recount:
    """A step that has nova-compute count a server's devices on its host again."""

    consumer: str
    host: str
    providers: tuple[str, ...]
    """Names of the devices that are counted for it, of which it has only some."""
    has: int
    """How many it has."""


def find_leftovers(facts: LeftoverFacts) -> list[Finding]:
    """Return leftovers as findings: errors first, and what is only worth knowing last."""
    findings = [*_allocations(facts), *_moves(facts)]
    return sorted(findings, key=lambda finding: (finding.severity.rank, finding.code, finding.object))


def keeps_closed(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings that keep a host from being given back."""
    return [finding for finding in findings if finding.severity.rank <= Severity.WARNING.rank]


def steps_of(findings: Iterable[Finding]) -> list[TakeAway | Recount]:
    return [finding.payload[STEP] for finding in findings if finding.payload.get(STEP)]


def _allocations(facts: LeftoverFacts) -> Iterable[Finding]:
    for consumer in facts.consumers:
        migration = facts.migrations.get(consumer.id)
        if migration is not None:
            yield from _of_migration(facts, consumer, migration)
        elif consumer.status is None:
            yield _finding(
                "orphan",
                consumer,
                f"has {_what(consumer)}, and is no server and no migration of this host's",
                "nobody can have that: gpuyard site drift --fix looks at it closer, and deletes it",
            )
        else:
            yield from _of_server(facts, consumer)


def _of_migration(facts: LeftoverFacts, consumer: Consumer, migration: MigrationSeen) -> Iterable[Finding]:
    server = facts.movers.get(migration.server)
    reason = f"has {_what(consumer)}, as the migration of server {migration.server} from {migration.source}"
    if migration.status == FINISHED and server is not None and server.status == "VERIFY_RESIZE":
        yield _finding(
            "unconfirmed", consumer, f"{reason}, which waits to be confirmed or reverted",
            f"gpuyard host drain {facts.host} confirms its own; else: openstack server resize confirm "
            f"{migration.server}",
        )  # fmt: skip
    elif migration.running:
        yield _finding(
            "under-way", consumer, f"{reason}, which is {migration.status}",
            f"wait until it is over; where nothing moves any more, nova-compute on {migration.source} ends it when it "
            "is restarted",
        )  # fmt: skip
    elif server is not None and (server.busy or server.status == "ERROR"):
        yield _finding(
            "migration-failed", consumer, f"{reason}, which is {migration.status}; the server is {server.status}",
            f"mend the server first (openstack server show {migration.server}), then look again",
        )  # fmt: skip
    else:
        yield _finding(
            "migration-left", consumer, f"{reason}, which is {migration.status}; the server needs it no more",
            "--clean takes it away", _step(facts, consumer),
        )  # fmt: skip


def _of_server(facts: LeftoverFacts, consumer: Consumer) -> Iterable[Finding]:
    if consumer.status == GONE_FROM_HOST and consumer.busy:  # Nova unshelves it, and it may get this host
        yield _finding(
            "under-way",
            consumer,
            f"has {_what(consumer)}, and Nova is at work on it: {consumer.task}",
            "wait until it is over",
        )
        return
    if consumer.status == GONE_FROM_HOST:
        yield _finding(
            "shelved", consumer, f"is shelved and offloaded, and has {_what(consumer)}", "--clean takes it away: its "
            "host has forgotten it", _step(facts, consumer),
        )  # fmt: skip
        return
    if consumer.host == facts.host:
        yield from _counted_twice(facts, consumer)
    if consumer.host in (facts.host, None):
        return
    reason = f"is on {consumer.host}, and has {_what(consumer)} here"
    moves = [m for m in facts.migrations.values() if m.server == consumer.id and facts.host in (m.source, m.target)]
    evacuated = any(m.kind == EVACUATION and m.source == facts.host and m.status == DONE for m in moves)
    if evacuated and not consumer.busy and consumer.status != "ERROR":
        yield _evacuated(facts, consumer, reason)
    elif consumer.busy or any(m.running for m in moves):
        yield _finding("under-way", consumer, f"{reason}: it is being moved", "wait until it is over")
    elif consumer.status == "ERROR":
        yield _finding("moved-badly", consumer, f"{reason}, in ERROR", "mend the server, or delete it; then look again")
    else:
        yield _finding("moved-away", consumer, reason, "--clean takes away what it has here", _step(facts, consumer))


def _counted_twice(facts: LeftoverFacts, consumer: Consumer) -> Iterable[Finding]:
    """More devices than its flavor asks for, on the host that it is on: Nova has claimed others for a server that it
    moved than Placement had allocated, and counts both (`Space` says why). No API tells them apart. But nova-compute
    writes what is attached into the allocation whenever it is missing there."""
    devices = tuple(sorted(name for name in consumer.amounts if _is_device(facts.host, name)))
    moving = any(m.running for m in facts.migrations.values() if m.server == consumer.id)
    if not 0 < consumer.asks < len(devices) or consumer.busy or moving:
        return
    up = facts.service is not None and facts.service.up
    remedy = (
        f"--clean has nova-compute on {facts.host} count again; new servers are kept away for that minute"
        if up
        else f"when nova-compute on {facts.host} is up again, --clean has it count again"
    )
    reason = f"has {len(devices)} devices here and its flavor asks for {consumer.asks}: {', '.join(devices)}"
    step = Recount(consumer.id, facts.host, devices, consumer.asks) if up else None
    yield Finding(
        "counted-twice", Severity.NOTE, f"server {consumer.name} ({consumer.id})",
        f"{reason}; Nova has counted more than it attached when it moved the server here", remedy,
        {STEP: step, "cleans": step is not None},
    )  # fmt: skip


def _is_device(host: str, provider: str) -> bool:
    """Return whether a provider is that of a PCI device, by the name that Nova gives it: not of one that makes
    vGPUs."""
    return provider.startswith(f"{host}_") and ADDRESS.match(provider.removeprefix(f"{host}_").lower()) is not None


def _evacuated(facts: LeftoverFacts, consumer: Consumer, reason: str) -> Finding:
    """Nova leaves it until the old host's nova-compute starts; until then it counts twice against limits."""
    service = facts.service
    restart = f"nova-compute on {facts.host} takes it away when it starts"
    if service is not None and not service.up and not service.forced_down:
        return _finding(
            "evacuated", consumer, f"{reason}: it was evacuated", f"{restart}. Before that it is not safe: Nova has "
            "only not heard of the host, and the server may still run on it",
        )  # fmt: skip
    return _finding(
        "evacuated", consumer, f"{reason}: it was evacuated", f"{restart}; where that takes long, --clean does: until "
        "then it counts twice against its project's limits", _step(facts, consumer),
    )  # fmt: skip


def _moves(facts: LeftoverFacts) -> Iterable[Finding]:
    named = {consumer.id for consumer in facts.consumers}
    for migration in facts.migrations.values():
        if migration.source != facts.host or migration.id in named:
            continue
        server = facts.movers.get(migration.server)
        if (
            migration.kind == EVACUATION
            and migration.status == DONE
            and server is not None
            and server.host != facts.host
        ):
            yield Finding(
                "guest-left", Severity.NOTE, f"server {migration.server}",
                f"was evacuated to {migration.target}; its guest, disks and rows of pci_devices are still "
                f"{facts.host}'s",
                f"nobody but nova-compute on {facts.host} removes them, when it starts; no API shows them",
            )  # fmt: skip
        elif migration.running and (server is None or not server.busy) and migration.status != DONE:
            yield Finding(
                "migration-stale", Severity.NOTE, f"migration {migration.id}",
                f"of server {migration.server} to {migration.target} is {migration.status}, and nothing moves",
                f"it has nothing in Placement; nova-compute on {facts.host} ends it when it starts",
            )  # fmt: skip


def _finding(code: str, consumer: Consumer, reason: str, remedy: str, step: TakeAway | None = None) -> Finding:
    what = f"server {consumer.name} ({consumer.id})" if consumer.status is not None else f"consumer {consumer.id}"
    severity = Severity.WARNING if code == "under-way" else Severity.ERROR
    return Finding(code, severity, what, reason, remedy, {STEP: step, "cleans": step is not None})


def _step(facts: LeftoverFacts, consumer: Consumer) -> TakeAway:
    return TakeAway(consumer.id, facts.host, tuple(sorted(consumer.amounts)))


def _what(consumer: Consumer) -> str:
    parts = [
        f"{n} {name} of {provider}" for provider, has in sorted(consumer.amounts.items()) for name, n in has.items()
    ]
    return ", ".join(parts)
