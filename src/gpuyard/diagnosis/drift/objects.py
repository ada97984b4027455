"""Compares flavors, limits and images with the site file: those that it manages, and those of others that reach its
GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuyard.diagnosis.drift.finding import drift
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.plan import StepVerb
from gpuyard.nova.alias_spec import ALIAS_SPEC, asked_devices
from gpuyard.site.encoding import count_class, peer_class, pool_class
from gpuyard.site.objects import FlavorObject, SeenFlavor, bookings_mark, keeps_reserves, owner_mark, site_trait
from gpuyard.site.plan import UNDEPLOYED, foreign_differences, plan_site
from gpuyard.site.steps import SiteStep, Values

APPLY = "gpuyard site apply, or --fix"
TAKES_DEVICE = re.compile(r"^resources[\w-]*:(CUSTOM_(?:GPU|PCI)_\w+)$")
ENDINGS = {StepVerb.CREATE: "missing", StepVerb.UPDATE: "changed", StepVerb.REPLACE: "changed", StepVerb.DELETE: "left"}
EFFECTS = {
    "flavor": "users get other servers than the site says, or none",
    "registered limit": "projects without a limit of their own may use more or less than the site says",
    "project limit": "the project may use more or less than the site says",
    "aggregate": "servers start on other hosts than the site says",
    "image": "servers of the image start without what their GPUs ask of them",
}


def object_findings(subject: DriftSubject) -> Iterable[Finding]:
    yield from _planned(subject)
    yield from _foreign_flavors(subject)
    yield from _foreign_limits(subject)
    yield from _exceeded(subject)
    for identity, name in sorted(subject.world.images.items()):
        trait = site_trait(subject.compiled.site.site)
        yield drift(
            Severity.ERROR, "image-trait", f"{name} ({identity})", f"trait:{trait}=required", "no such property",
            "servers of any flavor get onto the site's hosts with it, into what is kept for GPUs",
            f"openstack image unset --property trait:{trait} {identity}; Glance's property protections keep users from "
            "setting it",
        )  # fmt: skip


def _planned(subject: DriftSubject) -> Iterable[Finding]:
    """What `site plan` shows."""
    compiled, objects = subject.compiled, subject.world.objects
    plan = plan_site(compiled, objects)
    yield from (_of_step(step) for step in plan.steps)
    for text in plan.waits:
        name, _, why = text.partition(": ")
        if name.startswith(UNDEPLOYED) and "servers there consume" not in why:
            continue  # each host is compared with its provider.yaml anyway
        yield drift(
            Severity.ERROR, "waiting", name, why, "as the site file says", "the change is not made yet",
            "deploy the rendered provider.yaml and restart nova-compute, then gpuyard site apply",
        )  # fmt: skip
    for text in plan.refusals:
        name, _, why = text.partition(" exists already")
        yield drift(
            Severity.ERROR, "refused", name if why else "site", text, "nothing in the way of gpuyard site apply",
            "nothing of the site is applied", "see what the text says",
        )  # fmt: skip
    done = set(map(str, plan.steps))
    pruned = [step for step in plan_site(compiled, objects, prune=True).steps if str(step) not in done]
    for step in pruned:
        if step.verb is StepVerb.DELETE:
            kind = step.kind.split()[-1]
            yield drift(
                Severity.NOTE, f"{kind}-left", f"{step.kind} {step.name}", "made by gpuyard for the site",
                "not in the site file any more", "users still have it", "gpuyard site apply --prune deletes it",
            )  # fmt: skip
    yield from (_foreign_difference(text) for text in foreign_differences(compiled.flavors, objects))


def _of_step(step: SiteStep) -> Finding:
    kind = f"{step.kind.split()[-1]}-{ENDINGS[step.verb]}"
    effect = EFFECTS[step.kind]
    if step.kind == "registered limit" and step.verb is StepVerb.CREATE and step.name.startswith("class:CUSTOM_GPU_"):
        effect = "no limit holds: every project may use all, or Nova refuses all, as its options say"
    before, after = step.values
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    missing = step.verb is StepVerb.CREATE
    return drift(
        Severity.ERROR, kind, f"{step.kind} {step.name}",
        "missing" if missing else _values(before, changed),
        "exists" if missing else _values(after, changed), effect, APPLY, (step,),
    )  # fmt: skip


def _values(flat: Values, keys: Iterable[str]) -> str:
    return ", ".join(f"{key}: {flat[key]}" if key in flat else f"no {key}" for key in keys)


def _foreign_difference(text: str) -> Finding:
    words = text.split()
    return drift(
        Severity.ERROR, "flavor-foreign-changed", " ".join(words[:2]), text, "as the site file says",
        EFFECTS["flavor"], "change the flavor, which gpuyard does not, or the site file",
    )  # fmt: skip


def _foreign_flavors(subject: DriftSubject) -> Iterable[Finding]:
    """Flavors of others that reach for the site's GPUs or hosts. Those that the site file names are wanted so."""
    site = subject.compiled.site
    mark = owner_mark(site.site)
    named = {flavor.name for flavor in subject.compiled.flavors if flavor.foreign}
    for item in subject.world.objects.flavors:
        if item.flavor.description != mark and item.flavor.name not in named:
            yield from _reaches(subject, item)


