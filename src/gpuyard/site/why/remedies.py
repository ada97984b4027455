"""What would make a server start: for each host the fewest actions that take all its causes away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.site.why.causes import available, matching, shortage, unmet
from gpuyard.site.why.facts import Action, Asker, Cause, Device, Facts, HostAnswer, HostFacts, Remedy, RunningServer
from gpuyard.site.why.request import Request

MOST = 3
"""Remedies that are told."""
FREEABLE = frozenset({"gpu", "room"})
IDLE = ("ERROR", "SHUTOFF", "SUSPENDED", "PAUSED")
"""Statuses of servers that are given up first: they hold what they have and do nothing with it."""


@dataclass(frozen=True)
class Freeing:
    """Something that would be given back, and the action that gives it back."""

    action: Action
    providers: frozenset[str]
    amounts: Mapping[str, int]
    price: tuple[int, ...]
    """Less is better."""


def whatever_the_host(facts: Facts, causes: Iterable[Cause]) -> tuple[Action, ...]:
    """The actions for what stands in the way on every host."""
    return tuple(action for cause in causes for action in _global(facts, cause))


def _global(facts: Facts, cause: Cause) -> Iterable[Action]:
    if cause.kind == "quota" and facts.asker:
        (numbers,) = cause.details
        yield _raise_limit(
            facts, facts.asker, str(numbers["resource"]), _int(numbers, "in_use") + _int(numbers, "asks")
        )
    elif cause.kind == "access" and facts.asker:
        text = f"openstack flavor set --project {facts.asker.name} {facts.flavor.name}"
        yield Action("grant-access", text, {"project": facts.asker.name, "flavor": facts.flavor.name})
    else:
        yield Action(cause.kind, cause.fix)


def _int(numbers: Mapping[str, object], key: str) -> int:
    value = numbers[key]
    assert isinstance(value, int)
    return value


def _raise_limit(facts: Facts, asker: Asker, resource: str, to: int) -> Action:
    pool = facts.pools.get(resource.removeprefix("class:"))
    where = f" (site file: projects.{asker.name}.gpus.{pool})" if pool else ""
    text = f"raise the limit of project {asker.name} on {resource} to {to}{where}"
    return Action("raise-limit", text, {"project": asker.name, "resource": resource, "to": to})


def of_hosts(facts: Facts, request: Request, answers: Sequence[HostAnswer]) -> tuple[Remedy, ...]:
    """The cheapest remedies, one or two a host; none when a host has room already."""
    if any(answer.fits for answer in answers):
        return ()
    hosts = {host.name: host for host in facts.hosts}
    found = [remedy for answer in answers for remedy in _of_host(facts, request, hosts[answer.host], answer)]
    return tuple(sorted(found, key=lambda remedy: len(remedy.actions))[:MOST])


def _of_host(facts: Facts, request: Request, host: HostFacts, answer: HostAnswer) -> Iterable[Remedy]:
    others: list[Action] = []
    for cause in answer.causes:
        if cause.kind not in FREEABLE:
            action = _of_cause(host, cause)
            if action is None:
                return
            others.append(action)
    if not any(cause.kind in FREEABLE for cause in answer.causes):
        yield Remedy(host.name, tuple(others))
        return
    servers = list(_servers(facts, host))
    for pool in (servers, [*_leftovers(facts, request, host), *servers]):
        chosen = _cheapest(facts, request, host, pool)
        remedy = Remedy(host.name, (*others, *(freeing.action for freeing in chosen)))
        if chosen and (pool is servers or any(freeing.action.kind != "delete-server" for freeing in chosen)):
            yield remedy


def _of_cause(host: HostFacts, cause: Cause) -> Action | None:
    """The action that takes a cause away by a change of the host or of the flavor; None when nothing simple does."""
    if cause.kind in ("too-big", "max-unit", "gpu-count", "device-type", "no-service", "placement"):
        return None
    kind = {
        "service-disabled": "enable-service",
        "service-forced-down": "unset-forced-down",
        "service-down": "start-service",
    }
    return Action(kind.get(cause.kind, cause.kind), cause.fix, {"host": host.name})


def _servers(facts: Facts, host: HostFacts) -> Iterable[Freeing]:
    held: dict[str, set[str]] = {}
    for device in facts.devices:
        if device.server:
            held.setdefault(device.server, set()).add(device.provider)
    for server in host.servers or ():
        providers = frozenset(held.get(server.id, ()))
        idle = IDLE.index(server.status) if server.status in IDLE else len(IDLE)
        price = (idle, len(providers), sum(server.amounts.values()))
        yield Freeing(_delete(server, host), providers, server.amounts, price)


def _delete(server: RunningServer, host: HostFacts) -> Action:
    whose = f"project {server.project}" + (f", user {server.user}" if server.user else "")
    text = f"delete or shelve server {server.name} ({whose}, {server.status})"
    values = {"server": server.id, "name": server.name, "project": server.project, "host": host.name}
    return Action("delete-server", text, values)


def _leftovers(facts: Facts, request: Request, host: HostFacts) -> Iterable[Freeing]:
    """GPUs that no server holds: kept back by the operator, or by a consumer that is no server."""
    wanted = {need.resource_class for need in request.devices}
    for device in facts.devices:
        if device.host != host.name or device.resource_class not in wanted:
            continue
        values = {"provider": device.provider, "class": device.resource_class, "host": host.name}
        if device.state == "held":
            text = (
                f"release {device.address} when it may be used again: openstack resource provider inventory set "
                f"--amend --resource {device.resource_class}:reserved=0 (provider {device.provider})"
            )
            yield Freeing(Action("release-hold", text, values), frozenset({device.provider}), {}, (0, 1, 0))
        elif device.state == "orphan":
            text = (
                f"if {device.server} is no server or migration any more: openstack resource provider allocation "
                f"delete {device.server}"
            )
            action = Action("delete-allocation", text, {**values, "consumer": device.server})
            yield Freeing(action, frozenset({device.provider}), {}, (0, 1, 0))


def _cheapest(facts: Facts, request: Request, host: HostFacts, pool: Sequence[Freeing]) -> list[Freeing]:
    """The fewest of the pool that free enough: one when one does, else the best one after the other, without those
    that turn out not to be needed. Empty when all of them together are not enough."""
    enough = [one for one in pool if not _lacks(facts, request, host, [one])]
    if enough:
        return [min(enough, key=lambda one: one.price)]
    chosen: list[Freeing] = []
    while lacking := _lacks(facts, request, host, chosen):
        left = [one for one in pool if one not in chosen]
        if not left:
            return []
        best = min(left, key=lambda one: (_lacks(facts, request, host, [*chosen, one]), one.price))
        if _lacks(facts, request, host, [*chosen, best]) == lacking:
            best = min(left, key=lambda one: one.price)  # no step helps alone; it may with the next
        chosen.append(best)
    for one in list(chosen):
        rest = [other for other in chosen if other is not one]
        if not _lacks(facts, request, host, rest):
            chosen = rest
    return chosen


def _lacks(facts: Facts, request: Request, host: HostFacts, freed: Sequence[Freeing]) -> float:
    """How far the host still is from having GPUs and room enough: 0 when it has them."""
    back = frozenset[str]().union(*(one.providers for one in freed))
    choices = []
    for need in request.devices:
        devices = matching(facts.devices, need, host.name)
        choices.append([*available(facts, devices, need), *(d.provider for d in devices if _comes_back(d, back))])
    amounts = dict(request.amounts)
    short = shortage(host.rooms or {}, amounts)
    for one in freed:
        for name in short:
            short[name] -= one.amounts.get(name, 0)
    return len(unmet(choices)) + sum(max(0, number) / amounts[name] for name, number in short.items())


def _comes_back(device: Device, back: frozenset[str]) -> bool:
    return device.provider in back and device.state in ("claimed", "held", "orphan")
