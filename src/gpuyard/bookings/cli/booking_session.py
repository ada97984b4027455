"""``gpuyard booking session``: who is logged in to the portal with a browser."""

from __future__ import annotations

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, UserOption, ZoneOption, client_of, zone_of

app = typer.Typer(help="See and end logins to the portal.", no_args_is_help=True)


@app.command("list")
def list_(
    user: UserOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List your logins, or as an admin those of others."""
    from gpuyard.client.rows import SESSIONS, session_row

    where = zone_of(zone)
    print_list([session_row(row, where) for row in client_of(cloud, url).sessions(user)], SESSIONS, format_, columns)


@app.command()
def end(user: UserOption = "", cloud: CloudOption = None, url: UrlOption = "") -> None:
    """Log out everywhere, or as an admin log others out. Feeds are deleted, tokens of Keystone go on."""
    ended = client_of(cloud, url).end_sessions(user)
    print(f"{ended} {'session is' if ended == 1 else 'sessions are'} ended.")
