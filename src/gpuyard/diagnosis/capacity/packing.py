"""Counts how many servers of one flavor a host takes one after the other, whichever devices Nova gives to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuyard.diagnosis.capacity.facts import FreeDevice, HostResources
from gpuyard.diagnosis.why.causes import unmet
from gpuyard.diagnosis.why.facts import Limit
from gpuyard.nova.request import PINNED, SHARED, DeviceNeed, Request

ENOUGH = 10**6
"""More than any host takes."""


def on_host(host: HostResources, request: Request) -> int:
    """Return the count for a host without any other obstacle. Resources that all servers share on it, and its devices,
    each bound it; what providers share with several hosts is not counted here."""
    stocks = host.node.rooms or {}
    bounds = [
        rooms_for(host, name, needs) for name, needs in request.amounts.items() if name in stocks or name == PINNED
    ]
    count = min([ENOUGH, *bounds, on_devices(host.devices, request.devices)])
    return min(count, 1) if request.groups else count  # groups may draw on each other's providers


def rooms_for(host: HostResources, name: str, needs: int) -> int:
    """Return how many times an amount of a class is left on a host."""
    stocks = host.node.rooms or {}
    stock = stocks.get(name) or (stocks.get(SHARED) if name == PINNED else None)
    return max(0, stock.free) // needs if stock is not None else 0


def on_devices(devices: Iterable[FreeDevice], needs: tuple[DeviceNeed, ...]) -> int:
    """Return how many servers get all their devices. Where two needs of one server mean some of the same devices, Nova
    may give the first the last device of the second: then only servers are counted that no choice of Nova's can spoil,
    and one server that Placement finds a way for."""
    kinds = Counter((need.resource_class, need.traits) for need in needs)
    if not kinds:
        return ENOUGH
    devices = list(devices)
    meant = {
        kind: {device.provider: device.left[kind[0]] for device in devices if can_be(device, *kind)} for kind in kinds
    }
    sure = min(
        sum(able.values())
        // sum(count for other, count in kinds.items() if other == kind or meant[other].keys() & able)
        for kind, able in meant.items()
    )
    if sure:
        return sure
    choices = [
        [f"{name} {number}" for name, left in meant[need.resource_class, need.traits].items() for number in range(left)]
        for need in needs
    ]
    return 0 if unmet(choices) else 1


def can_be(device: FreeDevice, resource_class: str, traits: frozenset[str]) -> bool:
    """Return whether a device fits a need."""
    return device.left.get(resource_class, 0) > 0 and traits <= device.traits


def shared_bound(shared: Mapping[str, Mapping[str, int]], lacking: Iterable[str], request: Request) -> int:
    """Return for how many servers the resources shared between hosts suffice, of the classes that hosts do not have
    themselves."""
    bounds = [
        sum(max(0, has.get(name, 0)) // request.amounts[name] for has in shared.values()) for name in set(lacking)
    ]
    return min([ENOUGH, *bounds])


def under_limits(limits: Iterable[Limit], counted: Mapping[str, int]) -> int:
    """Return how many servers the limits of a project let in; `counted`: what one adds to each."""
    bounds = [
        max(0, item.limit - item.used) // counted[item.resource]
        for item in limits
        if item.limit >= 0 and counted.get(item.resource)
    ]
    return min([ENOUGH, *bounds])
