"""Plans limits in Keystone: registered ones, the default of every project, and projects' own.

Keystone changes a registered limit only while no project has a limit on the resource. So those of projects are
deleted before, and made again after it, as the site states them; one that the site does not state refuses the plan.
Deletions take projects' own first, because Keystone keeps a registered limit that others depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuyard.model.plan import StepVerb
from gpuyard.site.objects import LimitObject, SeenLimit
from gpuyard.site.steps import LimitStep, SitePlan

CLASS = "class:CUSTOM_"

Key = tuple[str | None, str]
"""Project (None for a registered limit) and resource."""


def plan_limits(desired: Sequence[LimitObject], observed: Sequence[SeenLimit]) -> SitePlan:
    """Plan the limits that the site states; one on a class of ours that somebody else made refuses the plan."""
    existing = {(item.limit.project, item.limit.resource): item for item in observed}
    own = {(limit.project, limit.resource) for limit in desired}
    steps: list[LimitStep] = []
    refusals = [*_foreign(desired, existing), *_without_default(desired, existing)]
    for limit in desired:
        step = _step(limit, existing.get((limit.project, limit.resource)))
        if step is None:
            continue
        if limit.project is None and step.verb is StepVerb.UPDATE:
            depends = [item for item in observed if item.limit.project and item.limit.resource == limit.resource]
            refusals += [_in_the_way(item) for item in depends if (item.limit.project, limit.resource) not in own]
            for item in depends:
                steps.append(_delete(item.limit, "Keystone changes a default only while no project's limit is on it"))
                existing.pop((item.limit.project, limit.resource))
        steps.append(step)
    return SitePlan(tuple(steps), tuple(refusals))


def unwanted_limits(
    desired: Sequence[LimitObject], observed: Sequence[SeenLimit], mark: str, booked: bool = False
) -> Iterable[LimitStep]:
    """Yield deletions of limits of ours that the site file does not name. Projects' own come first: Keystone keeps a
    registered limit that others depend on. `booked`: GPUs can be booked, and projects' limits on them follow the
    bookings."""
    names = {(limit.project, limit.resource) for limit in desired}
    unwanted = [
        i.limit
        for i in observed
        if i.limit.description == mark
        and (i.limit.project, i.limit.resource) not in names
        and not (booked and i.limit.project is not None and i.limit.resource.startswith(CLASS))
    ]
    for limit in sorted(unwanted, key=lambda limit: (limit.project is None, limit.name)):
        yield _delete(limit, "no longer in the site file")


def split_revoked(unwanted: Iterable[LimitStep]) -> tuple[list[LimitStep], list[LimitStep]]:
    """Split deletions: those that take GPUs from a project that the site file gives none, which must not wait for a
    prune; and the rest."""
    steps = list(unwanted)
    revoked = [step for step in steps if step.object.project is not None and step.object.resource.startswith(CLASS)]
    return revoked, [step for step in steps if step not in revoked]


def _step(desired: LimitObject, existing: SeenLimit | None) -> LimitStep | None:
    if existing is None:
        reason = "every project's default" if desired.project is None else "what this project may use"
        if desired.project is None and desired.resource.startswith(CLASS):
            reason = "a class without a limit is unlimited for everybody"
        return LimitStep(reason, None, desired)
    if existing.limit.value != desired.value:
        return LimitStep("differs from the site file", replace(desired, value=existing.limit.value), desired)
    return None


def _delete(limit: LimitObject, reason: str) -> LimitStep:
    return LimitStep(reason, replace(limit, description=""), None)


def _foreign(desired: Iterable[LimitObject], existing: Mapping[Key, SeenLimit]) -> Iterable[str]:
    """Limits on classes of ours are ours; on servers, CPU and the like they are the cloud's, whoever made them."""
    for limit in desired:
        item = existing.get((limit.project, limit.resource))
        if limit.resource.startswith(CLASS) and item is not None and item.limit.description != limit.description:
            command = "registered limit" if limit.project is None else "limit"
            owner = item.limit.description or "somebody else"
            yield (
                f"{limit.kind} {limit.name} exists already and is not of this site ({owner}): "
                f"delete it, or hand it over: openstack {command} set --description '{limit.description}' {item.id}"
            )


def _without_default(desired: Iterable[LimitObject], existing: Mapping[Key, SeenLimit]) -> Iterable[str]:
    """Keystone takes a project's limit only beside a registered one."""
    desired = list(desired)
    registered = {limit.resource for limit in desired if limit.project is None}
    registered |= {resource for project, resource in existing if project is None}
    for limit in desired:
        exists = (limit.project, limit.resource) in existing
        if limit.project is not None and limit.resource not in registered and not exists:
            yield (
                f"project {limit.project} is to have a limit on {limit.resource}, and Keystone takes none without a "
                "default for everybody: add it under 'limits' (-1 is no limit)"
            )


def _in_the_way(item: SeenLimit) -> str:
    limit = item.limit
    return (
        f"the registered limit on {limit.resource} cannot be changed while project {limit.project} has a limit of its "
        f"own ({limit.value}) that the site file does not state: add it under 'projects', or delete it: "
        f"openstack limit delete {item.id}"
    )
