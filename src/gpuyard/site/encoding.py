"""The leader/peer encoding: turns IOMMU groups, which Nova does not know, into classes and traits, which Placement
knows.

- A lone GPU, and the leader of every shared group, has its pool's resource class: ``CUSTOM_GPU_V100``.
- The peers of a shared group have a class of their own, ``CUSTOM_GPU_V100_PEER``.
- Leader and peers of one group have a trait for their set, ``CUSTOM_GPU_SET_A``. No two groups of a host have the same
  letter within a pool, so a request for the leader and the peers of a set can only be met by one group.
- Where a pool has both kinds and the site has runners, its lone GPUs have the trait ``CUSTOM_GPU_LONE``: a runner with
  one GPU is then put where its lease is, and not on the leader of a group that somebody was given as a whole.

So one GPU can always be had from any group, a whole group can be had at once, and no order of requests puts two
servers into one group. A set's name stands for one group size, or a pair could be taken out of a larger group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuyard.host.judge import judge
from gpuyard.model.gpu import Gpu, GpuRole
from gpuyard.model.host import Inventory
from gpuyard.model.pci import DeviceType, PciFunction
from gpuyard.model.slot import Slot
from gpuyard.site.problems import Problem
from gpuyard.site.schema import Site

PAIR = 2
LONE_TRAIT = "CUSTOM_GPU_LONE"


@dataclass(frozen=True)
class EncodedGpu:
    """A GPU of the site with its PCI function."""

    gpu: Gpu
    function: PciFunction

    @property
    def offered(self) -> bool:
        """Whether Nova may be told about it."""
        return not self.gpu.blocked


def pool_class(pool: str) -> str:
    """Return the resource class of a pool: ``v100`` -> ``CUSTOM_GPU_V100``."""
    return "CUSTOM_GPU_" + pool.upper().replace("-", "_")


def peer_class(pool: str) -> str:
    return pool_class(pool) + "_PEER"


def count_class(pool: str) -> str:
    """Return the class that counts a pool's GPUs for quotas, whatever their role in it: ``CUSTOM_GPU_V100_COUNT``."""
    return pool_class(pool) + "_COUNT"


def set_trait(letter: str) -> str:
    return "CUSTOM_GPU_SET_" + letter


def slot_trait(gpu: Gpu) -> str:
    """Return the trait for the kind of slot that a GPU is in; empty when it has none."""
    return set_trait(gpu.set_letter) if gpu.set_letter else LONE_TRAIT if gpu.marked_lone else ""


def slot_traits(gpu: Gpu) -> frozenset[str]:
    """Return the same as a set."""
    return frozenset({trait}) if (trait := slot_trait(gpu)) else frozenset()


def letter_of(index: int) -> str:
    """Return the letters of a number: 0 -> A, 25 -> Z, 26 -> AA."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def set_name(size: int, index: int) -> str:
    """Return A, B, ... for pairs; 3A, 3B, ... for groups of three: so the GPUs of one host change no other host's
    names."""
    return letter_of(index) if size == PAIR else f"{size}{letter_of(index)}"


def encode(site: Site, inventories: Mapping[str, Inventory]) -> tuple[list[EncodedGpu], list[Problem]]:
    """Return every whole GPU of the site's pools, by host and address, with its class and set; and all problems. Shares
    of GPUs are encoded by site/sharing.py."""
    problems = [*_claimed_twice(site, inventories), *_same_class(site)]
    encoded: list[EncodedGpu] = []
    for host, inventory in inventories.items():
        for slot in judge(inventory):
            encoded += _encode_slot(site, host, slot)
    problems += _mixed_types(site, encoded)
    encoded = _with_letters(encoded)
    return _with_lone_marked(encoded) if site.runners is not None else encoded, problems


def by_host(encoded: Iterable[EncodedGpu], hosts: Iterable[str]) -> list[EncodedGpu]:
    """Return the GPUs in the order of the hosts; those of one host keep their order."""
    order = {name: number for number, name in enumerate(hosts)}
    return sorted(encoded, key=lambda item: order[item.gpu.host])


def _same_class(site: Site) -> Iterable[Problem]:
    """Pools named after what another pool's classes are named."""
    for name in site.pools:
        for ending in ("-peer", "-count"):
            if name.removesuffix(ending) != name and name.removesuffix(ending) in site.pools:
                yield Problem(
                    ("pools", name), f"its class would be one of pool {name.removesuffix(ending)!r}; rename it"
                )


def pool_of(site: Site, host: str, function: PciFunction) -> str | None:
    """Return the pool that a whole GPU belongs to; None when no pool has its model."""
    for name, pool in site.pools.items():
        if not pool.is_shared and function.ids in pool.models and (pool.hosts is None or host in pool.hosts):
            return name
    return None


