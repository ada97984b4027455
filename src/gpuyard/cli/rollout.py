"""``gpuyard site rollout``: PCI devices in Placement, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.cli.output import ColumnOption, Format, print_list
from gpuyard.model.errors import BlockedError

if TYPE_CHECKING:
    from gpuyard.site.rollout import Rollout, StageAnswer

COLUMNS = ("Stage", "State", "Subject", "Holds", "Reason", "Remedy")
WORDS = {True: "yes", False: "no", None: "unseen"}


class To(StrEnum):
    REPORT = "report"
    ON = "on"


def rollout(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    to: Annotated[To, typer.Option("--to", help="The stage to get to.")] = To.ON,
    format_: Annotated[Format | None, typer.Option("-f", "--format", help="Output format; text when left out.")] = None,
    columns: ColumnOption = None,
) -> None:
    """Say how far PCI devices in Placement are rolled out, whether the next stage may come, and in which order.

    Changes nothing. Exit code 0 when the next stage may be deployed or all is done, 3 when something stands in the way.
    """
    from gpuyard.cloud.api import connect
    from gpuyard.cloud.world_facts import read_world
    from gpuyard.site.load import load_site
    from gpuyard.site.rollout import Stage, plan_rollout, world_site

    loaded = load_site(site)
    world = read_world(connect(cloud), world_site(loaded.site, loaded.inventories), migrations=True)
    answer = plan_rollout(loaded.site, loaded.inventories, world, Stage(to.value))
    if format_ is not None or columns:
        print_list(list(_rows(answer)), COLUMNS, format_ or Format.TABLE, columns)
    else:
        _show(answer)
    for stage in answer.stages:
        failed = [condition.name for condition in stage.conditions if condition.holds is False]
        if failed:
            raise BlockedError(f"stage '{stage.stage}' must not be deployed yet: {', '.join(failed)}")


def _rows(answer: Rollout) -> Iterable[dict[str, Any]]:
    for host in answer.hosts:
        yield dict(zip(COLUMNS, (str(host.stage), "seen", f"host {host.host}", None, host.reason, None), strict=True))
    for stage in answer.stages:
        values = (stage.stage.value, stage.state.value)
        if not stage.conditions:
            yield dict(zip(COLUMNS, (*values, "stage", None, None, None), strict=True))
        for condition in stage.conditions:
            more = (condition.name, WORDS[condition.holds], condition.reason, condition.remedy)
            yield dict(zip(COLUMNS, (*values, *more), strict=True))


def _show(answer: Rollout) -> None:
    width = max(len(host.host) for host in answer.hosts)
    for host in answer.hosts:
        print(f"{host.host:<{width}}  {host.stage:<10} {host.reason}")
    for stage in answer.stages:
        _show_stage(stage)


def _show_stage(stage: StageAnswer) -> None:
    print(f"\nstage {stage.stage}: {stage.state}")
    for condition in stage.conditions:
        print(f"  {WORDS[condition.holds]:<7} {condition.name}: {condition.reason}")
        if condition.remedy:
            print(f"          -> {condition.remedy}")
    if stage.order:
        print("  in this order:")
        _numbered(stage.order)
        print(f"  cannot be taken back: {stage.final}")


def _numbered(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, 1):
        print(f"    {number}. {text}")
