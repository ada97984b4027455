"""``gpuyard usage``: what GPUs were used for, what that costs, and what is left of budgets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, DatabaseOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, zone_of
from gpuyard.console.prompts import require_confirmed

app = typer.Typer(no_args_is_help=True, help="What GPUs were used for, and what is left of budgets.")


NOBODY = "-"
"""In a table, in place of a project, user or repository where there was none."""


class ReportBy(StrEnum):
    PROJECT = "project"
    USER = "user"
    POOL = "pool"
    HOST = "host"
    REPOSITORY = "repository"
    TARIFF = "tariff"
    DAY = "day"
    MONTH = "month"


MonthOption = Annotated[
    str, typer.Option("--month", metavar="MONTH", help="As in 2026-11; this month without --from and --to.")
]
FromOption = Annotated[str, typer.Option("--from", metavar="DAY", help="The first day, as in 2026-11-23.")]
ToOption = Annotated[str, typer.Option("--to", metavar="DAY", help="The first day that is not in it; tomorrow.")]
OfProject = Annotated[str, typer.Option("--project", metavar="NAME", help="Only of this project.")]
OfUser = Annotated[str, typer.Option("--user", metavar="NAME", help="Only of this user.")]
OfPool = Annotated[str, typer.Option("--pool", metavar="POOL", help="Only of this pool.")]
OfHost = Annotated[str, typer.Option("--host", metavar="HOST", help="Only of this host.")]
OfRepository = Annotated[
    str, typer.Option("--repository", metavar="REPO", help="Only of jobs of this repository, as owner/name.")
]


@app.command()
def report(
    month: MonthOption = "",
    first: FromOption = "",
    end: ToOption = "",
    by: Annotated[
        list[ReportBy] | None, typer.Option("--by", help="What it is by, in this order; repeatable. By project.")
    ] = None,
    project: OfProject = "",
    user: OfUser = "",
    pool: OfPool = "",
    host: OfHost = "",
    repository: OfRepository = "",
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """What GPUs were used for, in GPU-hours, and what that costs.

    A table ends with the sum of all lines. The days are those of the site's time zone.
    """
    from gpuyard.usage.cli.usage_rows import days_of, total_row, usage_columns, usage_row

    names = [dimension.value for dimension in by or [ReportBy.PROJECT]]
    filters = {"project": project, "user": user, "pool": pool, "host": host, "repository": repository}
    document = client_of(cloud, url).usage({"by": names, **filters, **days_of(month, first, end)})
    rows = [usage_row(line, names) for line in document["lines"]]
    if not document["total"]["total"]:
        whose = "".join(f" of {name} {value}" for name, value in filters.items() if value)
        typer.echo(f"nothing is on record{whose} from {document['from']} to {document['to']}", err=True)
    if format_ is Format.TABLE:
        rows = [{name: value or NOBODY for name, value in row.items()} for row in rows]
        rows.append(total_row(document["total"], names))
    print_list(rows, usage_columns(names), format_, columns)


@app.command()
def export(
    month: MonthOption = "",
    first: FromOption = "",
    end: ToOption = "",
    project: OfProject = "",
    user: OfUser = "",
    pool: OfPool = "",
    host: OfHost = "",
    repository: OfRepository = "",
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.CSV,
    columns: ColumnOption = None,
) -> None:
    """Who had which GPU from when to when: the intervals that reports are made of, cut at midnight.

    Their seconds add up to all GPU time. For sums of days: gpuyard usage report --by day -f csv
    """
    from gpuyard.usage.cli.usage_rows import INTERVALS, days_of, exported, interval_row

    client, where, days = client_of(cloud, url), zone_of(zone), days_of(month, first, end)
    filters = {"project": project, "user": user, "pool": pool, "host": host, "repository": repository}
    lines = exported(client, days, filters)
    print_list([interval_row(line, where) for line in lines], INTERVALS, format_, columns)


@app.command()
def budget(
    zone: ZoneOption = None,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """What is left of the budgets of your projects, in GPU-hours; for admins of all."""
    from gpuyard.usage.cli.usage_rows import BUDGETS, budget_row

    where = zone_of(zone)
    rows = [budget_row(line, where) for line in client_of(cloud, url).budgets()]
    print_list(rows, BUDGETS, format_, columns)


@app.command()
def repair(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    site: SiteOption = DEFAULT_SITE,
    database: DatabaseOption = "",
) -> None:
    """Take back what a clock that was ahead wrote of a time that has not come, on the machine that serves.

    It says first what would go. Set the clock right before; the portal may serve meanwhile.
    """
    import getpass
    import os
    from datetime import UTC, datetime

    from gpuyard.bookings.controllers.site_ledger import database_url
    from gpuyard.site.load import load_site
    from gpuyard.usage.controllers.history_repair import prepared

    compiled = load_site(site).compiled
    url = database_url(database, compiled.site.site, os.environ)
    with prepared(compiled, url, datetime.now(UTC)) as job:
        for line in job.words():
            print(line)
        if job.plan is None:
            return
        if not yes:
            require_confirmed("Take it back?")
        job.carry_out(getpass.getuser())
    print("taken back")
