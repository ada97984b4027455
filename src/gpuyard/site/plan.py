"""Plans how a cloud's flavors, limits, aggregates and images' properties become what the site wants. Pure.

Only what gpuyard made is changed, objects that carry the site's mark, and what the site file states about others:
base limits and properties of images. Anything else is left alone, and an object of another owner under a wanted name
refuses the whole plan.

The order of steps keeps servers startable at every moment: aggregates that open hosts, limits, flavors, aggregates
that close hosts, images, then flavors and limits that are no longer wanted. Limits are made before the flavors that
need them and deleted after them, because a class without a limit is unlimited for everybody. A change after which
nothing could start, because no nova-compute reports yet what a flavor asks for, waits.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuyard.model.plan import StepVerb
from gpuyard.nova.alias_spec import ALIAS_SPEC
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject, ImageObject, SeenFlavor, SeenImage, SeenLimit, SeenObjects, owner_mark
from gpuyard.site.plan_aggregates import plan_aggregates
from gpuyard.site.plan_limits import plan_limits, split_revoked, unwanted_limits
from gpuyard.site.steps import FlavorStep, ImageStep, LimitStep, SitePlan

RESOURCES = "resources:"
TRAIT = "trait:"
UNDEPLOYED = "provider.yaml of"
"""First words of a text about a provider.yaml that a host's nova-compute has not read, or about a class it must not
lose."""


def plan_site(compiled: CompiledSite, observed: SeenObjects, prune: bool = False) -> SitePlan:
    """Return the steps from observed to desired state; without `prune`, objects that are no longer wanted are only
    noted."""
    mark = owner_mark(compiled.site.site)
    ours = [flavor for flavor in compiled.flavors if not flavor.foreign]
    current = {item.flavor.name: item for item in observed.flavors if item.flavor.description == mark}
    # Limits first: a flavor whose GPUs have no limit yet would be everybody's without bound.
    parts = [plan_limits(compiled.limits, observed.limits)]
    unreported = unreported_by(compiled, observed)
    taken = {item.flavor.name for item in observed.flavors} - current.keys()  # what is somebody else's is refused below
    parts += [_plan_flavor(flavor, current.get(flavor.name), unreported) for flavor in ours if flavor.name not in taken]
    aggregates = plan_aggregates(compiled, observed, unreported, prune)
    parts = [aggregates.opening, *parts, aggregates.closing, _plan_images(compiled.images, observed.images)]
    # Limits last: as long as a flavor asks for a class, somebody could have it without bound.
    booked = compiled.site.booking is not None
    revoked, limits = split_revoked(unwanted_limits(compiled.limits, observed.limits, mark, booked))
    unwanted: list[FlavorStep | LimitStep] = [*_unwanted_flavors(ours, current.values()), *limits]
    parts.append(SitePlan(tuple(revoked)))
    notes: list[str] = [*compiled.notes, *foreign_differences(compiled.flavors, observed)]
    waits = (*_undeployed(compiled, observed), *_still_in_use(observed))
    if not prune:
        notes += [f"{step.kind} {step.name} is no longer wanted; --prune deletes it" for step in unwanted]
    refusals = (
        *_missing_projects(compiled, observed),
        *_misspelled_hosts(compiled, observed),
        *_foreign_flavors(ours, observed.flavors, mark),
        *_no_server_limit(compiled, observed.limits),
    )
    return _joined([*parts, SitePlan(tuple(unwanted if prune else ()), refusals, tuple(notes), waits=waits)])


def _joined(parts: Sequence[SitePlan]) -> SitePlan:
    return SitePlan(
        steps=tuple(step for part in parts for step in part.steps),
        refusals=tuple(text for part in parts for text in part.refusals),
        notes=tuple(text for part in parts for text in part.notes),
        waits=tuple(text for part in parts for text in part.waits),
    )


def _missing_projects(compiled: CompiledSite, observed: SeenObjects) -> Iterable[str]:
    named = {limit.project for limit in compiled.limits if limit.project is not None}
    named |= {project for flavor in compiled.flavors if not flavor.foreign for project in flavor.projects}
    for name in sorted(named - observed.projects.keys()):
        yield f"project {name} does not exist in Keystone; create it, or take it out of the site file"


def _misspelled_hosts(compiled: CompiledSite, observed: SeenObjects) -> Iterable[str]:
    """A host that Nova does not know may be one that is to come, but not beside one of nearly the same name."""
    others = sorted(observed.hosts - compiled.site.hosts.keys())
    for host in compiled.site.hosts:
        close = difflib.get_close_matches(host, others, n=1, cutoff=0.8) if host not in observed.hosts else []
        if close:
            yield f"no nova-compute has the name {host}, and the site file does not name {close[0]}: is that the host?"


def _foreign_flavors(desired: Sequence[FlavorObject], observed: Sequence[SeenFlavor], mark: str) -> Iterable[str]:
    by_name = {flavor.name: flavor for flavor in desired}
    by_id = {flavor_id(flavor.name): flavor for flavor in desired}
    for item in observed:
        ours = by_name.get(item.flavor.name) or by_id.get(item.id)
        if item.flavor.description == mark or ours is None:
            continue
        owner = item.flavor.description or "somebody else"
        replaced = FlavorStep("", item.flavor, ours).fixed
        means = "is then changed to what the site file says"
        if replaced:
            means = f"is then replaced, because it differs in {', '.join(replaced)}"
        yield (
            f"flavor {item.flavor.name} (id {item.id}) exists already and is not of this site ({owner}): rename "
            f"yours in the site file, delete it, say 'foreign: true' to leave it as it is, or hand it over (it "
            f"{means}): openstack flavor set --description '{mark}' {item.id}"
        )


def foreign_differences(desired: Sequence[FlavorObject], observed: SeenObjects) -> Iterable[str]:
    """Yield how flavors that gpuyard leaves alone differ from the site file."""
    by_name = {item.flavor.name: item.flavor for item in observed.flavors}
    for flavor in desired:
        if not flavor.foreign:
            continue
        existing = by_name.get(flavor.name)
        if existing is None:
            yield f"flavor {flavor.name} is foreign, and the cloud does not have it"
            continue
        if different := FlavorStep("", replace(existing, description=flavor.description), flavor).changes:
            yield f"flavor {flavor.name} is foreign and is not as the site file says: {'; '.join(different)}"


def _undeployed(compiled: CompiledSite, observed: SeenObjects) -> Iterable[str]:
    """Hosts whose nova-compute has not read the provider.yaml that the site wants it to have."""
    by_text: dict[str, list[str]] = {}
    for config in compiled.provider_configs:
        if config.host not in observed.hosts:
            continue
        totals = observed.totals.get(config.host, {})
        names = (*config.inventories, *config.traits)
        missing = [name for name in names if config.host not in observed.reported.get(name, frozenset())]
        mismatches = [
            f"{name} is {totals[name]} and not {total}"
            for name, total in config.inventories.items()
            if name in totals and totals[name] != total
        ]
        for text in ([f"{', '.join(missing)} not reported to Placement"] if missing else []) + mismatches:
            by_text.setdefault(text, []).append(config.host)
    for text, hosts in by_text.items():
        yield (
            f"{UNDEPLOYED} {some_of(hosts)}: {text}; deploy the rendered one and restart nova-compute, or "
            "servers of flavors that ask for it do not start there as they should"
        )


def _no_server_limit(compiled: CompiledSite, observed: Sequence[SeenLimit]) -> Iterable[str]:
    known_limits = {(limit.resource, limit.project) for limit in [*compiled.limits, *(item.limit for item in observed)]}
    if compiled.site.gpu_quotas and ("servers", None) not in known_limits:
        yield (
            "Keystone has no registered limit on 'servers', and Nova then refuses every server: "
            "add 'limits: {servers: 100}' to the site file"
        )


def flavor_id(name: str) -> str:
    """Return the id of a flavor of ours: its name, but for the + that Nova takes in names and not in ids."""
    return name.replace("+", "_")


def _plan_flavor(
    desired: FlavorObject, existing: SeenFlavor | None, unreported: Mapping[str, frozenset[str]]
) -> SitePlan:
    if existing is None:
        return SitePlan((FlavorStep("the site wants it", None, desired),))
    now = existing.flavor
    unmet = (asked(desired) - asked(now)) & unreported.keys()
    # One without its alias was left unfinished by an apply that was killed, and is in nobody's use.
    finished = ALIAS_SPEC in now.extra_specs or ALIAS_SPEC not in desired.extra_specs
    waits: tuple[str, ...] = ()
    if unmet and finished:
        hosts = some_of(frozenset().union(*(unreported[name] for name in unmet)))
        what = f"it would ask for {', '.join(sorted(unmet))}, which {hosts} do not report yet"
        waits = (f"flavor {desired.name}: {what}, and no server of it would start there",)
        # Who may use it need not wait. The rest belongs together.
        desired = replace(now, projects=desired.projects)
    step = FlavorStep("differs from the site file", now, desired)
    if step.verb is StepVerb.REPLACE:
        step = replace(
            step, reason=f"Nova cannot change {', '.join(step.fixed)} of a flavor; running servers keep theirs"
        )
    return SitePlan((step,) if step.changes else (), waits=waits)


def asked(flavor: FlavorObject) -> frozenset[str]:
    """Return the resource classes and traits that a flavor requires by name."""
    specs = flavor.extra_specs
    classes = {key.removeprefix(RESOURCES) for key in specs if key.startswith(RESOURCES)}
    traits = {key.removeprefix(TRAIT) for key in specs if key.startswith(TRAIT) and specs[key] == "required"}
    return frozenset(classes | traits)


def unreported_by(compiled: CompiledSite, observed: SeenObjects) -> dict[str, frozenset[str]]:
    """Return class or trait of a provider.yaml -> hosts that are up, should report it and do not. A host that is down
    cannot, and must not hold up the others."""
    missing: dict[str, set[str]] = {}
    for config in compiled.provider_configs:
        if config.host in observed.up:
            for name in (*config.inventories, *config.traits):
                if config.host not in observed.reported.get(name, frozenset()):
                    missing.setdefault(name, set()).add(config.host)
    return {name: frozenset(hosts) for name, hosts in missing.items()}


def some_of(hosts: Collection[str]) -> str:
    """Return the names of at most five hosts, and how many more there are."""
    named = sorted(hosts)
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")


def _still_in_use(observed: SeenObjects) -> Iterable[str]:
    """nova-compute does not start when its provider.yaml lacks a class that servers on the host consume."""
    for host, names in sorted(observed.in_use.items()):
        keep = ", ".join(f"{name}: 1" for name in sorted(names))
        yield (
            f"{UNDEPLOYED} {host}: servers there consume {', '.join(sorted(names))}, which the site no longer has, "
            f"and nova-compute does not start without. Until they are deleted or resized, keep it in the site file: "
            f"hosts: {{{host}: {{inventories: {{{keep}}}}}}}"
        )


def _unwanted_flavors(desired: Sequence[FlavorObject], ours: Iterable[SeenFlavor]) -> Iterable[FlavorStep]:
    names = {flavor.name for flavor in desired}
    for item in ours:
        if item.flavor.name not in names:
            yield FlavorStep("no longer in the site file", item.flavor, None)


def _plan_images(desired: Sequence[ImageObject], observed: Sequence[SeenImage]) -> SitePlan:
    """Only what the site file states is compared, and images are never made: one that Glance does not have, or has
    twice, refuses the plan."""
    steps: list[ImageStep] = []
    refusals: list[str] = []
    for image in desired:
        matches = [item for item in observed if item.image.name == image.name]
        if not matches:
            refusals.append(f"image {image.name} does not exist in Glance; create it, or take it out of the site file")
        elif len(matches) > 1:
            ids = ", ".join(item.id for item in matches)
            refusals.append(f"image {image.name} exists {len(matches)} times ({ids}); rename all but one")
        else:
            now = matches[0].image.properties
            before = {key: now[key] for key in image.properties if key in now}
            if before != image.properties:
                steps.append(ImageStep("differs from the site file", ImageObject(image.name, before), image))
    return SitePlan(tuple(steps), tuple(refusals))
