"""Finds remedies: for each host the fewest actions that take all its causes away.

Actions that are needed on every host come first, then the cheapest of the hosts. GPUs and room are freed by deleting
servers, idle ones first; as an alternative also by releasing GPUs that no server holds; and where that is enough, by a
smaller reserve. Limits are raised only by what is still short after that. A host with a cause that no simple action
takes away has no remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuyard.diagnosis.why.causes import available, matching, shortage, unmet
from gpuyard.diagnosis.why.facts import Action, ComputeNode, Device, HostAnswer, Remedy, RequestFacts, RunningServer
from gpuyard.diagnosis.why.quota import counted_of, exceeded, raising
from gpuyard.diagnosis.why.words import OTHERS, WORDS, amount
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import FOREIGN
from gpuyard.nova.request import Request

MOST = 3
"""Remedies that are told."""
FREEABLE = frozenset({"gpu", "room"})
IDLE = ("ERROR", "SHUTOFF", "SUSPENDED", "PAUSED")
"""Statuses of servers that are given up first: they hold what they have and do nothing with it."""


@dataclass(frozen=True)
class Freeing:
    """Something that can be given back, and the action that does it."""

    action: Action
    providers: frozenset[str]
    amounts: Mapping[str, int]
    price: tuple[int, ...]
    """Less is better."""
    project_id: str = ""
    counted: Mapping[str, int] = field(default_factory=dict)
    """The amounts that its project gets back of its limits."""


def remedies(
    facts: RequestFacts, request: Request, causes: Iterable[Finding], answers: Sequence[HostAnswer]
) -> tuple[tuple[Action, ...], tuple[Remedy, ...]]:
    """Return the actions that are needed wherever the server is to run, and then the cheapest remedies of hosts, one or
    two a host; none of these when a host has room already.

    A server of the project gives its share of the limits back when it is deleted; only what is short then is raised.
    """
    always = tuple(action for cause in causes if cause.code != "quota" for action in _global(facts, cause))
    hosts = {host.name: host for host in facts.hosts}
    drafts: list[_Draft] = []
    if not any(answer.fits for answer in answers):
        drafts = [draft for answer in answers for draft in _of_host(facts, request, hosts[answer.host], answer)]
    raises = [raising(facts, request, _freed(facts, draft.freed)) for draft in drafts]
    common = [action for action in raises[0] if all(action in raised for raised in raises)] if raises else None
    first = (*always, *(raising(facts, request) if common is None else common))
    made = [
        Remedy(
            draft.host,
            (*draft.others, *(a for a in raised if a not in (common or ())), *_deletions(facts, request, draft)),
        )
        for draft, raised in zip(drafts, raises, strict=True)
    ]
    return first, tuple(sorted(made, key=lambda remedy: len(remedy.actions))[:MOST])


@dataclass(frozen=True)
class _Draft:
    """A remedy of one host before it is known what it does to limits."""

    host: str
    others: tuple[Action, ...]
    freed: tuple[Freeing, ...] = ()


def _freed(facts: RequestFacts, freed: Iterable[Freeing]) -> dict[str, int]:
    return counted_of(facts.asker, ((freeing.project_id, freeing.counted) for freeing in freed))


def _deletions(facts: RequestFacts, request: Request, draft: _Draft) -> Iterable[Action]:
    """The actions that free something; a shelved server still counts as one."""
    only_deleted = "servers" in exceeded(facts, request)
    for freeing in draft.freed:
        mine = only_deleted and facts.asker is not None and freeing.project_id == facts.asker.id
        text = freeing.action.text
        yield replace(freeing.action, text=text.replace("delete or shelve", "delete", 1)) if mine else freeing.action


def _global(facts: RequestFacts, cause: Finding) -> Iterable[Action]:
    if cause.code == "access" and facts.asker:
        text = f"openstack flavor set --project {facts.asker.name} {facts.flavor.name}"
        yield Action("grant-access", text, {"project": facts.asker.name, "flavor": facts.flavor.name})
    else:
        yield Action(cause.code, cause.remedy)


def _of_host(facts: RequestFacts, request: Request, host: ComputeNode, answer: HostAnswer) -> Iterable[_Draft]:
    others: list[Action] = []
    for cause in answer.causes:
        if cause.code not in FREEABLE:
            action = _of_cause(host, cause)
            if action is None:
                return
            others.append(action)
    freeable = [cause for cause in answer.causes if cause.code in FREEABLE]
    if not freeable:
        yield _Draft(host.name, tuple(others))
        return
    servers = list(_servers(facts, host))
    for pool in (servers, [*_leftovers(facts, request, host), *servers]):
        chosen = _cheapest(facts, request, host, pool, spare_limits=pool is servers)
        if chosen and (pool is servers or any(freeing.action.kind != "delete-server" for freeing in chosen)):
            yield _Draft(host.name, tuple(others), tuple(chosen))
    smaller = [_smaller_reserve(host, cause) for cause in freeable]
    if all(smaller):
        yield _Draft(host.name, (*others, *(action for action in smaller if action)))


def _of_cause(host: ComputeNode, cause: Finding) -> Action | None:
    """The action that takes a cause away by a change of the host or of the flavor; None when nothing simple does."""
    if cause.code == "too-big":
        return _smaller_reserve(host, cause)
    if cause.code in ("max-unit", "gpu-count", "device-type", "no-service", "cell-silent", "placement"):
        return None
    kind = {
        "service-disabled": "enable-service",
        "service-forced-down": "unset-forced-down",
        "service-down": "start-service",
    }
    return Action(kind.get(cause.code, cause.code), cause.remedy, {"host": host.name})


def _smaller_reserve(host: ComputeNode, cause: Finding) -> Action | None:
    """Keeping less for servers with GPUs, where that is enough; None where it is not."""
    numbers = cause.payload["details"][0] if cause.payload["details"] else {}
    name, missing = str(numbers.get("class", "")), numbers.get("missing")
    if not isinstance(missing, int) or missing > host.kept.get(name, 0):
        return None
    key = f"hosts.{host.name}.reserve"
    text = (
        f"write a smaller reserve: {key} with {amount(name, missing)} of {WORDS[name][0].removesuffix(f' {OTHERS}')} "
        "less, and deploy it (servers with GPUs may then lack that)"
    )
    return Action("smaller-reserve", text, {"host": host.name, "key": key, "class": name, "less": missing})


def _servers(facts: RequestFacts, host: ComputeNode) -> Iterable[Freeing]:
    providers_by_server: dict[str, set[str]] = {}
    for device in facts.devices:
        if device.server:
            providers_by_server.setdefault(device.server, set()).add(device.provider)
    for server in host.servers or ():
        providers = frozenset(providers_by_server.get(server.id, ()))
        idle = IDLE.index(server.status) if server.status in IDLE else len(IDLE)
        price = (idle, len(providers), sum(server.amounts.values()))
        yield Freeing(
            _delete(server, host), providers, server.amounts, price, server.project_id, {"servers": 1, **server.counted}
        )


def _delete(server: RunningServer, host: ComputeNode) -> Action:
    whose = f"project {server.project}" + (f", user {server.user}" if server.user else "")
    text = f"delete or shelve server {server.name} ({whose}, {server.status})"
    values = {"server": server.id, "name": server.name, "project": server.project, "host": host.name}
    return Action("delete-server", text, values)


def _leftovers(facts: RequestFacts, request: Request, host: ComputeNode) -> Iterable[Freeing]:
    """GPUs that no server holds: kept back by the operator, or by a consumer that is no server."""
    requested_classes = {need.resource_class for need in request.devices}
    for device in facts.devices:
        if device.host != host.name or device.resource_class not in requested_classes:
            continue
        values = {"provider": device.provider, "class": device.resource_class, "host": host.name}
        if device.state in ("held", "booked"):
            yield Freeing(_release(facts, device, values), frozenset({device.provider}), {}, (0, 1, 0))
        elif device.orphan:
            text = (
                f"if {device.server} is no server or migration any more: openstack resource provider allocation "
                f"delete {device.server}"
            )
            action = Action("delete-allocation", text, {**values, "consumer": device.server})
            yield Freeing(action, frozenset({device.provider}), {}, (0, 1, 0))


def _release(facts: RequestFacts, device: Device, values: Mapping[str, object]) -> Action:
    """What gives back a GPU that is kept out of use; what gpuyard keeps it would keep again."""
    if device.state == "booked":
        text = f"wait for {device.address} ({device.reason})"
        if device.booking:
            text += f", or have its owner give it up: gpuyard booking show {device.booking}"
        return Action("wait-for-booking", text, {**values, "booking": device.booking})
    when = f"release {device.address} when it may be used again"
    if device.booking:
        text = f"{when} ({device.reason}): gpuyard gpu release {device.booking}"
        return Action("release-hold", text, {**values, "booking": device.booking})
    if device.state == "held" and device.reason and device.reason != FOREIGN:
        name = f"{device.host}/{device.address}"
        text = f"have {device.address} looked after ({device.reason}): gpuyard gpu health {name}"
        return Action("repair", text, values)
    text = (
        f"{when}: openstack resource provider inventory set --amend --resource {device.resource_class}:reserved=0 "
        f"(provider {device.provider})"
    )
    if facts.bookable and not facts.ledger_known:
        text = f"if gpuyard itself does not keep {device.address} (the portal knows; name it with --url), {text}"
    return Action("release-hold", text, values)


def _cheapest(
    facts: RequestFacts, request: Request, host: ComputeNode, pool: Sequence[Freeing], spare_limits: bool
) -> list[Freeing]:
    """The fewest of the pool that free enough: one when one does, else the best one after the other, without those
    that turn out not to be needed. With `spare_limits` one that leaves fewer limits to raise goes before others. Empty
    when all of them together are not enough."""

    def price(freed: Sequence[Freeing]) -> tuple[int, tuple[int, ...]]:
        raised = len(exceeded(facts, request, _freed(facts, freed))) if spare_limits else 0
        return raised, freed[-1].price

    enough = [freeing for freeing in pool if not _lacks(facts, request, host, [freeing])]
    if enough:
        return [min(enough, key=lambda freeing: price([freeing]))]
    chosen: list[Freeing] = []
    while lacking := _lacks(facts, request, host, chosen):
        left = [freeing for freeing in pool if freeing not in chosen]
        if not left:
            return []
        best = min(
            left, key=lambda freeing: (_lacks(facts, request, host, [*chosen, freeing]), price([*chosen, freeing]))
        )
        if _lacks(facts, request, host, [*chosen, best]) == lacking:
            best = min(left, key=lambda freeing: price([*chosen, freeing]))  # no step helps alone; it may with the next
        chosen.append(best)
    for candidate in list(chosen):
        rest = [other for other in chosen if other is not candidate]
        if not _lacks(facts, request, host, rest):
            chosen = rest
    return chosen


def _lacks(facts: RequestFacts, request: Request, host: ComputeNode, freed: Sequence[Freeing]) -> float:
    """How far the host still is from having GPUs and room enough: 0 when it has them."""
    back = frozenset[str]().union(*(freeing.providers for freeing in freed))
    choices = []
    for need in request.devices:
        devices = matching(facts.devices, need, host.name)
        choices.append([*available(facts, devices, need), *(d.provider for d in devices if _comes_back(d, back))])
    amounts = dict(request.amounts)
    short = shortage(host.rooms or {}, amounts)
    for freeing in freed:
        for name in short:
            short[name] -= freeing.amounts.get(name, 0)
    return len(unmet(choices)) + sum(max(0, number) / amounts[name] for name, number in short.items())


def _comes_back(device: Device, back: frozenset[str]) -> bool:
    return device.provider in back and device.state in ("claimed", "held", "booked")
