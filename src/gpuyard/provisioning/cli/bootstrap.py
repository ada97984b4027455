"""``gpuyard site bootstrap``: the accounts that `gpuyard serve` works with, and policy files that let it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption

if TYPE_CHECKING:
    from gpuyard.runtime.config_files import Change
    from gpuyard.site.schema import Site


def bootstrap(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    clouds: Annotated[
        Path, typer.Option("--clouds", metavar="FILE", help="The file that gets the credentials; a clouds.yaml.")
    ] = Path("gpuyard-clouds.yaml"),
    policies: Annotated[
        Path | None,
        typer.Option(
            "--policies", metavar="DIR", help="Write the policy files below it, as Kolla's folder of configuration."
        ),
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make new credentials, and end the old ones.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a user that may do what 'gpuyard serve' does and no more: roles, credentials and policy files.

    For admins. Changes nothing before it has shown what it would do and somebody has agreed.
    """
    from gpuyard.console.plan_output import SIGNS
    from gpuyard.console.prompts import confirmed, say_where
    from gpuyard.model.errors import BlockedError
    from gpuyard.openstack.api import connect
    from gpuyard.openstack.reader import Reader
    from gpuyard.provisioning.access.accounts import CLOUD, plan_accounts, wanted
    from gpuyard.provisioning.access.apply import AccountsReader, Bootstrapper, prefixes_of, probe
    from gpuyard.runtime.config_files import write
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    api = connect(cloud)
    shares = any(pool.is_shared for pool in compiled.site.pools.values())
    accounts = wanted(prefixes_of(api), server_projects(compiled.site), shares)
    observed = AccountsReader(api, clouds).read(accounts)
    plan = plan_accounts(accounts, observed, rotate)
    changes = []
    if policies is not None:
        with Reader(api) as reader:
            changes = policy_changes(policies, reader.newest_microversion(), shares)
    say_where(compiled.site.site, site, api.name)
    for step in plan.steps:
        print(f"{SIGNS[step.verb]} {step.kind} {step.name}  ({step.reason})")
    for change in changes:
        print(f"{change.sign} file {change.path}")
    for note in plan.notes:
        print(f"note: {note}")
    if plan.refusals:
        raise BlockedError(plan.refused)
    if plan.steps or changes:
        if not yes and not confirmed(f"Carry this out on cloud {api.name}?"):
            print("Nothing was changed.")
            raise typer.Exit(1)
        for change in changes:
            write(change)
        waits = Bootstrapper(api, clouds, accounts, observed).apply(plan, lambda step: print(f"  {step} ..."))
        if plan.steps:
            print(f"{clouds}: cloud {CLOUD} has the credentials; only you may read it.")
    else:
        waits = probe(clouds)
        print("Nothing to do: accounts and credentials are as they should be.")
    for wait in waits:
        print(f"not yet: {wait}")
    if policies is None and waits:
        print("--policies DIR writes the policy files.")


def server_projects(site: Site) -> tuple[str, ...]:
    """Projects in which gpuyard starts servers with credentials that it has itself."""
    runners = site.runners
    acceptance = site.health.acceptance.project if site.health and site.health.acceptance else None
    projects = [runners.project] if runners is not None and runners.cloud is None else []
    return (*projects, *([acceptance] if acceptance else []))


def _insist_on_release(microversion: str) -> None:
    """Raises BlockedError when it is not that of the release whose rules policy files repeat."""
    from gpuyard.model.errors import BlockedError
    from gpuyard.nova.release import RELEASES
    from gpuyard.provisioning.access.defaults import RELEASE

    tried = RELEASES[RELEASE]
    if microversion != tried.microversion:
        state = f"is {microversion}" if microversion else "is not known, since it does not say"
        raise BlockedError(
            f"the policy files are for OpenStack {RELEASE}, where the newest microversion of Nova's API is "
            f"{tried.microversion}; on this cloud it {state}. On another release they may let the role gpuyard do what "
            f"only admins may: upgrade to {RELEASE} first, or leave --policies out and write the rules by hand"
        )


def policy_changes(folder: Path, microversion: str, shares: bool = False) -> list[Change]:
    """Policy files that differ from what they should be. `microversion`: the newest of Nova's API; `shares`: as in
    `policy_files`. Raises BlockedError on another release than theirs, and where there is somebody else's file."""
    from gpuyard.model.errors import BlockedError
    from gpuyard.provisioning.access.policies import HEADER, policy_files
    from gpuyard.runtime.config_files import Change, read_text

    _insist_on_release(microversion)
    changes = [Change(folder / name, read_text(folder / name), text) for name, text in policy_files(shares).items()]
    theirs = [
        str(change.path)
        for change in changes
        if change.before is not None and not change.before.startswith(HEADER[:40])
    ]
    # Kolla takes the first that there is, and ours would come before it.
    theirs += [str(path) for change in changes if (path := change.path.with_suffix(".json")).exists()]
    if theirs:
        raise BlockedError(
            f"{', '.join(theirs)}: somebody else's rules stand there, and a service reads one file only; have "
            "ours written to another folder, and merge them"
        )
    return [change for change in changes if change.before != change.after]
