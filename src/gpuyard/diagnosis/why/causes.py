"""Finds the obstacles to a server: of the flavor wherever it would run, and of one host.

For a host, nova-compute's service is judged first, then Placement, device types, NUMA, and aggregates. Placement's
answer for the whole request has the last word: when it names the host, its single answers, which were read a moment
before or after, do not count.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

from gpuyard.diagnosis.why.facts import Asker, ComputeNode, Device, HostAggregate, HostStock, RequestFacts, obstacle
from gpuyard.diagnosis.why.words import amount, amount_of, and_list, words
from gpuyard.model.finding import Finding
from gpuyard.nova.filters import AGGREGATE_FILTER, NUMA_FILTER, TENANT_FILTER
from gpuyard.nova.request import PINNED, SHARED, DeviceNeed, Request

# Placement decides about these. It is asked for the whole request too, and has the last word.
OF_PLACEMENT = frozenset({"gpu", "gpu-count", "room", "too-big", "max-unit", "class", "trait", "group"})
LIBVIRT = "QEMU"
"""The hypervisor type that nova-compute with libvirt reports; no other driver of Nova reports a NUMA topology."""
ISOLATION = "trait:"
TENANTS = "filter_tenant_id"
"""Metadata of aggregates that TENANT_FILTER keeps for some projects begins with it."""


def of_flavor(facts: RequestFacts, request: Request) -> list[Finding]:
    """Return causes in the flavor itself, whatever the host."""
    flavor = facts.flavor
    causes = [obstacle(problem.code, problem.reason, problem.remedy) for problem in request.problems]
    if flavor.disabled:
        text = f"flavor {flavor.name} is disabled: for Nova it is not there (400)"
        causes.append(obstacle("disabled", text, "make the flavor again: Nova has no API to enable one"))
    if not flavor.public and facts.asker and facts.asker.id not in flavor.projects:
        who = f"project {facts.asker.name}"
        text = f"flavor {flavor.name} is private and {who} has no access: for Nova it is not there (400)"
        causes.append(obstacle("access", text, f"give project {facts.asker.name} access to the flavor"))
    for name in sorted(_classes(request) & facts.unknown_classes):
        fix = "deploy the site's Nova options to a host that has it, and restart its nova-compute"
        text = f"Placement does not know resource class {name}: no nova-compute has reported one"
        causes.append(obstacle("class", text, fix))
    for name in sorted((request.all_traits | request.forbidden) & facts.unknown_traits):
        text = f"Placement does not know trait {name}: no host and no GPU has it"
        causes.append(
            obstacle("trait", text, "take it out of the flavor, or deploy the site's Nova options to the hosts")
        )
    if facts.zone is not None and not _in_zone(facts):
        zones = ", ".join(sorted({host.zone for host in facts.hosts if host.zone})) or "none"
        text = f"there is no availability zone {facts.zone!r} (there is {zones}); Nova answers 400"
        causes.append(obstacle("zone", text, "ask for a zone that exists"))
    if facts.candidates_error:
        text = f"Placement does not answer Nova's question for candidates: {facts.candidates_error}"
        causes.append(obstacle("placement", text, "mend what Placement says; its log has more"))
    return causes


def _classes(request: Request) -> set[str]:
    names = {name for group in request.groups for name in group.amounts}
    return names | request.amounts.keys() - {PINNED} | {need.resource_class for need in request.devices}


def of_host(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    """Return all causes on one host. When Placement names the host for the whole request, what was read of it a moment
    before or after does not count."""
    causes = _of_service(host)
    if facts.candidates is None or host.provider not in facts.candidates:
        causes += _of_placement(facts, request, host)
    causes += _of_types(facts, request, host)
    causes += _of_numa(facts, request, host)
    causes += _of_aggregates(facts, request, host)
    explained = facts.candidates_error or facts.unknown_classes or facts.unknown_traits
    if not causes and not explained and facts.candidates == frozenset():
        text = "Placement names no host for the whole request, and nothing that was looked at says why"
        causes.append(obstacle("placement", text, "ask again; if it stays, look for it in the log of nova-scheduler"))
    return causes


def candidates_of(facts: RequestFacts, request: Request) -> tuple[list[ComputeNode], list[ComputeNode]]:
    """Return the hosts that could be meant, and those that have no GPU of the kind, whatever its state."""
    if facts.gpu_hosts is not None:
        names = facts.gpu_hosts
        return [h for h in facts.hosts if h.name in names], [h for h in facts.hosts if h.name not in names]
    if not request.devices:
        return list(facts.hosts), []
    matches = [matching(facts.devices, need, None) for need in request.devices]
    meant = {device.host for devices in matches for device in devices}
    return [h for h in facts.hosts if h.name in meant], [h for h in facts.hosts if h.name not in meant]


def _of_service(host: ComputeNode) -> list[Finding]:
    name = host.service_host or host.name
    if not host.has_service:
        text = "no nova-compute service: Placement knows the host, Nova does not"
        return [
            obstacle("no-service", text, f"start nova-compute on {name}, or delete what is left of it in Placement")
        ]
    if host.silent:
        fix = "start the database and the nova-conductor of the cell, and see what nova-api logs of it"
        text = (
            "its cell of Nova does not answer: whether its nova-compute runs, and which servers are there, is unknown"
        )
        return [obstacle("cell-silent", text, fix, short="its cell of Nova does not answer")]
    causes = []
    if not host.enabled:
        because = f": {host.disabled_reason}" if host.disabled_reason else ", without a reason"
        fix = f"openstack compute service set --enable {name} nova-compute"
        causes.append(obstacle("service-disabled", f"nova-compute is disabled{because}", fix))
    if host.forced_down:
        fix = f"openstack compute service set --up {name} nova-compute"
        causes.append(obstacle("service-forced-down", "nova-compute is forced down", fix))
    elif not host.up:
        text = "nova-compute is down: Nova has not heard of it for a while"
        causes.append(obstacle("service-down", text, f"start nova-compute on {name}, or repair the host"))
    return causes


def _of_placement(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    causes = _of_devices(facts, request, host)
    covered = facts.counting if causes else frozenset()  # with the GPUs, what counts them is short too
    for name, needs in sorted(request.amounts.items()):
        if name not in covered | facts.unknown_classes and not _has_room(facts, host, name, needs):
            causes.append(_of_amount(facts, host, name, needs))
    for trait in sorted(request.traits - facts.unknown_traits):
        if host.provider not in facts.with_trait.get(trait, frozenset()):
            fix = f"openstack resource provider trait set --trait {trait} {host.provider} (and those it has), or "
            text = f"the flavor requires trait {trait}, which the host does not have"
            causes.append(obstacle("trait", text, fix + "take it out of the flavor"))
    for trait in sorted(request.forbidden - facts.unknown_traits):
        if host.provider in facts.with_trait.get(trait, frozenset()):
            text = f"the flavor forbids trait {trait}, which the host has"
            causes.append(obstacle("trait", text, "use another host, or take it out of the flavor"))
    for group in request.groups:
        known_amounts = {name: needs for name, needs in group.amounts.items() if name not in facts.unknown_classes}
        missing = [
            f"{needs} {name}" for name, needs in sorted(known_amounts.items()) if not _able(facts, host, name, needs)
        ]
        if missing:
            text = f"the flavor's group {group.suffix!r} wants {', '.join(missing)} of one provider, and none has it"
            causes.append(obstacle("group", text, "take the group out of the flavor, or give the host what it asks"))
    return causes


def _has_room(facts: RequestFacts, host: ComputeNode, name: str, needs: int) -> bool:
    """Return whether the host has an amount; for pinned CPUs Nova asks for shared ones too, see Request.queries."""
    return _able(facts, host, name, needs) or (name == PINNED and _able(facts, host, SHARED, needs))


def _able(facts: RequestFacts, host: ComputeNode, name: str, needs: int) -> bool:
    """Return whether a host has an amount, or a provider that shares with hosts (of those it is not asked which)."""
    able = facts.able.get((name, needs), frozenset())
    return host.provider in able or bool(able & facts.sharing)


def _of_amount(facts: RequestFacts, host: ComputeNode, name: str, needs: int) -> Finding:
    smaller = "use a smaller flavor or another host"
    what, requested = words(facts, name), amount(name, needs)
    if host.rooms is None or name not in host.rooms:
        text = f"not enough {what}: {requested} asked"
        return obstacle("room", text, "free some on the host, or use a smaller flavor", (), f"not enough {what}")
    stock = host.rooms[name]
    if stock is None:
        fix = "give the host an inventory of it (provider.yaml of nova-compute), or take it out of the flavor"
        return obstacle("class", f"the host reports no {name}, and the flavor needs {needs}", fix)
    numbers = {
        "class": name, "needs": needs, "free": max(0, stock.free), "over": max(0, -stock.free), "total": stock.total,
        "reserved": stock.reserved, "ratio": stock.ratio, "max_unit": stock.max_unit, "used": stock.used,
        "missing": needs - stock.free,
    }  # fmt: skip
    reserve, fewer = _kept(host, name), ""
    if reserve:
        smaller += f", or write a smaller reserve (hosts.{host.name}.reserve)"
        fewer = f", or write a smaller reserve (hosts.{host.name}.reserve)"
    if needs > stock.capacity:
        requested = amount_of(facts, name, needs)
        text = f"too big for the host: {requested} asked, and it has {_capacity(name, stock)} when it is empty"
        return obstacle("too-big", text + reserve, smaller, (numbers,), f"not enough {what}, even when it is empty")
    if needs > stock.max_unit:
        most = amount(name, stock.max_unit)
        text = f"{amount_of(facts, name, needs)} asked, and one server may have {most} at most (max_unit)"
        return obstacle("max-unit", text, smaller, (numbers,))
    if needs <= stock.free:
        text = f"had not enough {what} a moment ago: {requested} asked, {amount(name, stock.free)} free"
        return obstacle("room", text, "ask again")
    has = f"{amount(name, stock.free)} free" if stock.free >= 0 else f"none free, over by {amount(name, -stock.free)}"
    text = f"not enough {what}: {requested} asked, {has}; {amount(name, stock.used)} in use of {_capacity(name, stock)}"
    fix = f"free {amount_of(facts, name, needs - stock.free)} on the host{fewer}"
    return obstacle("room", text + reserve, fix, (numbers,), f"not enough {what}")


def _capacity(name: str, stock: HostStock) -> str:
    """``94208 MiB``, with the arithmetic where there is one: ``28, which is (16 - 2 reserved) * 2``."""
    whole = amount(name, stock.capacity)
    if not stock.reserved and stock.ratio == 1:
        return whole
    less = f"({stock.total} - {stock.reserved} reserved)" if stock.reserved else str(stock.total)
    return f"{whole}, which is {less}" + (f" * {stock.ratio:g}" if stock.ratio != 1 else "")


def _kept(host: ComputeNode, name: str) -> str:
    reserved = host.kept.get(name, 0)
    return f"; hosts.{host.name}.reserve keeps {amount(name, reserved)} for servers with GPUs" if reserved else ""


def matching(devices: Iterable[Device], need: DeviceNeed, host: str | None) -> list[Device]:
    """Return the devices that a need means, in whatever state; of one host, or of all."""
    return [
        device
        for device in devices
        if host in (None, device.host) and device.resource_class == need.resource_class and need.traits <= device.traits
    ]


def available(facts: RequestFacts, devices: Iterable[Device], need: DeviceNeed) -> list[str]:
    """Return those of these providers that Placement would give to a need."""
    able = facts.able_devices.get((need.resource_class, need.traits), frozenset())
    return [device.provider for device in devices if device.provider in able]


def unmet(choices: Sequence[Sequence[str]]) -> list[int]:
    """Return indexes of the needs that are left over when as many as possible get a provider of their own."""
    holder: dict[str, int] = {}

    def place(index: int, tried: set[str]) -> bool:
        for provider in choices[index]:
            if provider in tried:
                continue
            tried.add(provider)
            if provider not in holder or place(holder[provider], tried):
                holder[provider] = index
                return True
        return False

    order = sorted(range(len(choices)), key=lambda index: len(choices[index]))
    return sorted(index for index in order if not place(index, set()))


def _of_devices(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    """GPUs that the host cannot give: one cause for each kind of GPU that is short."""
    mine = [matching(facts.devices, need, host.name) for need in request.devices]
    free = [available(facts, devices, need) for devices, need in zip(mine, request.devices, strict=True)]
    short = {request.devices[index] for index in unmet(free)}
    causes = []
    for need in sorted(short - {n for n in short if n.resource_class in facts.unknown_classes}, key=str):
        asks = request.devices.count(need)
        index = request.devices.index(need)
        causes.append(_of_need(facts, host, need, asks, mine[index], free[index]))
    return causes


def _of_need(
    facts: RequestFacts, host: ComputeNode, need: DeviceNeed, asks: int, devices: Sequence[Device], free: Sequence[str]
) -> Finding:
    if len(devices) < asks:
        text = f"asks {asks} x {need} for one server, and the host has {len(devices)}"
        return obstacle("gpu-count", text, "use a flavor with fewer GPUs, or another host")
    taken = [device for device in devices if device.provider not in free]
    listed = "; ".join(f"{device.address} {device.reason or device.state}" for device in taken)
    stranded = tuple(address for device in taken for address in device.stranded)
    text = (
        f"asks {asks} x {need}, {len(free)} of {len(devices)} can be had{_peers(facts, host, need, devices)}: {listed}"
    )
    if stranded:
        text += f" (so {and_list(stranded)} {'is' if len(stranded) == 1 else 'are'} free and of no use)"
    details = tuple(
        {"address": d.address, "state": d.state, "reason": d.reason, "server": d.server or None} for d in taken
    )
    return obstacle("gpu", text, _gpu_fix(taken), details, _short(facts, need, asks, taken, len(free)))


def _peers(facts: RequestFacts, host: ComputeNode, need: DeviceNeed, devices: Sequence[Device]) -> str:
    """The pool's other GPUs on the host, which this need does not mean."""
    others = facts.pool_sizes.get((host.name, facts.pools.get(need.resource_class, "")), 0) - len(devices)
    if others <= 0 or need.traits:
        return ""
    what = "GPU there is a peer, which goes" if others == 1 else "GPUs there are peers, which go"
    return f" (the pool's {others} other {what} only with the leader of the same IOMMU group)"


