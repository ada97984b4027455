"""``gpuyard flavor``: what could be started now, until when, and why not more."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, flavors_of_portal, print_one, zone_of

app = typer.Typer(help="See which servers a project could start now.", no_args_is_help=True)

ProjectOption = Annotated[
    str,
    typer.Option(
        "--project", metavar="PROJECT", help="Name or id; that of the account when left out. Admins may name any."
    ),
]


@app.command("list")
def list_(
    project: ProjectOption = "",
    pool: Annotated[str | None, typer.Option("--pool", help="Only flavors with GPUs of this pool.")] = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    zone: ZoneOption = None,
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List flavors with how many servers of each the project could start now, until when, and why not more.

    Where no portal answers, it says so and asks OpenStack for the site file's GPUs. That takes the role admin; what is
    booked for later is not known then, and limits are looked at of the project that is named.
    """
    from gpuyard.diagnosis.cli.flavor_rows import FLAVORS, flavor_row

    where = zone_of(zone)
    rows = [row for row in _rows(site, cloud, url, project) if pool in (None, row["pool"])]
    print_list([flavor_row(row, where) for row in rows], FLAVORS, format_, columns)


@app.command()
def show(
    flavor: Annotated[str, typer.Argument(metavar="FLAVOR", help="Name or id.")],
    project: ProjectOption = "",
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    zone: ZoneOption = None,
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show how many servers of one flavor the project could start now and on which hosts, and why not more."""
    from gpuyard.diagnosis.cli.flavor_rows import find_flavor, flavor_fields

    row = find_flavor(_rows(site, cloud, url, project), flavor)
    print_one(flavor_fields(row, zone_of(zone)), format_, columns)


def _rows(site: Path, cloud: str | None, url: str, project: str) -> list[dict[str, Any]]:
    """Rows as of the API."""
    document, problem = flavors_of_portal(cloud, url, project=project)
    if document is not None:
        if document["problem"]:
            print(f"{document['problem']}: this is of {document['taken_at']}", file=sys.stderr)
        return list(document["flavors"])
    whose = f"limits are those of {project}" if project else "limits are not looked at: name a --project"
    print(f"{problem}\nThis is what OpenStack says; later bookings are not known; {whose}.", file=sys.stderr)
    return _of_cloud(site, cloud, project)


def _of_cloud(site: Path, cloud: str | None, project: str) -> list[dict[str, Any]]:
    from gpuyard.diagnosis.capacity.answer import row_of
    from gpuyard.diagnosis.capacity.read import CapacityReader
    from gpuyard.diagnosis.capacity.reckon import Reckoning
    from gpuyard.inventory.state import gpu_statuses
    from gpuyard.openstack.api import connect
    from gpuyard.openstack.snapshot import SnapshotTaker
    from gpuyard.site.load import load_site

    loaded, api, now = load_site(site), connect(cloud), datetime.now(UTC)
    compiled, reader = loaded.compiled, CapacityReader(api, loaded)
    snapshot = SnapshotTaker(api, compiled.gpus, compiled.flavors).take(now)
    statuses = {gpu_status.gpu.provider_name: gpu_status for gpu_status in gpu_statuses(compiled.gpus, snapshot)}
    reckoning = Reckoning(reader.read(now), statuses)
    asker = reader.asker(project, reckoning.resources) if project else None
    return [row_of(bootable) for bootable in reckoning.all_of(asker)]
