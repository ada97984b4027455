"""Compares allocations in Placement with servers: consumers that are none, and servers with more or less than is
theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuyard.diagnosis.drift.facts import DeviceSeen, ServerSeen, Stranger
from gpuyard.diagnosis.drift.finding import drift
from gpuyard.diagnosis.drift.fixes import Allocation, AllocationStep
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.alias_spec import ALIAS_SPEC, takes_devices
from gpuyard.nova.server_states import GONE_FROM_HOST
from gpuyard.site.capacity import HostCapacity, Size
from gpuyard.site.encoding import count_class
from gpuyard.site.objects import site_trait

NOVAS = ("unknown", "INSTANCE", "MIGRATION")
"""Types that a consumer of Nova's may have in Placement. Nova states none, and Placement then says 'unknown'."""
SOME = 5


def server_findings(subject: DriftSubject) -> Iterable[Finding]:
    yield from _strangers(subject)
    yield from _elsewhere(subject)
    yield from _with_devices(subject)
    yield from _without_devices(subject)
    yield from _uncounted(subject)
    for capacity in subject.compiled.capacities:
        yield from _reserve(subject, capacity)
    yield from _foreign(subject)
    yield from _claims(subject)


# Consumers that are no servers.


def _strangers(subject: DriftSubject) -> Iterable[Finding]:
    world = subject.world
    for stranger in world.strangers.values():
        migration = world.migrations.get(stranger.id)
        if stranger.exists or (migration is not None and migration.running):
            continue
        what = f"has {_amounts(subject, stranger)}"
        if migration is not None:
            yield drift(
                Severity.ERROR, "allocation-of-migration", f"consumer {stranger.id}",
                f"{what}: migration of server {migration.server}, which is {migration.status}", "nothing",
                "nobody can have what it has", "see 'openstack server migration list' and the log of nova-compute on "
                f"{migration.source}; when the server is well: openstack resource provider allocation delete "
                f"{stranger.id}",
            )  # fmt: skip
        elif stranger.type not in NOVAS:
            yield drift(
                Severity.ERROR, "allocation-foreign", f"consumer {stranger.id}", f"{what}, as type {stranger.type}",
                "nothing of the site's hosts", "servers cannot have what it has",
                "ask whoever makes such consumers; gpuyard leaves it alone",
            )  # fmt: skip
        else:
            yield _orphan(subject, stranger, what)


def _orphan(subject: DriftSubject, stranger: Stranger, what: str) -> Finding:
    reason = "it is no server and no migration"
    step = AllocationStep(reason, Allocation(stranger.id, stranger.generation, _flat(subject, stranger)))
    safe = not subject.world.silent_cells
    remedy = "--fix deletes it, or openstack resource provider allocation delete " + stranger.id
    if not safe:
        remedy = "a cell of Nova does not answer, and it may be a server there: look again when it does"
    return drift(
        Severity.ERROR, "allocation-orphaned", f"consumer {stranger.id}", f"{what}, and {reason}", "no such allocation",
        "nobody can have what it has", remedy, (step,) if safe else (),
    )  # fmt: skip


def _names(subject: DriftSubject) -> dict[str, str]:
    names = {device.id: device.name for device in subject.world.devices.values()}
    return names | {host.provider: host.name for host in subject.world.hosts.values() if host.provider}


def _flat(subject: DriftSubject, stranger: Stranger) -> dict[str, int]:
    """``{"gpu-server VCPU": 4}``"""
    names = _names(subject)
    return {
        f"{names.get(provider, provider)} {name}": amount
        for provider, amounts in stranger.amounts.items()
        for name, amount in sorted(amounts.items())
    }


def _amounts(subject: DriftSubject, stranger: Stranger) -> str:
    return ", ".join(
        f"{amount} {name.split()[1]} of {name.split()[0]}" for name, amount in _flat(subject, stranger).items()
    )


# Servers that have what is not theirs.


def _held_by(subject: DriftSubject) -> dict[str, tuple[set[str], list[DeviceSeen]]]:
    """Server -> hosts on whose providers it has something, and its devices, on the site's hosts."""
    holdings: dict[str, tuple[set[str], list[DeviceSeen]]] = {}
    for host in subject.world.hosts.values():
        for consumer in host.consumers:
            if consumer in subject.world.servers:
                holdings.setdefault(consumer, (set(), []))[0].add(host.name)
    for device in subject.devices_on_site():
        for consumer in device.holders:
            if consumer in subject.world.servers:
                hosts, devices = holdings.setdefault(consumer, (set(), []))
                hosts.add(device.host)
                devices.append(device)
    return holdings


