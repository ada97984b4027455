"""``gpuyard site``: the site as code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption

if TYPE_CHECKING:
    from gpuyard.model.plan import Plan

app = typer.Typer(help="Check the site file, plan and apply it.", no_args_is_help=True)

PruneOption = Annotated[bool, typer.Option("--prune", help="Also delete what is ours and no longer in the site file.")]


@app.command()
def check(site: SiteOption = DEFAULT_SITE) -> None:
    """Read the site file and say what is in it, or what is wrong with it and where."""
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    offered = sum(not gpu.blocked for gpu in compiled.gpus)
    print(
        f"{site}: site {compiled.site.site}: {len(compiled.site.hosts)} hosts, {offered} GPUs offered of "
        f"{len(compiled.gpus)}, {len(compiled.site.pools)} pools, {len(compiled.flavors)} flavors"
    )
    for pool in compiled.site.pools:
        if not any(gpu.pool == pool for gpu in compiled.gpus):
            print(f"  note: no host has a GPU of pool {pool}")
    for gpu in compiled.gpus:
        if gpu.blocked:
            print(f"  not offered: {gpu.host} {gpu.address} {gpu.model}: {gpu.blocked}")


@app.command()
def render(
    site: SiteOption = DEFAULT_SITE,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write files here instead of printing.")
    ] = None,
) -> None:
    """Print Nova's and Placement's options, service by service and host by host."""
    from gpuyard.site.load import load_site
    from gpuyard.site.options import file_name, render_ini

    for options in load_site(site).compiled.options:
        if not options.options:
            continue
        name, text = file_name(options), render_ini(options.options)
        if output is None:
            print(f"### {name}\n{text}")
        else:
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)


@app.command()
def plan(site: SiteOption = DEFAULT_SITE, cloud: CloudOption = None, prune: PruneOption = False) -> None:
    """Show what differs between the site file and the cloud. Changes nothing."""
    from gpuyard.cloud.api import connect
    from gpuyard.cloud.objects import read_objects
    from gpuyard.site.load import load_site
    from gpuyard.site.plan import plan_site

    compiled = load_site(site).compiled
    show_plan(plan_site(compiled, read_objects(connect(cloud), compiled), prune))


@app.command()
def apply(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    prune: PruneOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make the cloud's flavors and limits what the site file wants."""
    from gpuyard.cloud.api import connect
    from gpuyard.cloud.apply import apply_plan
    from gpuyard.cloud.objects import read_objects
    from gpuyard.site.load import load_site
    from gpuyard.site.plan import plan_site

    compiled = load_site(site).compiled
    api = connect(cloud)
    seen = read_objects(api, compiled)
    steps = plan_site(compiled, seen, prune)
    show_plan(steps)
    if not steps.steps:
        return
    if not yes and not _confirmed(f"Carry out {len(steps.steps)} steps on cloud {api.name}?"):
        print("Nothing was changed.")
        raise typer.Exit(1)
    apply_plan(api, compiled, seen, steps, lambda step: print(f"  {step} ..."), prune)
    print(f"{len(steps.steps)} steps done; the cloud is as the site file says.")


def _confirmed(question: str) -> bool:
    """What a person answers. Raises UsageError when there is nobody to ask."""
    from gpuyard.model.errors import UsageError

    try:
        return typer.confirm(question)
    except typer.Abort:
        raise UsageError("nobody answered, so nothing was changed; --yes carries a plan out without asking") from None


def show_plan(steps: Plan) -> None:
    """Print a plan. Raises BlockedError when it must not be applied."""
    from gpuyard.model.errors import BlockedError
    from gpuyard.model.plan import Verb

    signs = {Verb.CREATE: "+", Verb.UPDATE: "~", Verb.REPLACE: "-/+", Verb.DELETE: "-"}
    for step in steps.steps:
        print(f"{signs[step.verb]} {step.kind} {step.name}  ({step.reason})")
        for change in step.changes:
            print(f"      {change}")
    for text in steps.waits:
        print(f"waits: {text}")
    for note in steps.notes:
        print(f"note: {note}")
    if steps.refusals:
        raise BlockedError(steps.refused)
    if not steps.steps:
        print("Nothing to do: the cloud is as the site file says.")
