"""``gpuyard lab``: a real OpenStack with recorded hosts, on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.model.text import counted
from gpuyard_lab.host_trees import Fault

if TYPE_CHECKING:
    from gpuyard.client.client import Client
    from gpuyard_lab.settings import Lab, LabSettings
    from gpuyard_lab.status import LabStatus, Phase

app = typer.Typer(help="A real OpenStack with recorded hosts, on this machine.", no_args_is_help=True)
gpu = typer.Typer(help="Break GPUs of the lab's hosts, and mend them.", no_args_is_help=True)
app.add_typer(gpu, name="gpu")
host = typer.Typer(help="Switch hosts of the lab off and on.", no_args_is_help=True)
app.add_typer(host, name="host")

COLUMNS = ("Name", "URL", "PID", "Memory MiB", "State")
EXERCISE_COLUMNS = ("Scenario", "Server", "Flavor", "Status", "GPUs", "IOMMU groups", "Seconds")
NOT_ALL_UP = 3
PATIENCE_S = 180.0
"""A job of the lab that is not over in this time, and its own, has something in its way."""

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
GpuArgument = Annotated[str, typer.Argument(metavar="HOST/ADDRESS", help="The GPU.")]
HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="Its name in the site file.")]
HowOption = Annotated[Fault, typer.Option("--how", help="What is seen of it.")]


@app.command()
def up(
    state: StateOption = None,
    site: Annotated[
        Path | None,
        typer.Option(
            "--site",  # and no GPUYARD_SITE: the lab's own openrc sets it, to the site of the last start
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
            help="The services use this port and the five after it.",
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
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            envvar="GPUYARD_PORT",
            min=1,
            max=65535,
            help="Where the portal is served.",
            show_default="as at the last start, or 8080",
        ),
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            envvar="GPUYARD_LAB_RELEASE",
            metavar="NAME",
            help="Run this release of OpenStack, as 2025.1; installs it first when it is not there yet.",
            show_default="as at the last start, or 2026.2",
        ),
    ] = None,
    release_cache: Annotated[
        Path | None,
        typer.Option(
            "--release-cache",
            envvar="GPUYARD_LAB_RELEASE_CACHE",
            metavar="DIR",
            help="Where such releases are installed.",
            show_default="as at the last start, or $XDG_CACHE_HOME/gpuyard/releases",
        ),
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="Only the services: apply no site, serve no map.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what the lab has, and start over.")] = False,
) -> None:
    """Start the lab, or heal one that died half way; apply its site; serve the portal; return when all can be used."""
    settings = _settings(state, port_base, database, site, fresh, release, release_cache)
    from gpuyard.site.load import load_site
    from gpuyard_lab import portal
    from gpuyard_lab.control import up as lab_up
    from gpuyard_lab.example import write_example
    from gpuyard_lab.hosts import start_hosts
    from gpuyard_lab.jobs import start_github
    from gpuyard_lab.settings import remembered
    from gpuyard_lab.status import Phase

    began = monotonic()
    port = port or portal.last_port(settings.state)
    if not bare:
        portal.require_port(settings, port)
    status = lab_up(settings, report=_print_phase, say=_print_progress)
    lab = remembered(settings.state)
    url, github = "", False
    if not bare and lab is not None and lab.site_file is not None:
        write_example(lab)
        loaded = load_site(lab.site_file)
        github = start_github(lab, loaded, portal.url_of(port))
        steps = portal.apply_site(lab, loaded)
        if steps:
            _print_phase(Phase(f"site {loaded.site.site}, {steps} steps", monotonic() - began, 0))
        url = portal.serve(lab, loaded, port)
        clouds_file = lab.clouds_file
        start_hosts(lab, loaded, url, lambda host: _admin(clouds_file, url).host_token(host, "watch"))
    _print_welcome(status, monotonic() - began, url, github)


@app.command()
def down(state: StateOption = None) -> None:
    """End all processes of the lab. What it has is kept for the next start."""
    settings = _settings(state)
    from gpuyard_lab.control import down as lab_down

    ended = lab_down(settings)
    print(f"The lab in {settings.state} is down." if ended else f"No lab runs in {settings.state}.")


@app.command()
def status(state: StateOption = None, format_: FormatOption = Format.TABLE, columns: ColumnOption = None) -> None:
    """Show the services of the lab. Exit code 3 unless all are up."""
    settings = _settings(state)
    from gpuyard_lab.control import status as lab_status
    from gpuyard_lab.hosts import look_at_hosts
    from gpuyard_lab.jobs import look_at_github
    from gpuyard_lab.portal import look as look_at_portal

    status = lab_status(settings)
    beside = [look_at_portal(settings.state), look_at_github(settings.state), look_at_hosts(settings.state)]
    services = [*status.services, *(service for service in beside if service is not None)]
    rows = [
        {"Name": s.name, "URL": s.url, "PID": s.pid, "Memory MiB": s.memory_mib, "State": s.state} for s in services
    ]
    print_list(rows, COLUMNS, format_, columns)
    if not status.healthy or any(s.state != "up" for s in services):
        raise typer.Exit(NOT_ALL_UP)


@app.command()
def exercise(state: StateOption = None, format_: FormatOption = Format.TABLE, columns: ColumnOption = None) -> None:
    """Prove that all GPUs can be used, and that no IOMMU group is ever split between two servers.

    Takes pairs and singles until the host with the most shared groups is full, then singles alone, as the demo user,
    and reads from Placement after each server who has which GPU.
    """
    from dataclasses import asdict

    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site
    from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
    from gpuyard_lab.errors import LabError
    from gpuyard_lab.exercise import Exercise, choose, prove
    from gpuyard_lab.settings import remembered

    settings = _settings(state)
    lab = remembered(settings.state)
    if lab is None or lab.site_file is None:
        raise LabError(f"no lab with a site is in {settings.state}; start one with 'gpuyard lab up'")
    compiled = load_site(lab.site_file).compiled
    subject = choose(compiled)
    _refuse_booked(lab.clouds_file, subject.host)
    subjects = Exercise(connect(ADMIN_CLOUD, lab.clouds_file), connect(DEMO_CLOUD, lab.clouds_file), compiled)
    rows = []
    for row in prove(subjects, subject):
        print(f"  {row.scenario}: {row.server} ({row.flavor}) {row.status}", file=sys.stderr, flush=True)
        rows.append(dict(zip(EXERCISE_COLUMNS, asdict(row).values(), strict=True)))
    print_list(rows, EXERCISE_COLUMNS, format_, columns)
    if format_ is Format.TABLE:
        print(
            f"{subject.gpus} of {subject.gpus} GPUs of {subject.host} were in use, then {subject.slots} by as many "
            f"servers with one each; no IOMMU group was ever split."
        )


@app.command()
def job(
    state: StateOption = None,
    label: Annotated[str, typer.Option("--label", help="What the job has in 'runs-on'.")] = "gpuyard-v100",
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="How long its work takes.")] = 5.0,
    repository: Annotated[str, typer.Option("--repository", metavar="OWNER/NAME")] = "demo/science",
) -> None:
    """Push a job to the GitHub beside the lab, and follow it until it is over. Exit code 1 unless it succeeds."""
    from gpuyard_lab.errors import LabError
    from gpuyard_lab.jobs import follow, push_job
    from gpuyard_lab.portal import look as look_at_portal
    from gpuyard_lab.settings import remembered
    from gpuyard_lab.status import DOWN, UP

    settings = _settings(state)
    lab = remembered(settings.state)
    portal = look_at_portal(settings.state)
    if lab is None or portal is None or portal.state == DOWN:
        raise LabError(f"no lab that serves its site runs in {settings.state}; start it with 'gpuyard lab up'")
    if portal.state != UP:
        raise LabError(f"the lab's portal is not ready: {portal.url}/readyz says why")
    began = monotonic()
    id = push_job(lab, repository, label, seconds)
    print(f"        job {id} of {repository} with runs-on: {label}")
    job = None
    for job in follow(lab, id, seconds + PATIENCE_S):
        words = job.conclusion or job.status
        where = f" on {_gpu_of(lab.clouds_file, job.runner)}" if job.status == "in_progress" else ""
        print(f"{monotonic() - began:6.1f} s  {words}{where}", flush=True)
    if job is None or job.conclusion != "success":
        raise typer.Exit(1)


@gpu.command("break")
def break_(name: GpuArgument, state: StateOption = None, how: HowOption = Fault.FELL_OFF) -> None:
    """Break a GPU: its host sees it within seconds, and it is out of use.

    'gpuyard gpu health HOST/ADDRESS' shows what became of it.
    """
    from gpuyard_lab.host_trees import break_gpu

    root, address = _played(state, name)
    break_gpu(root, address, how)
    print(f"GPU {name} is broken ({how.value}).")


@gpu.command()
def mend(name: GpuArgument, state: StateOption = None) -> None:
    """Mend a GPU, as a restart of its host and a reseated card would.

    It stays out of use until 'gpuyard gpu repair start' and 'done' say that somebody has seen to it.
    """
    from gpuyard_lab.host_trees import mend_gpu

    root, address = _played(state, name)
    mend_gpu(root, root.name, address)
    print(f"GPU {name} is well; its host was restarted.")


@host.command()
def off(name: HostArgument, state: StateOption = None) -> None:
    """Switch a host off, as if it had died: its nova-compute says nothing any more.

    Nova calls it down a minute after it was heard of last.
    """
    from gpuyard_lab.host_power import switch

    switch(_running(state), name, on=False)
    print(f"Host {name} is off; Nova calls it down within a minute.")


@host.command()
def on(name: HostArgument, state: StateOption = None) -> None:
    """Switch a host on again: its nova-compute starts, and looks what became of its servers."""
    from gpuyard_lab.host_power import switch

    switch(_running(state), name, on=True)
    print(f"Host {name} is on.")


def _running(state: Path | None) -> Lab:
    from gpuyard_lab.errors import LabError
    from gpuyard_lab.settings import remembered

    settings = _settings(state)
    lab = remembered(settings.state)
    if lab is None:
        raise LabError(f"no lab is in {settings.state}; start one with 'gpuyard lab up'")
    return lab


def _played(state: Path | None, name: str) -> tuple[Path, str]:
    """The tree of a GPU's host, and its address."""
    from gpuyard_lab.hosts import root_of

    host, _, address = name.rpartition("/")
    return root_of(_running(state), host), address.lower()


