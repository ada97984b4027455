"""Reckons for each flavor that a project sees how many servers could start now, where, and why not more.

For each host that has GPUs of the flavor, the causes against it are found first, as ``gpuyard gpu why`` finds them; a
host without any counts as many servers as it has room for. Each other GPU of the pool gets the nearest reason. Only
then the project's limits are applied: they differ between projects, and all else is reckoned once for all of them,
unless aggregates are kept for certain projects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice, HostResources
from gpuyard.diagnosis.capacity.packing import ENOUGH, can_be, on_host, rooms_for, shared_bound, under_limits
from gpuyard.diagnosis.why.causes import candidates_of, of_flavor, of_host
from gpuyard.diagnosis.why.facts import Asker, Device, Limit, RequestFacts
from gpuyard.diagnosis.why.quota import of_project, uncounted
from gpuyard.diagnosis.why.words import WORDS
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.nova.request import PINNED, SHARED, NovaFlavor, Request, request_of
from gpuyard.site.encoding import slot_traits

Statuses = Mapping[str, GpuStatus]
"""States of GPUs by the names of their providers."""
MOST_REASONS = 12
"""Reasons that are given for one flavor; those that keep most back come first."""


@dataclass(frozen=True)
class KeptBack:
    """GPUs that no server of the flavor could have, and why."""

    code: str
    """A state of ``gpuyard gpu list``, or the kind of cause as in docs/how-to/why-no-valid-host.md, or ``peer``,
    ``left-over``."""
    reason: str
    gpus: int
    """0 of a flavor without GPUs."""
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Bootable:
    """The answer for one flavor and one project."""

    flavor: NovaFlavor
    pool: str
    """Of its GPUs; empty of a flavor without, or with GPUs that the site does not know."""
    gpus: int
    """The number that one server has."""
    whole: bool
    """It takes a whole IOMMU group."""
    now: int | None
    """Servers that would start, one after the other; None where nobody can know: Placement does not decide there."""
    where: Mapping[str, int]
    """Host -> how many it would take, limits of the project apart."""
    causes: tuple[Finding, ...] = ()
    """The obstacles to the next one wherever it would be: the flavor, the project's limits."""
    others: tuple[KeptBack, ...] = ()
    """The other GPUs of the pool, or of a flavor without GPUs the other hosts; those that are most first."""
    doubts: tuple[str, ...] = ()
    """Aspects that are not looked at, and may have Nova decide otherwise."""


@dataclass(frozen=True)
class _FlavorRoom:
    """Of one flavor, what does not depend on limits."""

    request: Request
    facts: RequestFacts
    where: Mapping[str, int]
    total: int
    others: tuple[KeptBack, ...]


