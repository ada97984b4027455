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
    """Serve the GPU map, the calendar, the API and the metrics, and keep bookings and cloud together.

    A site file that has changed is read again after 'gpuyard site apply', or on SIGHUP.
    """
    from gpuyard.app import serving
    from gpuyard.cloud.api import connect
    from gpuyard.portal.settings import OthersShown, PortalSettings
    from gpuyard.site.load import load_site

    loaded, api = load_site(site), connect(cloud)
    settings = PortalSettings(
        domain=domain,
        trusted_gateways=tuple(gateway or ()),
        public_url=url,
        anonymous_details=loaded.site.booking is not None and loaded.site.booking.anonymous_details,
        others=OthersShown(loaded.site.booking.others if loaded.site.booking else "names"),
        websso=websso,
        websso_url=websso_url or api.auth_url,
    )
    serving.serve(serving.ServeOptions(host, port, period, database or "", public, settings), loaded, api)