def _short(facts: RequestFacts, need: DeviceNeed, asks: int, taken: Sequence[Device], free: int) -> str:
    pool = facts.pools.get(need.resource_class)
    which = f"GPUs of pool {pool}" if pool else str(need)
    if need.traits and pool:
        which += f" with {and_list(sorted(need.traits))}"
    if free:
        return f"only {free} of the {asks} {which} that it asks {'is' if free == 1 else 'are'} free"
    if all(device.state in ("claimed", "taken") for device in taken):
        return f"all {which} are taken"
    return f"none of the {which} can be had"


GPU_FIXES = {
    "claimed": "delete or shelve a server that holds one",
    "taken": "delete or shelve a server that holds one",
    "held": "release one that is held",
    "booked": "wait for the end of a booking, or book one",
    "lost": "bring a lost one back: deploy the site's device_spec, restart nova-compute, look at the host",
    "blocked": "mend what blocks one",
}


def _gpu_fix(devices: Sequence[Device]) -> str:
    orphaned = "delete the allocation of a consumer that is no server any more"
    fixes = dict.fromkeys(
        orphaned if device.orphan else GPU_FIXES[device.state] for device in devices if device.state in GPU_FIXES
    )
    return "; or ".join(fixes) or "ask again"


def _of_types(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    """An alias with a device_type only means devices of that type; one without does not mean a physical function."""
    for need in dict.fromkeys(request.devices):
        devices = matching(facts.devices, need, host.name)
        types = {device.device_type for device in devices if device.device_type}
        fitting = {need.device_type} if need.device_type else {"type-PCI", "type-VF"}
        if types and not types & fitting:
            alias = f"alias {need.alias} asks device_type {need.device_type or 'type-PCI (it names none)'}"
            text = f"{alias}, and the host's are {', '.join(sorted(types))}: PciPassthroughFilter refuses"
            fix = (
                "switch SR-IOV in the host's firmware as it was, or record the host again and deploy the site's aliases"
            )
            return [obstacle("device-type", text, fix)]
    return []


def _of_numa(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    if not request.numa or NUMA_FILTER not in facts.filters:
        return []
    fix = f"take {request.numa} out of the flavor"
    if host.hypervisor_type and host.hypervisor_type != LIBVIRT:
        text = (
            f"the flavor wants a NUMA topology ({request.numa}), and a hypervisor of type {host.hypervisor_type} "
            f"reports none: {NUMA_FILTER} refuses"
        )
        return [obstacle("numa", text, fix)]
    if host.numa_nodes is not None and request.numa_nodes > host.numa_nodes:
        text = f"the flavor wants {request.numa_nodes} NUMA nodes ({request.numa}), and the host has {host.numa_nodes}"
        return [obstacle("numa", text, fix)]
    return []


def _of_aggregates(facts: RequestFacts, request: Request, host: ComputeNode) -> list[Finding]:
    causes = []
    mine = [aggregate for aggregate in facts.aggregates if host.service_host in aggregate.hosts]
    zone = _in_zone(facts)
    if facts.zone is not None and zone and host.service_host not in zone:
        text = f"the host is in availability zone {host.zone}, and {facts.zone} is asked"
        causes.append(obstacle("zone", text, "ask for no zone, or for that of the host"))
    if facts.isolated_aggregates:
        causes += _isolated(mine, request)
    if AGGREGATE_FILTER in facts.filters:
        causes += _specs(mine, request.aggregate_specs)
    if TENANT_FILTER in facts.filters and facts.asker is not None:
        causes += _tenants(mine, facts.asker)
    return causes


def _in_zone(facts: RequestFacts) -> frozenset[str]:
    """Hosts of the zone that is asked. The default zone has no aggregate and keeps nobody out."""
    named = [a for a in facts.aggregates if a.metadata.get("availability_zone") == facts.zone]
    if named:
        return frozenset().union(*(aggregate.hosts for aggregate in named))
    if any(host.zone == facts.zone for host in facts.hosts):
        return frozenset(host.service_host for host in facts.hosts)
    return frozenset()


def _isolated(mine: Iterable[HostAggregate], request: Request) -> Iterable[Finding]:
    for aggregate in mine:
        required = {
            k[len(ISOLATION) :] for k, v in aggregate.metadata.items() if k.startswith(ISOLATION) and v == "required"
        }
        missing = sorted(required - request.all_traits)
        if missing:
            text = (
                f"aggregate {aggregate.name} is for flavors that require trait {', '.join(missing)}; this one does not"
            )
            fix = f"set {', '.join(f'trait:{name}=required' for name in missing)} in the flavor"
            yield obstacle("aggregate-isolated", text, fix)


def _tenants(mine: Iterable[HostAggregate], asker: Asker) -> Iterable[Finding]:
    """As AggregateMultiTenancyIsolation: whom one of the host's aggregates names may use it, and nobody else then."""
    tenants_by_aggregate = {
        aggregate.name: {
            part.strip()
            for key, ids in aggregate.metadata.items()
            if key.startswith(TENANTS)
            for part in ids.split(",")
        }
        for aggregate in mine
    }
    if any(tenants_by_aggregate.values()) and not any(asker.id in ids for ids in tenants_by_aggregate.values()):
        names = and_list(sorted(name for name, ids in tenants_by_aggregate.items() if ids))
        text = f"the host is kept for other projects ({TENANTS} of aggregate {names}), and {TENANT_FILTER} refuses"
        yield obstacle("aggregate-tenants", text, f"name project {asker.id} in the aggregate, or use another host")


def _specs(mine: Sequence[HostAggregate], specs: Mapping[str, str]) -> Iterable[Finding]:
    """As AggregateInstanceExtraSpecsFilter compares: any value that one of the host's aggregates has may match."""
    for key, value in sorted(specs.items()):
        values = {part.strip() for a in mine if key in a.metadata for part in a.metadata[key].split(",")}
        if any(match(candidate, value) for candidate in values):
            continue
        has = f"its aggregates have {', '.join(sorted(values))}" if values else "none of its aggregates has the key"
        text = f"the flavor wants an aggregate with {key}={value}, and {has}"
        fix = f"put the host into an aggregate with {key}={value}, or take it out of the flavor"
        yield obstacle("aggregate", text, fix)


COMPARE = {
    "=": operator.ge,  # on purpose: Nova reads it as "at least"
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
COMPARE_TEXT = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def match(value: str, requirement: str) -> bool:
    """Compare as Nova's extra specs do (``extra_specs_ops.py``); a comparison that it does not know does not match."""
    words = requirement.split()
    if not words or words[0] not in {*COMPARE, *COMPARE_TEXT, "<in>", "<all-in>", "<or>"}:
        return value == requirement
    sign, rest = words[0], words[1:]
    if sign == "<or>":
        return value in rest[::2]
    if not rest:
        return False
    if sign in ("<in>", "<all-in>"):
        return all(word in value for word in (rest if sign == "<all-in>" else rest[:1]))
    if sign in COMPARE_TEXT:
        return bool(COMPARE_TEXT[sign](value, rest[0]))
    try:
        return bool(COMPARE[sign](float(value), float(rest[0])))
    except ValueError:
        return False


def shortage(stocks: Mapping[str, HostStock | None], amounts: Mapping[str, int]) -> dict[str, int]:
    """Return how much is missing of each class, of those that were looked at."""
    missing = {}
    for name, needs in amounts.items():
        stock = stocks.get(name)
        if stock is not None and needs > stock.free:
            missing[name] = needs - stock.free
    return missing
