"""``gpuyard gpu``: every GPU of the site, and who has it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli import gpu_accept, gpu_health, hold
from gpuyard.cli.booking_options import UrlOption, gpus_of_portal
from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.cli.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.cli.why import why
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.gpu import GpuState

app = typer.Typer(help="See every GPU of the site, and who has it.", no_args_is_help=True)
app.command("why")(why)
hold.register(app)
gpu_health.register(app)
gpu_accept.register(app)


@app.command("list")
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
    from gpuyard.cloud.api import connect
    from gpuyard.cloud.observe.snapshot import SnapshotTaker
    from gpuyard.ledger.state import gpu_statuses
    from gpuyard.site.load import load_site

    compiled = load_site(site).compiled
    if compiled.site.pci_in_placement == "off":
        raise BlockedError(
            "the site has 'pci_in_placement: off', so nobody but Nova's database knows who has which GPU; "
            "'gpuyard site rollout' says what it takes to change that"
        )
    for kind, wanted, known in (("pool", pool, compiled.site.pools), ("host", host, compiled.site.hosts)):
        if wanted is not None and wanted not in known:
            raise UsageError(f"no {kind} {wanted!r}; the site has {', '.join(known)}")
    snapshot = SnapshotTaker(connect(cloud), compiled.gpus, compiled.flavors).take(datetime.now(UTC))
    statuses = gpu_statuses(compiled.gpus, snapshot)
    return [s.as_dict() for s in statuses if pool in (None, s.gpu.pool) and host in (None, s.gpu.host)]
