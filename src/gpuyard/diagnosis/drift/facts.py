"""The cloud as it is seen from outside at one moment, for drift and for a roll-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpuyard.model.world import HostService, Stock
from gpuyard.nova.server_states import MigrationSeen, is_settled
from gpuyard.site.objects import SeenObjects


@dataclass(frozen=True)
class HostSeen:
    """A host of the site, as Nova and Placement have it. Amounts by resource class."""

    name: str
    provider: str | None = None
    """Id of its provider in Placement; None when Placement has none of that name."""
    service: HostService | None = None
    stock: Mapping[str, Stock] = field(default_factory=dict)
    consumers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Id of a consumer -> what it has of the host's own provider; the GPUs are other providers."""
    site_trait: bool = False


@dataclass(frozen=True)
class DeviceSeen:
    """The provider of a PCI device, below that of a host."""

    name: str
    id: str
    host: str
    """Name of its host's provider."""
    classes: frozenset[str] = frozenset()
    """Resource classes that it is known to have: it could give one, or has given one, or was looked at."""
    traits: frozenset[str] = frozenset()
    """Of those that the site means something by."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Id of a consumer -> how much of the device it has."""
    free: bool = False
    """Placement would give one of it away now."""
    stock: Mapping[str, Stock] | None = None
    """By class; None when nothing about it gave reason to ask."""
    one_time_use: bool = False
    """Nova reserves it when a server gets it. Only known where the site has pools with that."""

    @property
    def address(self) -> str:
        return self.name.removeprefix(f"{self.host}_").lower()


@dataclass(frozen=True)
class ServerSeen:
    """A server of any project, whose cell of Nova answers. `vcpus`, `ram` (MiB), `disk` (GiB) are its flavor's."""

    id: str
    name: str
    status: str
    task: str | None
    host: str | None
    project: str
    """Id."""
    flavor: str
    specs: Mapping[str, str] = field(default_factory=dict)
    """Extra specs that its flavor had when it got it."""
    fault: str = ""

    @property
    def settled(self) -> bool:
        return is_settled(self.status, self.task)

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


@dataclass(frozen=True)
class Stranger:
    """A consumer that is none of the servers that were listed."""

    id: str
    exists: bool
    """Nova has a server of that id after all: it came while the cloud was looked at, or was deleted softly."""
    type: str
    """As Placement has it; Nova gives none, and Placement then says 'unknown'."""
    generation: int | None
    amounts: Mapping[str, Mapping[str, int]]
    """Id of a provider -> class -> amount."""


@dataclass(frozen=True)
class Root:
    """A provider that is nobody's child, with what is below it."""

    id: str
    name: str
    children: tuple[tuple[str, str], ...] = ()
    """Ids and names of all providers below it, deepest last as far as Placement says."""
    used: bool = True
    """Something is allocated on one of them; only known of roots that are left over."""


@dataclass(frozen=True)
class World:
    """The cloud at one moment, as an administrator sees it."""

    objects: SeenObjects
    hosts: Mapping[str, HostSeen]
    """Of the site, by name."""
    devices: Mapping[str, DeviceSeen]
    """Every PCI device that Nova manages in Placement, by name of its provider."""
    servers: Mapping[str, ServerSeen]
    """By id, all of the cloud."""
    migrations: Mapping[str, MigrationSeen] = field(default_factory=dict)
    """By id. Empty when no consumer made it needful to ask."""
    strangers: Mapping[str, Stranger] = field(default_factory=dict)
    services: Mapping[str, HostService] = field(default_factory=dict)
    """Every nova-compute, by host."""
    unknown_hosts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Name of a root provider that is no host of the site -> classes and traits of the site that it has."""
    leftovers: tuple[Root, ...] = ()
    """Roots that no nova-compute has, and that have the name of a host of the site or its classes."""
    shares: Mapping[str, Mapping[str, Stock]] = field(default_factory=dict)
    """Of the site's devices that servers share, by name of their provider: what Placement has of them, by class. Those
    that it does not have are left out."""
    mirrored: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Aggregate -> names of the providers that Placement has in it."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Id -> name of the images that ask for the site's trait."""
    usages: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Name of a project -> class -> amount that it uses."""
    silent_cells: bool = False
    """A cell of Nova does not answer: there are servers of which nothing is known."""
    microversion: str = ""
    """The newest that Nova's API speaks."""
    calls: int = 0

    def server_behind(self, consumer: str) -> str:
        """Return the server that a consumer stands for: itself, or the one that a migration moves."""
        migration = self.migrations.get(consumer)
        return migration.server if migration else consumer

    def called(self, consumer: str) -> str:
        """Describe a consumer for people."""
        if consumer in self.servers:
            return f"server {self.servers[consumer]}"
        migration = self.migrations.get(consumer)
        if migration:
            return f"migration {consumer} ({migration.status}) of server {migration.server}"
        return f"consumer {consumer}"

    @cached_property
    def devices_of(self) -> dict[str, list[DeviceSeen]]:
        """The PCI devices that consumers have, by their ids."""
        devices_by_consumer: dict[str, list[DeviceSeen]] = {}
        for device in self.devices.values():
            for consumer in device.holders:
                devices_by_consumer.setdefault(consumer, []).append(device)
        return devices_by_consumer
