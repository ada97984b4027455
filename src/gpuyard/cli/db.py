"""``gpuyard db``: the database of a site, for those who look after the machine that serves it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, DatabaseOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.prompts import require_confirmed
from gpuyard.model.errors import BlockedError, GpuyardError

COLUMNS = ("Room", "At", "This release", "Upgrade")

app = typer.Typer(
    help="Back up, restore, upgrade and check the database of a site, on the machine that serves it.",
    no_args_is_help=True,
)


def _where(database: str, site: Path) -> tuple[str, str]:
    """URL of the database, and the site's name."""
    import os

    from gpuyard.bookings.controllers.site_ledger import database_url
    from gpuyard.site.load import load_site

    name = load_site(site).site.site
    return database_url(database, name, os.environ), name


@app.command()
def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER", help="Where to; in a folder it is named by site and time.")
    ],
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, metavar="N", help="Of the backups of this site in FOLDER keep the newest N."),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    database: DatabaseOption = "",
) -> None:
    """Back up the database, all of one moment, while the portal serves.

    A backup is one SQLite file, of PostgreSQL too; either database can be restored from it.
    """
    from gpuyard.server.database_upkeep import make_backup

    url, name = _where(database, site)
    path = make_backup(url, name, target, datetime.now(UTC), keep)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    site: SiteOption = DEFAULT_SITE,
    database: DatabaseOption = "",
) -> None:
    """Put a backup in the place of the database, and say before what that means for what was done since.

    No portal may serve meanwhile. What was there is kept in a file beside the backup.
    """
    from gpuyard.server.database_upkeep import prepared
    from gpuyard.server.database_upkeep import restore as carry_out

    url, _ = _where(database, site)
    now = datetime.now(UTC)
    with prepared(url, file, now) as plan:
        for line in plan.words(now):
            print(line)
        if not yes:
            require_confirmed("Restore it?")
        replaced_data_path = carry_out(plan, now)
    print(f"restored; what was there is kept in {replaced_data_path}" if replaced_data_path else "restored")


@app.command()
def upgrade(site: SiteOption = DEFAULT_SITE, database: DatabaseOption = "") -> None:
    """Bring the tables to this release, as gpuyard serve does when it starts without --no-upgrade."""
    from gpuyard.server.database_upkeep import upgrade as carry_out

    url, _ = _where(database, site)
    carry_out(url, print)


@app.command()
def check(site: SiteOption = DEFAULT_SITE, database: DatabaseOption = "") -> None:
    """Read all of the database, and say what is wrong with it.

    Exit code 1 when something is broken, 3 when its tables only wait for an upgrade.
    """
    from gpuyard.server.database_upkeep import checked

    url, _ = _where(database, site)
    broken, due = checked(url)
    for line in (*broken, *due):
        print(line)
    if broken:
        raise GpuyardError(
            "the database cannot be used as it is; unless the above says more, restore a backup of before"
        )
    if due:
        raise BlockedError("the tables are not those of this release: gpuyard db upgrade brings them up to date")
    print("whole, and of this release")


@app.command()
def version(
    site: SiteOption = DEFAULT_SITE,
    database: DatabaseOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show which release the tables are of, by room: whoever keeps something there has tables of its own."""
    from gpuyard.server.database_upkeep import site_versions

    url, _ = _where(database, site)
    rows = [
        dict(
            zip(
                COLUMNS,
                (
                    site_version.room,
                    site_version.at,
                    site_version.newest,
                    str(site_version.unknown or ("due" if site_version.due else "no")),
                ),
                strict=True,
            )
        )
        for site_version in site_versions(url)
    ]
    print_list(rows, COLUMNS, format_, columns)