def _reaches(subject: DriftSubject, item: SeenFlavor) -> Iterable[Finding]:
    site, flavor = subject.compiled.site, item.flavor
    where = f"flavor {flavor.name} (id {item.id})"
    requested: dict[str, int] = {}
    for name, number in asked_devices(flavor.extra_specs).items():
        if name in subject.pool_of_alias:
            requested[subject.pool_of_alias[name]] = requested.get(subject.pool_of_alias[name], 0) + number
    uncounted = {
        pool: n for pool, n in requested.items() if flavor.extra_specs.get(f"resources:{count_class(pool)}") != str(n)
    }
    if uncounted and site.gpu_quotas:
        specs = " ".join(f"--property resources:{count_class(pool)}={n}" for pool, n in uncounted.items())
        yield drift(
            Severity.ERROR, "flavor-foreign-alias", where,
            f"asks for {flavor.extra_specs[ALIAS_SPEC]} and does not count", "counted, or not of the site's GPUs",
            "its servers take GPUs past the projects' limits", f"openstack flavor set {specs} {item.id}, or delete it",
        )  # fmt: skip
    taken = sorted(_takes(flavor) - {count_class(pool) for pool in requested})
    by_alias = [name for name, pool in site.pools.items() if pool.counted_by_alias]
    mine = {name for pool in by_alias for name in (pool_class(pool), peer_class(pool), count_class(pool))}
    if any(name in mine or name.startswith("CUSTOM_PCI_") for name in taken):
        yield drift(
            Severity.ERROR, "flavor-takes-gpu", where, f"asks Placement for {', '.join(taken)}",
            f"{ALIAS_SPEC}, which is what attaches a device",
            "its servers take GPUs in Placement and get none: nobody has them",
            f"take the property away and use {ALIAS_SPEC}: openstack flavor unset --property resources:{taken[0]} "
            f"{item.id}",
        )  # fmt: skip
    trait = f"trait:{site_trait(site.site)}"
    if site.isolated and flavor.extra_specs.get(trait) == "required":
        counts = any(key.startswith("resources:CUSTOM_NOGPU_") for key in flavor.extra_specs)
        if not (requested or counts) or not keeps_reserves(site):
            yield drift(
                Severity.ERROR, "flavor-foreign-trait", where, f"{trait}=required", "no such property",
                "its servers get onto the site's hosts, into what is kept for GPUs",
                f"openstack flavor unset --property {trait} {item.id}, or make the flavor in the site file",
            )  # fmt: skip


def _takes(flavor: FlavorObject) -> set[str]:
    return {match.group(1) for key in flavor.extra_specs if (match := TAKES_DEVICE.match(key))}


def _site_classes(subject: DriftSubject) -> set[str]:
    pools = subject.compiled.site.pools
    return {f"class:{name}" for pool in pools for name in (count_class(pool), pool_class(pool), peer_class(pool))}


def _foreign_limits(subject: DriftSubject) -> Iterable[Finding]:
    """Limits on the site's GPUs that the site file does not state, of others."""
    if not subject.compiled.site.gpu_quotas:
        return
    site = subject.compiled.site
    # Where GPUs can be booked, projects' limits rise and fall with bookings.
    marks = {owner_mark(site.site), *([bookings_mark(site.site)] if site.booking else [])}
    stated = {(limit.project, limit.resource) for limit in subject.compiled.limits}
    mine = _site_classes(subject)
    for item in subject.world.objects.limits:
        limit = item.limit
        if limit.resource not in mine or (limit.project, limit.resource) in stated or limit.description in marks:
            continue
        who = f"project {limit.project}" if limit.project else "every project"
        command = "limit" if limit.project else "registered limit"
        yield drift(
            Severity.ERROR, "limit-foreign", f"{who} {limit.resource}", f"limit {limit.value}", "none in the site file",
            f"{who} may use other numbers of GPUs than the site says",
            f"state it in the site file, or delete it: openstack {command} delete {item.id}",
        )  # fmt: skip


def _exceeded(subject: DriftSubject) -> Iterable[Finding]:
    """Projects that use more GPUs than they may: limits that were lowered, or servers that came past them."""
    if not subject.compiled.site.gpu_quotas:
        return
    limits = {(item.limit.project, item.limit.resource): item.limit.value for item in subject.world.objects.limits}
    for project, usage in sorted(subject.world.usages.items()):
        for pool in subject.compiled.site.pools:
            for name in (count_class(pool), pool_class(pool)):
                resource = f"class:{name}"
                limit = limits.get((project, resource), limits.get((None, resource)))
                if limit is not None and 0 <= limit < usage.get(name, 0):
                    yield drift(
                        Severity.ERROR, "quota-exceeded", f"project {project} pool {pool}",
                        f"uses {usage[name]} of {name}", f"at most {limit}",
                        "no more GPUs for this project; those that it has stay",
                        "delete servers of the project, or raise its limit in the site file",
                    )  # fmt: skip
                    break