def _admin(clouds_file: Path, url: str = "") -> Client:
    """The lab's portal as its admin; where the catalogue says that it is, or at an address."""
    from gpuyard.client.client import Client
    from gpuyard.client.portal import open_session
    from gpuyard_lab.clients import ADMIN_CLOUD

    return Client(open_session(ADMIN_CLOUD, url, clouds_file))


def _gpu_of(clouds_file: Path, server: str) -> str:
    """The GPUs of a server by its name, as the portal has them, and the name."""
    from time import sleep

    client, deadline = _admin(clouds_file), monotonic() + 5
    while monotonic() < deadline:
        mine = [row for row in client.gpus() if (row.get("server") or {}).get("name") == server]
        if mine:
            gpus = ", ".join(f"{row['model']} {row['host']}/{row['address']}" for row in mine)
            return f"{gpus} (server {server})"
        sleep(0.5)
    return server


def _refuse_booked(clouds_file: Path, host: str) -> None:
    """Raise BlockedError when bookings keep GPUs of the host: the exercise would wait for them in vain."""
    from gpuyard.client.client import Client
    from gpuyard.client.portal import NoPortalError, PortalUnreachableError, open_session
    from gpuyard.model.errors import BlockedError
    from gpuyard_lab.clients import ADMIN_CLOUD

    try:
        booked = list(Client(open_session(ADMIN_CLOUD, "", clouds_file)).bookings(state=["active"]))
    except (PortalUnreachableError, NoPortalError):  # a lab without a portal, whose bookings nobody enforces
        return
    host_bookings = [row for row in booked if any(name.startswith(f"{host}/") for name in row["gpu_names"])]
    if host_bookings:
        ends = [f"gpuyard booking end {row['id']} --os-cloud {ADMIN_CLOUD}" for row in host_bookings]
        raise BlockedError("\n  ".join([f"the exercise needs all GPUs of {host}, and some are booked; first:", *ends]))


