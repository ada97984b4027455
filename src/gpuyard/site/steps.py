"""The steps of a site's plan, each with the object before, the object after, and the reason.

The two objects decide the verb: an object without `before` is created, one without `after` deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gpuyard.model.plan import StepVerb, differences
from gpuyard.site.objects import AggregateObject, FlavorObject, ImageObject, LimitObject

ZONE = "availability_zone"
# Nova cannot change these on a flavor that exists; servers keep the flavor that they were made with.
FIXED = ("vcpus", "ram", "disk", "ephemeral", "public")

Values = dict[str, Any]
"""An object as people read it, one line a value: ``ram``, ``property hw:x``, ``access demo``, ``host gpu-1``."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class CloudStep(Generic[T]):
    """One change to one object of a cloud, decided by a planner; appliers decide nothing."""

    reason: str
    before: T | None
    after: T | None = None

    @property
    def object(self) -> T:
        """The object after the step; before it, when it is to be deleted."""
        item = self.before if self.after is None else self.after
        assert item is not None, "a step without an object"
        return item

    @property
    def kind(self) -> str:
        """The kind of object, in words."""
        raise NotImplementedError

    def _values(self, item: T) -> Iterable[tuple[str, Any]]:
        raise NotImplementedError

    @property
    def fixed(self) -> list[str]:
        """Values that differ and cannot be changed on an object that exists."""
        return []

    @property
    def name(self) -> str:
        return self.object.name

    @property
    def verb(self) -> StepVerb:
        if self.before is None:
            return StepVerb.CREATE
        if self.after is None:
            return StepVerb.DELETE
        return StepVerb.REPLACE if self.fixed else StepVerb.UPDATE

    @property
    def values(self) -> tuple[Values, Values]:
        """The object before and after."""
        before, after = (dict(self._values(item)) if item is not None else {} for item in (self.before, self.after))
        return before, after

    @property
    def changes(self) -> tuple[str, ...]:
        """One line per value that differs: ``ram: 8192 -> 16384``."""
        return differences(*self.values)

    def __str__(self) -> str:
        return f"{self.verb.value} {self.kind} {self.name}"


class FlavorStep(CloudStep[FlavorObject]):
    kind = "flavor"

    @property
    def fixed(self) -> list[str]:
        return [key for key in FIXED if getattr(self.before, key) != getattr(self.after, key)]

    def _values(self, item: FlavorObject) -> Iterable[tuple[str, Any]]:
        yield from ((key, getattr(item, key)) for key in (*FIXED, "description"))
        yield from ((f"property {key}", value) for key, value in item.extra_specs.items())
        yield from ((f"access {name}", "yes") for name in item.projects)


class LimitStep(CloudStep[LimitObject]):
    @property
    def kind(self) -> str:
        return self.object.kind

    def _values(self, item: LimitObject) -> Iterable[tuple[str, Any]]:
        yield "limit", item.value
        if item.description:
            yield "description", item.description


class AggregateStep(CloudStep[AggregateObject]):
    kind = "aggregate"

    @property
    def fixed(self) -> list[str]:
        leaves = self.before and self.after and self.before.availability_zone and not self.after.availability_zone
        return [ZONE] if leaves else []

    def _values(self, item: AggregateObject) -> Iterable[tuple[str, Any]]:
        if item.availability_zone:
            yield ZONE, item.availability_zone
        yield from ((f"property {key}", value) for key, value in item.metadata.items())
        yield from ((f"host {name}", "yes") for name in item.hosts)


class ImageStep(CloudStep[ImageObject]):
    kind = "image"

    def _values(self, item: ImageObject) -> Iterable[tuple[str, Any]]:
        yield from ((f"property {key}", value) for key, value in item.properties.items())


SiteStep = FlavorStep | LimitStep | AggregateStep | ImageStep


@dataclass(frozen=True)
class SitePlan:
    """Steps in the order in which they must be applied, and what prevents them."""

    steps: tuple[SiteStep, ...] = ()
    refusals: tuple[str, ...] = ()
    """Reasons why the plan must not be applied at all; a plan with refusals changes nothing."""
    notes: tuple[str, ...] = ()
    """Observations that the plan deliberately leaves alone."""
    waits: tuple[str, ...] = ()
    """Changes that are wanted and cannot be made yet, each with what it waits for; a later plan has it as a step."""

    @property
    def refused(self) -> str:
        """All refusals as one message."""
        return "\n".join(["the plan cannot be applied:", *(f"- {text}" for text in self.refusals)])
