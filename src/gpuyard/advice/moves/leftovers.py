"""What servers that have left a host leave behind there: allocations in Placement, and records of Nova's. Pure.

What is safe to take away carries a step; the rest says who does it, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuyard.advice.drift.facts import GONE_FROM_HOST, MOVING, MigrationSeen
from gpuyard.advice.moves.planner import FINISHED
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.world import HostService

EVACUATION = "evacuation"
DONE = "done"
"""Status of an evacuation whose old host has not been back."""
STEP = "step"
"""Key of a finding's payload: what would clean it."""


@dataclass(frozen=True)
class Consumer:
    """Somebody who has something of a host in Placement: a server, or a migration of one."""

    id: str
    amounts: Mapping[str, Mapping[str, int]]
    """Name of a provider of the host -> class -> amount."""
    status: str | None = None
    """Of a server; None where Nova has no server of that id."""
    name: str = ""
    task: str = ""
    host: str | None = None

    @property
    def busy(self) -> bool:
        return bool(self.task) or (self.status or "") in MOVING


@dataclass(frozen=True)
class LeftoverFacts:
    """One look at a host."""

    host: str
    service: HostService | None
    consumers: tuple[Consumer, ...]
    migrations: Mapping[str, MigrationSeen]
    """By id, those that began or ended on the host."""
    movers: Mapping[str, Consumer] = field(default_factory=dict)
    """Servers of those migrations, by id."""

    @property
    def has_restarted(self) -> bool:
        """Whether its nova-compute has seen what was evacuated from it."""
        mine = (one for one in self.migrations.values() if one.source == self.host)
        return not any(one.kind == EVACUATION and one.status == DONE for one in mine)


@dataclass(frozen=True)
class TakeAway:
    """Have a consumer no longer have anything of a host."""

    consumer: str
    host: str
    providers: tuple[str, ...]
    """Names."""


def find_leftovers(facts: LeftoverFacts) -> list[Finding]:
    """Those that can be cleaned first, and what is only worth knowing last."""
    found = [*_allocations(facts), *_moves(facts)]
    return sorted(found, key=lambda one: (one.severity.rank, one.code, one.object))


def keeps_closed(found: Iterable[Finding]) -> list[Finding]:
    """Those without which a host may be given back."""
    return [one for one in found if one.severity.rank <= Severity.WARNING.rank]


def steps_of(found: Iterable[Finding]) -> list[TakeAway]:
    return [one.payload[STEP] for one in found if one.payload.get(STEP)]


def _allocations(facts: LeftoverFacts) -> Iterable[Finding]:
    for one in facts.consumers:
        migration = facts.migrations.get(one.id)
        if migration is not None:
            yield from _of_migration(facts, one, migration)
        elif one.status is None:
            yield _finding(
                "orphan", one, f"has {_what(one)}, and is no server and no migration of this host's", "nobody can have "
                "that: gpuyard site drift --fix looks at it closer, and deletes it",
            )  # fmt: skip
        else:
            yield from _of_server(facts, one)


def _of_migration(facts: LeftoverFacts, one: Consumer, migration: MigrationSeen) -> Iterable[Finding]:
    server = facts.movers.get(migration.server)
    seen = f"has {_what(one)}, as the migration of server {migration.server} from {migration.source}"
    if migration.status == FINISHED and server is not None and server.status == "VERIFY_RESIZE":
        yield _finding(
            "unconfirmed", one, f"{seen}, which waits to be confirmed or reverted",
            f"gpuyard host drain {facts.host} confirms its own; else: openstack server resize confirm "
            f"{migration.server}",
        )  # fmt: skip
    elif migration.running:
        yield _finding(
            "under-way", one, f"{seen}, which is {migration.status}",
            f"wait until it is over; where nothing moves any more, nova-compute on {migration.source} ends it when it "
            "is restarted",
        )  # fmt: skip
    elif server is not None and (server.busy or server.status == "ERROR"):
        yield _finding(
            "migration-failed", one, f"{seen}, which is {migration.status}; the server is {server.status}",
            f"mend the server first (openstack server show {migration.server}), then look again",
        )  # fmt: skip
    else:
        yield _finding(
            "migration-left", one, f"{seen}, which is {migration.status}; the server needs it no more",
            "--clean takes it away", _step(facts, one),
        )  # fmt: skip


