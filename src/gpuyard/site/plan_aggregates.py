"""Plans host aggregates: those that flavors run on, and the one that keeps others' flavors off the site's hosts.

Steps that open hosts come before changes of flavors, and steps that close hosts after them: a host that takes only
servers with the site's trait must not close before flavors ask for that trait. A host without the trait is not closed
at all until its nova-compute reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuyard.model.plan import StepVerb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import OWNER_KEY, AggregateObject, SeenAggregate, SeenObjects
from gpuyard.site.steps import AggregateStep, SitePlan

ISOLATES = "trait:"


@dataclass(frozen=True)
class AggregatePlans:
    """Steps that open hosts, which come before flavors change, and steps that close hosts, which come after."""

    opening: SitePlan
    closing: SitePlan


def plan_aggregates(
    compiled: CompiledSite, observed: SeenObjects, unreported: Mapping[str, frozenset[str]], prune: bool
) -> AggregatePlans:
    """Plan the aggregates that carry the site's mark; others under a wanted name refuse the plan."""
    desired = {
        aggregate.name: replace(aggregate, hosts=_ready(aggregate, observed, prune))
        for aggregate in compiled.aggregates
    }
    ours = {item.aggregate.name: item for item in observed.aggregates if _is_ours(item.aggregate, compiled.site.site)}
    unfinished = {item.aggregate.name: item for item in observed.aggregates if _unfinished(item.aggregate)}
    opening: list[AggregateStep] = []
    closing: list[AggregateStep] = []
    waits: list[str] = []
    for name, aggregate in desired.items():
        step = _step(aggregate, ours.get(name) or unfinished.get(name))
        if step is None:
            continue
        old_metadata = step.before.metadata if step.before else {}
        closes = sorted(
            key.removeprefix(ISOLATES)
            for key in aggregate.metadata
            if key.startswith(ISOLATES) and key not in old_metadata
        )
        if unmet := [trait for trait in closes if trait in unreported]:
            hosts = ", ".join(sorted(unreported[unmet[0]]))
            waits.append(f"aggregate {name}: {hosts} do not report {unmet[0]} yet, and no server would start there")
        else:
            (closing if closes else opening).append(step)
    notes = [*_no_service(compiled, observed), *(_older_servers(step) for step in closing)]
    notes += [*_kept(compiled, desired)]
    for name, item in ours.items():
        if name not in desired:
            steps, note = _unwanted(item, prune)
            # One that isolates goes first: the flavors stop asking for its trait. Others go when nothing asks for them.
            (opening if _isolating(item.aggregate) else closing).extend(steps)
            notes += note
    refusals = [*_foreign(desired, observed, ours, unfinished), *_zones(desired, observed)]
    refusals += [text for step in (*opening, *closing) for text in _moves_servers(step, observed)]
    left = SitePlan(tuple(closing), tuple(refusals), tuple(notes), tuple(waits))
    return AggregatePlans(SitePlan(tuple(opening)), left)


def _ready(aggregate: AggregateObject, observed: SeenObjects, prune: bool) -> frozenset[str]:
    """Its hosts that Nova knows. Of one that isolates, those that have the trait, or nothing could start on them; and a
    host that left the site file stays isolated until a prune, in case that it is a slip."""
    hosts = aggregate.hosts & observed.hosts
    for key in aggregate.metadata:
        if key.startswith(ISOLATES):
            same = (item.aggregate.hosts for item in observed.aggregates if item.aggregate.name == aggregate.name)
            current_hosts: frozenset[str] = frozenset().union(*same)
            hosts &= observed.reported.get(key.removeprefix(ISOLATES), frozenset()) | current_hosts
            hosts |= frozenset() if prune else current_hosts - aggregate.hosts
    return hosts


def _kept(compiled: CompiledSite, desired: Mapping[str, AggregateObject]) -> Iterable[str]:
    for aggregate in compiled.aggregates:
        for host in sorted(desired[aggregate.name].hosts - aggregate.hosts):
            stays = f"stays in aggregate {aggregate.name}; --prune takes it out"
            yield f"host {host} is no longer in the site file and {stays}"


def _isolating(aggregate: AggregateObject) -> bool:
    return any(key.startswith(ISOLATES) for key in aggregate.metadata)


