"""Takes a Snapshot: everything about GPUs that OpenStack knows, in a bounded number of calls.

Placement has no bulk read of allocations or inventories, but it answers questions about sets: "which providers could
serve one CUSTOM_GPU_V100" is one call for any number of GPUs. So a snapshot takes

====================================================  =====================================================
1                                                     all resource providers
one per resource class (a pool, and its peers)        which GPUs can be had
one per 1,000 servers                                 all servers of all projects
1                                                     the nova-compute services
one per smallest flavor of a pool                     which hosts have CPU, RAM and disk left for it
one per GPU server that is new or has changed         which GPUs it holds
up to two per GPU that none of these explains         held (reserved), or allocated to no server
one per user and per project never seen before        its name
one per 1,000 hypervisors, once                       whose host is which
====================================================  =====================================================

and none per GPU. What was learned of a server is kept until Nova says that it changed, and forgotten every
FORGET_AFTER seconds, so that an event that Nova does not date costs time and not truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.model.gpu import Gpu
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.site.objects import FlavorObject

FORGET_AFTER = timedelta(seconds=60)
PARALLEL = 4
PAGE = 1000
ALIAS_SPEC = "pci_passthrough:alias"
SHELVED = "SHELVED_OFFLOADED"  # has given its GPUs back
NOT_FOUND = 404


class Why(Enum):
    """Why a GPU was neither to be had nor held by a server."""

    RESERVED = "reserved"
    CONSUMER = "consumer"
    """Allocated to something that is no server with GPUs: the text is its id."""
    FREED = "freed"
    """It was given back while the cloud was looked at."""
    ODD = "odd"
    """The text says what is odd about it."""


class SnapshotTaker:
    """Takes snapshots of one cloud for one site and remembers between them what cannot have changed."""

    def __init__(self, api: CloudApi, gpus: Sequence[Gpu], flavors: Sequence[FlavorObject]) -> None:
        self._api = api
        self._gpus = gpus
        self._classes = sorted({gpu.resource_class for gpu in gpus if not gpu.blocked})
        self._smallest = smallest_flavors(flavors)
        self._sizes = {amounts for smallest in self._smallest.values() for amounts in smallest}
        self._held_by_server: dict[str, tuple[object, frozenset[str]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._forgotten = datetime.min.replace(tzinfo=UTC)

    def take(self, now: datetime) -> Snapshot:
        """One snapshot. Raises CloudError when the cloud does not answer; what is remembered stays usable."""
        before = self._api.calls
        if now - self._forgotten > FORGET_AFTER:
            self._held_by_server.clear()
            self._forgotten = now
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="snapshot") as pool:
            # The servers first: what one of them holds is then read later than the server itself, and a GPU that
            # changed hands in between shows as unexplained for one round instead of as somebody else's.
            servers = self._servers(pool)
            services = pool.submit(self._services)
            able = [pool.submit(self._able, {name: 1}) for name in self._classes]
            room = {amounts: pool.submit(self._able, dict(amounts)) for amounts in sorted(self._sizes)}
            providers = self._providers()
            holders = self._holders(servers, {provider.id: provider for provider in providers.values()}, pool)
            allocatable = frozenset().union(*(later.result() for later in able))
            open_questions = [
                providers[name]
                for name in (gpu.provider_name for gpu in self._gpus)
                if name in providers and name not in allocatable and name not in holders
            ]
            answers = dict(zip((p.name for p in open_questions), pool.map(self._why_not, open_questions), strict=True))
            holders |= {name: text for name, (kind, text) in answers.items() if kind is Why.CONSUMER}
            return Snapshot(
                taken_at=now,
                providers=providers,
                allocatable=allocatable | {name for name, (kind, _) in answers.items() if kind is Why.FREED},
                holders=holders,
                reserved=frozenset(name for name, (kind, _) in answers.items() if kind is Why.RESERVED),
                roomy_hosts={
                    name: frozenset().union(*(room[amounts].result() for amounts in smallest))
                    for name, smallest in self._smallest.items()
                },
                servers={server["id"]: self._server(server) for server in servers},
                services=services.result(),
                calls=self._api.calls - before,
                unexplained={name: text for name, (kind, text) in answers.items() if kind is Why.ODD},
            )

    def _providers(self) -> dict[str, Provider]:
        rows = self._api.providers()
        return {row["name"]: Provider(row["uuid"], row["name"], row["root_provider_uuid"]) for row in rows}

    def _able(self, amounts: Mapping[str, int]) -> frozenset[str]:
        """Names of the providers that could serve these amounts of resource classes now."""
        wanted = ",".join(f"{name}:{amount}" for name, amount in amounts.items())
        try:
            rows = self._api.providers(resources=wanted)
        except CloudError as error:
            if error.status == 400:  # Placement does not know the class: no nova-compute has reported one
                return frozenset()
            raise
        return frozenset(row["name"] for row in rows)

    def _services(self) -> dict[str, HostService]:
        rows = self._api.get("compute", "/os-services", binary="nova-compute")["services"]
        return {
            row["host"]: HostService(
                row["host"], row["state"] == "up", row["status"] == "enabled", row["disabled_reason"] or ""
            )
            for row in rows
        }

    def _servers(self, pool: ThreadPoolExecutor) -> list[dict[str, Any]]:
        """Servers whose flavor asks for PCI devices and that have not given them back, with names of their owners."""
        pages = self._api.pages("compute", "/servers/detail", "servers", all_tenants=1, limit=PAGE)
        servers = [
            server
            for server in pages
            if ALIAS_SPEC in server["flavor"].get("extra_specs", {}) and server["status"] != SHELVED
        ]
        unknown = {("user", s["user_id"]) for s in servers} | {("project", s["tenant_id"]) for s in servers}
        list(pool.map(self._learn_name, sorted(unknown - self._names.keys())))
        return servers

    def _learn_name(self, key: tuple[str, str]) -> None:
        kind, identity = key
        try:
            self._names[key] = self._api.get("identity", f"/{kind}s/{identity}")[kind]["name"]
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise
            self._names[key] = identity  # deleted, or kept in a directory that Keystone does not list

    def _holders(
        self, servers: Iterable[dict[str, Any]], by_id: Mapping[str, Provider], pool: ThreadPoolExecutor
    ) -> dict[str, str]:
        """GPU provider name -> id of the server that has it."""
        servers = list(servers)
        held = pool.map(self._held_by, servers)
        return {
            by_id[provider].name: server["id"]
            for server, ids in zip(servers, held, strict=True)
            for provider in ids
            if provider in by_id and by_id[provider].root_id != provider
        }

    def _held_by(self, server: dict[str, Any]) -> frozenset[str]:
        """Ids of the providers that a server has allocations on, asked again when Nova says that it changed."""
        settled = server["OS-EXT-STS:task_state"] is None and server["status"] != "BUILD"
        stamp = (server["updated"], server["status"], server["OS-EXT-SRV-ATTR:host"])
        known = self._held_by_server.get(server["id"])
        if settled and known is not None and known[0] == stamp:
            return known[1]
        allocations = self._api.get("placement", f"/allocations/{server['id']}")["allocations"]
        held = frozenset(allocations)
        if settled:
            self._held_by_server[server["id"]] = (stamp, held)
        return held

    def _why_not(self, provider: Provider) -> tuple[Why, str]:
        """Why a GPU could neither be had nor was held by a server when that was asked."""
        base = f"/resource_providers/{provider.id}"
        inventories = self._api.get("placement", f"{base}/inventories")["inventories"]
        ours = {name: inventory for name, inventory in inventories.items() if name in self._classes}
        if not ours:
            seen = ", ".join(sorted(inventories)) or "nothing"
            return Why.ODD, f"Placement has it as {seen}, not as the site says: deploy the site's Nova options"
        consumers = self._api.get("placement", f"{base}/allocations")["allocations"]
        if consumers:
            return Why.CONSUMER, sorted(consumers)[0]
        if any(inventory["reserved"] >= inventory["total"] for inventory in ours.values()):
            return Why.RESERVED, ""
        return Why.FREED, ""

    def _server(self, row: Mapping[str, Any]) -> Server:
        return Server(
            id=row["id"],
            name=row["name"],
            status=row["status"],
            host=row["OS-EXT-SRV-ATTR:host"],
            project=self._names[("project", row["tenant_id"])],
            user=self._names[("user", row["user_id"])],
            flavor=row["flavor"]["original_name"],
            created=_time(row["created"]),
            launched=_time(row["OS-SRV-USG:launched_at"]),
            user_id=row["user_id"],
            project_id=row["tenant_id"],
            task=row["OS-EXT-STS:task_state"] or "",
        )


Amounts = tuple[tuple[str, int], ...]


def smallest_flavors(flavors: Iterable[FlavorObject]) -> dict[str, frozenset[Amounts]]:
    """Pool -> amounts of CPU, RAM and disk of its flavors, without those that another one undercuts in everything."""
    by_pool: dict[str, set[tuple[int, int, int]]] = {}
    for flavor in flavors:
        if flavor.pool is not None:
            by_pool.setdefault(flavor.pool, set()).add((flavor.vcpus, flavor.ram, flavor.disk + flavor.ephemeral))
    return {
        pool: frozenset(_amounts(one) for one in sizes if not any(_undercuts(other, one) for other in sizes))
        for pool, sizes in by_pool.items()
    }


def _undercuts(other: Sequence[int], one: Sequence[int]) -> bool:
    return other != one and all(a <= b for a, b in zip(other, one, strict=True))


def _amounts(size: tuple[int, int, int]) -> Amounts:
    """Placement refuses amounts of 0 (a server that boots from a volume has no disk), so they are left out."""
    return tuple((name, n) for name, n in zip(("VCPU", "MEMORY_MB", "DISK_GB"), size, strict=True) if n)


def _time(text: str | None) -> datetime | None:
    """Nova's two spellings of UTC times."""
    if text is None:
        return None
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
