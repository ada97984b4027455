"""Finds the project's limits that one more server would exceed, and the values that they would have to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuyard.diagnosis.why.facts import Action, Asker, Limit, RequestFacts, obstacle
from gpuyard.diagnosis.why.words import amount, countable, words
from gpuyard.model.finding import Finding
from gpuyard.nova.request import Request

CLASS = "class:"
# Resource -> the key of a project in the site file.
SITE_KEYS = {"servers": "servers", "class:VCPU": "vcpus", "class:MEMORY_MB": "ram", "class:DISK_GB": "disk"}
NONE_FREED: Mapping[str, int] = {}


def uncounted(asker: Asker) -> str:
    """Return a doubt about limits while a cell of Nova is silent: its servers are not listed."""
    return (
        f"a cell of Nova does not answer: servers of project {asker.name} that are there are not counted here, and "
        "Nova counts them against its limit on servers"
    )


def exceeded(facts: RequestFacts, request: Request, freed: Mapping[str, int] = NONE_FREED) -> dict[str, list[Limit]]:
    """Return the limits that one more server would exceed when this much of the project's use is given back before;
    those on the classes of one pool together, the one that counts all its GPUs first. Key: the pool, or the
    resource."""
    groups: dict[str, list[Limit]] = {}
    for item in sorted(_asked(facts, request), key=lambda limit: (_class(limit) not in facts.counting, limit.resource)):
        if item.limit >= 0 and _needs(facts, request, item, freed) > item.limit:
            groups.setdefault(facts.pools.get(_class(item), item.resource), []).append(item)
    return groups


def _asked(facts: RequestFacts, request: Request) -> list[Limit]:
    requested = request.counted(facts.counts_devices)
    return [item for item in facts.asker.limits if requested.get(item.resource)] if facts.asker else []


def _class(limit: Limit) -> str:
    return limit.resource.removeprefix(CLASS)


def _needs(facts: RequestFacts, request: Request, item: Limit, freed: Mapping[str, int]) -> int:
    """What would be in use with one more server."""
    return max(0, item.used - freed.get(item.resource, 0)) + request.counted(facts.counts_devices)[item.resource]


def of_project(facts: RequestFacts, request: Request) -> list[Finding]:
    """Return causes for limits that one more server would exceed: one for each pool, and for each other resource."""
    if facts.asker is None:
        return []
    groups = exceeded(facts, request).values()
    return [
        _cause(facts, request, facts.asker, group, _raise(facts, request, facts.asker, group, NONE_FREED))
        for group in groups
    ]


def _cause(facts: RequestFacts, request: Request, asker: Asker, group: list[Limit], action: Action) -> Finding:
    requested = request.counted(facts.counts_devices)
    item, name = group[0], _class(group[0])
    what = words(facts, name)
    if name in facts.pools and name not in facts.counting:
        what += f" (class {name})"
    how = "many" if countable(facts, name) else "much"
    if item.registered:
        whose = "its limit is" if item.own else "the limit of every project is"
        because = f"{whose} {amount(name, item.limit)}"
    else:
        because = "Keystone has no registered limit on it, and without one nobody gets any"
    text = (
        f"project {asker.name} may not have that {how} {what}: {because}, in use {amount(name, item.used)}, "
        f"asks {amount(name, requested[item.resource])}; Nova answers 403"
    )
    fix = action.text
    if item.used:
        fix += ", or delete a server of the project" + ("" if item.resource == "servers" else " that uses it")
    numbers = tuple(
        {
            "resource": limit.resource,
            "limit": limit.limit,
            "in_use": limit.used,
            "asks": requested[limit.resource],
            "own": limit.own,
        }
        for limit in group
    )
    short = f"the limit of project {asker.name} on {what} is {'reached' if item.limit else 0}"
    return obstacle("quota", text, fix, numbers, short if item.registered else f"no limit is registered on {what}")


def raising(facts: RequestFacts, request: Request, freed: Mapping[str, int] = NONE_FREED) -> tuple[Action, ...]:
    """Return actions that raise the limits: one for each key of the site file, with the highest number."""
    if facts.asker is None:
        return ()
    return tuple(
        _raise(facts, request, facts.asker, group, freed) for group in exceeded(facts, request, freed).values()
    )


def _raise(facts: RequestFacts, request: Request, asker: Asker, group: list[Limit], freed: Mapping[str, int]) -> Action:
    item, pool = group[0], facts.pools.get(_class(group[0]))
    same = [limit for limit in _asked(facts, request) if pool and facts.pools.get(_class(limit)) == pool] or group
    to = max(_needs(facts, request, limit, freed) for limit in same)
    key = _key(asker, item, pool)
    if pool and facts.bookable:
        more = to - item.used if to > item.used else to
        command = f"gpuyard booking create --pool {pool} --gpus {more} --end +4h"
        text = f"book {more} GPU{'' if more == 1 else 's'} of pool {pool}: '{command}'"
        return Action("book", text, {"project": asker.name, "pool": pool, "gpus": more})
    values: dict[str, object] = {
        "project": asker.name, "resource": item.resource, "to": to, "resources": [limit.resource for limit in group],
    }  # fmt: skip
    if key and item.resource in facts.site_limits:
        values["key"] = key
        return _by_site(facts, item, to, key, values)
    text = f"raise the limit of project {asker.name} on {item.resource} to {to} in Keystone"
    if not item.registered:
        where = "limits.servers" if item.resource == "servers" else key
        text = f"write {where or 'a limit'}: {to} or more in the site file, then 'gpuyard site apply' registers it"
        return Action("register-limit", text, values)
    return Action("raise-limit", text, values)


def _key(asker: Asker, item: Limit, pool: str | None) -> str | None:
    """The key of the site file that a limit comes from."""
    if pool:
        return f"projects.{asker.name}.gpus.{pool}"
    return f"projects.{asker.name}.{SITE_KEYS[item.resource]}" if item.resource in SITE_KEYS else None


def _by_site(facts: RequestFacts, item: Limit, to: int, key: str, values: Mapping[str, object]) -> Action:
    """What to do where the limit is the site file's."""
    has = facts.site_limits[item.resource]
    enough = has < 0 or has >= to
    kind = "raise-limit" if item.registered else "register-limit"
    if item.registered:
        then = "and run 'gpuyard site apply'"
        text = f"run 'gpuyard site apply': the site file allows {amount(_class(item), has)} already" if enough else ""
    else:
        then = "and run 'gpuyard site apply', which makes the registered limit"
        text = "run 'gpuyard site apply', which makes the registered limit" if enough else ""
    return Action(kind, text or f"write {key}: {amount(_class(item), to)} in the site file, {then}", values)


def counted_of(asker: Asker | None, servers: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """Return what servers give back of the asker's use; each is the id of its project, and what it counts for."""
    freed: dict[str, int] = {}
    for project, counted in servers:
        if asker is not None and project == asker.id:
            for name, number in counted.items():
                freed[name] = freed.get(name, 0) + number
    return freed
