"""``gpuyard gpu health``, ``report``, ``quarantine`` and ``repair``: how GPUs are, and what is done about a bad one."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, print_one, zone_of
from gpuyard.health.records import HealthState
from gpuyard.health.repeats import By

GpuArgument = Annotated[str, typer.Argument(metavar="HOST/ADDRESS", help="The GPU.")]
CommentOption = Annotated[str, typer.Option("--comment", metavar="TEXT", help="What and why; kept in its record.")]

repair = typer.Typer(help="Look after GPUs that are out of use. For admins.", no_args_is_help=True)


STEPS = {
    "note": "Write down what was seen or tried.",
    "done": "Say that a GPU is well: it goes back to use, after its acceptance where the site needs one.",
    "abandon": "Look after a GPU no more; it stays out of use.",
    "clear-baseline": "Forget what a GPU was accepted with: it is judged as a new one until it is accepted again.",
    "release": "Give a GPU back to use that was not repaired: it was well, or is suspect, or need not be accepted.",
}
"""Of a repair, after its start."""


def register(app: typer.Typer) -> None:
    for command in (health, report, quarantine):
        app.command(command.__name__)(command)
    app.add_typer(repair, name="repair")


def health(
    gpu: Annotated[
        str, typer.Argument(metavar="[HOST/ADDRESS]", help="Only this GPU, with its record.", show_default=False)
    ] = "",
    pool: Annotated[str | None, typer.Option("--pool", help="Only GPUs of this pool.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only GPUs of this host.")] = None,
    state: Annotated[HealthState | None, typer.Option("--state", help="Only GPUs in this state.")] = None,
    card: Annotated[str | None, typer.Option("--card", metavar="SERIAL", help="Only where this card is.")] = None,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show how GPUs are: fine, in use, out of use, and since when and why.

    Of one GPU also what happened to it, the newest first; -f json and yaml have that as 'events'.
    """
    from gpuyard.health.cli.health_rows import HEALTH, RECORD, health_fields, health_row, record_row

    where, client = zone_of(zone), client_of(cloud, url)
    if not gpu:
        rows = client.health(pool=pool, host=host, state=state.value if state else None, card=card)
        print_list([health_row(row, where) for row in rows], HEALTH, format_, columns)
        return
    response = client.gpu_health(gpu)
    events = [record_row(row, where) for row in response["events"]]
    shown = health_fields(response["gpu"], where)
    if format_ in (Format.JSON, Format.YAML):
        shown["events"] = [{name.lower(): value for name, value in event.items()} for event in events]
    print_one(shown, format_, columns)
    if format_ is Format.TABLE and not columns:
        print_list(events, RECORD)


def report(
    gpu: GpuArgument,
    words: Annotated[str, typer.Argument(metavar="WORDS", help="What is wrong with it.")],
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Report a fault of a GPU that one has, or had in the last week."""
    row = client_of(cloud, url).report(gpu, words)
    print(f"GPU {gpu}: reported. It is {row['state']} at the moment; operators have your words.")


def quarantine(
    gpu: GpuArgument,
    comment: CommentOption,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Take a GPU out of use until somebody has looked at it. For admins.

    Bookings of it move to other GPUs where they can; 'gpuyard gpu repair done' brings it back.
    """
    from gpuyard.health.cli.health_rows import health_fields

    print_one(health_fields(client_of(cloud, url).quarantine(gpu, comment), zone_of(zone)), format_, columns)


@repair.command()
def start(
    gpu: GpuArgument,
    comment: CommentOption = "",
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Look after a GPU that is quarantined, in place of who does."""
    row = client_of(cloud, url).repair(gpu, "start", comment)
    print(f"GPU {gpu} is {row['state']}; {row['keeper']} looks after it.")


def _add_step(step: str, what: str) -> None:
    @repair.command(step, help=what)
    def take(gpu: GpuArgument, comment: CommentOption, cloud: CloudOption = None, url: UrlOption = "") -> None:
        row = client_of(cloud, url).repair(gpu, step, comment)
        print(f"GPU {gpu} is {row['state']}.")


for _step, _what in STEPS.items():
    _add_step(_step, _what)


@repair.command()
def lend(
    gpu: GpuArgument,
    lasting: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, as in '4h' or '3d'.")] = "2h",
    comment: CommentOption = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Let the site's project for repairs start a server on a GPU that is out of use, and nobody else.

    It comes back by itself after that time, or with 'gpuyard gpu repair return'.
    """
    from gpuyard.bookings.cli.asks import lasting_minutes
    from gpuyard.health.cli.health_rows import loan_lines

    where = zone_of(zone)
    lent = client_of(cloud, url).lend_gpu(gpu, lasting_minutes(lasting, where), comment)
    print(*loan_lines(lent, gpu, where), sep="\n")


@repair.command("return")
def return_(gpu: GpuArgument, comment: CommentOption = "", cloud: CloudOption = None, url: UrlOption = "") -> None:
    """Lend a GPU no more; it stays out of use."""
    row = client_of(cloud, url).repair(gpu, "return", comment)
    print(f"GPU {gpu} is lent no more; it is {row['state']}.")


@repair.command("list")
def list_(
    by: Annotated[
        By | None, typer.Option("--by", help="What went bad how often within a year, by this.", show_default=False)
    ] = None,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List what is out of use: since when, why, who looks after it and what was tried last.

    With --by in its place what went bad most often, and its mean time between failures in hours.
    """
    from gpuyard.health.cli.health_rows import REPAIRS, REPEATS, repair_row, repeat_row

    where = zone_of(zone)
    response = client_of(cloud, url).repairs(by.value if by else By.CARD.value)
    if by is None:
        print_list([repair_row(row, where) for row in response["out"]], REPAIRS, format_, columns)
    else:
        print_list([repeat_row(row, where) for row in response["repeats"]], REPEATS, format_, columns)
