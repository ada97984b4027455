"""``gpuyard lab``: a real OpenStack with recorded hosts, on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.output import ColumnOption, Format, FormatOption, print_list

if TYPE_CHECKING:
    from gpuyard.lab.settings import LabSettings
    from gpuyard.lab.status import LabStatus, Phase

app = typer.Typer(help="A real OpenStack with recorded hosts, on this machine.", no_args_is_help=True)

COLUMNS = ("Name", "URL", "PID", "Memory MiB", "State")
NOT_ALL_UP = 3

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="GPUYARD_LAB_STATE",
        metavar="DIR",
        help="The lab's folder.",
        show_default="$XDG_STATE_HOME/gpuyard/lab",
    ),
]


@app.command()
def up(
    state: StateOption = None,
    site: Annotated[
        Path | None,
        typer.Option(
            "--site",
            envvar="GPUYARD_SITE",
            metavar="FILE",
            help="The site whose recorded hosts the lab has.",
            show_default="as at the last start, or an example",
        ),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            envvar="GPUYARD_LAB_PORT_BASE",
            metavar="N",
            help="The services use this port and the four after it.",
            show_default="as at the last start, or 15000",
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            envvar="GPUYARD_LAB_DATABASE",
            metavar="URL",
            help="SQLAlchemy URL of a server to use instead of the embedded PostgreSQL, with {name} where the name of "
            "a database goes.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what the lab has, and start over.")] = False,
) -> None:
    """Start the lab, or heal one that died half way; return when it can be used."""
    settings = _settings(state, port_base, database, site, fresh)
    from gpuyard.lab.control import up as lab_up

    status = lab_up(settings, report=_print_phase)
    _print_welcome(status)


@app.command()
def down(state: StateOption = None) -> None:
    """End all processes of the lab. What it has is kept for the next start."""
    settings = _settings(state)
    from gpuyard.lab.control import down as lab_down

    ended = lab_down(settings)
    print(f"The lab in {settings.state} is down." if ended else f"No lab runs in {settings.state}.")


@app.command()
def status(state: StateOption = None, format_: FormatOption = Format.TABLE, columns: ColumnOption = None) -> None:
    """Show the services of the lab. Exit code 3 unless all are up."""
    settings = _settings(state)
    from gpuyard.lab.control import status as lab_status

    seen = lab_status(settings)
    rows = [
        {"Name": s.name, "URL": s.url, "PID": s.pid, "Memory MiB": s.memory_mib, "State": s.state}
        for s in seen.services
    ]
    print_list(rows, COLUMNS, format_, columns)
    if not seen.healthy:
        raise typer.Exit(NOT_ALL_UP)


def _settings(
    state: Path | None,
    port_base: int | None = None,
    database: str | None = None,
    site: Path | None = None,
    fresh: bool = False,
) -> LabSettings:
    from gpuyard.lab.catalog import require_installed
    from gpuyard.lab.settings import LabSettings

    require_installed()
    return LabSettings.of(state, port_base, database, site, fresh)


def _print_phase(phase: Phase) -> None:
    print(f"{phase.at_s:6.1f} s  {phase.name}", file=sys.stderr, flush=True)


def _print_welcome(status: LabStatus) -> None:
    from gpuyard.lab.clients import DEMO_CLOUD, demo_login

    user, password = demo_login(status.clouds_file)
    seconds = f" after {status.phases[-1].at_s:.0f} s" if status.phases else " already"
    print(f"The lab is up{seconds}: {len(status.hosts)} hosts, {status.memory_mib} MiB.")
    openrc = shlex.quote(str(status.state / "openrc"))
    print(f"As its administrator:  . {openrc} && openstack hypervisor list")
    print(f"As a user:             openstack --os-cloud {DEMO_CLOUD} server list")
    print(f"                       (the same file; user {user}, password {password})")
