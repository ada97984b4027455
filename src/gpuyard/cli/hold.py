"""``gpuyard gpu hold``: an operator keeps GPUs out of use for a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuyard.cli.booking_options import UrlOption, ZoneOption, client_of, suggesting, zone_of
from gpuyard.cli.options import CloudOption
from gpuyard.cli.output import ColumnOption, Format, FormatOption, print_list


def register(app: typer.Typer) -> None:
    for command in (hold, release, holds):
        app.command(command.__name__)(command)


def hold(
    gpus: Annotated[list[str], typer.Argument(metavar="HOST/ADDRESS...", help="The GPUs.")],
    end: Annotated[str, typer.Option("--end", metavar="TIME", help="Until when; '+3d' counts from the start.")],
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="Why; for everybody to see.")],
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="From when.")] = "now",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Keep GPUs out of use: nobody can book them or start a server on them. For admins.

    Bookings in the way move to other GPUs of the pool. Exit code 3, with their names, when some cannot.
    """
    from gpuyard.client.asks import hold_body
    from gpuyard.client.rows import HOLDS, hold_row

    where = zone_of(zone)
    body = hold_body(gpus, start, end, comment, where, datetime.now(UTC))
    with suggesting(where):
        made = client_of(cloud, url).hold(body)
    print_list([hold_row(row, where) for row in made], HOLDS, format_, columns)


def release(
    holds: Annotated[list[str], typer.Argument(metavar="HOLD...", help="Ids of holds.")],
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Give held GPUs back to use before their time. For admins."""
    client = client_of(cloud, url)
    for id in holds:
        client.act(id, "cancel")
        print(f"Hold {id} is over.")


def holds(
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List the GPUs that operators keep out of use, now or later."""
    from gpuyard.client.rows import HOLDS, hold_row

    where = zone_of(zone)
    print_list([hold_row(row, where) for row in client_of(cloud, url).holds()], HOLDS, format_, columns)
