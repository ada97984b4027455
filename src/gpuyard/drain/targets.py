"""Finds capacity for servers on other hosts, and reckons what is left there once they have moved.

Capacity in Placement is not enough for a server with GPUs. Nova claims the devices of a server that it migrates or
evacuates by the ids of its alias alone, and forgets which of them Placement has allocated (nova 34.0.0 and 2026's
master, compute/resource_tracker.py `_move_claim`, pci/stats.py `ignored_spec_tags`; a create and an unshelve do not
forget). It may take one that Placement keeps back: the server ends in ERROR. It may take a peer for a lone GPU: two
servers in one IOMMU group. And where it takes another one that is free, Placement counts both for the server. So a host
is a target only where each idle device of these ids is as good as any other, and one without any to spare comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice, HostResources
from gpuyard.diagnosis.capacity.packing import can_be
from gpuyard.diagnosis.capacity.reckon import Bootable, Reckoning, Statuses
from gpuyard.diagnosis.why.facts import Asker
from gpuyard.drain.facts import GuestServer, KeptTime
from gpuyard.model.gpu import Gpu, GpuState
from gpuyard.nova.request import DeviceNeed, Request, request_of


@dataclass(frozen=True)
class HostPlace:
    """A host as a target for a server."""

    host: str
    why_not: str = ""
    """Empty: it has room."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that are set aside for the server; Nova may choose others that are as good."""
    kept: tuple[KeptTime, ...] = ()
    """Bookings and holds, where they alone are in the way."""


SET_ASIDE = "set aside for "
"""Begins the reason of a GPU that a server of the same plan gets."""


