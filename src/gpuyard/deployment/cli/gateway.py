"""``gpuyard gateway``: the public machine in front of a cloud behind a VPN."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, SiteOption

app = typer.Typer(no_args_is_help=True, help="A public machine in front of a cloud behind a VPN.")


@app.callback()
def gateway() -> None:
    """A public machine in front of a cloud behind a VPN."""


@app.command()
def render(
    site: SiteOption = DEFAULT_SITE,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write files here instead of printing.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: show a diff, and exit 3 when there is one.")
    ] = False,
) -> None:
    """Write nginx's configuration, the tunnel's for both ends, and what to do with them; print them without -o.

    No private key is among them, and nothing is done to any machine.
    """
    from gpuyard.deployment.cli.render import carry_out
    from gpuyard.deployment.gateway.steps import whether_needed
    from gpuyard.deployment.gateway.tree import plan, tree
    from gpuyard.model.errors import UsageError
    from gpuyard.site.load import load_site

    if check and output is None:
        raise UsageError("--check compares with a folder: name it with -o")
    loaded = load_site(site)
    files = tree(loaded.site)
    print(f"note: {whether_needed(loaded.site)}", file=sys.stderr)
    if output is not None:
        carry_out(plan(files, output), check, output)
        return
    for name, text in files.items():
        print(f"### {name}\n{text}")
