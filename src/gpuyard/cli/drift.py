"""``gpuyard site drift``: what of the cloud is not as the site file says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.cli.output import ColumnOption, Format, print_list
from gpuyard.model.errors import BlockedError, UsageError

if TYPE_CHECKING:
    from gpuyard.cloud.api import CloudApi
    from gpuyard.model.plan import Plan
    from gpuyard.site.drift.facts import World
    from gpuyard.site.drift.finding import Drift
    from gpuyard.site.load import LoadedSite

COLUMNS = ("Level", "Kind", "Object", "Is", "Should be", "Means", "Remedy", "Fix")


def drift(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended safely, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    format_: Annotated[Format | None, typer.Option("-f", "--format", help="Output format; text when left out.")] = None,
    columns: ColumnOption = None,
) -> None:
    """Say what of the running cloud is not as the site file says: objects, hosts, GPUs, servers, allocations.

    Exit code 3 when there is drift; notes alone are none.
    """
    from gpuyard.cloud.api import connect
    from gpuyard.site.drift import plan_fixes
    from gpuyard.site.load import load_site

    if yes and not fix:
        raise UsageError("--yes answers what --fix asks; give both, or neither")
    if fix and (format_ is not None or columns):
        raise UsageError("--fix shows its plan as text; leave -f and -c out, or look without --fix")
    loaded = load_site(site)
    api = connect(cloud)
    world, found = _look(api, loaded)
    _show(found, format_, columns)
    if not fix:
        _end(found)
        return
    plan = plan_fixes(loaded.compiled, world, found)
    if not plan.steps:
        _end(found)
        return
    _mend(api, loaded, world, plan, yes)
    _, left = _look(api, loaded)
    print()
    _show(left, None, None)
    _end(left)


def _look(api: CloudApi, loaded: LoadedSite) -> tuple[World, list[Drift]]:
    from gpuyard.cloud.world_facts import read_world
    from gpuyard.site.drift import find_drift

    world = read_world(api, loaded.compiled)
    return world, find_drift(loaded.compiled, loaded.inventories, world)


def _mend(api: CloudApi, loaded: LoadedSite, world: World, plan: Plan, yes: bool) -> None:
    from gpuyard.cloud.drift_fixes import DriftFixer

    print(f"\n--fix would carry out {len(plan.steps)} step{'s' * (len(plan.steps) != 1)}:")
    for step in plan.steps:
        print(f"  {step}  ({step.reason})")
        for change in step.changes:
            print(f"      {change}")
    if not yes:
        _confirm(f"Carry them out on cloud {api.name}?")
    for item in DriftFixer(api, loaded.compiled, world.objects).apply(plan, lambda step: print(f"  {step} ...")):
        print(f"  {item}")


def _confirm(question: str) -> None:
    try:
        if not typer.confirm(question):
            raise BlockedError("nothing was changed")
    except typer.Abort:
        raise UsageError("nobody answered, so nothing was changed; --yes carries fixes out without asking") from None


def _show(found: Sequence[Drift], format_: Format | None, columns: Sequence[str] | None) -> None:
    if format_ is not None or columns:
        print_list([_row(item) for item in found], COLUMNS, format_ or Format.TABLE, columns)
        return
    for item in found:
        print(f"{item.level}: {item.kind}: {item.object}")
        row = _row(item)
        for name in COLUMNS[3:]:
            if row[name]:
                print(f"    {name + ':':<11}{row[name]}")
    if not found:
        print("No drift: the cloud is as the site file says.")


def _row(item: Drift) -> dict[str, object]:
    fix = "; ".join(str(step) for step in item.steps)
    values = (item.level.value, item.kind, item.object, item.seen, item.wanted, item.effect, item.remedy, fix)
    return dict(zip(COLUMNS, values, strict=True))


def _end(found: Sequence[Drift]) -> None:
    """Raises BlockedError when there is drift."""
    from gpuyard.site.drift import drifts
    from gpuyard.site.drift.finding import Level

    if not drifts(found):
        return
    counts = {level: sum(item.level is level for item in found) for level in Level}
    mends = sum(bool(item.steps) for item in found)
    differ = counts[Level.DRIFT] + counts[Level.ALARM]
    alarms = f", {counts[Level.ALARM]} of them alarms" if counts[Level.ALARM] else ""
    many = "s" * (differ != 1)
    raise BlockedError(f"{differ} difference{many} between site and cloud{alarms}; --fix can mend {mends}")
