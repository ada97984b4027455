"""``gpuyard site rollout``: PCI devices in Placement, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption
from gpuyard.model.errors import BlockedError
from gpuyard.model.finding import Severity

if TYPE_CHECKING:
    from gpuyard.diagnosis.rollout import Rollout, StageAnswer


class To(StrEnum):
    REPORT = "report"
    ON = "on"


def rollout(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    to: Annotated[To, typer.Option("--to", help="The stage to get to.")] = To.ON,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Say how far PCI devices in Placement are rolled out, whether the next stage may come, and in which order.

    Changes nothing. Exit code 0 when the next stage may be deployed or all is done, 3 when something stands in the way.
    """
    from gpuyard.diagnosis.drift.read import read_world
    from gpuyard.diagnosis.rollout import Stage, plan_rollout, world_site
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    world = read_world(connect(cloud), world_site(loaded.site, loaded.inventories), migrations=True)
    answer = plan_rollout(loaded.site, loaded.inventories, world, Stage(to.value))
    if format_ is FindingFormat.TEXT and not columns:
        _show(answer)
    else:
        print_findings(answer.findings, "rollout", format_, columns, payload=("stage", "state"))
    for stage in answer.stages:
        failed = [condition.code for condition in stage.conditions if condition.severity is Severity.ERROR]
        if failed:
            raise BlockedError(f"stage '{stage.stage}' must not be deployed yet: {', '.join(failed)}")


def _show(answer: Rollout) -> None:
    width = max(len(host.host) for host in answer.hosts)
    for host in answer.hosts:
        print(f"{host.host:<{width}}  {host.stage:<10} {host.reason}")
    for stage in answer.stages:
        _show_stage(stage)


def _show_stage(stage: StageAnswer) -> None:
    print(f"\nstage {stage.stage}: {stage.state}")
    for condition in stage.conditions:
        print("\n".join(f"  {line}" for line in condition.lines()))
    if stage.order:
        print("  in this order:")
        _numbered(stage.order)
        print(f"  cannot be taken back: {stage.final}")


def _numbered(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, 1):
        print(f"    {number}. {text}")
