"""``gpuyard booking feed``: bookings in a calendar program, by a secret address."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, UserOption, ZoneOption, client_of, zone_of

app = typer.Typer(help="Follow bookings in a calendar program.", no_args_is_help=True)


class Scope(StrEnum):
    USER = "user"
    POOL = "pool"
    GPU = "gpu"


@app.command()
def create(
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="All bookings of a pool.")] = "",
    gpu: Annotated[str, typer.Option("--gpu", metavar="HOST/ADDRESS", help="All bookings of a GPU.")] = "",
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="After which it ends.")] = 365,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Make a calendar feed, of your own bookings or of a pool's or a GPU's. Its address is shown this once.

    Whoever knows the address can read the feed, without a login.
    """
    from gpuyard.model.errors import UsageError

    if pool and gpu:
        raise UsageError("--pool and --gpu do not go together: a feed is of one of them")
    scope = Scope.POOL if pool else Scope.GPU if gpu else Scope.USER
    client = client_of(cloud, url)
    made = client.create_feed(scope.value, pool or gpu, days)
    address = str(made.get("url") or made.get("path") or "")
    print(address if address.startswith("http") else f"{client.url}{address}")


@app.command("list")
def list_(
    user: UserOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List your feeds, or as an admin those of others, without their addresses."""
    from gpuyard.client.rows import FEEDS, feed_row

    where = zone_of(zone)
    print_list([feed_row(row, where) for row in client_of(cloud, url).feeds(user)], FEEDS, format_, columns)


@app.command()
def delete(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="Id of the feed.")],
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Delete a feed of yours, or as an admin any: its address leads nowhere from now on."""
    client_of(cloud, url).delete_feed(feed)
    print(f"Feed {feed} is deleted.")
