"""``gpuyard runner list``, ``jobs`` and ``show``: what the portal's page of runners shows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.console.options import CloudOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of_anybody, print_one, zone_of
from gpuyard.model.errors import BlockedError
from gpuyard.runners.cli.runner_rows import RECENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuyard.client.client import Client


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
    app.command()(jobs)
    app.command()(show)


def list_(
    all_: Annotated[bool, typer.Option("--all", help=f"Also the last {RECENT} that are over.")] = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List runners. Admins are told on stderr what is wrong with GitHub.

    Where the site's runners are public, --url does without an account.
    """
    from gpuyard.runners.cli.runner_rows import RUNNERS, runner_row

    where = zone_of(zone)
    data = client_of_anybody(cloud, url).runners(RECENT if all_ else 0)
    print_list([runner_row(row, where) for row in data["runners"]], RUNNERS, format_, columns)
    for error in data["errors"]:
        print(error, file=sys.stderr)


def jobs(
    all_: Annotated[bool, typer.Option("--all", help=f"Also the last {RECENT} that are over.")] = False,
    repository: Annotated[
        str, typer.Option("--repository", metavar="REPO", help="Only of this repository, as owner/name.")
    ] = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List jobs: those that run, then those that wait in the order of their turns, and why they wait.

    The start of one that waits is the latest, as far as it can be said. Where the site's runners are public, --url does
    without an account.
    """
    from gpuyard.runners.cli.runner_rows import JOBS, listed_jobs

    where, client = zone_of(zone), client_of_anybody(cloud, url)
    print_list(listed_jobs(client, repository, all_, where), JOBS, format_, columns)


def show(
    job_or_runner: Annotated[
        str,
        typer.Argument(
            metavar="JOB_OR_RUNNER",
            help="GitHub's number or address of the job or its run, the job's id here, or a runner's name.",
        ),
    ],
    log: Annotated[bool, typer.Option("--log", help="Only the end of the runner's log, for who is logged in.")] = False,
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show a job or a runner, and what happened to it; -f json and yaml have that as 'events'."""
    from gpuyard.runners.cli.job_lookup import find_job, names_a_job
    from gpuyard.runners.cli.runner_rows import EVENTS, event_row, fields

    where, client = zone_of(zone), client_of_anybody(cloud, url)
    if log:
        _print_log(client, job_or_runner)
        return
    if names_a_job(job_or_runner):
        row: Mapping[str, Any] = find_job(client, job_or_runner)
        events = list(row["events"])
    else:
        row = _runner(client, job_or_runner)
        events = client.job(row["job"])["events"] if row["job"] else []
        events = [line for line in events if line["runner"] == row["name"]]
    lines = [event_row(line, where) for line in events]
    record = fields(row, where)
    if format_ in (Format.JSON, Format.YAML):
        record["events"] = [{name.lower(): value for name, value in line.items()} for line in lines]
    print_one(record, format_, columns)
    if format_ is Format.TABLE and not columns:
        print_list(lines, EVENTS)


def _runner(client: Client, name: str) -> dict[str, Any]:
    """Raises BlockedError when the portal does not have it any more."""
    from gpuyard.client.client import MOST_ROWS

    for row in client.runners(MOST_ROWS)["runners"]:
        if row["name"] == name:
            return dict(row)
    raise BlockedError(
        f"there is no runner {name!r}, nor was it one of the last {MOST_ROWS}; 'gpuyard runner list --all' has them; "
        "a job's id is written as in github.com/123456"
    )


def _print_log(client: Client, name: str) -> None:
    from gpuyard.runners.cli.job_lookup import find_job, names_a_job

    is_job = names_a_job(name)
    job = str(find_job(client, name)["id"] if is_job else _runner(client, name)["job"])
    if not is_job and (not job or client.job(job)["runner"] != name):
        raise BlockedError(f"runner {name} has no job whose log is its own; name a job in place of it")
    text = client.job_log(job)
    if not text:
        raise BlockedError(f"there is no log of {name}: it is kept when the runner's server is deleted")
    print(text)
