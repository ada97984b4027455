"""``gpuyard gpu hold``: an operator keeps GPUs out of use for a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.bookings.cli.asks import suggesting
from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, zone_of
from gpuyard.model.errors import UsageError

if TYPE_CHECKING:
    from gpuyard.client.client import Client


def register(app: typer.Typer) -> None:
    for command in (hold, release, holds, back):
        app.command(command.__name__)(command)


def hold(
    end: Annotated[str, typer.Option("--end", metavar="TIME", help="Until when; '+3d' counts from the start.")],
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="Why; for everybody to see.")],
    gpus: Annotated[list[str] | None, typer.Argument(metavar="HOST/ADDRESS...", help="The GPUs.")] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="All GPUs of this host; repeatable.")
    ] = None,
    pools: Annotated[
        list[str] | None, typer.Option("--pool", metavar="POOL", help="All GPUs of this pool; repeatable.")
    ] = None,
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="From when.")] = "now",
    repeat: Annotated[
        str, typer.Option("--repeat", metavar="RRULE", help="Again and again, as in 'FREQ=MONTHLY;BYDAY=1MO;COUNT=6'.")
    ] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Keep GPUs out of use: nobody can book them or start a server on them. For admins.

    Bookings in the way move to other GPUs of the pool. Exit code 3, with their names, when some cannot.
    """
    from gpuyard.bookings.cli.asks import hold_body
    from gpuyard.client.rows import HOLDS, hold_row

    where = zone_of(zone)
    now = datetime.now(UTC)
    what = {"gpus": gpus or (), "hosts": hosts or (), "pools": pools or ()}
    body = hold_body(start, end, comment, where, now, repeat, **what)
    with suggesting(where):
        made = client_of(cloud, url).hold(body)
    print_list([hold_row(row, where) for row in made], HOLDS, format_, columns)


def release(
    holds: Annotated[list[str], typer.Argument(metavar="HOLD...", help="Ids of holds.")],
    series: Annotated[bool, typer.Option("--series", help="And all that --repeat made with it.")] = False,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Give held GPUs back to use before their time. For admins."""
    client = client_of(cloud, url)
    if gpus := [hold for hold in holds if "/" in hold]:
        raise UsageError(_no_hold(gpus[0], client))
    for id in holds:
        client.act(id, "cancel", series=series)
        print(f"Hold {id} is over.")


def _no_hold(gpu: str, client: Client) -> str:
    """Who names a GPU wants it back: what keeps it, and what to say instead."""
    on_it = [row["id"] for row in client.holds() if gpu in (row["gpu"], *row["gpu_names"])]
    if on_it:
        return f"{gpu} is a GPU, and a hold ends by its id: gpuyard gpu release {on_it[0]}"
    return (
        f"no hold keeps GPU {gpu} ('gpuyard gpu holds' lists them); one that is out of use for its health is given "
        f"back with 'gpuyard gpu repair release {gpu} --comment WHY', and 'gpuyard gpu health {gpu}' says how it is"
    )


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


def back(
    gpus: Annotated[list[str], typer.Argument(metavar="HOST[/ADDRESS]...", help="GPUs, or hosts for all of theirs.")],
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="When, as in '+3d'; without, as the rule 'trouble' says.")
    ] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Say when GPUs that cannot be used now will be back: they can be booked from then on. For admins."""
    from gpuyard.bookings.cli.asks import back_body

    for row in client_of(cloud, url).expect_back(back_body(gpus, at, zone_of(zone), datetime.now(UTC))):
        when = row["back"] or "as the rule 'trouble' says"
        print(f"{', '.join(row['gpus'])}: back {when}. Now: {row['trouble']}")
