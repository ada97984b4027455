"""Options of commands about bookings, their connection to the portal, and the output of one booking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.console.output import Format, print_list

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from gpuyard.client.client import Client
    from gpuyard.model.gpu import LedgerWords

Answer = TypeVar("Answer")

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="GPUYARD_URL",
        metavar="URL",
        help="The portal's address; what the catalogue says when left out.",
        show_default=False,
    ),
]
UserOption = Annotated[
    str,
    typer.Option("--user", metavar="NAME", help="As an admin: of that user (name or id); '*' is everybody."),
]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        "--timezone", metavar="ZONE", help="Time zone of times without an offset, and of what is shown; this machine's."
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--start", metavar="TIME", help="'tomorrow 9:00', 'friday', '17:00', '+4h' from now, or '2026-12-01 14:00'."
    ),
]
EndOption = Annotated[str, typer.Option("--end", metavar="TIME", help="As --start; '+3d' counts from the start.")]
GpusOption = Annotated[int, typer.Option("--gpus", metavar="N", help="How many.")]
GroupOption = Annotated[bool, typer.Option("--same-group", help="One whole IOMMU group, which has this many GPUs.")]
HostOption = Annotated[bool, typer.Option("--same-host", help="All on one host, for one server with several GPUs.")]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="HOST/ADDRESS", help="This GPU; any of the pool otherwise.")]
CommentOption = Annotated[str, typer.Option("--comment", metavar="TEXT", help="For everybody to see.")]
OverrideOption = Annotated[
    bool, typer.Option("--override", help="Set rules aside, as an admin. It is written down; no GPU is given twice.")
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until a server can be started: some seconds after the booking begins.")
]
BookingArgument = Annotated[str, typer.Argument(metavar="BOOKING", help="Id of the booking.")]


def client_of(cloud: str | None, url: str) -> Client:
    """The portal, as the user of clouds.yaml."""
    from gpuyard.client.client import Client
    from gpuyard.client.portal import open_session

    return Client(open_session(cloud, url))


def client_of_anybody(cloud: str | None, url: str) -> Client:
    """The portal, as the user of clouds.yaml; where no cloud is named and an address is, as anybody."""
    from gpuyard.client.client import Client
    from gpuyard.client.portal import open_public_session
    from gpuyard.openstack.config import NoCloudError

    try:
        return client_of(cloud, url)
    except NoCloudError as error:
        if not url:
            raise
        return Client(open_public_session(url, str(error)))


def gpus_of_portal(cloud: str | None, url: str, **query: object) -> tuple[list[dict[str, Any]] | None, str]:
    """The GPUs as the portal's map shows them; where no portal answers, None, and why."""
    return _of_portal(lambda: client_of(cloud, url).gpus(**query))


def flavors_of_portal(cloud: str | None, url: str, **query: object) -> tuple[dict[str, Any] | None, str]:
    """What could be started now; where no portal answers, None, and why."""
    return _of_portal(lambda: client_of(cloud, url).flavors(**query))


def _of_portal(ask: Callable[[], Answer]) -> tuple[Answer | None, str]:
    from gpuyard.client.errors import PortalError
    from gpuyard.client.portal import NoPortalError, PortalUnreachableError

    try:
        return ask(), ""
    except (NoPortalError, PortalUnreachableError, PortalError) as problem:
        return None, str(problem)


def words_of_portal(cloud: str | None, url: str) -> LedgerWords | None:
    """What bookings and holds keep GPUs; None, and a line for people, where no portal answers."""
    from gpuyard.client.rows import keepings

    rows, problem = gpus_of_portal(cloud, url)
    if rows is None:
        print(f"{problem}\nSo it is not known which GPUs bookings and holds keep.", file=sys.stderr)
        return None
    return keepings(rows)


def zone_of(name: str | None) -> ZoneInfo:
    """Raises UsageError."""
    from gpuyard.client.times import find_zone, local_zone

    return find_zone(name) if name else local_zone()


def print_bookings(
    rows: Sequence[Mapping[str, Any]], zone: ZoneInfo, format_: Format, columns: Sequence[str] | None
) -> None:
    """One booking as fields and values, several as a list."""
    from gpuyard.client.rows import BOOKINGS, booking_fields, booking_row

    if len(rows) == 1:
        print_one(booking_fields(rows[0], zone), format_, columns)
    else:
        print_list([booking_row(row, zone) for row in rows], BOOKINGS, format_, columns)


def print_one(row: Mapping[str, Any], format_: Format, columns: Sequence[str] | None = None) -> None:
    """One thing, as `openstack ... show` prints it. Raises UsageError for an unknown column."""
    import json

    from gpuyard.console.columns import chosen
    from gpuyard.console.output import print_yaml

    shown = chosen(columns, tuple(row))
    fields = {name: row[name] for name in shown}
    if format_ is Format.JSON:
        print(json.dumps(fields, indent=2))
    elif format_ is Format.YAML:
        print_yaml(fields)
    elif format_ is Format.CSV:
        print_list([fields], shown, format_)
    elif format_ is Format.VALUE:
        print(*("" if value is None else value for value in fields.values()), sep="\n")
    else:
        print_list([{"Field": name, "Value": value} for name, value in fields.items()], ("Field", "Value"), format_)
