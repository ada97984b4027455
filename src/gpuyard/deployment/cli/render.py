"""``gpuyard site render``: Nova's and Placement's options as files, for Kolla or for any other way to deploy them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, SiteOption

if TYPE_CHECKING:
    from gpuyard.deployment.kolla.operator_inventory import KollaInventory
    from gpuyard.deployment.kolla.render import Rendering
    from gpuyard.runtime.config_files import Change
    from gpuyard.site.compile import CompiledSite

InventoryOption = Annotated[
    list[Path] | None,
    typer.Option("-i", "--inventory", metavar="FILE", help="Kolla's inventory, to check host names with; repeatable."),
]


def register(app: typer.Typer) -> None:
    app.command()(render)


def render(
    site: SiteOption = DEFAULT_SITE,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write files here instead of printing.")
    ] = None,
    kolla: Annotated[
        Path | None,
        typer.Option("--kolla", metavar="DIR", help="Write into Kolla's configuration folder, usually /etc/kolla."),
    ] = None,
    inventory: InventoryOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: show a diff, and exit 3 when there is one.")
    ] = False,
) -> None:
    """Write Nova's and Placement's options, service by service and host by host; print them without -o and --kolla.

    In Kolla's folder the operator's own lines stay as they are; a key that is set there too is an error.
    """
    from gpuyard.deployment.kolla.plain import plain_files, plan_plain
    from gpuyard.model.errors import UsageError
    from gpuyard.site.load import load_site

    if output is not None and kolla is not None:
        raise UsageError("-o and --kolla are two ways to deploy; use one")
    if check and output is None and kolla is None:
        raise UsageError("--check compares with a folder: name it with -o or --kolla")
    if inventory and kolla is None:
        raise UsageError("--inventory belongs to --kolla")
    compiled = load_site(site).compiled
    if kolla is not None:
        rendering = rendering_of(compiled, kolla, inventory or ())
        show_notes(rendering.notes)
        carry_out(rendering.changes, check, kolla)
    elif output is not None:
        carry_out(plan_plain(plain_files(compiled), output), check, output)
    else:
        for name, text in plain_files(compiled).items():
            print(f"### {name}\n{text}")


def changes_of(
    compiled: CompiledSite, output: Path | None, kolla: Path | None, inventories: Sequence[Path] = ()
) -> Sequence[Change]:
    """What 'render' would write into folders that were rendered before. Raises UsageError for inventories without a
    Kolla folder, BlockedError when the site and the folder contradict each other."""
    from gpuyard.deployment.kolla.plain import plain_files, plan_plain
    from gpuyard.model.errors import UsageError

    if inventories and kolla is None:
        raise UsageError("--inventory belongs to --kolla")
    plain = plan_plain(plain_files(compiled), output) if output is not None else ()
    return (*plain, *(rendering_of(compiled, kolla, inventories).changes if kolla is not None else ()))


def rendering_of(
    compiled: CompiledSite, kolla: Path, inventories: Sequence[Path], program: Path | None = None
) -> Rendering:
    """What would change in a Kolla folder. Raises BlockedError when the site and the folder contradict each other."""
    from gpuyard.deployment.kolla.folder import read_folder
    from gpuyard.deployment.kolla.operator_inventory import read_inventory
    from gpuyard.deployment.kolla.render import compute_group, plan_kolla
    from gpuyard.model.errors import BlockedError

    folder = read_folder(kolla)
    kolla_inventory: KollaInventory | None = None
    if inventories:
        kolla_inventory = read_inventory(inventories, compute_group(folder), program)
    rendering = plan_kolla(compiled, folder, kolla_inventory)
    if rendering.refusals:
        raise BlockedError(rendering.refused)
    return rendering


def show_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def carry_out(changes: Sequence[Change], check: bool, folder: Path) -> None:
    """Make the changes, or with `check` show them and exit 3 when there are any."""
    from gpuyard.model.errors import BlockedError
    from gpuyard.runtime.config_files import diff, write

    if check:
        for line in diff(changes):
            print(line)
        if changes:
            raise typer.Exit(BlockedError.exit_code)
    for change in changes:
        write(change)
        print(f"{change.sign} {change.path}")
    if not changes:
        print(f"Nothing to do: {folder} is as the site file says.")
