"""Plans how a cloud's flavors and limits become what the site wants. Pure.

Only what gpuyard made is changed, flavors and limits that carry the site's mark, and the base limits that the site file
states. Anything else is left alone, and an object of another owner under a wanted name refuses the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject, LimitObject, SeenFlavor, SeenLimit, SeenObjects, owner_mark

PROPERTY = "property "
ACCESS = "access "
# Nova cannot change these on a flavor that exists; servers keep the flavor that they were made with.
FIXED = ("vcpus", "ram", "disk", "ephemeral", "public")
GPU_CLASS = "class:CUSTOM_GPU_"


def plan_site(compiled: CompiledSite, seen: SeenObjects, prune: bool = False) -> Plan:
    """The steps from what is seen to what is wanted; without `prune`, what is no longer wanted is only noted."""
    mark = owner_mark(compiled.site.site)
    steps: list[Step] = []
    refusals = [
        *_missing_projects(compiled, seen),
        *_foreign_flavors(compiled.flavors, seen.flavors, mark),
        *_foreign_limits(compiled.limits, seen.limits),
        *_no_server_limit(compiled.limits, seen.limits),
    ]
    found = {item.flavor.name: item for item in seen.flavors if item.flavor.description == mark}
    limits = {(item.limit.project, item.limit.resource): item for item in seen.limits}
    # Limits first: a flavor whose GPUs have no limit yet would be everybody's without bound.
    for limit in compiled.limits:
        steps += _limit_steps(limit, limits.get((limit.project, limit.resource)))
    for wanted in compiled.flavors:
        steps += _flavor_steps(wanted, found.get(wanted.name))
    unwanted = [*_unwanted_limits(compiled.limits, seen.limits, mark)]
    unwanted += _unwanted_flavors(compiled.flavors, found.values())
    if prune:
        steps += unwanted
        notes = []
    else:
        notes = [f"{step.kind} {step.name} is no longer wanted; --prune deletes it" for step in unwanted]
    return Plan(tuple(steps), tuple(refusals), tuple(notes))


def _missing_projects(compiled: CompiledSite, seen: SeenObjects) -> Iterable[str]:
    named = {limit.project for limit in compiled.limits if limit.project is not None}
    named |= {project for flavor in compiled.flavors for project in flavor.projects}
    for name in sorted(named - seen.projects.keys()):
        yield f"project {name} does not exist in Keystone; create it, or take it out of the site file"


def _foreign_flavors(wanted: Sequence[FlavorObject], seen: Sequence[SeenFlavor], mark: str) -> Iterable[str]:
    names = {flavor.name for flavor in wanted}
    ids = {flavor_id(flavor.name) for flavor in wanted}
    for item in seen:
        if item.flavor.description != mark and (item.flavor.name in names or item.id in ids):
            owner = item.flavor.description or "somebody else"
            yield (
                f"flavor {item.flavor.name} (id {item.id}) exists already and is not of this site ({owner}): rename "
                f"yours in the site file, delete it, or hand it over: "
                f"openstack flavor set --description '{mark}' {item.id}"
            )


def _foreign_limits(wanted: Sequence[LimitObject], seen: Sequence[SeenLimit]) -> Iterable[str]:
    found = {limit_name(item.limit): item for item in seen}
    for limit in wanted:
        item = found.get(limit_name(limit))
        if limit.description and item is not None and item.limit.description != limit.description:
            kind, name = limit_name(limit)
            command = "registered limit" if limit.project is None else "limit"
            yield (
                f"{kind} {name} exists already and is not of this site ({item.limit.description or 'somebody else'}): "
                f"delete it, or hand it over: openstack {command} set --description '{limit.description}' {item.id}"
            )


def _no_server_limit(wanted: Sequence[LimitObject], seen: Sequence[SeenLimit]) -> Iterable[str]:
    known = {(limit.resource, limit.project) for limit in [*wanted, *(item.limit for item in seen)]}
    if ("servers", None) not in known:
        yield (
            "Keystone has no registered limit on 'servers', and Nova then refuses every server: "
            "add 'limits: {servers: 100}' to the site file"
        )


def flavor_id(name: str) -> str:
    """The id of a flavor of ours: its name, but for the + that Nova takes in names and not in ids."""
    return name.replace("+", "_")


def describe_flavor(flavor: FlavorObject) -> dict[str, Any]:
    """A flavor as the flat mapping that steps compare and print. RAM in MiB, disks in GiB."""
    flat: dict[str, Any] = {key: getattr(flavor, key) for key in FIXED}
    flat["description"] = flavor.description
    flat |= {PROPERTY + key: value for key, value in flavor.extra_specs.items()}
    flat |= {ACCESS + project: "yes" for project in flavor.projects}
    return flat


def _flavor_steps(wanted: FlavorObject, found: SeenFlavor | None) -> Iterable[Step]:
    after = describe_flavor(wanted)
    if found is None:
        yield Step(Verb.CREATE, "flavor", wanted.name, "the site wants it and the cloud does not have it", {}, after)
        return
    before = describe_flavor(found.flavor)
    fixed = [key for key in FIXED if before[key] != after[key]]
    if fixed:
        reason = f"Nova cannot change {', '.join(fixed)} of a flavor; running servers keep theirs"
        yield Step(Verb.REPLACE, "flavor", wanted.name, reason, before, after)
    elif before != after:
        yield Step(Verb.UPDATE, "flavor", wanted.name, "differs from the site file", before, after)


def _limit_steps(wanted: LimitObject, found: SeenLimit | None) -> Iterable[Step]:
    kind, name = limit_name(wanted)
    after: dict[str, Any] = {"limit": wanted.value}
    if wanted.description:
        after["description"] = wanted.description
    if found is None:
        reason = "every project's default" if wanted.project is None else "what this project may use"
        if wanted.project is None and wanted.resource.startswith(GPU_CLASS):
            reason = "a class without a limit is unlimited for everybody"
        yield Step(Verb.CREATE, kind, name, reason, {}, after)
    elif found.limit.value != wanted.value:
        before = {**after, "limit": found.limit.value}
        yield Step(Verb.UPDATE, kind, name, "differs from the site file", before, after)


def limit_name(limit: LimitObject) -> tuple[str, str]:
    """Kind and name of a limit in a step."""
    if limit.project is None:
        return "registered limit", limit.resource
    return "project limit", f"{limit.project} {limit.resource}"


def _unwanted_flavors(wanted: Sequence[FlavorObject], ours: Iterable[SeenFlavor]) -> Iterable[Step]:
    names = {flavor.name for flavor in wanted}
    for item in ours:
        if item.flavor.name not in names:
            before = describe_flavor(item.flavor)
            yield Step(Verb.DELETE, "flavor", item.flavor.name, "no longer in the site file", before, {})


def _unwanted_limits(wanted: Sequence[LimitObject], seen: Sequence[SeenLimit], mark: str) -> Iterable[Step]:
    """Ours that the site file does not name. Projects' own first: Keystone keeps a registered limit that others
    depend on."""
    names = {limit_name(limit) for limit in wanted}
    unwanted = [i.limit for i in seen if i.limit.description == mark and limit_name(i.limit) not in names]
    for limit in sorted(unwanted, key=lambda limit: (limit.project is None, limit_name(limit))):
        yield Step(Verb.DELETE, *limit_name(limit), "no longer in the site file", {"limit": limit.value}, {})
