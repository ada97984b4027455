"""The cloud as it was seen at one moment: what the ledger and the planners get to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import FrozenSet, Mapping, Optional


@dataclass(frozen=True)
class Provider:
    """A resource provider of Placement: a host, or one PCI device below it."""

    id: str
    name: str
    root_id: str


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
    """What Nova is doing with it; empty when nothing."""


@dataclass(frozen=True)
class HostService:
    """The nova-compute of a host."""

    host: str
    up: bool
    enabled: bool
    disabled_reason: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Everything about GPUs that OpenStack knows, read in a bounded number of calls."""

    taken_at: datetime
    """UTC, before the first call."""
    providers: Mapping[str, Provider]
    """By name."""
    allocatable: FrozenSet[str]
    """Names of GPU providers that Placement would give away now."""
    holders: Mapping[str, str]
    """Name of a GPU provider -> id of the server (or other consumer) that has it allocated."""
    reserved: FrozenSet[str]
    """Names of GPU providers whose inventory is reserved: held by an operator, or waiting to be scrubbed."""
    roomy_hosts: Mapping[str, FrozenSet[str]]
    """Pool -> hosts with CPU, RAM and disk left for at least one flavor of the pool."""
    servers: Mapping[str, Server]
    """By id: those that have GPUs."""
    services: Mapping[str, HostService] = field(default_factory=dict)
    """By host."""
    calls: int = 0
    """API requests this snapshot took."""
    unexplained: Mapping[str, str] = field(default_factory=dict)
    """Name of a GPU provider that can neither be had nor is held or reserved -> what is odd about it."""
