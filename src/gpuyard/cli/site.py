"""``gpuyard site``: the site as code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption
from gpuyard.console.portal_options import UrlOption, client_of
from gpuyard.console.prompts import confirmed, say_where
from gpuyard.deployment.cli import deploy, render
from gpuyard.diagnosis.cli import adopt, drift, lint, rollout
from gpuyard.provisioning.cli import bootstrap

if TYPE_CHECKING:
    from gpuyard.site.steps import SitePlan

OF_BOOKING = ("rule", "pool", "user", "project", "state", "start", "end")
"""The payload of what is found of bookings."""
RULES_AT_ONCE = 100
"""Asked for in one request: as many as the portal takes."""
NOTHING = "Nothing to do: the cloud is as the site file says."

app = typer.Typer(help="The site as code: check, plan, apply, watch, deploy.", no_args_is_help=True)

PruneOption = Annotated[bool, typer.Option("--prune", help="Also delete what is ours and no longer in the site file.")]


@app.command()
def check(site: SiteOption = DEFAULT_SITE) -> None:
    """Read the site file and say what is in it, or what is wrong with it and where."""
    from gpuyard.model.text import counted
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    offered = sum(not gpu.blocked for gpu in compiled.gpus)
    print(
        f"{site}: site {compiled.site.site}: {counted(len(compiled.site.hosts), 'host')}, "
        f"{counted(offered, 'GPU')} offered of {len(compiled.gpus)}, {counted(len(compiled.site.pools), 'pool')}, "
        f"{counted(len(compiled.flavors), 'flavor')}"
    )
    for pool in compiled.site.pools:
        if not any(gpu.pool == pool for gpu in compiled.gpus):
            print(f"  note: no host has a GPU of pool {pool}")
    for gpu in compiled.gpus:
        if gpu.blocked:
            print(f"  not offered: {gpu.host} {gpu.address} {gpu.model}: {gpu.blocked}")
    for host in compiled.capacities:
        if compiled.site.hosts[host.host].reserve is not None:
            print(*(f"  {line}" for line in host.lines()), sep="\n")
    if "release" not in compiled.site.model_fields_set:
        print(f"  note: no 'release' is given; {compiled.site.release} is assumed")
    for note in compiled.notes:
        print(f"  note: {note}")


@app.command()
def bookings(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Say which bookings of the portal the site file's rules would not allow any more, or what they would lose.

    For admins; changes nothing. Ask before the file is that of 'gpuyard serve', which compares it with its own. Exit
    code 3 when there are any.
    """
    from gpuyard.bookings.controllers.site_ledger import book_of
    from gpuyard.model.errors import BlockedError, UsageError
    from gpuyard.model.finding import Finding
    from gpuyard.site.booking_rules import BookingRules
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    if compiled.site.booking is None:
        raise UsageError(f"{site} has no 'booking': with it nothing could be booked any more")
    book, client = book_of(compiled), client_of(cloud, url)
    asks = [
        {
            "pool": pool,
            "project": project,
            "rules": BookingRules.of(book.rules(pool, project)).model_dump(mode="json", exclude_none=True)
            if pool in book.pools
            else None,
        }
        for pool, project in sorted({(row["pool"], row["project"]) for row in client.bookings()})
    ]
    batches = [asks[first : first + RULES_AT_ONCE] for first in range(0, len(asks), RULES_AT_ONCE)]
    rows = [row for some in batches for row in client.check_rules({"timezone": book.zone, "rules": some})]
    findings = [Finding.from_dict(row) for row in rows]
    print_findings(findings, "bookings", format_, columns, payload=OF_BOOKING, text_payload=OF_BOOKING)
    if findings:
        number = len({finding.object for finding in findings})
        raise BlockedError(f"{number} {'booking' if number == 1 else 'bookings'} would lose by these rules")
    if format_ is FindingFormat.TEXT and not columns:
        print("No booking would lose anything by these rules.")


