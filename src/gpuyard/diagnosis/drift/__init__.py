"""Compares a running cloud with its site file, and plans the fixes that are safe.

The functions here are pure; read.py reads the cloud and apply.py carries fixes out. Findings come from four
comparisons: objects that a site manages, hosts, GPUs, and servers with their allocations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuyard.diagnosis.drift.facts import World
from gpuyard.diagnosis.drift.finding import by_weight, drift
from gpuyard.diagnosis.drift.fixes import FixPlan, FixStep
from gpuyard.diagnosis.drift.gpus import gpu_findings
from gpuyard.diagnosis.drift.hosts import host_findings
from gpuyard.diagnosis.drift.objects import object_findings
from gpuyard.diagnosis.drift.servers import server_findings
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import LedgerWords
from gpuyard.model.host import Inventory
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site, some_of


def find_drift(
    compiled: CompiledSite, inventories: Mapping[str, Inventory], world: World, words: LedgerWords | None = None
) -> list[Finding]:
    """Return every difference, alarms first. Findings of level NOTE are no drift. `words`: the reasons for which
    bookings and holds keep GPUs; None where they are not known."""
    subject = DriftSubject(compiled, inventories, world, words)
    findings = [
        *object_findings(subject),
        *host_findings(subject),
        *gpu_findings(subject),
        *server_findings(subject),
    ]
    if world.silent_cells:
        silent = sorted(name for name, service in world.services.items() if service.silent)
        findings.append(
            drift(
                Severity.ERROR,
                "cell-silent",
                "Nova",
                f"a cell does not answer{f', with {some_of(silent)}' if silent else ''}",
                "every cell answers",
                "nobody knows what its servers are and have, so this list is not whole",
                "see nova-conductor and the database of the cell that is missing",
            )
        )
    return sorted(findings, key=by_weight)


def drifts(findings: Iterable[Finding]) -> bool:
    """Return whether anything is not as it should be."""
    return any(finding.severity is not Severity.NOTE for finding in findings)


def plan_fixes(compiled: CompiledSite, world: World, findings: Iterable[Finding]) -> FixPlan:
    """Return the fixes that are safe: the steps of the site's plan in their order, then allocations of nobody, then
    providers of nobody. Nothing else is touched, and never what a server has."""
    plan = plan_site(compiled, world.objects)
    site = () if plan.refusals else plan.steps
    own = [step for finding in findings for step in finding.payload["fix"] if isinstance(step, FixStep)]
    return FixPlan(site, tuple(sorted(own, key=lambda step: (step.kind, step.name))))
