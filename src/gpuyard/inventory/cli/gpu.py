"""``gpuyard gpu list``: every GPU of the site, and who has it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, gpus_of_portal
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.gpu import GpuState


def register(app: typer.Typer) -> None:
    app.command("list")(list_)


def list_(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    pool: Annotated[str | None, typer.Option("--pool", help="Only GPUs of this pool.")] = None,
    state: Annotated[GpuState | None, typer.Option("--state", help="Only GPUs in this state.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only GPUs of this host.")] = None,
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List GPUs with state, place and holder: what the portal's map shows.

    Where no portal answers, it says so and asks OpenStack for the GPUs of the site file. That takes the role admin, and
    bookings and holds are not known then.
    """
    from gpuyard.client.rows import GPUS, gpu_row

    only = state.value if state else None
    rows, problem = gpus_of_portal(cloud, url, pool=pool, state=only, host=host)
    if rows is None:
        print(f"{problem}\nThis is what OpenStack says; bookings and holds are not known.", file=sys.stderr)
        rows = [row for row in _of_cloud(site, cloud, pool, host) if only in (None, row["state"])]
    print_list([gpu_row(row) for row in rows], GPUS, format_, columns)


def _of_cloud(site: Path, cloud: str | None, pool: str | None, host: str | None) -> list[dict[str, Any]]:
    """Rows as of the API."""
    from gpuyard.inventory.state import gpu_statuses
    from gpuyard.openstack.api import connect
    from gpuyard.openstack.snapshot import SnapshotTaker
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    if compiled.site.pci_in_placement == "off":
        raise BlockedError(
            "the site has 'pci_in_placement: off', so nobody but Nova's database knows who has which GPU; "
            "'gpuyard site rollout' says what it takes to change that"
        )
    for kind, name, existing in (("pool", pool, compiled.site.pools), ("host", host, compiled.site.hosts)):
        if name is not None and name not in existing:
            raise UsageError(f"no {kind} {name!r}; the site has {', '.join(existing)}")
    snapshot = SnapshotTaker(connect(cloud), compiled.gpus, compiled.flavors).take(datetime.now(UTC))
    statuses = gpu_statuses(compiled.gpus, snapshot)
    return [s.as_dict() for s in statuses if pool in (None, s.gpu.pool) and host in (None, s.gpu.host)]