def _of_server(facts: LeftoverFacts, one: Consumer) -> Iterable[Finding]:
    if one.status == GONE_FROM_HOST and one.busy:  # Nova unshelves it, and it may get this host
        yield _finding(
            "under-way", one, f"has {_what(one)}, and Nova is at work on it: {one.task}", "wait until it is over"
        )
        return
    if one.status == GONE_FROM_HOST:
        yield _finding(
            "shelved", one, f"is shelved and offloaded, and has {_what(one)}", "--clean takes it away: its host has "
            "forgotten it", _step(facts, one),
        )  # fmt: skip
        return
    if one.host == facts.host or one.host is None:
        return
    seen = f"is on {one.host}, and has {_what(one)} here"
    moves = [m for m in facts.migrations.values() if m.server == one.id and facts.host in (m.source, m.target)]
    if any(m.kind == EVACUATION and m.source == facts.host and m.status == DONE for m in moves) and not one.busy:
        yield _evacuated(facts, one, seen)
    elif one.busy or any(m.running for m in moves):
        yield _finding("under-way", one, f"{seen}: it is being moved", "wait until it is over")
    elif one.status == "ERROR":
        yield _finding("moved-badly", one, f"{seen}, in ERROR", "mend the server, or delete it; then look again")
    else:
        yield _finding("moved-away", one, seen, "--clean takes away what it has here", _step(facts, one))


def _evacuated(facts: LeftoverFacts, one: Consumer, seen: str) -> Finding:
    """Nova leaves it until the old host's nova-compute starts; until then it counts twice against limits."""
    service = facts.service
    restart = f"nova-compute on {facts.host} takes it away when it starts"
    if service is not None and not service.up and not service.forced_down:
        return _finding(
            "evacuated", one, f"{seen}: it was evacuated", f"{restart}. Before that it is not safe: Nova has only not "
            "heard of the host, and the server may still run on it",
        )  # fmt: skip
    return _finding(
        "evacuated", one, f"{seen}: it was evacuated", f"{restart}; where that takes long, --clean does: until then it "
        "counts twice against its project's limits", _step(facts, one),
    )  # fmt: skip


def _moves(facts: LeftoverFacts) -> Iterable[Finding]:
    named = {one.id for one in facts.consumers}
    for one in facts.migrations.values():
        if one.source != facts.host or one.id in named:
            continue
        server = facts.movers.get(one.server)
        if one.kind == EVACUATION and one.status == DONE and server is not None and server.host != facts.host:
            yield Finding(
                "guest-left", Severity.NOTE, f"server {one.server}",
                f"was evacuated to {one.target}; its guest, disks and rows of pci_devices are still {facts.host}'s",
                f"nobody but nova-compute on {facts.host} removes them, when it starts; no API shows them",
            )  # fmt: skip
        elif one.running and (server is None or not server.busy) and one.status != DONE:
            yield Finding(
                "migration-stale", Severity.NOTE, f"migration {one.id}",
                f"of server {one.server} to {one.target} is {one.status}, and nothing moves",
                f"it has nothing in Placement; nova-compute on {facts.host} ends it when it starts",
            )  # fmt: skip


def _finding(code: str, one: Consumer, reason: str, remedy: str, step: TakeAway | None = None) -> Finding:
    what = f"server {one.name} ({one.id})" if one.status is not None else f"consumer {one.id}"
    severity = Severity.WARNING if code == "under-way" else Severity.ERROR
    return Finding(code, severity, what, reason, remedy, {STEP: step, "cleans": step is not None})


def _step(facts: LeftoverFacts, one: Consumer) -> TakeAway:
    return TakeAway(one.id, facts.host, tuple(sorted(one.amounts)))


def _what(one: Consumer) -> str:
    parts = [f"{n} {name} of {provider}" for provider, has in sorted(one.amounts.items()) for name, n in has.items()]
    return ", ".join(parts)