class Reckoning:
    """Answers from one read of the cloud, for any number of projects. It keeps what it has reckoned; safe to use from
    several threads, which at worst reckon the same twice."""

    def __init__(self, resources: CloudResources, statuses: Statuses) -> None:
        """`statuses`: states of GPUs for the reasons; they may be from a moment before or after."""
        self.room = with_units(resources, statuses)
        self._statuses = statuses
        self._known: dict[tuple[str, str], _FlavorRoom] = {}
        self._requests: dict[str, Request] = {}

    @cached_property
    def resources(self) -> frozenset[str]:
        """The names of the limits that any flavor counts against."""
        return frozenset(name for flavor in self.room.flavors for name in self._request(flavor).counted(True))

    def all_of(self, asker: Asker | None) -> list[Bootable]:
        """Return the answer for every flavor that the project sees, with GPUs first, by pool and size; None sees all,
        without limits."""
        bootables = [self.of(flavor, asker) for flavor in self.room.flavors if _sees(flavor, asker)]
        return sorted(
            bootables,
            key=lambda bootable: (
                not bootable.gpus,
                bootable.pool,
                bootable.gpus,
                bootable.flavor.ram,
                bootable.flavor.name,
            ),
        )

    def of(self, flavor: NovaFlavor, asker: Asker | None) -> Bootable:
        mine = self._of_flavor(flavor, asker)
        # What was reckoned may have been for another project: only its limits differ.
        request, facts = mine.request, replace(mine.facts, asker=asker, site_limits=self._site_limits(asker))
        causes = of_flavor(facts, request)
        let_in = under_limits(asker.limits, request.counted(facts.counts_devices)) if asker else ENOUGH
        now = 0 if causes else min(mine.total, let_in)
        others = mine.others
        if asker and not causes and (let_in < mine.total or not let_in):
            limits = of_project(replace(facts, asker=_with(asker, request.counted(True), now)), request)
            code, reason = limits[0].code, limits[0].reason
            if now:  # that is how it would be then
                reason = f"with these, {limits[0].payload['short'] or reason}"
            else:
                causes = limits
            if mine.total > now:
                gpus = (mine.total - now) * len(request.devices)
                others = (KeptBack(code, reason, gpus, ()), *others)
        elif causes and mine.total:
            others = (KeptBack(causes[0].code, causes[0].reason, mine.total * len(request.devices), ()), *others)
        pools = {self.room.pools.get(need.resource_class, "") for need in (*request.devices, *request.unplaced)}
        return Bootable(
            flavor=flavor,
            pool=next(iter(pools)) if len(pools) == 1 else "",
            gpus=len(request.devices) + len(request.unplaced),
            whole=any(need.traits for need in request.devices),
            now=None if request.unplaced and now else now,
            where=mine.where,
            causes=tuple(causes),
            others=others[:MOST_REASONS],
            doubts=(*([uncounted(asker)] if asker and self._silent else []), *_doubts(request, mine.where)),
        )

    def _request(self, flavor: NovaFlavor) -> Request:
        if flavor.id not in self._requests:
            request = request_of(flavor, self.room.aliases).with_devices(self.room.share_classes)
            self._requests[flavor.id] = request if self.room.placed else request.without_devices()
        return self._requests[flavor.id]

    def _of_flavor(self, flavor: NovaFlavor, asker: Asker | None) -> _FlavorRoom:
        # Aggregates may be for certain projects; of the rest all projects have the same.
        key = flavor.id, asker.id if asker and self._tenants else ""
        if key not in self._known:
            self._known[key] = self._reckon(flavor, asker)
        return self._known[key]

    def _site_limits(self, asker: Asker | None) -> Mapping[str, int]:
        """Limits of a project by the site file, as in `RequestFacts`: resource -> limit."""
        return self.room.site_limits.get(asker.name if asker else "", self.room.site_limits.get("", {}))

    @cached_property
    def _silent(self) -> bool:
        return any(host.node.silent for host in self.room.hosts)

    @cached_property
    def _tenants(self) -> bool:
        return any(
            key.startswith("filter_tenant_id") for aggregate in self.room.aggregates for key in aggregate.metadata
        )

    def _reckon(self, flavor: NovaFlavor, asker: Asker | None) -> _FlavorRoom:
        resources, request = self.room, self._request(flavor)
        facts = RequestFacts(
            flavor=flavor, hosts=(), sharing=frozenset(resources.sharing), asker=asker, aggregates=resources.aggregates,
            filters=resources.filters, isolated_aggregates=resources.isolated_aggregates,
            counts_devices=resources.counts_devices,
            pools=resources.pools, counting=resources.counting, bookable=resources.bookable, ledger_known=True,
            unknown_classes=self._unknown(request),
        )  # fmt: skip
        if request.problems:
            return _FlavorRoom(request, facts, {}, 0, ())
        where: dict[str, int] = {}
        others = _Others()
        lacking: list[str] = []
        for host in self._with_gpus(request):
            mine = self._on(host, facts, request)
            meant = self._is_meant(mine, request, host.node.name)
            causes = of_host(mine, request, host.node) if meant else []
            count = on_host(host, request) if meant and not causes else 0
            if count:
                where[host.node.name] = count
                lacking += request.amounts.keys() - (host.node.rooms or {}).keys() - {PINNED}
            if request.devices or request.unplaced:
                self._rest_of_gpus(host, request, causes, count, others)
            elif causes:
                others.add(causes[0].code, causes[0].payload["short"] or causes[0].reason, 0, host.node.name)
        total = min(sum(where.values()), shared_bound(resources.sharing, lacking, request))
        return _FlavorRoom(request, facts, where, total, others.told())

    def _unknown(self, request: Request) -> frozenset[str]:
        """Classes that no host reports. What is left of those without RAM is not known."""
        requested_classes = {need.resource_class for need in request.devices} | request.amounts.keys() - {PINNED}
        blind = any(host.node.rooms is None for host in self.room.hosts)
        return frozenset() if blind else frozenset(requested_classes - self.room.reported)

    def _on(self, host: HostResources, facts: RequestFacts, request: Request) -> RequestFacts:
        """The facts of one host, in the words that causes are found by."""
        node, stocks = host.node, host.node.rooms
        amounts = [*request.amounts.items(), *(item for group in request.groups for item in group.amounts.items())]
        if PINNED in request.amounts:
            amounts.append((SHARED, request.amounts[PINNED]))
        able: dict[tuple[str, int], frozenset[str]] = {}
        for name, needs in amounts:
            shares = {id for id, has in self.room.sharing.items() if has.get(name, 0) >= needs}
            stock = (stocks or {}).get(name)
            fits = stock is not None and needs <= min(stock.free, stock.max_unit)
            if stocks is None:  # only that it has no RAM is known
                fits = name != "MEMORY_MB"
            able[name, needs] = frozenset(shares | ({node.provider} if fits else set()))
        needs_of = {(need.resource_class, need.traits) for need in request.devices}
        traits = request.all_traits | request.forbidden
        return replace(
            facts,
            hosts=(node,),
            devices=tuple(self._devices(host, {name for name, _ in needs_of})),
            able=able,
            able_devices={key: self._free(host, *key) for key in needs_of},
            with_trait=dict.fromkeys(traits & host.traits, frozenset({node.provider})),
            pool_sizes=Counter((gpu.host, gpu.pool) for gpu in self.room.gpus_of.get(node.name, ())),
        )

    def _with_gpus(self, request: Request) -> Iterable[HostResources]:
        """Hosts with GPUs of the flavor's pools, or devices that would do; all of a flavor without."""
        needs = (*request.devices, *request.unplaced)
        classes = {need.resource_class for need in needs}
        pools = {self.room.pools.get(name) for name in classes} - {None}
        for host in self.room.hosts:
            mine = self.room.gpus_of.get(host.node.name, ())
            if (
                not needs
                or any(gpu.pool in pools for gpu in mine)
                or any(classes & d.left.keys() for d in host.devices)
            ):
                yield host

    def _is_meant(self, facts: RequestFacts, request: Request, host: str) -> bool:
        """Return whether a host has GPUs of the kind, whatever their state."""
        if request.unplaced:
            pools = {self.room.pools.get(need.resource_class) for need in request.unplaced}
            return pools <= {gpu.pool for gpu in self.room.gpus_of.get(host, ())}
        return bool(candidates_of(facts, request)[0])

    def _free(self, host: HostResources, resource_class: str, traits: frozenset[str]) -> frozenset[str]:
        if host.node.rooms is None:
            mine = self.room.gpus_of.get(host.node.name, ())
            return frozenset(gpu.provider_name for gpu in mine if self._state(gpu) is GpuState.FREE)
        return frozenset(device.provider for device in host.devices if can_be(device, resource_class, traits))

    def _state(self, gpu: Gpu) -> GpuState | None:
        status = self._statuses.get(gpu.provider_name)
        return status.state if status else None

    def _devices(self, host: HostResources, requested_classes: set[str]) -> Iterable[Device]:
        mine = {gpu.provider_name: gpu for gpu in self.room.gpus_of.get(host.node.name, ())}
        for name, gpu in mine.items():
            if gpu.resource_class in requested_classes and not gpu.blocked:
                status = self._statuses.get(name)
                state = status.state.value if status else "taken"
                reason = (status.reason if status else "") or "cannot be had"
                letters = slot_traits(gpu)
                yield Device(name, gpu.host, gpu.address, gpu.resource_class, letters, state, reason)
        for device in host.devices:  # of no pool, and an alias means it
            if device.provider not in mine and (classes := requested_classes & device.left.keys()):
                yield Device(device.provider, host.node.name, device.provider, min(classes), device.traits, "foreign")

    def _rest_of_gpus(
        self, host: HostResources, request: Request, causes: Sequence[Finding], count: int, others: _Others
    ) -> None:
        """Every GPU of the flavor's pools that its servers would not get, with the reason that is nearest to it."""
        pools = {self.room.pools.get(need.resource_class) for need in (*request.devices, *request.unplaced)} - {None}
        name = host.node.name
        takes = {need.resource_class for need in request.devices}
        traits = frozenset[str]().union(*(need.traits for need in request.devices))
        spare = 0
        for gpu in self.room.gpus_of.get(name, ()):
            if gpu.pool not in pools:
                continue
            free = gpu.provider_name in self._free(host, gpu.resource_class, frozenset())
            letter = slot_traits(gpu)
            if not free or gpu.blocked:
                others.add(*self._why_taken(gpu), 1, name)
            elif gpu.resource_class not in takes or not traits <= letter:
                peer = gpu.role is GpuRole.PEER and not traits
                why = (
                    "peers go only with the leader of their IOMMU group"
                    if peer
                    else "not in the IOMMU groups that it takes"
                )
                others.add("peer" if peer else "left-over", why, 1, name)
            else:
                spare += 1
        spare -= count * len(request.devices)
        if spare > 0:
            others.add(*_why_spare(host, request, causes, count), spare, name)

    def _why_taken(self, gpu: Gpu) -> tuple[str, str]:
        status = self._statuses.get(gpu.provider_name)
        if gpu.blocked:
            return GpuState.BLOCKED.value, gpu.blocked
        if status is None or status.state is GpuState.FREE:  # it was, when the others looked
            return "taken", "taken a moment ago"
        if status.state is GpuState.CLAIMED:
            return status.state.value, "servers have them"
        return status.state.value, status.reason


