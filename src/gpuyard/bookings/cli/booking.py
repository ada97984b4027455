"""``gpuyard booking``: book GPUs at a portal, and look after bookings."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.bookings.cli import booking_change, booking_feed, booking_session
from gpuyard.bookings.cli.asks import PROGRAM, suggesting
from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import (
    BookingArgument,
    CommentOption,
    EndOption,
    GpuOption,
    GpusOption,
    GroupOption,
    HostOption,
    OverrideOption,
    StartOption,
    UrlOption,
    WaitOption,
    ZoneOption,
    client_of,
    print_bookings,
    print_one,
    zone_of,
)
from gpuyard.model.booking import BookingState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from zoneinfo import ZoneInfo

    from gpuyard.bookings.cli.asks import BookingArguments
    from gpuyard.client.client import Client

DOES_NOT_FIT = 3

app = typer.Typer(help="Book GPUs, and look after bookings.", no_args_is_help=True)
NEXT = ("Pool", "Start", "End", "Command")
"""Columns of `booking next` when it is asked about all pools."""
PoolArgument = Annotated[str, typer.Option("--pool", metavar="POOL", help="The pool: which model of GPU.")]


@app.command()
def create(
    pool: PoolArgument,
    end: EndOption,
    start: StartOption = "now",
    gpus: GpusOption = 1,
    same_group: GroupOption = False,
    same_host: HostOption = False,
    gpu: GpuOption = "",
    comment: CommentOption = "",
    waitlist: Annotated[bool, typer.Option("--waitlist", help="Go on the waitlist when no GPU is free.")] = False,
    repeat: Annotated[
        str, typer.Option("--repeat", metavar="RRULE", help="As in 'FREQ=WEEKLY;COUNT=4': all are booked, or none.")
    ] = "",
    override: OverrideOption = False,
    project: Annotated[
        str, typer.Option("--project", metavar="PROJECT", help="For this project, as an admin; yours when left out.")
    ] = "",
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="For this colleague in the project, where the rules allow it.")
    ] = "",
    shared: Annotated[
        bool, typer.Option("--shared", help="For every member of the project, where the rules allow it.")
    ] = False,
    check_: Annotated[bool, typer.Option("--check", help="Only ask whether it would fit.")] = False,
    wait: WaitOption = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Book GPUs of a pool for the project of your credentials.

    Exit code 3 when it is refused: the reasons are said, and what would be possible near it.
    """
    from gpuyard.bookings.cli.asks import BookingArguments

    words = BookingArguments(
        pool, start, end, gpus, same_group, same_host, gpu, comment, waitlist, override, repeat, project, user, shared
    )
    where = zone_of(zone)
    if check_:
        _check(client_of(cloud, url), words, where)
        return
    body = _body(words, where)
    with suggesting(where):
        client = client_of(cloud, url)
        made = client.create(body)
    if wait:
        print("Waiting until a server can be started ...", file=sys.stderr, flush=True)
        made[0] = client.wait_until_usable(made[0])
    print_bookings(made, where, format_, columns)


