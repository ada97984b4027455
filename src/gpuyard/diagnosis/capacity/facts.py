"""The facts that answers are reckoned from, of one read of a cloud by ``diagnosis/capacity/read.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from gpuyard.diagnosis.why.facts import ComputeNode, HostAggregate
from gpuyard.model.gpu import Gpu, GpuKind
from gpuyard.nova.alias import Alias
from gpuyard.nova.request import NovaFlavor


@dataclass(frozen=True)
class FreeDevice:
    """A PCI device of which a server can have one now, as far as Placement decides."""

    provider: str
    """Its name."""
    left: Mapping[str, int]
    """Class -> how many can be had of it; a GPU is one."""
    traits: frozenset[str]


@dataclass(frozen=True)
class HostResources:
    """A hypervisor, and its free resources and devices."""

    node: ComputeNode
    """With `rooms` of all classes that it reports; None where it has no RAM left, which nobody looks beyond."""
    traits: frozenset[str] = frozenset()
    devices: tuple[FreeDevice, ...] = ()


@dataclass(frozen=True)
class CloudResources:
    """The facts that do not depend on the project that asks. Reading them takes a bounded number of calls."""

    taken_at: datetime
    flavors: tuple[NovaFlavor, ...]
    """All of the cloud, private ones with the projects that may use them; by name."""
    hosts: tuple[HostResources, ...]
    gpus: tuple[Gpu, ...]
    """Of the site."""
    reported: frozenset[str] = frozenset()
    """Resource classes that some provider has, as far as it was looked at."""
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    placed: bool = True
    """Placement decides about GPUs; else nobody can see from outside which are free."""
    sharing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Id of a provider that shares what it has with hosts -> class -> how much is left."""
    aggregates: tuple[HostAggregate, ...] = ()
    filters: frozenset[str] = frozenset()
    isolated_aggregates: bool = False
    counts_devices: bool = True
    pools: Mapping[str, str] = field(default_factory=dict)
    """Resource class of GPUs, or one that counts them -> the site's pool."""
    counting: frozenset[str] = frozenset()
    site_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Project's name, empty for every other one -> resource -> the limit that the site file states."""
    bookable: bool = False
    calls: int = 0

    @cached_property
    def share_classes(self) -> frozenset[str]:
        """Resource classes of shares, which flavors ask for by themselves."""
        return frozenset(gpu.resource_class for gpu in self.gpus if gpu.kind is GpuKind.VGPU)

    @cached_property
    def gpus_of(self) -> Mapping[str, tuple[Gpu, ...]]:
        """The site's GPUs by host."""
        gpus_by_host: dict[str, list[Gpu]] = {}
        for gpu in self.gpus:
            gpus_by_host.setdefault(gpu.host, []).append(gpu)
        return {host: tuple(gpus) for host, gpus in gpus_by_host.items()}
