"""Computes how a host's CPU, RAM and disk are shared between servers with GPUs and servers without. Pure arithmetic.

A host keeps its reserve free of servers without GPUs: their flavors consume classes of their own, whose inventory on
a host is what it has less the reserve. Flavors with GPUs do not consume them. So whatever else runs there, a free
GPU finds its CPU, RAM and disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuyard.model.gpu import GpuRole
from gpuyard.model.host import HostFacts
from gpuyard.site.encoding import EncodedGpu
from gpuyard.site.schema import Flavor, Host, Reserve, Site

NOGPU_VCPU = "CUSTOM_NOGPU_VCPU"
NOGPU_MEMORY = "CUSTOM_NOGPU_MEMORY_MB"
NOGPU_DISK = "CUSTOM_NOGPU_DISK_GB"

MIXED_CPU_RATIO = 4.0
"""Nova's initial_cpu_allocation_ratio: with a reserve the ratio must be known, so it is written down."""


@dataclass(frozen=True)
class Size:
    """An amount of vCPUs, RAM in MiB and disk in GiB."""

    vcpus: int = 0
    ram: int = 0
    disk: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.vcpus + other.vcpus, self.ram + other.ram, self.disk + other.disk)

    def __sub__(self, other: Size) -> Size:
        return Size(self.vcpus - other.vcpus, self.ram - other.ram, self.disk - other.disk)

    def __mul__(self, times: int) -> Size:
        return Size(self.vcpus * times, self.ram * times, self.disk * times)

    def fits(self, other: Size) -> bool:
        """Return whether it is no more than the other in anything."""
        return self.vcpus <= other.vcpus and self.ram <= other.ram and self.disk <= other.disk

    def largest(self, other: Size) -> Size:
        return Size(max(self.vcpus, other.vcpus), max(self.ram, other.ram), max(self.disk, other.disk))

    def divided(self, parts: int) -> Size:
        """Return one of so many equal parts, rounded up."""
        return Size(-(-self.vcpus // parts), -(-self.ram // parts), -(-self.disk // parts))

    def __str__(self) -> str:
        return f"{self.vcpus} vCPUs, {self.ram} MiB, {self.disk} GiB"

    @property
    def classes(self) -> dict[str, int]:
        """The size as amounts of the classes that servers without GPUs consume."""
        return {NOGPU_VCPU: self.vcpus, NOGPU_MEMORY: self.ram, NOGPU_DISK: self.disk}


@dataclass(frozen=True)
class HostCapacity:
    """The capacity of one host, and its shares for servers with and without GPUs."""

    host: str
    cpus: int
    """CPUs for shared vCPUs, less the host's own."""
    cpu_ratio: float
    total: Size
    """All that servers can have."""
    reserve: Size
    """The part kept for servers with GPUs."""
    needed: Size
    """The most that servers with GPUs can need: in every slot a server of its largest flavor."""
    slots: int
    """Servers with GPUs that can run at once."""

    keeps: bool = False
    """Whether the host has a reserve at all."""

    @property
    def others(self) -> Size:
        """The part that servers without GPUs can have."""
        return self.total - self.reserve

    @property
    def inventories(self) -> dict[str, int]:
        """The host's inventories of the classes that servers without GPUs consume."""
        everything = Size(NO_BOUND, NO_BOUND, NO_BOUND)
        return {name: max(0, amount) for name, amount in (self.others if self.keeps else everything).classes.items()}

    @property
    def enough(self) -> bool:
        return self.needed.fits(self.reserve)

    def lines(self) -> Iterable[str]:
        """Yield the arithmetic as lines for people."""
        yield f"{self.host}: {self.cpus} CPUs x {self.cpu_ratio:g} = {self.total.vcpus} vCPUs; in all {self.total}"
        yield f"  kept for servers with GPUs: {self.reserve}"
        yield f"  a server of the largest flavor in each slot ({self.slots}) needs: {self.needed}"
        yield f"  for servers without GPUs: {self.others}"


NO_BOUND = 1_000_000_000
"""Total of a class on hosts without a reserve: other servers can have all that there is."""


def size_of(flavor: Flavor) -> Size:
    """Return the size that a server of a flavor takes from a host."""
    return Size(flavor.vcpus, flavor.ram, flavor.disk + flavor.ephemeral)


def wants_dedicated_cpus(flavor: Flavor) -> bool:
    return flavor.properties.get("hw:cpu_policy") == "dedicated"


class _Shares:
    """What one slot's share of the flavors of its pool can be at most. Hosts that are alike are reckoned once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._flavors = {
            pool: [(f, size_of(f)) for f in site.flavors.values() if pool in f.gpus] for pool in site.pools
        }
        self._aggregates = aggregates_of(site)
        self._known: dict[tuple[object, ...], Size] = {}

    def most(self, host: str, pool: str, size: int, slots_of_pool: int, total: Size) -> Size:
        """Of any flavor that runs on the host; one over several slots is shared out among them."""
        aggregates = self._aggregates.get(host, frozenset())
        # Dedicated CPUs come out of the shared ones on a host that has none of its own for them.
        own_cpus = self._site.hosts[host].cpu_dedicated_set is not None
        key = (aggregates, own_cpus, pool, size, slots_of_pool, total)
        if key not in self._known:
            self._known[key] = self._most(aggregates, own_cpus, pool, size, slots_of_pool, total)
        return self._known[key]

    def _most(
        self, aggregates: frozenset[str], own_cpus: bool, pool: str, size: int, slots_of_pool: int, total: Size
    ) -> Size:
        most = Size()
        for flavor, whole in self._flavors[pool]:
            count = flavor.gpus[pool]
            if own_cpus and wants_dedicated_cpus(flavor):
                whole = replace(whole, vcpus=0)
            if not may_run_on(flavor, aggregates) or not whole.fits(total):
                continue
            if flavor.same_group:
                if count == size:
                    most = most.largest(whole)
            elif count <= slots_of_pool:
                most = most.largest(whole.divided(count))
        return most


def host_capacity(
    site: Site, name: str, facts: HostFacts, slots: Sequence[tuple[str, int]], shares: _Shares
) -> HostCapacity:
    """Return the capacity of one host, from its recorded facts and the pools and sizes of its slots."""
    host = site.hosts[name]
    ratio = cpu_ratio(host)
    cpus = shared_cpus(host, facts) - host.overhead.vcpus
    total = Size(int(cpus * ratio), facts.memory_mib - host.overhead.ram, facts.disk_gib - host.overhead.disk)
    needed = Size()
    for pool, size in slots:
        needed += shares.most(name, pool, size, sum(slot_pool == pool for slot_pool, _ in slots), total)
    reserve = _reserve(host.reserve, needed, len(slots))
    return HostCapacity(name, cpus, ratio, total, reserve, needed, len(slots), host.reserve is not None)


def cpu_ratio(host: Host) -> float:
    """Return the CPU allocation ratio to compute with; without a reserve Placement may have another one."""
    return host.cpu_allocation_ratio or MIXED_CPU_RATIO


def shared_cpus(host: Host, facts: HostFacts) -> int:
    """Return how many CPUs shared vCPUs run on, as Nova counts them."""
    if host.cpu_shared_set is not None:
        return len(parse_cpu_set(host.cpu_shared_set))
    return 0 if host.cpu_dedicated_set is not None else facts.cpus


def parse_cpu_set(text: str) -> frozenset[int]:
    """Parse ``"4-7,^5"`` -> {4, 6, 7}, as Nova does. Raises ValueError for a range that runs backwards."""
    chosen: set[int] = set()
    without: set[int] = set()
    for part in text.split(","):
        first, _, last = part.lstrip("^").partition("-")
        low, high = int(first), int(last or first)
        if high < low:
            raise ValueError(f"the range {part!r} runs backwards")
        (without if part.startswith("^") else chosen).update(range(low, high + 1))
    return frozenset(chosen - without)


def _slots(encoded: Iterable[EncodedGpu]) -> list[tuple[str, int]]:
    """Pool and number of GPUs of each slot of a host that servers can be given."""
    sizes: dict[tuple[str, int | None, str], int] = {}
    for item in encoded:
        if item.offered:
            lone = item.gpu.address if item.gpu.role is GpuRole.LONE else ""
            key = (item.gpu.pool, item.gpu.group, lone)
            sizes[key] = sizes.get(key, 0) + 1
    return [(pool, size) for (pool, _, _), size in sizes.items()]


def aggregates_of(site: Site) -> dict[str, frozenset[str]]:
    """Return host -> names of its aggregates."""
    names_by_host: dict[str, set[str]] = {}
    for name, aggregate in site.aggregates.items():
        for host in aggregate.hosts:
            names_by_host.setdefault(host, set()).add(name)
    return {host: frozenset(names) for host, names in names_by_host.items()}


def may_run_on(flavor: Flavor, aggregates: frozenset[str]) -> bool:
    """Return whether the flavor's aggregates, if it has any, let it run on a host of these aggregates."""
    return not flavor.aggregates or not aggregates.isdisjoint(flavor.aggregates)


def _reserve(reserve: Reserve | str | None, needed: Size, slots: int) -> Size:
    if reserve is None:
        return Size()
    if not isinstance(reserve, Reserve):
        return needed
    return Size(reserve.vcpus, reserve.ram, reserve.disk) * (slots if reserve.per_gpu else 1)


def capacities(site: Site, facts: Mapping[str, HostFacts], encoded: Sequence[EncodedGpu]) -> tuple[HostCapacity, ...]:
    """Return the capacity of every host."""
    by_host: dict[str, list[EncodedGpu]] = {name: [] for name in facts}
    for item in encoded:
        by_host[item.gpu.host].append(item)
    shares = _Shares(site)
    return tuple(host_capacity(site, name, facts[name], _slots(by_host[name]), shares) for name in facts)