class Space:
    """The capacity of the other hosts, which gets less as servers are given some."""

    def __init__(
        self, resources: CloudResources, statuses: Statuses, source: str, kept_times: Iterable[KeptTime]
    ) -> None:
        """`kept_times`: what is in the way of any server that comes now."""
        whole = Reckoning(resources, statuses).room  # with the units of devices that servers share
        self._statuses = statuses
        self._open = replace(whole, hosts=tuple(host for host in whole.hosts if host.node.name != source))
        self._kept: dict[str, list[KeptTime]] = {}
        for kept_time in kept_times:
            for gpu in kept_time.gpus:
                self._kept.setdefault(gpu, []).append(kept_time)
        self._room = replace(self._open, hosts=tuple(map(self._without_kept, self._open.hosts)))

    @property
    def hosts(self) -> list[str]:
        return [host.node.name for host in self._room.hosts]

    def ask(self, server: GuestServer) -> list[HostPlace]:
        """Return every host that has GPUs of the kind, or for a server without any every host: those with capacity
        first, and of those the one with the fewest booked GPUs, then one without a GPU to spare, then the fullest."""
        places = [place for host in self._room.hosts if (place := self._place(server, host)) is not None]
        return sorted(places, key=lambda place: (bool(place.why_not), *self._rank(server, place), place.host))

    def take(self, server: GuestServer, place: HostPlace) -> None:
        """Set the capacity aside that the server takes there."""
        request = self._request(server)

        def less(resources: CloudResources) -> CloudResources:
            hosts = (_taken(h, request, place.gpus) if h.node.name == place.host else h for h in resources.hosts)
            return replace(resources, hosts=tuple(hosts))

        self._room, self._open = less(self._room), less(self._open)
        why = f"{SET_ASIDE}{server.name}"
        set_aside = {
            gpu: replace(self._statuses[gpu], state=GpuState.BOOKED, reason=why)
            for gpu in place.gpus
            if gpu in self._statuses
        }
        self._statuses = {**self._statuses, **set_aside}

    def _without_kept(self, host: HostResources) -> HostResources:
        return replace(host, devices=tuple(device for device in host.devices if device.provider not in self._kept))

    def _request(self, server: GuestServer) -> Request:
        request = request_of(server.flavor, self._room.aliases).with_devices(self._room.share_classes)
        return request if self._room.placed else request.without_devices()

    def _place(self, server: GuestServer, host: HostResources) -> HostPlace | None:
        name = host.node.name
        before = next(host for host in self._open.hosts if host.node.name == name)
        request = self._request(server)
        answer = self._answer(server, host)
        if answer.now is None:
            return HostPlace(name, f"{answer.doubts[-1]}, so nobody can say where it would start")
        if answer.where.get(name):
            gpus = choose(host.devices, request.devices)
            if fixed := [kept_time for kept_time in self._kept_of(before.devices, request.devices) if kept_time.fixed]:
                why = f"Nova chooses the GPU itself, and may take one that is {fixed[0]}"
                return HostPlace(name, why, kept=tuple(fixed))
            if gpus is not None and (trap := self._trap(before, request.devices)) is not None:
                return HostPlace(name, f"Nova chooses the GPU itself, and may take {trap.address}: {self._said(trap)}")
            if gpus is not None:
                return HostPlace(name, gpus=gpus)
        if before.devices != host.devices and self._answer(server, replace(host, devices=before.devices)).where:
            kept_times = self._kept_of(before.devices, request.devices)
            if kept_times:
                return HostPlace(name, f"the GPUs that are free there are {kept_times[0]}", kept=kept_times)
        reasons = [str(cause.payload["short"] or cause.reason) for cause in answer.causes]
        reasons += [rest.reason for rest in answer.others]
        return HostPlace(name, reasons[0]) if reasons else None

    def _trap(self, host: HostResources, needs: Sequence[DeviceNeed]) -> Gpu | None:
        """An idle GPU that Nova may claim for a server that it moves, and that Placement would not have given it; or
        one that is for another of its needs."""
        idle = self._idle(host, needs)
        usable = [device.provider for device in host.devices if any(_is_for(device, need) for need in needs)]
        traps = [gpu for gpu in idle if gpu.provider_name not in usable]
        if not traps and len({(need.resource_class, need.traits) for need in needs}) > 1 and len(idle) > len(needs):
            return idle[0]
        return min(traps, key=lambda gpu: gpu.place, default=None)

    def _idle(self, host: HostResources, needs: Sequence[DeviceNeed]) -> list[Gpu]:
        """Whole GPUs of the host that no server has, with the ids of those that the needs mean."""
        classes = {need.resource_class for need in needs}
        ids = {gpu.ids for gpu in self._room.gpus if gpu.resource_class in classes}
        mine = (gpu for gpu in self._room.gpus_of.get(host.node.name, ()) if gpu.ids in ids)
        return [gpu for gpu in mine if not gpu.is_unit and not gpu.blocked and self._is_idle(gpu)]

    def _is_idle(self, gpu: Gpu) -> bool:
        status = self._statuses.get(gpu.provider_name)
        if status is None or status.state in (GpuState.CLAIMED, GpuState.LOST):
            return False
        return not status.reason.startswith(SET_ASIDE)

    def _said(self, gpu: Gpu) -> str:
        status = self._statuses[gpu.provider_name]
        what = "leader or peer of a group" if status.state is GpuState.FREE else status.state.value
        return f"{what}{status.reason and f', {status.reason}'}"

    def _answer(self, server: GuestServer, host: HostResources) -> Bootable:
        # As the server carries it: what the cloud's flavor of that name is today does not matter, nor who may see it.
        flavor = replace(server.flavor, id=f"of {server.id}", public=True, disabled=False)
        asker = Asker(server.project_id, server.project)
        return Reckoning(replace(self._room, hosts=(host,)), self._statuses).of(flavor, asker)

    def _kept_of(self, devices: Iterable[FreeDevice], needs: Sequence[DeviceNeed]) -> tuple[KeptTime, ...]:
        meant = {device.provider for device in devices if any(_is_for(device, need) for need in needs)}
        return tuple(
            sorted(
                {kept_time for gpu in meant for kept_time in self._kept.get(gpu, ())},
                key=lambda kept_time: (kept_time.start, kept_time.id),
            )
        )

    def _rank(self, server: GuestServer, place: HostPlace) -> tuple[int, bool, int]:
        """Nova gives any GPU that fits: a host where that cannot be one that somebody has booked comes first, then one
        where there is no choice."""
        request = self._request(server)
        before = next(host for host in self._open.hosts if host.node.name == place.host)
        now = next(host for host in self._room.hosts if host.node.name == place.host)
        spare = len(self._idle(before, request.devices)) > len(request.devices)
        return len(self._kept_of(before.devices, request.devices)), spare, len(now.devices)


def choose(devices: Iterable[FreeDevice], needs: Sequence[DeviceNeed]) -> tuple[str, ...] | None:
    """Return a device of its own for each need, those first that fewest others can use; None when that cannot be."""
    ways = [
        [device.provider for device in sorted(devices, key=_plain) if can_be(device, need.resource_class, need.traits)]
        for need in needs
    ]
    holder: dict[str, int] = {}

    def place(index: int, tried: set[str]) -> bool:
        for provider in ways[index]:
            if provider not in tried:
                tried.add(provider)
                if provider not in holder or place(holder[provider], tried):
                    holder[provider] = index
                    return True
        return False

    if not all(place(index, set()) for index in sorted(range(len(needs)), key=lambda index: len(ways[index]))):
        return None
    return tuple(provider for provider, _ in sorted(holder.items(), key=lambda item: item[1]))


def _is_for(device: FreeDevice, need: DeviceNeed) -> bool:
    return can_be(device, need.resource_class, need.traits)


def _plain(device: FreeDevice) -> tuple[int, str]:
    """A leader also serves pairs, so it goes last."""
    return len(device.traits), device.provider


def _taken(host: HostResources, request: Request, gpus: Sequence[str]) -> HostResources:
    stocks = dict(host.node.rooms or {})
    for name, needs in request.amounts.items():
        if name in stocks and (has := stocks[name]) is not None:
            stocks[name] = replace(has, used=has.used + needs)
    left = tuple(device for device in host.devices if device.provider not in gpus)
    return HostResources(replace(host.node, rooms=stocks), host.traits, left)
