"""Encodes cards that several servers share: which of their functions a pool has, and how many units each of them is.

A unit is one server's share. Placement knows how many units of a device are taken and not which, so they have
numbers of gpuyard's own: ``0000:41:00.0~1``, ``~2``, ... A virtual function is counted at its card, and a mediated
device at the function that makes it, which since NVIDIA's Ampere is a virtual function too. Of the virtual functions
of one card only as many are offered as the card can have devices of the type, because Nova would count on all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuyard.model.gpu import UNIT, Gpu, GpuKind, GpuRole
from gpuyard.model.host import Inventory
from gpuyard.model.pci import MdevType, PciFunction
from gpuyard.nova.release import RELEASES
from gpuyard.site.encoding import EncodedGpu, pool_class, pool_of
from gpuyard.site.problems import Problem
from gpuyard.site.schema import Pool, Site


def encode_shared(site: Site, inventories: Mapping[str, Inventory]) -> tuple[list[EncodedGpu], list[Problem]]:
    """Return every unit of the site's shared pools, by host and pool, with its function; and all problems."""
    pools = {name: pool for name, pool in site.pools.items() if pool.is_shared}
    problems = [problem for name, pool in pools.items() for problem in _wishes(site, name, pool)]
    encoded: list[EncodedGpu] = []
    for host, inventory in inventories.items():
        owners: dict[str, str] = {}
        types: dict[str, str] = {}
        for name, pool in pools.items():
            if pool.hosts is not None and host not in pool.hosts:
                continue
            units = list(_units(name, pool, host, inventory))
            for item in units:
                owner = _other_owner(site, host, name, item.function, owners)
                if owner:
                    problems.append(_claimed_twice(name, host, item.function, owner))
                    break
            encoded += units
            other = types.setdefault(pool.type or "", name) if pool.kind is GpuKind.VGPU and units else name
            if other != name:
                problems.append(_type_twice(name, host, pool, other))
    return encoded, problems


def _wishes(site: Site, name: str, pool: Pool) -> Iterable[Problem]:
    """What a shared pool cannot have."""
    place = ("pools", name)
    if pool.kind is GpuKind.VGPU and pool.type is None:
        yield Problem(place, "a pool of kind vgpu needs a 'type', as in 'nvidia-560': see 'gpuyard host scan'")
    if pool.kind is GpuKind.VF and pool.type is not None and not (pool.type.isascii() and pool.type.isdigit()):
        text = f"of kind vf the type is the number of a vGPU type, as in '1414', and {pool.type!r} is none"
        yield Problem((*place, "type"), text)
    if pool.one_time_use:
        yield Problem((*place, "one_time_use"), "Nova has it for whole GPUs only; leave it out")
    if pool.kind is GpuKind.VF and site.pci_in_placement != "on":
        text = "virtual functions are counted in Placement: a pool of kind vf needs 'pci_in_placement: on'"
        yield Problem((*place, "kind"), text)
    if pool.kind is GpuKind.VF and pool.type is not None and not RELEASES[site.release].managed:
        text = f"Nova leaves functions with their own driver from 2025.1 on, and the site's release is {site.release}"
        yield Problem((*place, "type"), text)
    if pool.kind is GpuKind.VGPU:
        wishes = {"alias": pool.alias, "numa": pool.numa, "managed": pool.managed}
        stated_keys = [key for key, value in {**wishes, "live_migratable": pool.live_migratable or None}.items()
                 if value is not None]  # fmt: skip
        for key in stated_keys:
            yield Problem((*place, key), "is of PCI devices, and Nova gives vGPUs without an alias; leave it out")
    for flavor, wish in site.flavors.items():
        several = wish.gpus.get(name, 0) > 1 and pool.kind is GpuKind.VGPU
        if several and not RELEASES[site.release].several_vgpus:
            text = (
                f"Nova gives a server several vGPUs from 2026.1 on, and the site's release is {site.release}; write 1"
            )
            yield Problem(("flavors", flavor, "gpus", name), text)
        if several and wish.properties.get("group_policy", "isolate") != "isolate":
            text = "several vGPUs of a server must be of different devices: leave group_policy out"
            yield Problem(("flavors", flavor, "properties", "group_policy"), text)
        if name in wish.gpus and wish.same_group:
            yield Problem(("flavors", flavor, "same_group"), "shares of GPUs are in no group; leave it out")


