"""Takes a Snapshot: everything about GPUs that OpenStack knows, in a bounded number of calls.

Placement has no bulk read of allocations or inventories, but it answers questions about sets: "which providers could
serve one CUSTOM_GPU_V100" is one call for any number of GPUs. docs/reference/openstack-calls.md has the calls; a GPU
costs one only when none of the sets explains it. The allocations of a server are cached until Nova says that it
changed, or Placement would give away what it is said to have. After FORGET_AFTER it is asked again all the same, a
few servers in each snapshot, so that an event that Nova does not date costs time and not truth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from time import monotonic

from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Server, Snapshot
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.gpus import see_gpus
from gpuyard.openstack.left_behind import MovedServers, PoolsAsked, split_left_behind
from gpuyard.openstack.reader import Names, Reader
from gpuyard.openstack.rows import ServerRow
from gpuyard.openstack.units import Seated, UnitReader
from gpuyard.site.objects import FlavorObject

FORGET_AFTER = timedelta(seconds=60)
FORGET_AT_ONCE = 10
"""Most servers that one snapshot asks again only because it was long ago: not thousands every minute."""
SHELVED = "SHELVED_OFFLOADED"  # has given its GPUs back


class SnapshotTaker:
    """Takes snapshots of one cloud for one site, and caches between them what cannot have changed."""

    def __init__(
        self, api: CloudApi, gpus: Sequence[Gpu], flavors: Sequence[FlavorObject], seated: Seated | None = None
    ) -> None:
        """`seated`: who was last seen on which unit, which takers of one process share."""
        self._api = api
        self._hosts = frozenset(gpu.host for gpu in gpus)
        self._whole = [gpu for gpu in gpus if not gpu.is_unit]
        self._classes = sorted({gpu.resource_class for gpu in gpus if not gpu.blocked and not gpu.is_unit})
        self._units = UnitReader(gpus, seated or Seated())
        self._smallest = smallest_flavors(flavors)
        self._asked = PoolsAsked(gpus, flavors)
        self._held_by_server: dict[str, _Held] = {}
        """The one that was asked longest ago first."""
        self._names = Names()
        self._moved = MovedServers()

    def take(self, now: datetime) -> Snapshot:
        """Take one snapshot. Raises CloudError when the cloud does not answer; the cache stays usable."""
        before, began = self._api.calls, monotonic()
        with Reader(self._api) as cloud:
            # The servers first: what one of them holds is then read later than the server itself, and a GPU that
            # changed hands in between shows as unexplained for one round instead of as somebody else's.
            listed = cloud.servers()
            cloud_time = self._api.date
            clock = cloud_time - timedelta(seconds=monotonic() - began) if cloud_time else None
            servers = {row.id: row for row in listed if row.asks_devices and row.status != SHELVED}
            services = cloud.later(cloud.services)
            sizes = frozenset().union(*self._smallest.values())
            ones = {
                (question,) for question in (*((pool_class, 1) for pool_class in self._classes), *self._units.questions)
            }
            able = {what: cloud.later(_able, cloud, what) for what in {*sizes, *ones}}
            providers = cloud.providers()
            residents = [row for row in listed if row.host in self._hosts]
            owned = [*servers.values(), *residents]
            self._names.learn(cloud, {row.user for row in owned}, {row.project for row in owned})
            can_serve = {what: later.result() for what, later in able.items()}
            self._forget(
                servers, frozenset().union(*(can_serve[(pool_class, 1),] for pool_class in self._classes)), now
            )
            held = cloud.each(lambda server: self._held_by(cloud, servers[server], now), servers)
            names = {
                what: frozenset(providers[provider_id].name for provider_id in ids if provider_id in providers)
                for what, ids in can_serve.items()
            }
            by_name = {provider.name: provider for provider in providers.values()}
            allocatable = frozenset().union(*(names[(pool_class, 1),] for pool_class in self._classes))
            gpus = see_gpus(cloud, self._whole, by_name, allocatable, held)
            free = {question: names[question,] for question in self._units.questions}
            units = self._units.see(cloud, by_name, free, {server: held[server] for server in _by_age(servers)})
            whole = {name: who for name, who in gpus.holders.items() if name not in self._units.devices}
            holders, left = split_left_behind(
                cloud, self._moved, by_name | units.providers, servers, whole | units.holders, self._asked
            )
            host_services = services.result()
            return Snapshot(
                taken_at=now,
                providers=by_name | units.providers,
                allocatable=gpus.allocatable | units.allocatable,
                holders=holders,
                reserved=gpus.reserved | units.reserved,
                roomy_hosts={
                    pool: frozenset().union(*(names[amounts] for amounts in smallest))
                    for pool, smallest in self._smallest.items()
                },
                servers={server.id: server.named(*self._names.owners(server)) for server in servers.values()},
                services=host_services,
                calls=self._api.calls - before,
                unexplained={**gpus.unexplained, **units.unexplained},
                left_behind=left,
                residents={
                    host: servers
                    for host, servers in self._by_host(residents).items()
                    if host not in host_services or not host_services[host].silent
                },
                clock=clock,
            )

    def _by_host(self, rows: Iterable[ServerRow]) -> dict[str, tuple[Server, ...]]:
        servers_by_host: dict[str, list[Server]] = {host: [] for host in self._hosts}
        for row in rows:
            if row.host is not None:
                servers_by_host[row.host].append(row.named(*self._names.owners(row)))
        return {host: tuple(servers) for host, servers in servers_by_host.items()}

    def _forget(self, servers: Collection[str], allocatable: frozenset[str], now: datetime) -> None:
        """What must be asked again: of servers that are gone, of those that cannot have any more what they had, and of
        some of those that were asked long ago. `allocatable`: ids of the providers of GPUs that can be had."""
        held_by_server = self._held_by_server
        old = [
            server for server, held in islice(held_by_server.items(), FORGET_AT_ONCE) if now - held.asked > FORGET_AFTER
        ]
        wrong = [
            server
            for server, held in held_by_server.items()
            if server not in servers or held.amounts.keys() & allocatable
        ]
        for server in {*old, *wrong}:
            del held_by_server[server]

    def _held_by(self, cloud: Reader, server: ServerRow, now: datetime) -> Mapping[str, int]:
        """Ids of the providers that a server has allocations on, each with how much of it, asked again when Nova says
        that it changed."""
        settled = server.task is None and server.status != "BUILD"
        stamp = (server.updated, server.status, server.host)
        cached = self._held_by_server.get(server.id)
        if settled and cached is not None and cached.stamp == stamp:
            return cached.amounts
        amounts_by_provider = {
            provider: sum(amounts.values()) for provider, amounts in cloud.allocations(server.id).items()
        }
        self._held_by_server.pop(server.id, None)
        if settled:
            self._held_by_server[server.id] = _Held(stamp, amounts_by_provider, now)
        return amounts_by_provider


@dataclass(frozen=True)
class _Held:
    """What a server had when it was asked."""

    stamp: tuple[str, str, str | None]
    amounts: Mapping[str, int]
    """Id of a provider -> how much of it, over all classes: of one that is a GPU's there is but one."""
    asked: datetime


