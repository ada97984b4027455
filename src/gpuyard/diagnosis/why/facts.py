"""The facts that an explanation is made from, and the parts of an explanation; ``diagnosis/why/read.py`` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.model.finding import Finding, Severity
from gpuyard.model.world import Stock
from gpuyard.nova.request import NovaFlavor


def obstacle(
    code: str, reason: str, remedy: str, details: Sequence[Mapping[str, object]] = (), short: str = ""
) -> Finding:
    """Return a cause: one thing that stands in the way, and its remedy. The code is one of those in
    docs/how-to/why-no-valid-host.md. `details`: of ``gpu`` the GPUs, of ``room`` and ``quota`` the numbers. `short`:
    for the first line of the answer, where the reason is too long for one."""
    return Finding(code, Severity.ERROR, "", reason, remedy, {"details": list(details), "short": short})


@dataclass(frozen=True)
class HostStock(Stock):
    """The amount that a host has of one resource class, as Placement counts it."""

    used: int = 0

    @property
    def capacity(self) -> int:
        """The amount that all servers together may have."""
        return int((self.total - self.reserved) * self.ratio)

    @property
    def free(self) -> int:
        return self.capacity - self.used


@dataclass(frozen=True)
class Device:
    """A GPU that one of the flavor's aliases means, or a provider that the site does not know and that would do."""

    provider: str
    host: str
    address: str
    resource_class: str
    traits: frozenset[str]
    """Of the site's device_spec."""
    state: str
    """A state of ``gpuyard gpu list``; ``taken`` where its holder was not asked for; ``foreign`` of a provider that
    the site does not know."""
    reason: str = ""
    server: str = ""
    """Id of the server, or other consumer, that holds it."""
    orphan: bool = False
    """That consumer is no server of the host."""
    booking: str = ""
    """Id of the booking or hold that keeps it."""
    device_type: str | None = None
    """As recorded on its host."""
    stranded: tuple[str, ...] = ()
    """Addresses of its peers that are free and cannot be had without it."""


@dataclass(frozen=True)
class RunningServer:
    """A server on a host, and the resources that it would give back."""

    id: str
    name: str
    status: str
    project: str
    user: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    """Of its host."""
    project_id: str = ""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Of its project's limits, by the names of these."""


@dataclass(frozen=True)
class ComputeNode:
    """One hypervisor."""

    name: str
    """As Placement knows it."""
    provider: str
    """Id of its root provider."""
    service_host: str = ""
    """As Nova's services and aggregates know it."""
    has_service: bool = True
    up: bool = True
    enabled: bool = True
    forced_down: bool = False
    silent: bool = False
    """Its cell of Nova does not answer: of its service and servers nothing is known."""
    disabled_reason: str = ""
    zone: str = ""
    hypervisor_type: str = ""
    numa_nodes: int | None = None
    """As recorded; None when the site has no recording of it."""
    rooms: Mapping[str, HostStock | None] | None = None
    """By resource class, None for one that it does not report; None when it was not looked at closer."""
    servers: tuple[RunningServer, ...] | None = None
    kept: Mapping[str, int] = field(default_factory=dict)
    """Class of servers without GPUs -> what the site's ``reserve`` of the host keeps from them."""


@dataclass(frozen=True)
class HostAggregate:
    """A host aggregate of Nova."""

    name: str
    hosts: frozenset[str]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Limit:
    """A limit of one project on one resource; -1 is no limit."""

    resource: str
    limit: int
    used: int
    own: bool
    """The project's own, and not the registered one of every project."""
    registered: bool = True
    """False: Keystone has no limit of this name, and Nova then gives nobody any."""


@dataclass(frozen=True)
class Asker:
    """The project in whose name the server would be asked for."""

    id: str
    name: str
    limits: tuple[Limit, ...] = ()


NeedKey = tuple[str, frozenset[str]]
"""A resource class and the traits that go with it."""