def _why_spare(host: HostResources, request: Request, causes: Sequence[Finding], count: int) -> tuple[str, str]:
    """Why GPUs that can be had would not be had by this flavor on a host that would take so many servers."""
    other_causes = [cause for cause in causes if cause.code != "gpu"] or list(causes)
    if other_causes:
        return other_causes[0].code, f"{other_causes[0].payload['short'] or other_causes[0].reason}"
    short = [name for name, needs in sorted(request.amounts.items()) if rooms_for(host, name, needs) <= count]
    if short:
        what = WORDS[short[0]][0] if short[0] in WORDS else short[0]
        return "room", f"not enough {what} for one more"
    return "left-over", f"fewer than the {len(request.devices)} that one server has"


def with_units(resources: CloudResources, statuses: Statuses) -> CloudResources:
    """Return the facts with each unit of a shared device as a device of its own: as many as Placement has left, those
    first that are known to be free."""
    units: dict[str, list[Gpu]] = {}
    for gpu in resources.gpus:
        if gpu.is_unit and not gpu.blocked:
            units.setdefault(gpu.provider, []).append(gpu)
    if not units:
        return resources

    def is_taken(gpu: Gpu) -> bool:
        status = statuses.get(gpu.provider_name)
        return status is None or status.state is not GpuState.FREE

    def of(device: FreeDevice) -> Iterable[FreeDevice]:
        mine = sorted(units.get(device.provider, ()), key=is_taken)
        if not mine:
            yield device
        for gpu in mine[: device.left.get(mine[0].resource_class, 0) if mine else 0]:
            yield FreeDevice(gpu.provider_name, {gpu.resource_class: 1}, device.traits)

    hosts = (
        replace(host, devices=tuple(unit for device in host.devices for unit in of(device))) for host in resources.hosts
    )
    return replace(resources, hosts=tuple(hosts))


