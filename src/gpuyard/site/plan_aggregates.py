"""Plans host aggregates: those that flavors run on, and the one that keeps others' flavors off the site's hosts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import OWNER_KEY, AggregateObject, SeenAggregate, SeenObjects
from gpuyard.site.step_values import HOST, PROPERTY, with_prefix

KIND = "aggregate"
ISOLATES = "trait:"
ZONE = "availability_zone"


@dataclass(frozen=True)
class AggregatePlans:
    """What must come before flavors change, because it opens hosts, and what after, because it closes them."""

    opening: Plan
    closing: Plan


def plan_aggregates(compiled: CompiledSite, seen: SeenObjects, prune: bool) -> AggregatePlans:
    """Steps for aggregates that carry the site's mark; others under a wanted name refuse the plan."""
    wanted = {one.name: replace(one, hosts=one.hosts & seen.hosts) for one in compiled.aggregates}
    ours = {item.aggregate.name: item for item in seen.aggregates if _is_ours(item.aggregate, compiled.site.site)}
    unfinished = {item.aggregate.name: item for item in seen.aggregates if _unfinished(item.aggregate)}
    opening: list[Step] = []
    closing: list[Step] = []
    waits: list[str] = []
    for name, aggregate in wanted.items():
        found = ours.get(name) or unfinished.get(name)
        step = _step(aggregate, found)
        unmet = _unmet(aggregate, found, seen)
        if step and unmet:
            waits.append(f"aggregate {name}: no host reports {unmet} yet, and it would close its hosts to every server")
        elif step:
            (opening if _opens(step) else closing).append(step)
    notes = [*_no_service(compiled, seen)]
    for name, item in ours.items():
        if name not in wanted:
            steps, note = _unwanted(item, prune)
            opening += steps
            notes += note
    refusals = [*_foreign(wanted, seen, ours, unfinished), *_zones(wanted, seen)]
    return AggregatePlans(Plan(tuple(opening)), Plan(tuple(closing), tuple(refusals), tuple(notes), tuple(waits)))


def describe_aggregate(aggregate: AggregateObject) -> dict[str, Any]:
    """An aggregate as the flat mapping that steps compare and print."""
    flat: dict[str, Any] = {ZONE: aggregate.availability_zone} if aggregate.availability_zone else {}
    return {**flat, **with_prefix(PROPERTY, aggregate.metadata), **with_prefix(HOST, aggregate.hosts)}


def _is_ours(aggregate: AggregateObject, site: str) -> bool:
    return aggregate.metadata.get(OWNER_KEY) == site


def _unfinished(aggregate: AggregateObject) -> bool:
    """Nova makes aggregates without metadata: one that has nothing may be ours, from an apply that was killed."""
    return not aggregate.metadata and not aggregate.hosts


def _step(wanted: AggregateObject, found: SeenAggregate | None) -> Step | None:
    after = describe_aggregate(wanted)
    if found is None:
        return Step(Verb.CREATE, KIND, wanted.name, "the site wants it", {}, after)
    before = describe_aggregate(found.aggregate)
    if before == after:
        return None
    if ZONE in before and ZONE not in after:
        reason = "Nova cannot take an aggregate out of its availability zone"
        return Step(Verb.REPLACE, KIND, wanted.name, reason, before, after)
    return Step(Verb.UPDATE, KIND, wanted.name, "differs from the site file", before, after)


def _opens(step: Step) -> bool:
    """Whether a step only takes isolation away."""
    return any(key.startswith(PROPERTY + ISOLATES) and key not in step.after for key in step.before)


def _unmet(wanted: AggregateObject, found: SeenAggregate | None, seen: SeenObjects) -> str | None:
    """A trait that it would newly require and that no host has."""
    known = found.aggregate.metadata if found else {}
    for key in wanted.metadata:
        if key.startswith(ISOLATES) and key not in known and not seen.reported.get(key.removeprefix(ISOLATES)):
            return key.removeprefix(ISOLATES)
    return None


def _unwanted(item: SeenAggregate, prune: bool) -> tuple[list[Step], list[str]]:
    """One of ours that the site no longer has. What isolates must go at once: the flavors no longer ask for it."""
    aggregate = item.aggregate
    before = describe_aggregate(aggregate)
    if prune:
        return [Step(Verb.DELETE, KIND, aggregate.name, "no longer in the site file", before, {})], []
    kept = {key: value for key, value in aggregate.metadata.items() if not key.startswith(ISOLATES)}
    note = [f"aggregate {aggregate.name} is no longer wanted; --prune deletes it"]
    if kept == aggregate.metadata:
        return [], note
    after = describe_aggregate(replace(aggregate, metadata=kept))
    reason = "the site no longer keeps others off its hosts, and its flavors will not ask for the trait"
    return [Step(Verb.UPDATE, KIND, aggregate.name, reason, before, after)], note


def _no_service(compiled: CompiledSite, seen: SeenObjects) -> Iterable[str]:
    missing = {host: one.name for one in compiled.aggregates for host in sorted(one.hosts - seen.hosts)}
    for host, name in missing.items():
        yield f"host {host} has no nova-compute service yet; an apply after it has puts it into aggregate {name}"


def _foreign(
    wanted: dict[str, AggregateObject],
    seen: SeenObjects,
    ours: dict[str, SeenAggregate],
    unfinished: dict[str, SeenAggregate],
) -> Iterable[str]:
    for item in seen.aggregates:
        name = item.aggregate.name
        if name in wanted and name not in ours and name not in unfinished:
            mark = wanted[name].metadata[OWNER_KEY]
            yield (
                f"aggregate {name} (id {item.id}) exists already and is not of this site: rename yours in the site "
                f"file, delete it, or hand it over: openstack aggregate set --property {OWNER_KEY}={mark} {item.id}"
            )


def _zones(wanted: dict[str, AggregateObject], seen: SeenObjects) -> Iterable[str]:
    """Nova lets a host be in one availability zone only."""
    zones = {host: one for one in wanted.values() if one.availability_zone for host in one.hosts}
    for item in seen.aggregates:
        other = item.aggregate
        if other.name in wanted or not other.availability_zone:
            continue
        for host in sorted(other.hosts & zones.keys()):
            mine = zones[host]
            if mine.availability_zone != other.availability_zone:
                yield (
                    f"host {host} is in availability zone {other.availability_zone} (aggregate {other.name}), so it "
                    f"cannot be in {mine.availability_zone} (aggregate {mine.name}) as well"
                )