def _encode_slot(site: Site, host: str, slot: Slot) -> list[EncodedGpu]:
    """The GPUs of a slot that pools want: the first one offered leads, those of its pool are its peers."""
    pools = {gpu.address: pool_of(site, host, gpu) for gpu in slot.gpus}
    members = [gpu for gpu in slot.gpus if pools[gpu.address]]
    if not members:
        return []
    leader_pool = pools[members[0].address]
    same_pool = [gpu for gpu in members if pools[gpu.address] == leader_pool]
    # Without Placement nothing would keep the GPUs of a group together.
    alone = len(same_pool) == 1 or site.pci_in_placement != "on"
    encoded = []
    for gpu in members:
        pool = pools[gpu.address]
        assert pool is not None
        blocked = "; ".join(slot.reasons)
        first = gpu == members[0]
        role = GpuRole.PEER if not first else GpuRole.LONE if alone else GpuRole.LEADER
        if not blocked and not first:
            blocked = _why_left_out(site, pool, leader_pool, members[0].address)
        resource_class = peer_class(pool) if role is GpuRole.PEER else pool_class(pool)
        encoded.append(
            EncodedGpu(
                Gpu(host, gpu.address, pool, gpu.model, gpu.ids, role, resource_class, slot.group, None,
                    gpu.numa_node, blocked),
                gpu,
            )
        )  # fmt: skip
    return encoded


def _why_left_out(site: Site, pool: str, leader_pool: str | None, leader: str) -> str:
    """Why a GPU that is not the first of its group is not offered; empty when it is."""
    if pool != leader_pool:
        return f"shares its IOMMU group with {leader} of pool {leader_pool}"
    if site.pci_in_placement != "on":
        return f"shares its IOMMU group with {leader}, and only 'pci_in_placement: on' keeps a group together"
    return ""


def _with_letters(encoded: list[EncodedGpu]) -> list[EncodedGpu]:
    """Give each offered shared group the name of its set: by pool, host and size, in bus order."""
    groups: dict[str, dict[tuple[str, int | None], list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, item in enumerate(encoded):
        if item.offered and item.gpu.role is not GpuRole.LONE:
            groups[item.gpu.pool][item.gpu.host, item.gpu.group].append(index)
    result = list(encoded)
    for sets in groups.values():
        used: dict[tuple[str, int], int] = defaultdict(int)
        for (host, _), members in sets.items():
            size = len(members)
            for index in members:
                gpu = replace(encoded[index].gpu, set_letter=set_name(size, used[host, size]))
                result[index] = replace(encoded[index], gpu=gpu)
            used[host, size] += 1
    return result


def _with_lone_marked(encoded: Sequence[EncodedGpu]) -> list[EncodedGpu]:
    mixed = {item.gpu.pool for item in encoded if item.gpu.set_letter}
    return [
        replace(item, gpu=replace(item.gpu, marked_lone=True))
        if item.offered and item.gpu.role is GpuRole.LONE and item.gpu.pool in mixed
        else item
        for item in encoded
    ]


def _claimed_twice(site: Site, inventories: Mapping[str, Inventory]) -> list[Problem]:
    problems = []
    names = [name for name, pool in site.pools.items() if not pool.is_shared]
    for index, name in enumerate(names):
        for other in names[:index]:
            problems += _overlap(site, inventories, other, name)
    return problems


def _overlap(site: Site, inventories: Mapping[str, Inventory], earlier: str, later: str) -> list[Problem]:
    """Two pools that want the same GPUs, named by the first host where they do."""
    first, second = site.pools[earlier], site.pools[later]
    models = sorted(set(first.models) & set(second.models))
    hosts = sorted(set(first.hosts or site.hosts) & set(second.hosts or site.hosts))
    for host in hosts:
        for function in inventories[host].gpus if host in inventories else ():
            if function.ids in models:
                message = (
                    f"claims {function.address} on {host} ({function.ids}), which pool {earlier!r} claims too; "
                    f"leave the model out of one of them, or give both different 'hosts'"
                )
                return [Problem(("pools", later), message)]
    return []


def _mixed_types(site: Site, encoded: list[EncodedGpu]) -> list[Problem]:
    """An alias has one device_type, and Nova matches it exactly: a pool must not mix type-PCI and type-PF."""
    problems = []
    for pool in site.pools:
        types: dict[DeviceType, EncodedGpu] = {}
        for item in encoded:
            if item.gpu.pool == pool and item.offered:
                types.setdefault(item.function.device_type, item)
        if len(types) > 1:
            where = ", ".join(f"{kind.value} on {item.gpu.host} ({item.gpu.ids})" for kind, item in types.items())
            message = (
                f"mixes device types: {where}; switch SR-IOV alike in the firmware, or make two pools with 'hosts'"
            )
            problems.append(Problem(("pools", pool), message))
    return problems
