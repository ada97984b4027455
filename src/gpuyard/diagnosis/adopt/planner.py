"""Makes a site of what was read: drafts it, lets the compiler judge it, and takes back what it refuses.

A draft describes as much as it can in a site's own terms: pools for aliases, 'gpus' for flavors. Whatever the compiler
refuses is remembered with its reason, left as it was found in the next draft, or left out, until a draft compiles. The
result is a site whose plan changes nothing, with comments and a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gpuyard.diagnosis.adopt.config import HandMade, offered_now
from gpuyard.diagnosis.adopt.flavors import AdoptedFlavor, FlavorAdopter, aliases_of, asks_for_gpus, size, why_left_out
from gpuyard.diagnosis.adopt.model import Adoption, AdoptOptions, CloudFacts
from gpuyard.diagnosis.adopt.others import Others, key_of, others_of
from gpuyard.diagnosis.adopt.pools import Pools, adopted_pools
from gpuyard.diagnosis.adopt.report import report
from gpuyard.diagnosis.adopt.servers import AdoptionFacts
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.host import Inventory
from gpuyard.nova.offers import Offer
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.objects import FlavorObject, SeenLimit, SeenObjects, owner_mark
from gpuyard.site.problems import Place, Problem, of_validation
from gpuyard.site.schema import Site

LIMITS = {"servers": "servers", "class:VCPU": "vcpus", "class:MEMORY_MB": "ram", "class:DISK_GB": "disk"}
"""Resource of a limit -> its key in a site file."""
STAGES = {
    "off": "Placement does not know single GPUs yet; 'report' is the next stage.",
    "report": "nova-compute reports GPUs to Placement; the scheduler does not look yet. 'on' is the next stage.",
    "on": "Placement decides about GPUs.",
}


@dataclass
class Drafts:
    """The parts that the compiler has refused so far, with its reasons."""

    pools: dict[str, str] = field(default_factory=dict)
    """By the pool's key, its alias."""
    flavors: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """Aliases and device_spec of other devices, by `key_of`."""


@dataclass(frozen=True)
class Draft:
    """One attempt at the site."""

    stage: str
    pools: Pools
    flavors: Sequence[AdoptedFlavor]
    others: Others
    document: Mapping[str, Any]


def adopt(
    objects: SeenObjects,
    facts: CloudFacts,
    inventories: Mapping[str, Inventory],
    config: HandMade,
    wishes: AdoptOptions,
) -> Adoption:
    """Return a site that describes the cloud and whose plan is empty. Raises UsageError when there is nothing to make
    pools of, BlockedError when the cloud has flavors of a site of this name."""
    _require_new(objects, wishes.site)
    if not any(inventory.gpus for inventory in inventories.values()):
        raise UsageError(
            f"no GPU is in the recordings of {', '.join(inventories)}; give one of a host with GPUs with --recording"
        )
    offered = offered_now(inventories, config)
    if not any(offer.function.is_gpu for offer in offered):
        gpus = [
            f"{host} {gpu.short_address} {gpu.ids}" for host, inventory in inventories.items() for gpu in inventory.gpus
        ]
        raise UsageError(
            f"no device_spec of the files given fits a GPU of the recordings ({', '.join(gpus[:4])}); give the files "
            "that these hosts' nova-computes read with --nova-conf HOST=FILE"
        )
    refused = Drafts()
    while True:
        draft = _draft(objects, facts, inventories, config, offered, wishes, refused)
        compiled, problems = _judge(draft, inventories)
        if compiled is not None:
            break
        _learn(draft, problems, refused)
    look = AdoptionFacts(inventories, config, offered, facts, compiled.gpus, draft.others)
    comments = dict(_comments(draft, compiled))
    lines = report(look, objects, draft.stage, draft.pools, draft.flavors, _left_out(objects, wishes, refused, draft))
    return Adoption(draft.document, comments, compiled, lines)


def _require_new(objects: SeenObjects, site: str) -> None:
    mark = owner_mark(site)
    mine = [item.flavor.name for item in objects.flavors if item.flavor.description == mark]
    if mine:
        raise BlockedError(
            f"flavor {mine[0]} is made by gpuyard for a site {site!r} already; use that site's file, or give another "
            "name with --name"
        )