def _by_age(servers: Mapping[str, ServerRow]) -> list[str]:
    """Ids, the oldest server first."""
    return sorted(servers, key=lambda server: (str(servers[server].created or ""), server))


def _able(cloud: Reader, amounts: Amounts) -> frozenset[str]:
    """Ids of the providers that could serve these amounts of resource classes now."""
    return cloud.able(resources=",".join(f"{name}:{amount}" for name, amount in amounts)) or frozenset()


Amounts = tuple[tuple[str, int], ...]


def smallest_flavors(flavors: Iterable[FlavorObject]) -> dict[str, frozenset[Amounts]]:
    """Return pool -> amounts of CPU, RAM and disk of its flavors, without those that another one undercuts in
    everything."""
    by_pool: dict[str, set[tuple[int, int, int]]] = {}
    for flavor in flavors:
        if flavor.pool is not None:
            by_pool.setdefault(flavor.pool, set()).add((flavor.vcpus, flavor.ram, flavor.disk + flavor.ephemeral))
    return {
        pool: frozenset(_amounts(size) for size in sizes if not any(_undercuts(other, size) for other in sizes))
        for pool, sizes in by_pool.items()
    }


def _undercuts(other: Sequence[int], size: Sequence[int]) -> bool:
    return other != size and all(a <= b for a, b in zip(other, size, strict=True))


def _amounts(size: tuple[int, int, int]) -> Amounts:
    """Placement refuses amounts of 0 (a server that boots from a volume has no disk), so they are left out."""
    return tuple((name, n) for name, n in zip(("VCPU", "MEMORY_MB", "DISK_GB"), size, strict=True) if n)
