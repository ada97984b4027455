"""Describes an operator's flavors as a site file does, as they are, so that a plan changes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.diagnosis.adopt.pools import Kind, Pools, Use
from gpuyard.nova.alias_spec import ALIAS_SPEC, asked_aliases
from gpuyard.site.objects import FlavorObject, SeenAggregate

AGGREGATE_SCOPE = "aggregate_instance_extra_specs:"
FLAVOR_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
LONGEST = 250
MOST_GPUS = 64


@dataclass(frozen=True)
class AdoptedFlavor:
    """A flavor of the site that is to be written."""

    name: str
    flavor: FlavorObject
    pool: str = ""
    count: int = 0
    reason: str = ""
    """Why its GPUs are not in the site's own words; empty when they are, or when it asks for none."""
    notes: tuple[str, ...] = field(default=())

    @property
    def document(self) -> dict[str, Any]:
        """The flavor as it is written in the site file."""
        flavor = self.flavor
        document: dict[str, Any] = {"vcpus": flavor.vcpus, "ram": size(flavor.ram), "disk": f"{flavor.disk} GiB"}
        if flavor.ephemeral:
            document["ephemeral"] = f"{flavor.ephemeral} GiB"
        properties = dict(sorted(flavor.extra_specs.items()))
        if self.pool:
            document["gpus"] = {self.pool: self.count}
            del properties[ALIAS_SPEC]
        if not flavor.public:
            document["projects"] = sorted(flavor.projects)
        if properties:
            document["properties"] = properties
        return {**document, "foreign": True}

    @property
    def comment(self) -> str:
        return " ".join([*([self.reason] if self.reason else []), *self.notes])


def size(mib: int) -> str:
    """Format MiB: 65536 -> ``64 GiB``."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def aliases_of(flavor: FlavorObject) -> list[tuple[str, int]] | None:
    """Return aliases and counts that a flavor asks for, in order; None when Nova cannot parse them."""
    text = flavor.extra_specs.get(ALIAS_SPEC)
    if text is None:
        return []
    return asked_aliases(text)


def asks_for_gpus(flavor: FlavorObject, uses: Mapping[str, Use]) -> bool:
    """Return whether a flavor may ask for GPUs: also by an alias that nobody knows."""
    parts = aliases_of(flavor)
    if parts is None:
        return True
    return any(uses.get(name, Use(Kind.LOST)).kind in (Kind.POOL, Kind.LOST, Kind.COMPANION) for name, _ in parts)


def why_left_out(flavor: FlavorObject) -> str | None:
    """Return why a flavor cannot stand in a site file at all; None when it can."""
    if not FLAVOR_NAME.match(flavor.name):
        return "a site's flavors have names of letters, digits and . _ + - that begin with a letter or digit"
    if len(flavor.name) > LONGEST:
        return f"its name is longer than {LONGEST} characters"
    return None


class FlavorAdopter:
    """Describes flavors, with what is common to all of them."""

    def __init__(
        self,
        pools: Pools,
        aggregates: Sequence[SeenAggregate],
        projects: Collection[str],
        swap: Mapping[str, int],
        refused: Mapping[str, str],
    ) -> None:
        """`projects` are those that a site file can name; `refused` are flavors whose 'gpus' the compiler refused."""
        self._pools = pools
        self._aggregates = aggregates
        self._projects = projects
        self._swap = swap
        self._refused = refused

    def adopt(self, flavor: FlavorObject) -> AdoptedFlavor:
        pool, count, reason = self._gpus(flavor)
        return AdoptedFlavor(flavor.name, flavor, pool, count, reason, tuple(self._notes(flavor)))

    def _gpus(self, flavor: FlavorObject) -> tuple[str, int, str]:
        """Pool and number, or the reason why they cannot be said."""
        parts = aliases_of(flavor)
        if parts == []:
            return "", 0, ""
        if parts is None:
            return "", 0, "Nova cannot read its alias: it wants ALIAS:NUMBER, with commas between."
        uses = [(name, count, self._pools.uses.get(name)) for name, count in parts]
        unknown = [name for name, _, use in uses if use is None]
        if unknown:
            return "", 0, f"Alias {unknown[0]} is in none of the files that were read."
        resolved = [(name, count, use) for name, count, use in uses if use is not None]
        lost = [(name, use) for name, _, use in resolved if use.kind is Kind.LOST]
        if lost:
            name, use = lost[0]
            return "", 0, f"Alias {name} has no pool: {use.reason}."
        gpus = [(use.pool, count) for _, count, use in resolved if use.kind is Kind.POOL]
        if len(resolved) > 1 or not gpus:
            return "", 0, _several(resolved, gpus)
        ((pool, count),) = gpus
        name = resolved[0][0]
        if not 1 <= count <= MOST_GPUS or flavor.extra_specs[ALIAS_SPEC] != f"{name}:{count}":
            return "", 0, f"A site writes its alias as '{name}:NUMBER' with a number from 1 to {MOST_GPUS}."
        if flavor.name in self._refused:
            return "", 0, f"It cannot be written as 'gpus: {{{pool}: {count}}}': {self._refused[flavor.name]}."
        return pool, count, ""

    def _notes(self, flavor: FlavorObject) -> Iterable[str]:
        strange = sorted(flavor.projects - set(self._projects))
        if strange:
            yield (f"{', '.join(strange)}: no project of the default domain; gpuyard cannot give access to it.")
        if flavor.name in self._swap:
            yield f"It has {self._swap[flavor.name]} MiB of swap, which a site file cannot say."
        for item in self._tied(flavor):
            hosts = ", ".join(sorted(item.aggregate.hosts)) or "no host"
            yield f"Tied to aggregate {item.aggregate.name} ({hosts}) by its properties; the aggregate is left alone."

    def _tied(self, flavor: FlavorObject) -> list[SeenAggregate]:
        """Aggregates whose metadata a flavor asks for, as AggregateInstanceExtraSpecsFilter looks at it."""
        requested = {}
        for key, value in flavor.extra_specs.items():
            if key.startswith(AGGREGATE_SCOPE):
                requested[key.removeprefix(AGGREGATE_SCOPE)] = value
            elif ":" not in key:
                requested[key] = value
        return [
            item
            for item in self._aggregates
            if any(item.aggregate.metadata.get(key) == value for key, value in requested.items())
        ]


def _several(resolved: Sequence[tuple[str, int, Use]], gpus: Sequence[tuple[str, int]]) -> str:
    """Why a flavor with several aliases, or without one for GPUs, stays as it is; and what to write later."""
    names = [f"{name} ({use.kind.value})" for name, _, use in resolved]
    pools = {pool for pool, _ in gpus}
    if len(pools) > 1:
        return (
            f"It takes GPUs of several pools ({', '.join(sorted(pools))}), and a flavor of a site takes those of one."
        )
    if any(use.kind is Kind.DEVICE for _, _, use in resolved):
        return f"It takes other devices too: {', '.join(names)}."
    if not gpus:
        return "It takes a function that comes with a GPU, without the GPU."
    pool, count = gpus[0][0], sum(count for _, count in gpus)
    companions = ", ".join(name for name, _, use in resolved if use.kind is Kind.COMPANION)
    if not companions:
        return f"It names one alias twice; when you take it over: 'gpus: {{{pool}: {count}}}'."
    return (
        f"When you take it over, write 'gpus: {{{pool}: {count}}}' and no alias: what {companions} asks for is bound "
        "together with its GPU, and gpuyard does not offer it by itself."
    )