def stage_of(facts: CloudFacts, config: HandMade) -> str:
    """Return how far PCI devices in Placement are rolled out."""
    if config.in_placement:
        return "on"
    return "report" if any(facts.reported.values()) else "off"


def _draft(
    objects: SeenObjects,
    facts: CloudFacts,
    inventories: Mapping[str, Inventory],
    config: HandMade,
    offered: Sequence[Offer],
    wishes: AdoptOptions,
    refused: Drafts,
) -> Draft:
    stage = stage_of(facts, config)
    order = _by_use(objects, config)
    pools = adopted_pools(inventories, config, offered, stage, wishes.release, order, refused.pools)
    adopter = FlavorAdopter(pools, objects.aggregates, objects.projects, facts.swap, refused.flavors)
    flavors = [adopter.adopt(flavor) for flavor in chosen(objects, pools, wishes) if not _why_not(flavor, refused)]
    others = others_of(inventories, config, offered, pools, refused.others)
    document = _document(objects, wishes, stage, pools, flavors, others)
    return Draft(stage, pools, flavors, others, document)


def _by_use(objects: SeenObjects, config: HandMade) -> list[str]:
    """All aliases, those that most flavors ask for first."""
    count = dict.fromkeys(config.aliases, 0)
    for item in objects.flavors:
        for name, _ in aliases_of(item.flavor) or ():
            if name in count:
                count[name] += 1
    return sorted(count, key=lambda name: -count[name])


def chosen(objects: SeenObjects, pools: Pools, wishes: AdoptOptions) -> list[FlavorObject]:
    """Return the flavors that belong into the file, those with GPUs first. Flavors that gpuyard made for another site
    are that site's."""
    foreign = [item.flavor for item in objects.flavors if not item.flavor.description.startswith(owner_mark(""))]
    with_gpus = [flavor for flavor in foreign if asks_for_gpus(flavor, pools.uses)]
    others = [flavor for flavor in foreign if flavor not in with_gpus] if wishes.all_flavors else []
    return [*sorted(with_gpus, key=lambda flavor: flavor.name), *sorted(others, key=lambda flavor: flavor.name)]


def _why_not(flavor: FlavorObject, refused: Drafts) -> str | None:
    return why_left_out(flavor) or refused.left_out.get(flavor.name)


def _left_out(objects: SeenObjects, wishes: AdoptOptions, refused: Drafts, draft: Draft) -> list[str]:
    """Flavors that cannot stand in the file."""
    pairs = ((flavor, _why_not(flavor, refused)) for flavor in chosen(objects, draft.pools, wishes))
    return [f"flavor {flavor.name!r} is not in the file: {reason}" for flavor, reason in pairs if reason]


def _document(
    objects: SeenObjects,
    wishes: AdoptOptions,
    stage: str,
    pools: Pools,
    flavors: Sequence[AdoptedFlavor],
    others: Others,
) -> dict[str, Any]:
    projects: dict[str, dict[str, Any]] = {
        name: {} for flavor in flavors for name in sorted(flavor.flavor.projects) if name in objects.projects
    }
    limits: dict[str, Any] = {}
    for item in objects.limits:
        key, owner = LIMITS.get(item.limit.resource), item.limit.project
        if key and owner is None:
            limits[key] = _amount(item, key)
        elif key and owner in objects.projects:
            projects.setdefault(owner, {})[key] = _amount(item, key)
    document: dict[str, Any] = {
        "site": wishes.site,
        "release": wishes.release,
        "pci_in_placement": stage,
        "gpu_quotas": False,
        "extra_aliases": [dict(raw) for raw in others.aliases],
        "hosts": {host: _host(file, others.specs.get(host, ())) for host, file in wishes.recordings.items()},
        "pools": {pool.name: pool.document for pool in pools.items},
        "flavors": {flavor.name: flavor.document for flavor in flavors},
        "projects": {name: _ordered(projects[name]) for name in sorted(projects)},
        "limits": _ordered(limits),
    }
    return {key: value for key, value in document.items() if value not in ({}, [])}


