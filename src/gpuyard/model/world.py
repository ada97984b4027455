"""Snapshot of the cloud at one moment, which the ledger and the planners work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Collection, FrozenSet, Mapping, Optional, Tuple

DOMAIN = "default"
"""Id of the Keystone domain that a site's projects are in."""


IMAGE_DRIVER_KEY = "gpuyard_driver"
"""Property of an image with the branch of NVIDIA's driver in it."""
SITE_KEY = "gpuyard_site"
"""Metadata key of a server that gpuyard itself has started; its value is the site."""
AGENT_WORD = "gpuyard_agent"
"""Metadata key of a server with the task of the agent in its guest (docs/how-to/what-the-agent-sends.md)."""


@dataclass(frozen=True)
class Provider:
    """A resource provider of Placement: a host, or one PCI device below it."""

    id: str
    name: str
    root_id: str
    parent_id: Optional[str] = None


@dataclass(frozen=True)
class Stock:
    """A provider's inventory of one resource class."""

    total: int
    reserved: int = 0
    ratio: float = 1.0
    max_unit: int = 2**31 - 1


class WhyNot(str, Enum):
    """Why a GPU that Placement would not give away cannot be had."""

    CONSUMER = "consumer"
    """Somebody has it, whether it is reserved or not: it is claimed."""
    OTHER_CLASS = "other class"
    RESERVED = "reserved"
    FREED = "freed"
    """It can be had after all: it was given back while the cloud was looked at."""


def why_not(resource_class: str, stock: Mapping[str, Stock], consumers: Collection[str]) -> WhyNot:
    """Decide why a GPU cannot be had, from its provider's inventories (by class) and consumers."""
    if consumers:
        return WhyNot.CONSUMER
    mine = stock.get(resource_class)
    if mine is None:
        return WhyNot.OTHER_CLASS
    return WhyNot.RESERVED if mine.reserved >= mine.total else WhyNot.FREED


@dataclass(frozen=True)
class Server:
    """A server of any project, with the names that people know."""

    id: str
    name: str
    status: str
    host: Optional[str]
    project: str
    user: str
    flavor: str
    created: Optional[datetime] = None
    launched: Optional[datetime] = None
    user_id: str = ""
    project_id: str = ""
    task: str = ""
    """Nova's present task with it; empty when none."""
    agent: str = ""
    """The agent's entry in its metadata (AGENT_WORD)."""
    fault: str = ""
    """The reason why it is in ERROR, in Nova's words; for admins with the details."""


@dataclass(frozen=True)
class HostService:
    """The nova-compute of a host."""

    host: str
    up: bool
    enabled: bool
    disabled_reason: str = ""
    zone: str = ""
    forced_down: bool = False
    silent: bool = False
    """Whether its cell of Nova does not answer: nothing is known of it or of the servers there. It counts as neither up
    nor enabled, and is not known to be down."""

    @property
    def unheard(self) -> str:
        """The text about one that is silent."""
        return (
            f"the cell of Nova that {self.host} is in does not answer: of its nova-compute and servers nothing is known"
        )


@dataclass(frozen=True)
class Snapshot:
    """Everything about GPUs that OpenStack knows, read in a bounded number of calls."""

    taken_at: datetime
    """UTC, before the first call."""
    providers: Mapping[str, Provider]
    """Providers by name."""
    allocatable: FrozenSet[str]
    """Names of GPU providers that Placement would give away now."""
    holders: Mapping[str, str]
    """Name of a GPU provider -> id of the server (or other consumer) that has it allocated."""
    reserved: FrozenSet[str]
    """Names of GPU providers whose inventory is reserved: held by an operator, or waiting to be scrubbed."""
    roomy_hosts: Mapping[str, FrozenSet[str]]
    """Pool -> hosts with CPU, RAM and disk left for at least one flavor of the pool."""
    servers: Mapping[str, Server]
    """Servers that have GPUs, by id."""
    services: Mapping[str, HostService] = field(default_factory=dict)
    """The nova-compute services, by host."""
    calls: int = 0
    """API requests this snapshot took."""
    unexplained: Mapping[str, str] = field(default_factory=dict)
    """Name of a GPU provider that can neither be had nor is held or reserved -> what is odd about it."""
    left_behind: Mapping[str, str] = field(default_factory=dict)
    """Name of a GPU provider -> id of the server that left it: Placement counts it for that server still, which runs on
    another host now. Nobody can have it until that allocation is taken away."""
    residents: Optional[Mapping[str, Tuple[Server, ...]]] = None
    """Host of the site -> all servers on it, with GPUs or without, whatever their status; without `silent_hosts`. None:
    not read."""
    clock: datetime | None = None
    """The time of the cloud's clock at `taken_at`, by an answer of its own; None where it did not say."""

    @cached_property
    def silent_hosts(self) -> FrozenSet[str]:
        """Hosts whose cell of Nova does not answer: the snapshot has no server of theirs, and that says nothing
        about them."""
        return frozenset(host for host, service in self.services.items() if service.silent)