def _elsewhere(subject: DriftSubject) -> Iterable[Finding]:
    for identity, (hosts, devices) in _held_by(subject).items():
        server = subject.world.servers[identity]
        what = _what(devices, hosts)
        if server.status == GONE_FROM_HOST and server.task is not None:
            continue  # Nova unshelves it, and has given it that
        if server.status == GONE_FROM_HOST:
            yield drift(
                Severity.ERROR, "server-shelved-holds", f"server {server}", f"is shelved and offloaded, and has {what}",
                "nothing", "nobody can have what it has, and it may not come back",
                f"openstack resource provider allocation delete {identity}: its host has forgotten it",
            )  # fmt: skip
        elif server.status == "ERROR" and (devices or server.host is None):
            yield drift(
                Severity.ERROR, "server-error-holds", f"server {server}",
                f"is in ERROR and has {what}" + (f" ({server.fault})" if server.fault else ""), "running, or deleted",
                "nobody else can have what it has",
                f"openstack server delete {identity}, or mend it: openstack server reboot --hard {identity}",
            )  # fmt: skip
        elif server.settled and server.host is not None and hosts - {server.host}:
            other_hosts = hosts - {server.host}
            yield drift(
                Severity.ERROR, "server-elsewhere", f"server {server}",
                f"runs on {server.host} and has {_what([d for d in devices if d.host in other_hosts], other_hosts)}",
                f"only something of {server.host}", "nobody can have what it has there",
                f"gpuyard host leftovers {min(other_hosts)} says what it is from, and --clean takes away what is safe",
            )  # fmt: skip


def _what(devices: Sequence[DeviceSeen], hosts: Iterable[str]) -> str:
    if devices:
        return "GPUs " + ", ".join(f"{device.host} {device.address}" for device in devices)
    return "room on " + ", ".join(sorted(hosts))


def _with_devices(subject: DriftSubject) -> Iterable[Finding]:
    """Servers that have more devices in Placement than their flavor asks for."""
    for identity, (_, devices) in _held_by(subject).items():
        server = subject.world.servers[identity]
        # What it has elsewhere is another finding, with another remedy: it moved away and left that behind.
        mine = [device for device in devices if device.name in subject.offered and server.host in (None, device.host)]
        requested = sum(subject.asked(server).values())
        foreign_alias = server.specs.get(ALIAS_SPEC) and not requested  # of an alias that is not the site's: who knows
        if len(mine) > requested and server.settled and server.status != GONE_FROM_HOST and not foreign_alias:
            yield drift(
                Severity.ERROR, "server-holds-unasked", f"server {server}",
                f"has {_what(mine, ())}, and its flavor {server.flavor} asks for {requested}", f"{requested}",
                "the GPU is taken in Placement and attached to nobody",
                f"where Nova has moved or resized it: gpuyard host leftovers {server.host} --clean has nova-compute "
                "count again. Else see that its flavor names no resources:CUSTOM_GPU_...",
            )  # fmt: skip


def _without_devices(subject: DriftSubject) -> Iterable[Finding]:
    """Servers that have GPUs of which Placement does not know: from before it knew any, or because it lost them."""
    if subject.compiled.site.pci_in_placement == "off":
        return
    for server in subject.world.servers.values():
        have = len([d for d in subject.world.devices_of.get(server.id, ()) if d.host == server.host])
        missing = sum(subject.asked(server).values()) - have
        if missing > 0 and _runs_on_site(subject, server) and not _only_unreported(subject, server):
            yield drift(
                Severity.ALARM, "server-without-gpu", f"server {server}",
                f"its flavor {server.flavor} has {have + missing} GPUs, and Placement knows of {have}",
                f"{have + missing} in Placement",
                "Placement takes its GPU for free: it sends servers there, and they fail",
                f"nova-compute on {server.host} mends that at its next update; if it does not: restart it. Stop or "
                "confirm resizes of the server first",
            )  # fmt: skip


def _only_unreported(subject: DriftSubject, server: ServerSeen) -> bool:
    """Return whether its host has no device in Placement at all: that is a finding of its own."""
    return not any(device.host == server.host for device in subject.world.devices.values())


def _runs_on_site(subject: DriftSubject, server: ServerSeen) -> bool:
    running = server.settled and server.status not in (GONE_FROM_HOST, "ERROR", "SOFT_DELETED")
    return running and server.host in subject.compiled.site.hosts