def _older_servers(step: AggregateStep) -> str:
    return (
        f"{step.kind} {step.name}: servers keep the flavor that they were made with, so those that are there already "
        "cannot be migrated to its hosts until they have been resized to one of the flavors as they are now"
    )


def _is_ours(aggregate: AggregateObject, site: str) -> bool:
    return aggregate.metadata.get(OWNER_KEY) == site


def _unfinished(aggregate: AggregateObject) -> bool:
    """Nova makes aggregates without metadata: one that has nothing may be ours, from an apply that was killed."""
    return not aggregate.metadata and not aggregate.hosts


def _step(desired: AggregateObject, existing: SeenAggregate | None) -> AggregateStep | None:
    if existing is None:
        return AggregateStep("the site wants it", None, desired)
    step = AggregateStep("differs from the site file", existing.aggregate, desired)
    if step.verb is StepVerb.REPLACE:
        reason = (
            "Nova cannot take an aggregate out of its availability zone, nor anything while servers run on its hosts"
        )
        step = replace(step, reason=reason)
    return step if step.changes else None


def _moves_servers(step: AggregateStep, observed: SeenObjects) -> Iterable[str]:
    """Nova does not change the availability zone of a host that has servers."""
    nothing = AggregateObject("")
    old, new = step.before or nothing, step.after or nothing
    zones = (old.availability_zone, new.availability_zone)
    moved = old.hosts | new.hosts if zones[0] != zones[1] else old.hosts ^ new.hosts if zones[1] else frozenset()
    for host in sorted(moved & observed.busy):
        yield (
            f"{step}: it changes the availability zone of {host}, which has servers, and Nova does not do that: "
            "migrate or delete them first, or leave the zone as it is"
        )


def _unwanted(item: SeenAggregate, prune: bool) -> tuple[list[AggregateStep], list[str]]:
    """One of ours that the site no longer has. What isolates must go at once: the flavors no longer ask for it."""
    aggregate = item.aggregate
    if prune:
        return [AggregateStep("no longer in the site file", aggregate, None)], []
    metadata = {key: value for key, value in aggregate.metadata.items() if not key.startswith(ISOLATES)}
    note = [f"aggregate {aggregate.name} is no longer wanted; --prune deletes it"]
    if metadata == aggregate.metadata:
        return [], note
    reason = "the site no longer keeps others off its hosts, and its flavors will not ask for the trait"
    return [AggregateStep(reason, aggregate, replace(aggregate, metadata=metadata))], note


def _no_service(compiled: CompiledSite, observed: SeenObjects) -> Iterable[str]:
    missing = {
        host: aggregate.name for aggregate in compiled.aggregates for host in sorted(aggregate.hosts - observed.hosts)
    }
    for host, name in missing.items():
        yield f"host {host} has no nova-compute service yet; an apply after it has puts it into aggregate {name}"


def _foreign(
    desired: dict[str, AggregateObject],
    observed: SeenObjects,
    ours: dict[str, SeenAggregate],
    unfinished: dict[str, SeenAggregate],
) -> Iterable[str]:
    for item in observed.aggregates:
        name = item.aggregate.name
        if name in desired and name not in ours and name not in unfinished:
            mark = desired[name].metadata[OWNER_KEY]
            yield (
                f"aggregate {name} (id {item.id}) exists already and is not of this site: rename yours in the site "
                f"file, delete it, or hand it over: openstack aggregate set --property {OWNER_KEY}={mark} {item.id}"
            )


def _zones(desired: dict[str, AggregateObject], observed: SeenObjects) -> Iterable[str]:
    """Nova lets a host be in one availability zone only."""
    zones = {
        host: aggregate for aggregate in desired.values() if aggregate.availability_zone for host in aggregate.hosts
    }
    for item in observed.aggregates:
        other = item.aggregate
        if other.name in desired or not other.availability_zone:
            continue
        for host in sorted(other.hosts & zones.keys()):
            mine = zones[host]
            if mine.availability_zone != other.availability_zone:
                yield (
                    f"host {host} is in availability zone {other.availability_zone} (aggregate {other.name}), so it "
                    f"cannot be in {mine.availability_zone} (aggregate {mine.name}) as well"
                )