@app.command()
def plan(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    prune: PruneOption = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the plan, for 'apply FILE'.")
    ] = None,
    kolla: Annotated[
        Path | None,
        typer.Option("--kolla", metavar="DIR", help="Also compare what was rendered into Kolla's folder."),
    ] = None,
    inventory: render.InventoryOption = None,
    rendered: Annotated[
        Path | None, typer.Option("--rendered", metavar="DIR", help="Also compare what 'render -o' wrote there.")
    ] = None,
) -> None:
    """Show what differs between the site file, the cloud and the rendered configuration. Changes nothing."""
    from gpuyard.model.errors import BlockedError
    from gpuyard.openstack.api import connect
    from gpuyard.provisioning.read import read_objects
    from gpuyard.site.load import load_site
    from gpuyard.site.plan import plan_site
    from gpuyard.site.stored_plan import render_plan, store_plan

    compiled = load_site(site).compiled
    api = connect(cloud)
    steps = plan_site(compiled, read_objects(api, compiled), prune)
    say_where(compiled.site.site, site, api.name)
    changes = render.changes_of(compiled, rendered, kolla, inventory or ())
    for change in changes:
        print(f"{change.sign} file {change.path}  (rendered configuration: 'gpuyard site render' writes it)")
    try:
        show_plan(steps, len(changes))
    except BlockedError as error:
        raise BlockedError(f"{error}\n{output} was not written" if output is not None else str(error)) from None
    if output is not None:
        _write(output, render_plan(store_plan(compiled.site.site, api.name, prune, steps)))
        print(f"Written to {output}; carry it out with: gpuyard site apply {output}")


@app.command()
def apply(
    stored: Annotated[
        Path | None,
        typer.Argument(metavar="[PLAN]", help="A plan that 'plan -o' wrote: carried out as it is, or not at all."),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    prune: PruneOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make the cloud's flavors, limits, aggregates and images what the site file wants."""
    from gpuyard.model.errors import UsageError
    from gpuyard.openstack.api import connect
    from gpuyard.provisioning.apply import apply_plan
    from gpuyard.provisioning.read import read_objects
    from gpuyard.site.load import load_site
    from gpuyard.site.plan import plan_site
    from gpuyard.site.stored_plan import parse_plan, require_same, store_plan

    approved = parse_plan(_read(stored), str(stored)) if stored is not None else None
    if approved and prune:
        raise UsageError("a stored plan says itself whether to prune; plan again with --prune")
    prune = approved.prune if approved else prune
    compiled = load_site(site).compiled
    api = connect(cloud)
    observed = read_objects(api, compiled)
    steps = plan_site(compiled, observed, prune)
    say_where(compiled.site.site, site, api.name)
    if approved:
        require_same(approved, store_plan(compiled.site.site, api.name, prune, steps))
    show_plan(steps)
    if not steps.steps:
        return
    if not yes and not approved and not confirmed(f"Carry out {len(steps.steps)} steps on cloud {api.name}?"):
        print("Nothing was changed.")
        raise typer.Exit(1)
    apply_plan(api, compiled, observed, steps, lambda step: print(f"  {step} ..."), prune)
    waits = f", but for what waits ({len(steps.waits)})" if steps.waits else ""
    print(f"{len(steps.steps)} steps done; the cloud is as the site file says{waits}.")


def _read(path: Path) -> str:
    from gpuyard.model.errors import UsageError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _write(path: Path, text: str) -> None:
    from gpuyard.model.errors import UsageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def show_plan(steps: SitePlan, files: int = 0) -> None:
    """Print a plan; `files` rendered ones differ besides. Raises BlockedError when it must not be applied."""
    from gpuyard.console.plan_output import plan_lines
    from gpuyard.model.errors import BlockedError

    for line in plan_lines(steps):
        print(line)
    if steps.refusals:
        raise BlockedError(steps.refused)
    if not steps.steps:
        but = [f"{files} rendered files"] if files else []
        but += ["what waits"] if steps.waits else []
        unless = f", but for {' and '.join(but)}" if but else ""
        print(f"Nothing to do on the cloud: it is as the site file says{unless}." if but else NOTHING)


app.command("drift")(drift.drift)
render.register(app)
deploy.register(app)
app.command("bootstrap")(bootstrap.bootstrap)
app.command("rollout")(rollout.rollout)
app.command("lint")(lint.lint)
app.command("adopt")(adopt.adopt)
app.command("import", hidden=True)(adopt.adopt)  # what it was called
