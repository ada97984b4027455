"""``gpuyard deploy``: from bare machines to a cloud, as the site file says."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import Format, FormatOption
from gpuyard.console.prepare import PythonOption, SshConfigOption, SudoOption, YesOption
from gpuyard.deployment.cli.deploy import DEFAULT_KOLLA, PROGRAM
from gpuyard.model.text import printable

if TYPE_CHECKING:
    from gpuyard.deployment.journal import JournalFile
    from gpuyard.deployment.ports import SitePorts
    from gpuyard.deployment.runner import Deployment
    from gpuyard.deployment.tasks import DeployRange, DeployTask
    from gpuyard.host.fleet import Event

app = typer.Typer(help="From bare machines to a cloud: hosts, Kolla, and the site, step by step.", no_args_is_help=True)

KollaOption = Annotated[Path, typer.Option("--kolla", metavar="DIR", help="Kolla's configuration folder.")]
LimitOption = Annotated[
    str,
    typer.Option("--limit", metavar="HOST,...", help="Only these hosts, and no step that is for the whole cloud."),
]
FromOption = Annotated[str, typer.Option("--from", metavar="STEP", help="Leave out the steps before this one.")]
UntilOption = Annotated[str, typer.Option("--until", metavar="STEP", help="Leave out the steps after this one.")]
ProgramOption = Annotated[str, typer.Option("--kolla-ansible", metavar="PROGRAM", help="The kolla-ansible to run.")]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where the journal and the output of programs are.",
        show_default="~/.local/state/gpuyard/deploy",
    ),
]
MinutesOption = Annotated[
    float, typer.Option("--reboot-minutes", min=0.1, metavar="N", help="Minutes in which a host must be back.")
]
REBOOT_MINUTES = 30.0
SIGNS = {"done": "ok", "to do": "+", "later": ".", "blocked": "!"}
COLUMNS = 110


@dataclass(frozen=True)
class _Asked:
    """What was typed."""

    site: Path
    kolla: Path
    limit: str
    first: str
    last: str
    ssh_config: Path | None
    python: str
    sudo: bool
    cloud: str | None
    program: str
    state: Path | None
    minutes: float = REBOOT_MINUTES

    def again(self) -> str:
        """The command that goes on."""
        words = ["gpuyard", "deploy", "run"]
        options = {
            "--site": "" if self.site == DEFAULT_SITE else str(self.site),
            "--kolla": "" if self.kolla == DEFAULT_KOLLA else str(self.kolla),
            "--limit": self.limit,
            "--from": self.first,
            "--until": self.last,
            "--ssh-config": str(self.ssh_config or ""),
            "--python": "" if self.python == "python3" else self.python,
            "--os-cloud": self.cloud or "",
            "--kolla-ansible": "" if self.program == PROGRAM else self.program,
            "--state": str(self.state or ""),
            "--reboot-minutes": "" if self.minutes == REBOOT_MINUTES else f"{self.minutes:g}",
        }
        words += [word for name, value in options.items() if value for word in (name, value)]
        return shlex.join([*words, *(["--sudo"] if self.sudo else [])])


@app.command()
def plan(
    site: SiteOption = DEFAULT_SITE,
    kolla: KollaOption = DEFAULT_KOLLA,
    limit: LimitOption = "",
    first: FromOption = "",
    last: UntilOption = "",
    ssh_config: SshConfigOption = None,
    python: PythonOption = "python3",
    sudo: SudoOption = False,
    cloud: CloudOption = None,
    program: ProgramOption = PROGRAM,
    state: StateOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show every step with its reason, what it runs, and what it would change. Changes nothing.

    Exit code 3 when something is in the way.
    """
    from gpuyard.model.errors import UsageError

    options = _Asked(site, kolla, limit, first, last, ssh_config, python, sudo, cloud, program, state)
    if format_ not in (Format.TABLE, Format.JSON):
        raise UsageError(f"a plan cannot be printed as {format_.value}; use -f json")
    deployment, _ = _deployment(options)
    tasks = deployment.plan(deployment.first_look(), _journal_file(options, deployment).read())
    if format_ is Format.JSON:
        print(json.dumps([_row(task) for task in tasks], indent=2))
    else:
        print(*_lines(tasks), sep="\n")
        print(_summary(tasks))
    if any(task.standing.value == "blocked" for task in tasks):
        raise typer.Exit(3)