# Who is counted.


def _uncounted(subject: DriftSubject) -> Iterable[Finding]:
    """Servers from before the counter of GPUs was there."""
    if not subject.compiled.site.gpu_quotas:
        return
    rows_by_pool: dict[str, list[tuple[ServerSeen, int]]] = {}
    for server in subject.world.servers.values():
        if not _runs_on_site(subject, server):
            continue
        amounts = _amounts_of(subject, server)
        for pool, requested in subject.asked(server).items():
            less = requested - amounts.get(count_class(pool), 0)
            if less > 0:
                rows_by_pool.setdefault(pool, []).append((server, less))
    for pool, rows in rows_by_pool.items():
        yield drift(
            Severity.ERROR, "servers-uncounted", f"pool {pool}",
            f"{sum(less for _, less in rows)} GPUs of {_some([str(server) for server, _ in rows])} are not counted",
            f"{count_class(pool)} for each", "their projects may have that many GPUs more than the site says",
            "resize them to a flavor of the site of the same size, or wait until they end",
        )  # fmt: skip


def _amounts_of(subject: DriftSubject, server: ServerSeen) -> Mapping[str, int]:
    host = subject.world.hosts.get(server.host or "")
    return host.consumers.get(server.id, {}) if host else {}


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SOME} more" if len(texts) > SOME else ""
    return ", ".join(texts[:SOME]) + more


def _reserve(subject: DriftSubject, capacity: HostCapacity) -> Iterable[Finding]:
    """How much of what a host keeps for GPUs is in use by servers that do not count as others."""
    if subject.compiled.site.hosts[capacity.host].reserve is None:
        return
    host = subject.world.hosts[capacity.host]
    outside = Size()
    servers = []
    for consumer, amounts in host.consumers.items():
        server = subject.world.servers.get(subject.world.server_behind(consumer))
        if server is None or takes_devices(server.specs) or consumer in subject.world.devices_of:
            continue
        size = _not_counted(amounts)
        if size != Size():
            outside += size
            servers.append(str(server))
    if servers:
        safe = Size(*(max(0, value) for value in _values(capacity.reserve - outside)))
        yield drift(
            Severity.ERROR, "reserve-uncounted", capacity.host,
            f"{_some(servers)} use {outside} and count as nothing",
            f"{capacity.reserve} kept for servers with GPUs",
            f"only {safe} are surely kept there: a free GPU may find no room",
            "resize them to a flavor of the site of the same size, move them to other hosts, or wait until they end",
        )  # fmt: skip


def _not_counted(amounts: Mapping[str, int]) -> Size:
    pairs = (("VCPU", "VCPU"), ("MEMORY_MB", "MEMORY_MB"), ("DISK_GB", "DISK_GB"))
    return Size(*(max(0, amounts.get(real, 0) - amounts.get(f"CUSTOM_NOGPU_{own}", 0)) for real, own in pairs))


def _values(size: Size) -> tuple[int, int, int]:
    return size.vcpus, size.ram, size.disk


def _foreign(subject: DriftSubject) -> Iterable[Finding]:
    """Servers on isolated hosts whose flavors do not ask for them."""
    site = subject.compiled.site
    if not site.isolated:
        return
    trait = f"trait:{site_trait(site.site)}"
    by_host: dict[str, list[ServerSeen]] = {}
    for server in subject.world.servers.values():
        if _runs_on_site(subject, server) and server.specs.get(trait) != "required":
            by_host.setdefault(str(server.host), []).append(server)
    for host, servers in sorted(by_host.items()):
        yield drift(
            Severity.ERROR, "servers-foreign", host,
            _some([f"{server} of flavor {server.flavor}" for server in servers]), "servers of the site's flavors only",
            "they take what the site keeps for its own servers",
            f"they were there before, or their image has {trait}; resize them to a flavor of the site, move them, or "
            "wait until they end",
        )  # fmt: skip


def _claims(subject: DriftSubject) -> Iterable[Finding]:
    """Servers that Placement found a GPU for, and nova-compute had none to give: its own table says otherwise."""
    for server in subject.world.servers.values():
        if server.status == "ERROR" and subject.asked(server) and "claim pci failed" in server.fault.lower():
            yield drift(
                Severity.ERROR, "claim-failed", f"server {server}", server.fault, "a GPU that Placement says is free",
                "Placement has a GPU free that Nova does not give",
                f"restart nova-compute on {server.host or 'the host that its log names'}: it then looks again who has "
                "which device",
            )  # fmt: skip