class _Others:
    """Comes together host by host; what is alike is one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, list[str]]] = {}

    def add(self, code: str, reason: str, gpus: int, host: str) -> None:
        number, hosts = self._found.setdefault((code, reason), (0, []))
        if not hosts or hosts[-1] != host:
            hosts.append(host)
        self._found[code, reason] = number + gpus, hosts

    def told(self) -> tuple[KeptBack, ...]:
        result = [KeptBack(code, reason, gpus, tuple(hosts)) for (code, reason), (gpus, hosts) in self._found.items()]
        return tuple(sorted(result, key=lambda item: (-item.gpus, -len(item.hosts), item.code, item.reason)))


def _sees(flavor: NovaFlavor, asker: Asker | None) -> bool:
    return flavor.public or asker is None or asker.id in flavor.projects


def _with(asker: Asker, counted: Mapping[str, int], servers: int) -> Asker:
    """The project as it would be with so many servers more."""

    def more(item: Limit) -> Limit:
        return replace(item, used=item.used + servers * counted.get(item.resource, 0))

    return replace(asker, limits=tuple(map(more, asker.limits)))


def _doubts(request: Request, where: Mapping[str, int]) -> Iterable[str]:
    for item in request.not_followed:
        yield f"{item} of the flavor is not looked at"
    if request.numa and where:
        yield f"{request.numa}: what each NUMA node of a host has left cannot be seen from outside"
    if request.groups and where:
        yield "of a flavor with groups of resources of its own no more than one server a host is counted"
    if request.unplaced:
        yield "Placement does not decide about GPUs here, so which are free cannot be seen from outside"