def _host(recording: str, specs: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    more = {"extra_device_specs": [dict(raw) for raw in specs]} if specs else {}
    return {"recording": recording, **more}


def _amount(item: SeenLimit, key: str) -> Any:
    value = item.limit.value
    if value == -1 or key in ("servers", "vcpus"):
        return value
    return size(value) if key == "ram" else f"{value} GiB"


def _ordered(limits: Mapping[str, Any]) -> dict[str, Any]:
    return {key: limits[key] for key in LIMITS.values() if key in limits}


def _judge(draft: Draft, inventories: Mapping[str, Inventory]) -> tuple[CompiledSite | None, list[Problem]]:
    try:
        site = Site.model_validate(draft.document)
    except ValidationError as error:
        return None, of_validation(error, draft.document)
    compiled, problems = compile_site(site, inventories)
    return (None, problems) if problems else (compiled, [])


def _learn(draft: Draft, problems: Iterable[Problem], refused: Drafts) -> None:
    """Take back what the compiler refused. Raises UsageError when that is nothing that was put into words here."""
    simpler = {flavor.name for flavor in draft.flavors if flavor.pool}
    pools = {pool.name: pool.key for pool in draft.pools.items}
    handled = False
    for problem in problems:
        kind, name = [*problem.place, "", ""][:2]
        if kind == "pools" and name in pools:
            refused.pools[pools[str(name)]] = _reason(problem)
        elif kind == "flavors" and name in simpler:
            refused.flavors[str(name)] = _reason(problem)
        elif kind == "flavors" and any(flavor.name == name for flavor in draft.flavors):
            refused.left_out[str(name)] = _reason(problem)
        elif key := _other(draft, problem.place):
            refused.others[key] = _reason(problem)
        else:
            continue
        handled = True
    if not handled:
        text = "; ".join(f"{'.'.join(map(str, problem.place))}: {problem.message}" for problem in problems)
        raise UsageError(f"no site can be made of this cloud: {text}{_because(refused)}")


def _other(draft: Draft, place: Place) -> str:
    """The alias or entry of another device that a problem is about, by `key_of`; empty when it is about none."""
    match place:
        case ("extra_aliases", int(index), *_):
            return key_of(None, draft.others.aliases[index])
        case ("hosts", str(host), "extra_device_specs", int(index), *_):
            return key_of(host, draft.others.specs[host][index])
    return ""


def _because(refused: Drafts) -> str:
    return "".join(f"; pool {name}: {reason}" for name, reason in refused.pools.items())


def _reason(problem: Problem) -> str:
    return problem.message.rstrip(".")


def _comments(draft: Draft, compiled: CompiledSite) -> Iterable[tuple[Place, str]]:
    yield ("release",), "OpenStack release of the cloud."
    yield ("pci_in_placement",), STAGES[draft.stage]
    yield (
        ("gpu_quotas",),
        "Nobody counts GPUs yet. 'true' gives each project the GPUs that 'projects' says, and none to others.",
    )
    if draft.others.aliases:
        yield ("extra_aliases",), "For devices that are no GPUs, as they were found: Nova has one list of aliases."
    yield ("hosts",), "Hypervisors, each with what 'gpuyard host record' wrote on it."
    yield ("pools",), "What flavors ask for, made of Nova's aliases."
    for pool in draft.pools.items:
        yield ("pools", pool.name), pool.comment
    yield (
        ("flavors",),
        "As they were found. 'foreign: true' keeps gpuyard from changing a flavor; take it away to have it managed.",
    )
    for flavor in draft.flavors:
        if flavor.comment:
            yield ("flavors", flavor.name), flavor.comment
    if any(not wish for wish in draft.document.get("projects", {}).values()):
        yield ("projects",), "'gpus' belongs here once GPUs are counted: {gpus: {POOL: NUMBER}}."
    if compiled.site.limits.model_fields_set:
        yield ("limits",), "Defaults of every project, as Keystone has them."
