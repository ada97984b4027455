"""Writes the report for the operator after a cloud was adopted: one finding for each line of its sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuyard.diagnosis.adopt.flavors import AdoptedFlavor
from gpuyard.diagnosis.adopt.pools import Kind, Pools
from gpuyard.diagnosis.adopt.servers import (
    AdoptionFacts,
    class_changes,
    dangers,
    devname_changes,
    offer_changes,
    server_lines,
)
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.objects import SeenObjects, owner_mark

GPU_LIMITS = ("class:CUSTOM_", "class:VGPU", "class:PGPU")
OTHER_WAYS = (
    "resources:CUSTOM_PCI_",
    "resources:CUSTOM_GPU",
    "resources:VGPU",
    "resources:PGPU",
    "accel:device_profile",
)


SECTIONS = {
    "adopted": "Adopted",
    "left-out": "Left out, or not in a site's own words",
    "danger": "Dangerous",
    "server": "Servers with GPUs",
    "change": "What deploying the site's options will change",
    "next-step": "What to do next",
}
"""Code of a finding -> the title of its section of the report."""


def report(
    look: AdoptionFacts,
    objects: SeenObjects,
    stage: str,
    pools: Pools,
    flavors: Sequence[AdoptedFlavor],
    left_out: Iterable[str],
) -> tuple[Finding, ...]:
    """Return all findings, in the order in which they are printed."""
    texts_by_code = {
        "adopted": _adopted(look, pools, flavors),
        "left-out": (*left_out, *_left(look, objects, pools, flavors)),
        "danger": dangers(look),
        "server": server_lines(look),
        "change": (*offer_changes(look), *class_changes(look), *devname_changes(look), *_lost_aliases(look, pools)),
        "next-step": _steps(stage, flavors),
    }
    severities = {"left-out": Severity.WARNING, "danger": Severity.ALARM, "change": Severity.WARNING}
    return tuple(
        Finding(code, severities.get(code, Severity.NOTE), "", text)
        for code, texts in texts_by_code.items()
        for text in texts
    )


def _adopted(look: AdoptionFacts, pools: Pools, flavors: Sequence[AdoptedFlavor]) -> Iterable[str]:
    yield f"hosts: {', '.join(look.inventories)}"
    for pool in pools.items:
        mine = [gpu for gpu in look.gpus if gpu.pool == pool.name]
        offered = sum(not gpu.blocked for gpu in mine)
        now = sum(
            offer.entry is not None and offer.function.is_gpu and offer.function.ids in pool.models
            for offer in look.offered
        )
        name = f"alias {pool.alias}" if pool.alias else "no alias yet"
        yield f"pool {pool.name} ({name}): {len(mine)} GPUs; Nova offers {now} of its models now, the site {offered}"
    with_gpus = [flavor.name for flavor in flavors if flavor.pool]
    raw = [flavor for flavor in flavors if flavor.reason]
    if with_gpus:
        yield f"flavors with GPUs of a pool: {', '.join(with_gpus)}"
    if raw:
        yield f"flavors that keep their alias as it is: {', '.join(flavor.name for flavor in raw)}"
    others = len(flavors) - len(with_gpus) - len(raw)
    if others:
        yield f"flavors without GPUs: {others}"
    if look.others.names:
        yield f"aliases for other devices: {', '.join(look.others.names)} (under 'extra_aliases')"
    for host, specs in look.others.specs.items():
        yield f"entries of device_spec for other devices of {host}: {len(specs)} (under 'extra_device_specs')"


def _left(look: AdoptionFacts, objects: SeenObjects, pools: Pools, flavors: Sequence[AdoptedFlavor]) -> Iterable[str]:
    yield from look.config.complaints
    for host, entries in look.config.entries.items():
        if entries is None:
            yield f"{host}: no device_spec in the files given, so all its GPUs were taken; give --nova-conf {host}=FILE"
        elif entries and not any(offer.function.is_gpu for offer in look.offers_of(host)):
            yield f"{host}: none of its device_spec entries fits a GPU of its recording, so it offers none"
    for flavor in flavors:
        if flavor.reason:
            yield f"flavor {flavor.name} keeps its alias: {flavor.reason}"
    for name, use in pools.uses.items():
        if use.kind is Kind.LOST:
            yield f"alias {name} has no pool: {use.reason}"
    yield from look.others.left
    yield from pools.cautions
    yield from _offered_without_pool(look)
    yield from _without_recording(look)
    yield from _others_objects(objects, flavors)


def _offered_without_pool(look: AdoptionFacts) -> Iterable[str]:
    """GPUs that Nova could give away if somebody asked."""
    loose: dict[str, list[str]] = {}
    for offer in look.offered:
        if offer.function.is_gpu and look.site_gpu(offer.host, offer.function.address) is None:
            loose.setdefault(offer.function.ids, []).append(str(offer))
    for ids, offers in loose.items():
        more = f" and {len(offers) - 1} more" if len(offers) > 1 else ""
        yield f"GPUs {ids} are in no pool, because no alias with a pool asks for them: {offers[0]}{more}"


def _without_recording(look: AdoptionFacts) -> Iterable[str]:
    """Hosts with devices of which nothing is known."""
    busy = {server.host for server in look.facts.servers} | {host for host, gpus in look.facts.reported.items() if gpus}
    for host in sorted(busy - look.inventories.keys()):
        yield f"{host} has servers with PCI devices or reports devices, and no recording of it was given"


def _others_objects(objects: SeenObjects, flavors: Sequence[AdoptedFlavor]) -> Iterable[str]:
    """What stays as it is because a site does not manage it, or another one does."""
    named = {flavor.name for flavor in flavors}
    for item in objects.flavors:
        flavor = item.flavor
        if flavor.description.startswith(owner_mark("")):
            yield f"flavor {flavor.name} is {flavor.description}: it stays in that site's file"
        elif flavor.name not in named and any(key.startswith(OTHER_WAYS) for key in flavor.extra_specs):
            yield f"flavor {flavor.name} asks for devices in another way than by an alias; it is left alone"
    counted = [limit.limit for limit in objects.limits if limit.limit.resource.startswith(GPU_LIMITS)]
    for resource in sorted({limit.resource for limit in counted}):
        yield f"limits on {resource} stay as they are: gpuyard counts GPUs in classes of its own"
    strange = sorted({limit.limit.project for limit in objects.limits if limit.limit.project} - objects.projects.keys())
    for project in strange:
        yield f"limits of project {project} stay as they are: it is not in the default domain"


def _lost_aliases(look: AdoptionFacts, pools: Pools) -> Iterable[str]:
    """Aliases that the site's options do not have: Nova refuses flavors that ask for them."""
    kept_names = look.others.names
    lost = [name for name in look.config.aliases if pools.uses[name].kind is not Kind.POOL and name not in kept_names]
    if lost:
        yield f"aliases that are gone: {', '.join(lost)}; Nova refuses servers of flavors that still ask for them"


def _steps(stage: str, flavors: Sequence[AdoptedFlavor]) -> Iterable[str]:
    yield "read the file, above all its comments; 'gpuyard site check' reads it, 'gpuyard site plan' shows nothing"
    yield "'gpuyard site lint' says what is wrong with the nova.conf files that were read"
    yield (
        "take 'foreign: true' away from one flavor, hand it over as 'gpuyard site plan' says, then plan and apply; "
        "then the next one"
    )
    if any(flavor.reason for flavor in flavors):
        yield "write flavors with 'gpus' in place of those that keep their alias, and have their users move"
    yield "deploy what 'gpuyard site render' writes; what changes with it is above"
    if stage == "off":
        yield (
            "write 'pci_in_placement: report', render and deploy to every nova-compute; when all report, write 'on'. "
            "A host cannot go back"
        )
    elif stage == "report":
        yield "when every nova-compute reports its GPUs, write 'pci_in_placement: on', render and deploy"
    yield "at last write 'gpu_quotas: true' and what each project may have"