@app.command()
def run(
    site: SiteOption = DEFAULT_SITE,
    kolla: KollaOption = DEFAULT_KOLLA,
    limit: LimitOption = "",
    first: FromOption = "",
    last: UntilOption = "",
    ssh_config: SshConfigOption = None,
    python: PythonOption = "python3",
    sudo: SudoOption = False,
    cloud: CloudOption = None,
    program: ProgramOption = PROGRAM,
    state: StateOption = None,
    reboot_minutes: MinutesOption = REBOOT_MINUTES,
    yes: YesOption = False,
) -> None:
    """Carry out what 'plan' shows, and stop at the first step that fails. Reboots hosts on which no servers run.

    Whatever ends it, the same command again goes on: what the hosts or the cloud say is done is left out.
    """
    from gpuyard.model.errors import GpuyardError

    options = _Asked(site, kolla, limit, first, last, ssh_config, python, sudo, cloud, program, state, reboot_minutes)
    deployment, ports = _deployment(options)
    screen = _Screen()
    ports.on_task, ports.hosts.on_event = screen.task, screen.event
    try:
        _run(options, deployment, ports, screen, yes)
    except KeyboardInterrupt:
        screen.clear()
        print(f"gpuyard: interrupted; go on with: {options.again()}", file=sys.stderr)
        raise
    except GpuyardError as error:
        screen.clear()
        error.args = (f"{error}\ngo on with: {options.again()}",)
        raise


def _run(options: _Asked, deployment: Deployment, ports: SitePorts, screen: _Screen, yes: bool) -> None:
    import secrets

    from gpuyard.console.prompts import confirmed
    from gpuyard.deployment.runner import stop_at_blocked
    from gpuyard.deployment.tasks import TaskStanding

    file = _journal_file(options, deployment)
    with file.writer() as writer:
        ports.held = (writer.descriptor,)
        journal = file.read(secrets.token_hex(4))
        state = deployment.first_look()
        tasks = deployment.plan(state, journal)
        left = [task for task in tasks if task.standing is not TaskStanding.DONE]
        print(*_lines(left), sep="\n", end="\n" if left else "")
        stop_at_blocked(tasks)
        if not left:
            print("Nothing to do: all is as the site file says.")
            return
        if not yes and not confirmed(f"Carry out {len(left)} of {len(tasks)} steps?"):
            print("Nothing was run.")
            raise typer.Exit(1)
        deployment.run(state, journal, writer, screen)
        print(f"All {len(tasks)} steps are done.")


def _deployment(options: _Asked) -> tuple[Deployment, SitePorts]:
    from gpuyard.deployment.folder import DeployFolder
    from gpuyard.deployment.hosts import DeployHosts
    from gpuyard.deployment.journal import DeployJournal
    from gpuyard.deployment.ports import CLOUD, SitePorts, state_folder
    from gpuyard.deployment.runner import Deployment
    from gpuyard.deployment.service import DeployService
    from gpuyard.deployment.state import DeploymentState
    from gpuyard.host.fleet import FleetOptions
    from gpuyard.model.errors import UsageError
    from gpuyard.site.load import read_site

    site = read_site(options.site)
    if site.deploy is None:
        raise UsageError(
            f"{options.site} has no 'deploy', which names the machines; "
            "docs/how-to/from-bare-machines-to-a-cloud.md says what to write"
        )
    deploy_range = _range(options)
    ssh = ("ssh",) if options.ssh_config is None else ("ssh", "-F", str(options.ssh_config))
    hosts = DeployHosts(
        site.deploy, FleetOptions(ssh, options.python, options.sudo), options.minutes * 60, time.monotonic, time.sleep
    )
    folder = DeployFolder(options.kolla, options.program)
    program = Path(sys.executable).parent / "gpuyard"
    service = DeployService(
        Path("/"), ("systemctl",), (str(program),), options.site, site, folder.credentials, options.cloud or CLOUD
    )
    ports = SitePorts(
        options.site,
        site,
        deploy_range.hosts,
        hosts,
        folder,
        options.cloud,
        (options.state or state_folder()) / "logs",
        options.ssh_config,
        service,
        lambda: datetime.now(UTC),
    )
    deployment = Deployment(site, ports, deploy_range, lambda: datetime.now(UTC))
    deployment.plan(DeploymentState(), DeployJournal())  # words that are wrong end here
    return deployment, ports


