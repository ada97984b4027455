"""The steps that mend drift besides those of a site's plan: deletions of allocations and providers that are
nobody's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.diagnosis.drift.facts import Root
from gpuyard.site.steps import CloudStep, SiteStep


@dataclass(frozen=True)
class Allocation:
    """The amounts that a consumer has in Placement: ``{"gpu-server VCPU": 4}``."""

    name: str
    """The consumer's id."""
    generation: int | None = None
    amounts: Mapping[str, int] = field(default_factory=dict)


class AllocationStep(CloudStep[Allocation]):
    kind = "allocation"

    def _values(self, allocation: Allocation) -> Iterable[tuple[str, Any]]:
        return {"consumer generation": allocation.generation, **allocation.amounts}.items()


class ProviderStep(CloudStep[Root]):
    """Deletes a provider with those below it."""

    kind = "provider"

    def _values(self, root: Root) -> Iterable[tuple[str, Any]]:
        return {"id": root.id, "below": len(root.children)}.items()


FixStep = AllocationStep | ProviderStep


@dataclass(frozen=True)
class FixPlan:
    """The steps of the site's plan in their order, and then those of drift alone."""

    site: tuple[SiteStep, ...] = ()
    own: tuple[FixStep, ...] = ()

    @property
    def steps(self) -> tuple[SiteStep | FixStep, ...]:
        return (*self.site, *self.own)
