"""``gpuyard gpu``: every GPU of the site, and who has it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuyard.cli import hold
from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.cli.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.cli.why import why
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.gpu import GpuState, GpuStatus

app = typer.Typer(help="See every GPU of the site, and who has it.", no_args_is_help=True)
app.command("why")(why)
hold.register(app)

COLUMNS = (
    "State", "Host", "Address", "Group", "Slot", "Pool", "Model", "NUMA",
    "Server", "Project", "User", "Since", "Reason",
)  # fmt: skip


@app.command("list")
def list_(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Only GPUs of this pool.")] = None,
    state: Annotated[GpuState | None, typer.Option("--state", help="Only GPUs in this state.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only GPUs of this host.")] = None,
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List GPUs with state, place and holder, live from Placement and Nova."""
    from gpuyard.cloud.api import connect
    from gpuyard.cloud.snapshot import SnapshotTaker
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
    taker = SnapshotTaker(connect(cloud), compiled.gpus, compiled.flavors)
    statuses = gpu_statuses(compiled.gpus, taker.take(datetime.now(UTC)))
    rows = [
        row(status)
        for status in statuses
        if pool in (None, status.gpu.pool) and state in (None, status.state) and host in (None, status.gpu.host)
    ]
    print_list(rows, COLUMNS, format_, columns)


def row(status: GpuStatus) -> dict[str, object]:
    """One line of the list. Since is UTC."""
    gpu, claim = status.gpu, status.claim
    return {
        "State": status.state.value,
        "Host": gpu.host,
        "Address": gpu.address,
        "Group": gpu.group,
        "Slot": f"{gpu.role.value} {gpu.set_letter}" if gpu.set_letter else gpu.role.value,
        "Pool": gpu.pool,
        "Model": gpu.model,
        "NUMA": gpu.numa_node,
        "Server": (claim.server_name or claim.server_id) if claim else None,
        "Project": claim.project if claim else None,
        "User": claim.user if claim else None,
        "Since": claim.since.strftime("%Y-%m-%dT%H:%M:%SZ") if claim and claim.since else None,
        "Reason": status.reason,
    }