@app.command()
def check(
    pool: PoolArgument,
    end: EndOption,
    start: StartOption = "now",
    gpus: GpusOption = 1,
    same_group: GroupOption = False,
    same_host: HostOption = False,
    gpu: GpuOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Ask whether a booking would be possible, without making it. Exit code 3 when not."""
    from gpuyard.bookings.cli.asks import BookingArguments

    where = zone_of(zone)
    _check(client_of(cloud, url), BookingArguments(pool, start, end, gpus, same_group, same_host, gpu), where)


@app.command("next")
def next_(
    lasting: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, as in '4h' or '3d'.")],
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="Of this pool; all when left out.")] = "",
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Not before this.")] = "now",
    gpus: GpusOption = 1,
    same_group: GroupOption = False,
    same_host: HostOption = False,
    gpu: GpuOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show when GPUs are free next for so long, and the command that books them. Exit code 3 when never.

    Without --pool all pools are asked, and those that have a time are listed, the earliest first.
    """
    from gpuyard.bookings.cli.asks import BookingArguments, command, first_possible
    from gpuyard.client.times import show_api_time

    where, client, refusals, free = zone_of(zone), client_of(cloud, url), [], []
    for name in [pool] if pool else [row["name"] for row in client.pools()]:
        words = BookingArguments(name, start, f"+{lasting.lstrip('+')}", gpus, same_group, same_host, gpu)
        ask = _body(words, where)
        answer = client.check(ask)
        possible_ask = first_possible(ask, answer)
        if possible_ask is None:
            refusals.append((name, answer))
            continue
        times = {name: show_api_time(possible_ask[name], where) for name in ("start", "end")}
        free.append({"pool": name, **times, "command": command(possible_ask, PROGRAM, where)})
    if not free:
        for name, answer in refusals:
            print(*([] if pool else [f"Pool {name}:"]), *_why_not(answer, where), sep="\n")
        raise typer.Exit(DOES_NOT_FIT)
    if pool:
        print_one(free[0], format_, columns)
    else:
        free.sort(key=lambda row: datetime.fromisoformat(row["start"]))
        print_list([{name.title(): value for name, value in row.items()} for row in free], NEXT, format_, columns)


def _body(words: BookingArguments, zone: ZoneInfo) -> dict[str, Any]:
    from gpuyard.bookings.cli.asks import ask_body

    return ask_body(words, zone, datetime.now(UTC))


def _check(client: Client, words: BookingArguments, zone: ZoneInfo) -> None:
    from gpuyard.bookings.cli.asks import command

    body = _body(words, zone)
    answer = client.check(body)
    if answer["fits"]:
        for text in answer.get("warnings") or ():
            print(f"Warning: {text}")
        print(f"It fits. Book it with: {command(body, PROGRAM, zone)}")
        return
    print(*_why_not(answer, zone), sep="\n")
    raise typer.Exit(DOES_NOT_FIT)


def _why_not(answer: Mapping[str, Any], zone: ZoneInfo) -> list[str]:
    from gpuyard.bookings.cli.asks import suggestions

    reasons = [f"  - {reason['text']}" for reason in answer["reasons"]]
    return ["It does not fit:", *reasons, *suggestions(answer.get("alternatives"), PROGRAM, zone)]


@app.command("list")
def list_(
    mine: Annotated[bool, typer.Option("--mine", help="Only yours.")] = False,
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="Only of this pool.")] = "",
    project: Annotated[str, typer.Option("--project", metavar="PROJECT", help="Only of this project.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="USER", help="Only of this user.")] = "",
    state: Annotated[list[BookingState] | None, typer.Option("--state", help="Only in this state; repeatable.")] = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Only what ends after this; also what is over by now.")
    ] = "",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Only what starts before this.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Also all that is over or was cancelled.")] = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List bookings that are not over, in order of their start. Everybody sees everybody's."""
    from gpuyard.bookings.cli.asks import list_query
    from gpuyard.client.rows import BOOKINGS, booking_row

    where = zone_of(zone)
    query = list_query(
        where,
        datetime.now(UTC),
        first=from_,
        last=to,
        everything=all_,
        mine=mine,
        pool=pool,
        project=project,
        user=user,
        states=[booking_state.value for booking_state in state or ()],
    )
    rows = client_of(cloud, url).bookings(**query)
    print_list([booking_row(row, where) for row in rows], BOOKINGS, format_, columns)


@app.command()
def show(
    booking: BookingArgument,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show one booking, and what its GPUs do, where agents in its servers tell."""
    from gpuyard.client.rows import booking_fields

    where, client = zone_of(zone), client_of(cloud, url)
    row = client.booking(booking)[0]
    print_one(booking_fields(row, where, client.use(row["id"])), format_, columns)


@app.command()
def waitlist(
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="Only of this pool.")] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List who waits for GPUs, and whom some are offered to."""
    from gpuyard.client.rows import WAITLIST, waitlist_rows

    where = zone_of(zone)
    states = [BookingState.OFFERED.value, BookingState.WAITING.value]
    rows = list(client_of(cloud, url).bookings(pool=pool, state=states))
    print_list(waitlist_rows(rows, where), WAITLIST, format_, columns)


@app.command()
def rules(
    pool: PoolArgument,
    project: Annotated[
        str, typer.Option("--project", metavar="PROJECT", help="The project; your credentials' when left out.")
    ] = "",
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show the rules for bookings of a pool, and where each is stated."""
    from gpuyard.client.rows import RULE, rule_rows

    print_list(rule_rows(client_of(cloud, url).rules(pool, project)), RULE, format_, columns)


@app.command()
def audit(
    user: Annotated[str, typer.Option("--user", metavar="USER", help="What they did, or of their bookings.")] = "",
    booking: Annotated[str, typer.Option("--booking", metavar="ID", help="Of this booking or server.")] = "",
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="Of bookings of this pool.")] = "",
    project: Annotated[str, typer.Option("--project", metavar="PROJECT", help="Of bookings of this project.")] = "",
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help="Not before this.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Before this.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many.")] = 100,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show who did what by which rule, the newest first. For admins."""
    from gpuyard.bookings.cli.asks import audit_query
    from gpuyard.client.rows import AUDIT, audit_row

    where = zone_of(zone)
    query = audit_query(
        where, datetime.now(UTC), first=from_, last=to,
        user=user, target=booking, pool=pool, project=project, limit=limit,
    )  # fmt: skip
    print_list([audit_row(row, where) for row in client_of(cloud, url).audit(**query)], AUDIT, format_, columns)


booking_change.register(app)
app.add_typer(booking_feed.app, name="feed")
app.add_typer(booking_session.app, name="session")