def _range(options: _Asked) -> DeployRange:
    from gpuyard.deployment.tasks import DeployRange

    hosts = tuple(dict.fromkeys(filter(None, (name.strip() for name in options.limit.split(",")))))
    return DeployRange(options.first, options.last, hosts)


def _journal_file(options: _Asked, deployment: Deployment) -> JournalFile:
    from gpuyard.deployment.journal import JournalFile
    from gpuyard.deployment.ports import state_folder

    return JournalFile((options.state or state_folder()) / f"{deployment.site.site}.journal")


def _row(task: DeployTask) -> dict[str, object]:
    return {
        "step": task.stage,
        "object": task.object,
        "standing": task.standing.value,
        "reason": task.reason,
        "runs": task.how,
        "says": list(task.verdict.says),
    }


def _lines(tasks: Sequence[DeployTask]) -> Iterator[str]:
    """All steps; what is in the way of several is told at the first."""
    from gpuyard.deployment.tasks import TaskStanding

    first: dict[tuple[str, ...], str] = {}
    for task in tasks:
        says = task.verdict.says
        if task.standing is TaskStanding.BLOCKED and first.setdefault(says, task.title) != task.title:
            says = (f"as for {first[says]}",)
        yield from _lines_of(task, says)


def _lines_of(task: DeployTask, says: Sequence[str]) -> list[str]:
    """One step: its sign, what it is and how it stands; if it is not done, why it is a step and what it changes."""
    from gpuyard.deployment.tasks import TaskStanding

    says = [printable(text) for text in says]
    head = f"{SIGNS[task.standing.value]:2} {task.title}"
    if task.standing is TaskStanding.DONE:
        return [f"{head}: {'; '.join(says) or 'done'}"]
    return [
        f"{head}: {task.standing.value}: {task.reason}",
        f"     runs: {task.how}",
        *(f"     {text}" for text in says),
    ]


def _summary(tasks: Sequence[DeployTask]) -> str:
    counts = {name: sum(task.standing.value == name for task in tasks) for name in SIGNS}
    return f"{len(tasks)} steps: " + ", ".join(f"{number} {name}" for name, number in counts.items() if number)


class _Screen:
    """Step n of m, on which hosts, and how long; on a terminal what is at work in one line that changes."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._head, self._began = "", 0.0

    def started(self, number: int, of: int, tasks: Sequence[DeployTask]) -> None:
        names = ", ".join(task.object for task in tasks if task.object)
        self._head, self._began = f"[{number}/{of}] {tasks[0].stage}{f' {names}' if names else ''}", time.monotonic()
        print(f"{self._head}: started", flush=True)

    def ended(self, number: int, of: int, tasks: Sequence[DeployTask], problems: Mapping[str, str]) -> None:
        self.clear()
        seconds = int(time.monotonic() - self._began)
        how = "failed" if any(problems.values()) else "done"
        print(f"{self._head}: {how} after {seconds // 60}:{seconds % 60:02d}", flush=True)

    def task(self, text: str) -> None:
        """What Ansible is at."""
        self._show(text)

    def event(self, event: Event) -> None:
        """What a host is at."""
        from gpuyard.host.fleet import Progress

        if isinstance(event, Progress) and event.of:
            text = f"{event.host}: {event.done}/{event.of} {event.text}"
            if self._live:
                self._show(text)
            else:
                print(f"  {text}", flush=True)

    def _show(self, text: str) -> None:
        if self._live:
            seconds = int(time.monotonic() - self._began)
            line = f"{self._head}: {seconds // 60}:{seconds % 60:02d} {printable(text)}"
            print(f"\r\x1b[K{line}"[:COLUMNS], end="", flush=True)

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", flush=True)
