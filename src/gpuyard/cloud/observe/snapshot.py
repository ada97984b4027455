"""Takes a Snapshot: everything about GPUs that OpenStack knows, in a bounded number of calls.

Placement has no bulk read of allocations or inventories, but it answers questions about sets: "which providers could
serve one CUSTOM_GPU_V100" is one call for any number of GPUs. docs/architecture.md has the calls; a GPU costs one only
when none of the sets explains it. What was learned of a server is kept until Nova says that it changed, and forgotten
every FORGET_AFTER seconds, so that an event that Nova does not date costs time and not truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.observe.gpus import see_gpus
from gpuyard.cloud.observe.reader import Names, Reader
from gpuyard.cloud.observe.rows import ServerRow
from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Snapshot
from gpuyard.site.objects import FlavorObject

FORGET_AFTER = timedelta(seconds=60)
SHELVED = "SHELVED_OFFLOADED"  # has given its GPUs back


class SnapshotTaker:
    """Takes snapshots of one cloud for one site and remembers between them what cannot have changed."""

    def __init__(self, api: CloudApi, gpus: Sequence[Gpu], flavors: Sequence[FlavorObject]) -> None:
        self._api = api
        self._gpus = gpus
        self._classes = sorted({gpu.resource_class for gpu in gpus if not gpu.blocked})
        self._smallest = smallest_flavors(flavors)
        self._held_by_server: dict[str, tuple[object, frozenset[str]]] = {}
        self._names = Names()
        self._forgotten = datetime.min.replace(tzinfo=UTC)

    def take(self, now: datetime) -> Snapshot:
        """One snapshot. Raises CloudError when the cloud does not answer; what is remembered stays usable."""
        before = self._api.calls
        if now - self._forgotten > FORGET_AFTER:
            self._held_by_server.clear()
            self._forgotten = now
        with Reader(self._api) as cloud:
            # The servers first: what one of them holds is then read later than the server itself, and a GPU that
            # changed hands in between shows as unexplained for one round instead of as somebody else's.
            found = cloud.servers().rows
            servers = {one.id: one for one in found if one.asks_devices and one.status != SHELVED}
            services = cloud.later(cloud.services)
            sizes = frozenset().union(*self._smallest.values())
            able = {what: cloud.later(_able, cloud, what) for what in {*sizes, *(((one, 1),) for one in self._classes)}}
            providers = cloud.providers()
            self._names.learn(cloud, {one.user for one in servers.values()}, {one.project for one in servers.values()})
            held = cloud.each(lambda server: self._held_by(cloud, servers[server]), servers)
            names = {what: frozenset(providers[one].name for one in later.result() if one in providers)
                     for what, later in able.items()}  # fmt: skip
            by_name = {provider.name: provider for provider in providers.values()}
            allocatable = frozenset().union(*(names[(one, 1),] for one in self._classes))
            seen = see_gpus(cloud, self._gpus, by_name, allocatable, held)
            return Snapshot(
                taken_at=now,
                providers=by_name,
                allocatable=seen.allocatable,
                holders=seen.holders,
                reserved=seen.reserved,
                roomy_hosts={
                    pool: frozenset().union(*(names[amounts] for amounts in smallest))
                    for pool, smallest in self._smallest.items()
                },
                servers={one.id: one.named(*self._names.owners(one)) for one in servers.values()},
                services=services.result(),
                calls=self._api.calls - before,
                unexplained=seen.unexplained,
            )

    def _held_by(self, cloud: Reader, server: ServerRow) -> frozenset[str]:
        """Ids of the providers that a server has allocations on, asked again when Nova says that it changed."""
        settled = server.task is None and server.status != "BUILD"
        stamp = (server.updated, server.status, server.host)
        known = self._held_by_server.get(server.id)
        if settled and known is not None and known[0] == stamp:
            return known[1]
        held = frozenset(cloud.allocations(server.id))
        if settled:
            self._held_by_server[server.id] = (stamp, held)
        return held


def _able(cloud: Reader, amounts: Amounts) -> frozenset[str]:
    """Ids of the providers that could serve these amounts of resource classes now."""
    return cloud.able(resources=",".join(f"{name}:{amount}" for name, amount in amounts)) or frozenset()


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