def _settings(
    state: Path | None,
    port_base: int | None = None,
    database: str | None = None,
    site: Path | None = None,
    fresh: bool = False,
    release: str | None = None,
    release_cache: Path | None = None,
) -> LabSettings:
    from gpuyard_lab.catalog import require_installed
    from gpuyard_lab.settings import LabSettings

    require_installed()
    return LabSettings.of(state, port_base, database, site, fresh, release, release_cache)


def _print_phase(phase: Phase) -> None:
    print(f"{phase.at_s:6.1f} s  {phase.name}", file=sys.stderr, flush=True)


def _print_progress(text: str) -> None:
    print(f"          {text}", file=sys.stderr, flush=True)


def _print_welcome(status: LabStatus, seconds: float, url: str, github: bool) -> None:
    from gpuyard_lab.clients import DEMO_CLOUD, demo_login

    user, password = demo_login(status.clouds_file)
    after = f" after {seconds:.0f} s" if status.phases else " already"
    print(f"The lab is up{after}: {counted(len(status.hosts), 'host')}, {status.memory_mib} MiB.")
    if url:
        print(f"  the portal: {url}")
    print(f"  as admin:   . {shlex.quote(str(status.state / 'openrc'))}; then: gpuyard gpu list, openstack server list")
    print(f"  as a user:  openstack --os-cloud {DEMO_CLOUD} ... (login: {user}, password: {password})")
    if github:
        print("  a GitHub job on a GPU: gpuyard lab job")
