"""``gpuyard serve``: the portal and the loops behind it, in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption


def serve(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    host: Annotated[str, typer.Option("--host", envvar="GPUYARD_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", envvar="GPUYARD_PORT", help="Port to listen on.")] = 8080,
    period: Annotated[
        float, typer.Option("--period", envvar="GPUYARD_PERIOD", min=0.1, help="Seconds between looks at the cloud.")
    ] = 1.0,
    public: Annotated[
        bool, typer.Option("--public", help="Listen on an address that others can reach, although there is no login.")
    ] = False,
) -> None:
    """Serve the GPU map, the API and the metrics."""
    from datetime import UTC, datetime

    from gpuyard.cloud.api import connect
    from gpuyard.cloud.snapshot import SnapshotTaker
    from gpuyard.keeper.driver import Driver
    from gpuyard.keeper.sync import sync_loop
    from gpuyard.keeper.yard import Yard
    from gpuyard.portal.server import run
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    yard, driver = Yard(), Driver()
    taker = SnapshotTaker(connect(cloud), loaded.compiled.gpus, loaded.compiled.flavors)
    driver.register(sync_loop(taker, loaded.compiled, yard, period, lambda: datetime.now(UTC)))
    run(loaded, yard, driver, host, port, public=public)
