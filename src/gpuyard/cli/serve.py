"""``gpuyard serve``: the portal and the loops behind it, in one process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.options import DEFAULT_SITE, CloudOption, SiteOption

if TYPE_CHECKING:
    from gpuyard.cloud.api import CloudApi
    from gpuyard.keeper.bookings import BookingsKeeper
    from gpuyard.keeper.driver import Driver
    from gpuyard.ledger.ledger import Ledger
    from gpuyard.site.load import LoadedSite

BOOKINGS_PERIOD = 5.0
"""Seconds between looks at bookings; a change wakes the loop at once."""


def serve(
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    host: Annotated[str, typer.Option("--host", envvar="GPUYARD_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", envvar="GPUYARD_PORT", help="Port to listen on.")] = 8080,
    period: Annotated[
        float, typer.Option("--period", envvar="GPUYARD_PERIOD", min=0.1, help="Seconds between looks at the cloud.")
    ] = 1.0,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            envvar="GPUYARD_DATABASE",
            metavar="URL",
            help="Where bookings are kept: sqlite:///FILE or postgresql+psycopg://... A URL with a password belongs in "
            "the variable, not on the command line.",
            show_default="SITE.db in $STATE_DIRECTORY or $XDG_STATE_HOME/gpuyard",
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Listen on an address that others can reach, although nothing is encrypted."),
    ] = False,
    url: Annotated[
        str,
        typer.Option("--url", envvar="GPUYARD_PUBLIC_URL", help="Where people find the portal, behind a gateway."),
    ] = "",
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            metavar="IP",
            help="Address of a gateway whose X-Forwarded-For and X-Forwarded-Proto are believed; repeatable.",
        ),
    ] = None,
    domain: Annotated[
        str, typer.Option("--domain", envvar="GPUYARD_DOMAIN", help="Keystone domain that the login page suggests.")
    ] = "Default",
    websso: Annotated[
        str,
        typer.Option("--websso", metavar="PROTOCOL", help="Single sign-on by Keystone: openid, saml2, mapped."),
    ] = "",
    websso_url: Annotated[
        str, typer.Option("--websso-url", metavar="URL", help="Keystone as browsers find it, when that is elsewhere.")
    ] = "",
) -> None:
    """Serve the GPU map, the calendar, the API and the metrics, and keep bookings and cloud together."""
    import os
    from urllib.parse import urlsplit

    from gpuyard.cloud.api import connect
    from gpuyard.cloud.people import KeystonePeople
    from gpuyard.cloud.snapshot import SnapshotTaker
    from gpuyard.keeper.driver import Driver
    from gpuyard.keeper.sync import sync_loop
    from gpuyard.keeper.yard import Yard
    from gpuyard.portal.server import run
    from gpuyard.portal.settings import PortalSettings
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    yard, driver, api = Yard(), Driver(), connect(cloud)
    ledger, keeper = None, None
    if loaded.site.booking is not None:
        from gpuyard.keeper.site_ledger import default_database, open_ledger

        ledger = open_ledger(loaded.compiled, database or default_database(loaded.site.site, os.environ), _now)
        keeper = _register(driver, loaded, api, ledger, url)
    taker = SnapshotTaker(api, loaded.compiled.gpus, loaded.compiled.flavors)
    words = (lambda: keeper.words) if keeper else None
    driver.register(sync_loop(taker, loaded.compiled, yard, period, _now, words))
    settings = PortalSettings(
        domain=domain,
        trusted_gateways=tuple(gateway or ()),
        public_url=url,
        websso=websso,
        websso_url=websso_url or api.auth_url,
    )
    names = [name for name in [urlsplit(url).hostname] if name]
    people = KeystonePeople(api) if ledger else None
    try:
        run(
            loaded, yard, driver, host, port,
            public=public, names=names, ledger=ledger, people=people, settings=settings,
        )  # fmt: skip
    finally:
        if ledger is not None:
            ledger.store.close()


def _register(driver: Driver, loaded: LoadedSite, api: CloudApi, ledger: Ledger, url: str) -> BookingsKeeper:
    """The loops of a site that has bookings."""
    import os

    from gpuyard.cloud.snapshot import SnapshotTaker
    from gpuyard.keeper.bookings import BookingsKeeper, bookings_loop
    from gpuyard.keeper.messages import message_loops

    compiled = loaded.compiled
    keeper = BookingsKeeper(api, compiled, ledger, SnapshotTaker(api, compiled.gpus, compiled.flavors), _now)
    loop = driver.register(bookings_loop(keeper, BOOKINGS_PERIOD))
    ledger.on_change = lambda: loop.wake("a booking changed")
    for messages in message_loops(ledger, loaded.site, os.environ, _now, portal=url):
        driver.register(messages)
    return keeper


def _now() -> datetime:
    return datetime.now(UTC)