@dataclass(frozen=True)
class RequestFacts:
    """The facts that were read for one request."""

    flavor: NovaFlavor
    hosts: tuple[ComputeNode, ...]
    devices: tuple[Device, ...] = ()
    able: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """Resource class and amount -> ids of the hosts' root providers, and of sharing ones, that have it."""
    sharing: frozenset[str] = frozenset()
    """Ids of providers that share what they have with hosts (MISC_SHARES_VIA_AGGREGATE)."""
    able_devices: Mapping[NeedKey, frozenset[str]] = field(default_factory=dict)
    """Class and traits -> names of providers of which one device can be had."""
    with_trait: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Trait -> ids of root providers that have it."""
    unknown_classes: frozenset[str] = frozenset()
    """Resource classes that Placement has never heard of."""
    unknown_traits: frozenset[str] = frozenset()
    candidates: frozenset[str] | None = None
    """Ids of the root providers that Placement would give the whole request to; None when it was not asked."""
    candidates_error: str = ""
    """Placement's error, where it gave no answer."""
    aggregates: tuple[HostAggregate, ...] = ()
    asker: Asker | None = None
    zone: str | None = None
    """The availability zone that is asked for."""
    filters: frozenset[str] = frozenset()
    """The scheduler's filters that the site switches on."""
    isolated_aggregates: bool = False
    """``[scheduler]enable_isolated_aggregate_filtering`` of the site."""
    counts_devices: bool = True
    """Whether this release of Nova counts PCI devices against limits."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Resource class of GPUs, or one that counts them -> the site's pool."""
    pool_sizes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Host and pool -> how many GPUs of the pool the site file has there, whatever their class."""
    counting: frozenset[str] = frozenset()
    """Resource classes of hosts that only count their GPUs; they are short when the GPUs are."""
    site_limits: Mapping[str, int] = field(default_factory=dict)
    """Resource -> the limit that the project has once the site file is applied; only what the site file states."""
    bookable: bool = False
    """GPUs can be booked: limits on them follow bookings, not the site file."""
    ledger_known: bool = False
    """It was asked which bookings and holds keep GPUs."""
    gpu_hosts: frozenset[str] | None = None
    """The hosts with GPUs of the pools that are asked, where Placement does not decide about GPUs; None where it does,
    or where the site knows no such pool."""
    calls: int = 0


@dataclass(frozen=True)
class Action:
    """An action of an operator or a user."""

    kind: str
    """A stable word: ``delete-server``, ``enable-service``, ``raise-limit`` ..."""
    text: str
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Remedy:
    """Actions that make a server fit on one host, all of them."""

    host: str
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class HostAnswer:
    """One host: whether a server would start there, or all that stands in the way."""

    host: str
    causes: tuple[Finding, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.causes


@dataclass(frozen=True)
class Explanation:
    """The answer, with causes, hosts and remedies."""

    flavor: str
    project: str | None
    answer: str
    """One line."""
    causes: tuple[Finding, ...]
    """The obstacles on every host: the flavor, the project."""
    hosts: tuple[HostAnswer, ...]
    others: tuple[str, ...] = ()
    """Hosts that have no GPU of the kind that is asked, whatever else."""
    first: tuple[Action, ...] = ()
    """Actions that are needed wherever the server is to run."""
    remedies: tuple[Remedy, ...] = ()
    """Then one of these, cheapest first; none are needed when a host has room."""
    doubts: tuple[str, ...] = ()
    """Things that may still stand in the way of this flavor."""
    not_looked_at: tuple[str, ...] = ()
    gpus_looked_at: bool = True
    """False where the flavor asks for GPUs and Placement does not decide about them."""
    calls: int = 0

    @property
    def where(self) -> tuple[str, ...]:
        """The hosts that would take a server, limits and the flavor apart."""
        return tuple(answer.host for answer in self.hosts if answer.fits)

    @property
    def would_start(self) -> bool:
        return not self.causes and bool(self.where)
