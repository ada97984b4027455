"""``gpuyard host maintenance``: a host's kernel, firmware or cards are changed, from the plan until it is back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, print_one, zone_of

if TYPE_CHECKING:
    from gpuyard.client.client import Client, Row

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="Its name in the site file.")]
CommentOption = Annotated[str, typer.Option("--comment", metavar="TEXT", help="What and why; for the GPUs' records.")]
UntilOption = Annotated[str, typer.Option("--end", metavar="TIME", help="When it is expected to be back.")]

app = typer.Typer(
    help="Maintain a host: drain it, work on it, check it, give it back. For admins.", no_args_is_help=True
)


@app.command()
def plan(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Names in the site file.")],
    end: UntilOption,
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="Why; for everybody to see.")],
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="From when.")] = "now",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Plan the maintenance of hosts: nothing new is booked there in that time.

    Bookings move to other hosts; owners of those that cannot are told. 'Used by' shows who is in the way.
    """
    from gpuyard.bookings.cli.asks import maintenance_body
    from gpuyard.health.cli.maintenance_rows import MAINTENANCES, maintenance_row

    where, client = zone_of(zone), client_of(cloud, url)
    body = maintenance_body(start, end, comment, where, datetime.now(UTC))
    made: list[dict[str, Any]] = []
    try:
        # A list keeps what a generator gave it before it failed.
        made.extend(maintenance_row(client.plan_maintenance({"host": host, **body}), where) for host in hosts)
    finally:
        if made:  # what is planned is shown, also when the next host is refused
            print_list(made, MAINTENANCES, format_, columns)


@app.command("list")
def list_(
    past: Annotated[bool, typer.Option("--past", help="Also those that are over.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Only of this host.")] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List maintenances: where each is, who still uses the host, and why it is not given back yet."""
    from gpuyard.health.cli.maintenance_rows import MAINTENANCES, maintenance_row

    where = zone_of(zone)
    rows = client_of(cloud, url).maintenances(host=host, past=past)
    print_list([maintenance_row(row, where) for row in rows], MAINTENANCES, format_, columns)


@app.command()
def show(
    host: HostArgument,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show the maintenance of a host: the one that is not over, or else the last one."""
    from gpuyard.health.cli.maintenance_rows import maintenance_fields
    from gpuyard.model.errors import UsageError

    rows = client_of(cloud, url).maintenances(host=host, past=True)
    if not rows:
        raise UsageError(f"host {host} was never maintained; 'gpuyard host maintenance plan' begins one")
    print_one(maintenance_fields(rows[0], zone_of(zone)), format_, columns)


@app.command()
def start(host: HostArgument, comment: CommentOption = "", cloud: CloudOption = None, url: UrlOption = "") -> None:
    """Begin before its time; or work again on a host that is being checked."""
    _step(client_of(cloud, url), host, "start", {"comment": comment})


@app.command()
def extend(
    host: HostArgument,
    end: UntilOption,
    comment: CommentOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Say that a host is back at another time, later or earlier; '+2h' counts from now."""
    from gpuyard.bookings.cli.asks import time_body

    _step(
        client_of(cloud, url), host, "extend", {**time_body(end, zone_of(zone), datetime.now(UTC)), "comment": comment}
    )


@app.command()
def done(
    host: HostArgument,
    comment: CommentOption = "",
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Give it back at once; you answer for it. Needs --comment.")
    ] = False,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Say that the work is done. The host is given back when it was heard of and its GPUs are well."""
    from gpuyard.model.errors import UsageError

    if unchecked and not comment:
        raise UsageError("--unchecked needs --comment: say why the host need not be checked")
    _step(client_of(cloud, url), host, "done", {"comment": comment, "unchecked": unchecked})


@app.command()
def allow(
    host: HostArgument,
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVER...]", help="Names or ids of servers that are on the host.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that are there now; none that comes later.")] = False,
    comment: CommentOption = "",
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Let work begin although these servers are on the host: they go down with it."""
    from gpuyard.bookings.cli.asks import servers_of_maintenance
    from gpuyard.model.errors import UsageError

    if bool(servers) == all_:
        raise UsageError("name the servers that may go down, or say --all; one of the two")
    client = client_of(cloud, url)
    row = _open(client, host)
    ids = servers_of_maintenance(row, servers or [])
    print(_said(client.maintenance_step(row["id"], "allow", {"servers": ids, "comment": comment})))


@app.command()
def cancel(host: HostArgument, comment: CommentOption = "", cloud: CloudOption = None, url: UrlOption = "") -> None:
    """Say that a maintenance is not needed that nobody has begun to work on."""
    _step(client_of(cloud, url), host, "cancel", {"comment": comment})


def _step(client: Client, host: str, step: str, body: dict[str, Any]) -> None:
    print(_said(client.maintenance_step(_open(client, host)["id"], step, body)))


def _open(client: Client, host: str) -> Row:
    from gpuyard.model.errors import UsageError

    maintenances = client.maintenances(host=host)
    if not maintenances:
        raise UsageError(f"host {host} has no open maintenance; 'gpuyard host maintenance list' shows all")
    return maintenances[0]


def _said(row: Row) -> str:
    used = [server["name"] for server in row["servers"] if not server.get("may_go_down")]
    waits = [f"Still used by {', '.join(used)}."] if used and row["state"] != "back" else []
    why = "Work waits" if row["state"] == "draining" else "Not given back yet"
    waits += [f"{why}: {'; '.join(row['problems'])}."] if row["problems"] else []
    return " ".join([f"Host {row['host']}: the maintenance is {row['state']}.", *waits])
