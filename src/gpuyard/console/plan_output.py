"""Formats plans as text, as the commands print them."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.model.plan import StepVerb
from gpuyard.site.steps import SitePlan

SIGNS = {StepVerb.CREATE: "+", StepVerb.UPDATE: "~", StepVerb.REPLACE: "-/+", StepVerb.DELETE: "-"}


def plan_lines(plan: SitePlan) -> Iterable[str]:
    """Steps with what they change, then what waits, then notes."""
    for step in plan.steps:
        yield f"{SIGNS[step.verb]} {step.kind} {step.name}  ({step.reason})"
        yield from (f"      {change}" for change in step.changes)
    yield from (f"waits: {text}" for text in plan.waits)
    yield from (f"note: {note}" for note in plan.notes)
