"""``gpuyard site drift``: what of the cloud is not as the site file says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption
from gpuyard.console.portal_options import UrlOption, words_of_portal
from gpuyard.console.prompts import require_confirmed
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity

if TYPE_CHECKING:
    from gpuyard.diagnosis.drift.facts import World
    from gpuyard.diagnosis.drift.fixes import FixPlan
    from gpuyard.model.gpu import LedgerWords
    from gpuyard.openstack.api import CloudApi
    from gpuyard.site.load import LoadedSite

PAYLOAD = ("wanted", "effect", "fix")


def drift(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended safely, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Say what of the running cloud is not as the site file says: objects, hosts, GPUs, servers, allocations.

    Exit code 3 when there is drift; notes alone are none.
    """
    from gpuyard.diagnosis.drift import plan_fixes
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    if yes and not fix:
        raise UsageError("--yes answers what --fix asks; give both, or neither")
    if fix and (format_ is not FindingFormat.TEXT or columns):
        raise UsageError("--fix shows its plan as text; leave -f and -c out, or look without --fix")
    loaded = load_site(site)
    api = connect(cloud)
    words = words_of_portal(cloud, url) if loaded.site.booking else None
    world, findings = _look(api, loaded, words)
    _show(findings, format_, columns)
    if not fix:
        _end(findings)
        return
    plan = plan_fixes(loaded.compiled, world, findings)
    if not plan.steps:
        _end(findings)
        return
    _mend(api, loaded, world, plan, yes)
    _, left = _look(api, loaded, words)
    print()
    _show(left, FindingFormat.TEXT, None)
    _end(left)


def _look(api: CloudApi, loaded: LoadedSite, words: LedgerWords | None) -> tuple[World, list[Finding]]:
    from gpuyard.diagnosis.drift import find_drift
    from gpuyard.diagnosis.drift.read import read_world

    world = read_world(api, loaded.compiled)
    return world, find_drift(loaded.compiled, loaded.inventories, world, words)


def _mend(api: CloudApi, loaded: LoadedSite, world: World, plan: FixPlan, yes: bool) -> None:
    from gpuyard.diagnosis.drift.apply import DriftFixer

    print(f"\n--fix would carry out {len(plan.steps)} step{'s' * (len(plan.steps) != 1)}:")
    for step in plan.steps:
        print(f"  {step}  ({step.reason})")
        for change in step.changes:
            print(f"      {change}")
    if not yes:
        require_confirmed(f"Carry them out on cloud {api.name}?")
    for item in DriftFixer(api, loaded.compiled, world.objects).apply(plan, lambda step: print(f"  {step} ...")):
        print(f"  {item}")


def _show(findings: Sequence[Finding], format_: FindingFormat, columns: Sequence[str] | None) -> None:
    print_findings(findings, "drift", format_, columns, payload=PAYLOAD, text_payload=PAYLOAD)
    if not findings and format_ is FindingFormat.TEXT and not columns:
        print("No drift: the cloud is as the site file says.")


def _end(findings: Sequence[Finding]) -> None:
    """Raises BlockedError when there is drift."""
    from gpuyard.diagnosis.drift import drifts

    if not drifts(findings):
        return
    alarms = sum(item.severity is Severity.ALARM for item in findings)
    differ = alarms + sum(item.severity is Severity.ERROR for item in findings)
    mends = sum(bool(item.payload["fix"]) for item in findings)
    those = f", {alarms} of them alarms" if alarms else ""
    raise BlockedError(
        f"{differ} difference{'s' * (differ != 1)} between site and cloud{those}; --fix can mend {mends}"
    )
