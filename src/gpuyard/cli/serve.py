"""``gpuyard serve``: the portal and the loops behind it, in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.logs.lines import LogFormat, LogLevel, set_up


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
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade/--no-upgrade",
            help="Bring the tables of an older release up to date, or refuse to start on them.",
        ),
    ] = True,
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
        typer.Option(
            "--websso",
            metavar="PROTOCOL",
            help="Single sign-on by Keystone: openid, saml2, or PROVIDER/PROTOCOL as Keystone calls them.",
        ),
    ] = "",
    websso_url: Annotated[
        str, typer.Option("--websso-url", metavar="URL", help="Keystone as browsers find it, when that is elsewhere.")
    ] = "",
    websso_logout: Annotated[
        str,
        typer.Option("--websso-logout", metavar="URL", help="Where who has logged out here logs out of that, too."),
    ] = "",
    check_config: Annotated[
        bool,
        typer.Option(
            "--check-config",
            help="Only look whether it could serve: site file, database, cloud, port. Changes nothing.",
        ),
    ] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Print the systemd unit that does it.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", envvar="GPUYARD_LOG_FORMAT", help="How lines of the log are written.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", envvar="GPUYARD_LOG_LEVEL", help="What is logged; info: each request, too."),
    ] = LogLevel.INFO,
) -> None:
    """Serve the GPU map, the calendar, the API and the metrics, and keep bookings and cloud together.

    A site file that has changed is read again after 'gpuyard site apply', or on SIGHUP.
    """
    if unit:
        from gpuyard.server.units import portal_unit

        print(portal_unit(Path(sys.argv[0])), end="")
        return
    from gpuyard.openstack.api import connect
    from gpuyard.server import serving
    from gpuyard.server.checking import check_serving
    from gpuyard.site.load import load_site
    from gpuyard.web.settings import PortalSettings

    set_up(log_format, log_level)
    loaded, api = load_site(site), connect(cloud)
    settings = PortalSettings(
        domain=domain,
        trusted_gateways=tuple(gateway or ()),
        public_url=url,
        websso=websso,
        websso_url=websso_url or api.auth_url,
        websso_logout=websso_logout,
    )
    options = serving.ServeOptions(host, port, period, database or "", public, settings, upgrade)
    if check_config:
        check_serving(options, loaded, api, print)
        return
    serving.serve(options, loaded, api)
