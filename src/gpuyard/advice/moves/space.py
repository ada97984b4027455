"""Where a server would find room, host by host; and what is left there once it has moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuyard.advice.bootable.facts import CloudRoom, FreeDevice, HostRoom
from gpuyard.advice.bootable.packing import can_be
from gpuyard.advice.bootable.reckon import Bootable, Reckoning, Statuses
from gpuyard.advice.moves.facts import GuestServer, KeptTime
from gpuyard.advice.why.facts import Asker
from gpuyard.model.gpu import GpuState
from gpuyard.nova.request import DeviceNeed, Request, request_of


@dataclass(frozen=True)
class HostPlace:
    """What a host says to a server."""

    host: str
    why_not: str = ""
    """Empty: it has room."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that are set aside for the server; Nova may choose others that are as good."""
    kept: tuple[KeptTime, ...] = ()
    """Where bookings and holds alone are in the way: these."""


class Space:
    """Room on the other hosts, which gets less as servers are given some."""

    def __init__(self, room: CloudRoom, statuses: Statuses, source: str, kept: Iterable[KeptTime]) -> None:
        """`kept`: what is in the way of any server that comes now."""
        whole = Reckoning(room, statuses).room  # with the units of devices that servers share
        self._statuses = statuses
        self._open = replace(whole, hosts=tuple(host for host in whole.hosts if host.node.name != source))
        self._kept: dict[str, list[KeptTime]] = {}
        for one in kept:
            for gpu in one.gpus:
                self._kept.setdefault(gpu, []).append(one)
        self._room = replace(self._open, hosts=tuple(map(self._without_kept, self._open.hosts)))

    @property
    def hosts(self) -> list[str]:
        return [host.node.name for host in self._room.hosts]

    def ask(self, server: GuestServer) -> list[HostPlace]:
        """Every host that has GPUs of the kind, or of a server without any every host: those with room first, and of
        those the one whose GPUs nobody has booked, then the fullest."""
        found = [place for host in self._room.hosts if (place := self._place(server, host)) is not None]
        return sorted(found, key=lambda place: (bool(place.why_not), *self._rank(server, place), place.host))

    def take(self, server: GuestServer, place: HostPlace) -> None:
        """The server will be there."""
        request = self._request(server)

        def less(room: CloudRoom) -> CloudRoom:
            hosts = (_taken(h, request, place.gpus) if h.node.name == place.host else h for h in room.hosts)
            return replace(room, hosts=tuple(hosts))

        self._room, self._open = less(self._room), less(self._open)
        why = f"set aside for {server.name}"
        set_aside = {
            gpu: replace(self._statuses[gpu], state=GpuState.BOOKED, reason=why)
            for gpu in place.gpus
            if gpu in self._statuses
        }
        self._statuses = {**self._statuses, **set_aside}

    def _without_kept(self, host: HostRoom) -> HostRoom:
        return replace(host, devices=tuple(one for one in host.devices if one.provider not in self._kept))

    def _request(self, server: GuestServer) -> Request:
        found = request_of(server.flavor, self._room.aliases).with_devices(self._room.share_classes)
        return found if self._room.placed else found.without_devices()

    def _place(self, server: GuestServer, host: HostRoom) -> HostPlace | None:
        name = host.node.name
        before = next(one for one in self._open.hosts if one.node.name == name)
        request = self._request(server)
        answer = self._answer(server, host)
        if answer.now is None:
            return HostPlace(name, f"{answer.doubts[-1]}, so nobody can say where it would start")
        if answer.where.get(name):
            gpus = choose(host.devices, request.devices)
            if fixed := [one for one in self._kept_of(before.devices, request.devices) if one.fixed]:
                why = f"Nova chooses the GPU itself, and may take one that is {fixed[0]}"
                return HostPlace(name, why, kept=tuple(fixed))
            if gpus is not None:
                return HostPlace(name, gpus=gpus)
        if before.devices != host.devices and self._answer(server, replace(host, devices=before.devices)).where:
            kept = self._kept_of(before.devices, request.devices)
            if kept:
                return HostPlace(name, f"the GPUs that are free there are {kept[0]}", kept=kept)
        said = [str(cause.payload["short"] or cause.reason) for cause in answer.causes]
        said += [rest.reason for rest in answer.others]
        return HostPlace(name, said[0]) if said else None

    def _answer(self, server: GuestServer, host: HostRoom) -> Bootable:
        # As the server carries it: what the cloud's flavor of that name is today does not matter, nor who may see it.
        flavor = replace(server.flavor, id=f"of {server.id}", public=True, disabled=False)
        asker = Asker(server.project_id, server.project)
        return Reckoning(replace(self._room, hosts=(host,)), self._statuses).of(flavor, asker)

    def _kept_of(self, devices: Iterable[FreeDevice], needs: Sequence[DeviceNeed]) -> tuple[KeptTime, ...]:
        meant = {
            one.provider for one in devices if any(can_be(one, need.resource_class, need.traits) for need in needs)
        }
        return tuple(
            sorted({kept for gpu in meant for kept in self._kept.get(gpu, ())}, key=lambda kept: (kept.start, kept.id))
        )

    def _rank(self, server: GuestServer, place: HostPlace) -> tuple[int, int]:
        """Nova gives any GPU that fits: a host where that cannot be one that somebody has booked comes first."""
        request = self._request(server)
        before = next(one for one in self._open.hosts if one.node.name == place.host)
        now = next(one for one in self._room.hosts if one.node.name == place.host)
        return len(self._kept_of(before.devices, request.devices)), len(now.devices)


def choose(devices: Iterable[FreeDevice], needs: Sequence[DeviceNeed]) -> tuple[str, ...] | None:
    """A device of its own for each need, those first that fewest others can use; None when that cannot be."""
    ways = [
        [one.provider for one in sorted(devices, key=_plain) if can_be(one, need.resource_class, need.traits)]
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
    return tuple(provider for provider, _ in sorted(holder.items(), key=lambda one: one[1]))


def _plain(device: FreeDevice) -> tuple[int, str]:
    """A leader also serves pairs, so it goes last."""
    return len(device.traits), device.provider


def _taken(host: HostRoom, request: Request, gpus: Sequence[str]) -> HostRoom:
    rooms = dict(host.node.rooms or {})
    for name, needs in request.amounts.items():
        if name in rooms and (has := rooms[name]) is not None:
            rooms[name] = replace(has, used=has.used + needs)
    left = tuple(one for one in host.devices if one.provider not in gpus)
    return HostRoom(replace(host.node, rooms=rooms), host.traits, left)