def _units(name: str, pool: Pool, host: str, inventory: Inventory) -> Iterable[EncodedGpu]:
    if pool.kind is GpuKind.VGPU:
        for function, blocked in _makers(pool, inventory):
            kind = _type_of(pool, function)
            for number in range(1, max(1, kind.units if kind else 0) + 1):
                yield _unit(name, pool, host, function, function.address, number, blocked)
        return
    cards: dict[str, int] = {}
    for function in inventory.virtual_gpus:
        if function.ids in pool.models and _is_of_type(pool, function):
            card = function.physical_function or ""
            cards[card] = cards.get(card, 0) + 1
            yield _unit(name, pool, host, function, card, cards[card], _why_not(pool, function, inventory))


def _unit(
    name: str, pool: Pool, host: str, function: PciFunction, device: str, number: int, blocked: str
) -> EncodedGpu:
    kind = _type_of(pool, function)
    model = kind.title if kind and kind.title else function.model
    address = f"{device}{UNIT}{number}"
    gpu = Gpu(
        host, address, name, model, function.ids, GpuRole.LONE, pool_class(name), None, None, function.numa_node,
        blocked, pool.kind,
    )  # fmt: skip
    return EncodedGpu(gpu, function)


def _makers(pool: Pool, inventory: Inventory) -> Iterable[tuple[PciFunction, str]]:
    """Functions that make a pool's mediated devices, each with why it cannot. Of the virtual functions of one card only
    as many as the card can have devices of the type: Nova would count on all of them."""
    left: dict[str, int] = {}
    for function in inventory.functions:
        kind = _type_of(pool, function)
        if kind is None or not function.is_gpu or function.ids not in pool.models:
            continue
        if function.address in inventory.needed_by_host:
            yield (
                function,
                f"{function.short_address} is needed by the host: {inventory.needed_by_host[function.address]}",
            )
        elif not function.is_virtual:
            yield function, "" if kind.units else _none_left(function, kind)
        else:
            card = function.physical_function or ""
            left.setdefault(card, kind.most or len(inventory.functions))
            if 0 < kind.units <= left[card]:
                left[card] -= kind.units
                yield function, ""


def _none_left(function: PciFunction, kind: MdevType) -> str:
    others = [
        f"{mdev_kind.made} of type {mdev_kind.name}"
        for mdev_kind in function.mdev_types
        if mdev_kind.made and mdev_kind.name != kind.name
    ]
    because = f": it has {', '.join(others)}" if others else ""
    return f"{function.short_address} can make no {kind.name} now{because}"


def _type_of(pool: Pool, function: PciFunction) -> MdevType | None:
    return next((kind for kind in function.mdev_types if kind.name == pool.type), None)


def _is_of_type(pool: Pool, function: PciFunction) -> bool:
    """Of NVIDIA's own virtual functions, only those for which the pool's type was chosen are anything to give away."""
    if function.vgpu_type is None:
        return pool.type is None and not function.mdev_types
    return pool.type is not None and str(function.vgpu_type) == pool.type


def _why_not(pool: Pool, function: PciFunction, inventory: Inventory) -> str:
    """Why a virtual function cannot be given away; empty when it can."""
    if function.address in inventory.needed_by_host:
        return f"{function.short_address} is needed by the host: {inventory.needed_by_host[function.address]}"
    if function.iommu_group is None:
        return f"{function.short_address} is in no IOMMU group: gpuyard host check says what to switch on"
    group = inventory.groups()[function.iommu_group]
    beside = [member.short_address for member in group if member is not function and not member.is_bridge]
    if beside:
        return f"{function.short_address} shares its IOMMU group with {', '.join(beside[:3])}"
    return ""


def _other_owner(site: Site, host: str, name: str, function: PciFunction, owners: dict[str, str]) -> str:
    """The pool that has the function already, or the whole card; empty when none."""
    owner = owners.setdefault(function.address, name)
    whole = None if function.is_virtual else pool_of(site, host, function)
    return whole or (owner if owner != name else "")


def _claimed_twice(name: str, host: str, function: PciFunction, owner: str) -> Problem:
    message = (
        f"claims {function.address} on {host} ({function.ids}), which pool {owner!r} claims too; leave the model out "
        "of one of them, or give both different 'hosts'"
    )
    return Problem(("pools", name), message)


def _type_twice(name: str, host: str, pool: Pool, other: str) -> Problem:
    message = (
        f"{pool.type} on {host} is of pool {other!r} too, and Nova has one resource class for each mdev type of a "
        "host; make one pool of both, or give both different 'hosts'"
    )
    return Problem(("pools", name, "type"), message)
