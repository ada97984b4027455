"""``gpuyard gpu accept``: servers check GPUs before they are given out (again)."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, zone_of

POLL_S = 2.0
PASSED = "passed"


def register(app: typer.Typer) -> None:
    app.command(accept.__name__)(accept)


def accept(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="HOST/ADDRESS, a host or a pool; all GPUs that are to be accepted when left out.",
            show_default=False,
        ),
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary/--no-canary", help="Of several hosts one first; when that fails, no other.")
    ] = True,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="What they show is their baseline, also where it is worse than what it was before."
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until it is known what came of all; status 1 if any failed.")
    ] = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Have GPUs accepted: a server is started on each, and checks them. For admins.

    Nobody else gets them meanwhile. What passes is given out again; what fails is quarantined.
    """
    from gpuyard.health.cli.health_rows import TRIES, try_row

    client, where = client_of(cloud, url), zone_of(zone)
    response = client.accept(targets or [], canary=canary, fresh=fresh)
    for skipped in response["left_out"]:
        typer.echo(f"not tried: GPU {skipped['gpu']} {skipped['reason']}", err=True)
    rows: list[Any] = response["tries"]
    while wait and not all(row["over"] for row in rows):
        time.sleep(POLL_S)
        rows = client.acceptance(rows[0]["batch"])["tries"]
    print_list([try_row(row, where) for row in rows], TRIES, format_, columns)
    if wait and any(row["state"] != PASSED for row in rows):
        raise typer.Exit(1)
