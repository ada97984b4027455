"""What of a running cloud is not as its site file says, and what of that can be mended safely. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan
from gpuyard.site.compile import CompiledSite
from gpuyard.site.drift.facts import World
from gpuyard.site.drift.finding import Drift, Level, by_weight
from gpuyard.site.drift.gpus import gpu_findings
from gpuyard.site.drift.hosts import host_findings
from gpuyard.site.drift.objects import object_findings
from gpuyard.site.drift.servers import server_findings
from gpuyard.site.drift.subject import Subject
from gpuyard.site.plan import plan_site

OWN_KINDS = ("allocation", "provider")
"""Kinds of steps that are not those of a site's plan."""


def find_drift(compiled: CompiledSite, inventories: Mapping[str, Inventory], world: World) -> list[Drift]:
    """Every difference, alarms first. Those of level NOTE are no drift."""
    subject = Subject(compiled, inventories, world)
    found = [
        *object_findings(subject),
        *host_findings(subject),
        *gpu_findings(subject),
        *server_findings(subject),
    ]
    if world.silent_cells:
        found.append(
            Drift(
                Level.DRIFT,
                "cell-silent",
                "Nova",
                "a cell does not answer",
                "every cell answers",
                "nobody knows what its servers are and have, so this list is not whole",
                "see nova-conductor and the database of the cell that is missing",
            )
        )
    return sorted(found, key=by_weight)


def drifts(findings: Iterable[Drift]) -> bool:
    """Whether anything is not as it should be."""
    return any(finding.level is not Level.NOTE for finding in findings)


def plan_fixes(compiled: CompiledSite, world: World, findings: Iterable[Drift]) -> Plan:
    """What mends, of what was found, safely: the steps of the site's plan in their order, then allocations of nobody,
    then providers of nobody. Nothing else is touched, and never what a server has."""
    plan = plan_site(compiled, world.objects)
    site = () if plan.refusals else plan.steps
    own = [step for finding in findings for step in finding.steps if step.kind in OWN_KINDS]
    own.sort(key=lambda step: (OWN_KINDS.index(step.kind), step.name))
    return Plan((*site, *own))
