"""``gpuyard booking edit``, ``extend``, ``cancel`` and the other ways in which a booking changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuyard.bookings.cli.asks import suggesting
from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption
from gpuyard.console.portal_options import (
    BookingArgument,
    OverrideOption,
    UrlOption,
    ZoneOption,
    client_of,
    print_bookings,
    zone_of,
)

ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; its owner is told.")]


SeriesOption = Annotated[
    bool, typer.Option("--series", help="The others of its series that have not begun, too, all of them or none.")
]


def register(app: typer.Typer) -> None:
    for command in (edit, extend, cancel, end, accept, open_, approve, decline):
        app.command(command.__name__.rstrip("_"))(command)


def edit(
    booking: BookingArgument,
    start: Annotated[str | None, typer.Option("--start", metavar="TIME", help="Another start.")] = None,
    end: Annotated[
        str | None, typer.Option("--end", metavar="TIME", help="Another end; '+3d' counts from the start.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="Another number.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="HOST/ADDRESS", help="This GPU; '' for any of the pool.")
    ] = None,
    same_group: Annotated[bool | None, typer.Option("--same-group/--no-same-group", help="One IOMMU group.")] = None,
    same_host: Annotated[bool | None, typer.Option("--same-host/--no-same-host", help="All on one host.")] = None,
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="For everybody to see.")] = None,
    override: OverrideOption = False,
    series: SeriesOption = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Change a booking; it stays as it was when that is refused. One that has begun keeps its start."""
    from gpuyard.bookings.cli.asks import edit_body

    where = zone_of(zone)
    client = client_of(cloud, url)
    row, etag = client.booking(booking)
    wishes = {"start": start, "end": end, "gpus": gpus, "gpu": gpu, "comment": comment}
    wishes |= {"same_group": same_group, "same_host": same_host}
    body = edit_body(row, where, datetime.now(UTC), **wishes)
    flags = {name: True for name, enabled in (("override", override), ("series", series)) if enabled}
    with suggesting(where):
        changed = client.edit(booking, {**body, **flags}, etag)
    print_bookings([changed], where, format_, columns)


def extend(
    booking: BookingArgument,
    until: Annotated[str, typer.Argument(metavar="TIME", help="The new end; '+4h' counts from the end as it is.")],
    override: OverrideOption = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Make a booking longer, if its GPUs are free for that."""
    from gpuyard.bookings.cli.asks import extend_body

    where = zone_of(zone)
    client = client_of(cloud, url)
    row, etag = client.booking(booking)
    body = extend_body(row, until, where, datetime.now(UTC))
    with suggesting(where):
        changed = client.extend(booking, {**body, **({"override": True} if override else {})}, etag)
    print_bookings([changed], where, format_, columns)


def cancel(
    booking: BookingArgument,
    reason: ReasonOption = "",
    series: SeriesOption = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Give up a booking that has not begun; also leave the waitlist, or refuse an offer."""
    _act(booking, "cancel", reason, zone, cloud, url, format_, columns, series)


def end(
    booking: BookingArgument,
    fault: Annotated[
        str,
        typer.Option("--fault", metavar="WORDS", help="What was wrong with its GPUs; operators look at them."),
    ] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """End a booking that has begun, now; the rest of its time is free at once."""
    _act(booking, "end", "", zone, cloud, url, format_, columns, fault=fault)


def accept(
    booking: BookingArgument,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Take the GPUs that are offered to a booking on the waitlist."""
    _act(booking, "accept", "", zone, cloud, url, format_, columns)


def open_(
    booking: BookingArgument,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Release the GPUs of a booking for a server of yours once more, in pools that are also used without booking."""
    _act(booking, "open", "", zone, cloud, url, format_, columns)


def approve(
    booking: BookingArgument,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Approve a booking that was asked for. For admins."""
    _act(booking, "approve", "", zone, cloud, url, format_, columns)


def decline(
    booking: BookingArgument,
    reason: ReasonOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Decline a booking that was asked for. For admins."""
    _act(booking, "decline", reason, zone, cloud, url, format_, columns)


def _act(
    booking: str,
    verb: str,
    reason: str,
    zone: str | None,
    cloud: str | None,
    url: str,
    format_: Format,
    columns: list[str] | None,
    series: bool = False,
    fault: str = "",
) -> None:
    where = zone_of(zone)
    with suggesting(where):
        changed = client_of(cloud, url).act(booking, verb, reason, series, fault)
    print_bookings([changed], where, format_, columns)
