"""``gpuyard site deploy``: the operator's kolla-ansible, step by step in the right order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.options import DEFAULT_SITE, SiteOption
from gpuyard.cli.render import InventoryOption, rendering_of, show_notes

if TYPE_CHECKING:
    from gpuyard.kolla.deploy import DeployStep, Wish

DEFAULT_KOLLA = Path("/etc/kolla")
INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    app.command()(deploy)


def deploy(
    steps: Annotated[
        list[str] | None, typer.Argument(metavar="[STEP]...", help="Only these steps; all of them when none is named.")
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    kolla: Annotated[
        Path, typer.Option("--kolla", metavar="DIR", help="Kolla's configuration folder.")
    ] = DEFAULT_KOLLA,
    inventory: InventoryOption = None,
    limit: Annotated[
        str, typer.Option("--limit", metavar="PATTERN", help="Only these hypervisors, as Ansible's pattern.")
    ] = "",
    tags: Annotated[
        str, typer.Option("--tags", metavar="TAGS", help="Kolla's tags.", show_default="nova,placement")
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="A new cloud: bootstrap-servers, prechecks, deploy, post-deploy.")
    ] = False,
    first: Annotated[
        str, typer.Option("--from", metavar="STEP", help="Go on with this step, after one that failed.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    program: Annotated[str, typer.Option("--kolla-ansible", metavar="PROGRAM", help="The program.")] = "kolla-ansible",
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="DIR", help="Where its output goes.", show_default="~/.local/state/gpuyard/deploy"
        ),
    ] = None,
) -> None:
    """Run kolla-ansible for a site that is rendered: prechecks, Placement, control plane, hypervisors.

    Stops at the first step that fails, with Ansible's reason. Exit code 3 when the folder is not as the site file says.
    """
    from gpuyard.kolla.deploy import Wish, all_steps, chosen
    from gpuyard.kolla.folder import read_folder
    from gpuyard.kolla.render import compute_group
    from gpuyard.kolla.run import find_program
    from gpuyard.model.errors import UsageError
    from gpuyard.site.load import load_site

    if full and tags:
        raise UsageError("--full deploys all services; leave --tags out")
    compiled = load_site(site).compiled
    decides = compiled.site.pci_in_placement == "on"
    wish = Wish(kolla, tuple(inventory or ()), limit, tags, full, decides)
    todo = chosen(all_steps(wish, compute_group(read_folder(kolla))), steps or (), first)
    found = find_program(program)
    _check(compiled.site.release, found)
    beside = found.parent / "ansible-inventory"
    rendering = rendering_of(compiled, kolla, wish.inventories, beside if beside.exists() else None)
    _must_be_rendered([str(change.path) for change in rendering.changes], wish)
    show_notes(rendering.notes)
    for step in todo:
        print(f"{step.name}: {_shown(found, step)}  ({step.reason})")
    if not yes and not _confirmed(f"Run {len(todo)} steps with {found}?"):
        print("Nothing was run.")
        raise typer.Exit(1)
    _run(found, todo, kolla, logs or _state() / "deploy", _again(wish, site))


def _check(release: str, program: Path) -> None:
    from gpuyard.kolla.deploy import wrong_release
    from gpuyard.kolla.run import version
    from gpuyard.model.errors import BlockedError

    wrong = wrong_release(version(program), release)
    if wrong:
        raise BlockedError(wrong)


def _must_be_rendered(paths: Sequence[str], wish: Wish) -> None:
    import shlex

    from gpuyard.model.errors import BlockedError

    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        command = shlex.join(["gpuyard", "site", "render", "--kolla", str(wish.kolla), *_inventories(wish)])
        raise BlockedError(f"{paths[0]}{more} would change: the folder is not as the site file says; run: {command}")


def _inventories(wish: Wish) -> list[str]:
    return [word for path in wish.inventories for word in ("-i", str(path))]


def _again(wish: Wish, site: Path) -> str:
    """The command that goes on; what is missing is the name of the step."""
    import shlex

    words = ["gpuyard", "site", "deploy", "--kolla", str(wish.kolla), *_inventories(wish)]
    words += [] if site == DEFAULT_SITE else ["--site", str(site)]
    for option, value in (("--limit", wish.limit), ("--tags", wish.tags)):
        words += [option, value] if value else []
    return shlex.join([*words, *(["--full"] if wish.full else []), "--from"])


def _shown(program: Path, step: DeployStep) -> str:
    import shlex

    return shlex.join([program.name, *step.words])


def _state() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuyard"


def _confirmed(question: str) -> bool:
    from gpuyard.model.errors import UsageError

    try:
        return typer.confirm(question)
    except typer.Abort:
        raise UsageError("nobody answered, so nothing was run; --yes runs without asking") from None


def _run(program: Path, steps: Sequence[DeployStep], kolla: Path, logs: Path, again: str) -> None:
    """Run the steps. Raises GpuyardError at the first that fails."""
    import time
    from datetime import datetime

    from gpuyard.kolla.ansible_output import Redactor, secrets_in
    from gpuyard.kolla.files import read_text
    from gpuyard.kolla.run import run_program
    from gpuyard.model.errors import GpuyardError

    redact = Redactor(secrets_in(read_text(kolla / "passwords.yml") or ""))
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for number, step in enumerate(steps, start=1):
        head = f"[{number}/{len(steps)}] {step.name}"
        log = logs / f"{stamp}-{number}-{step.name}.log"
        print(f"{head}: started, output in {log}", flush=True)
        begin = time.monotonic()
        done = run_program(program, step.words, log, redact, _progress(head, begin))
        _clear()
        took = _minutes(time.monotonic() - begin)
        go_on = f"go on with: {again} {step.name}"
        if done.code == 0:
            print(f"{head}: done in {took}", flush=True)
            continue
        if done.signals:
            print(f"{head}: interrupted after {took}; kolla-ansible ended with {done.code}; {go_on}", flush=True)
            raise typer.Exit(INTERRUPTED)
        print(f"{head}: failed after {took}", flush=True)
        for failure in done.failures:
            print(f"  {failure}")
        raise GpuyardError(f"step {step.name} failed (exit code {done.code}), the whole output is in {log}; {go_on}")
    print(f"{len(steps)} steps done.")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _progress(head: str, begin: float) -> Callable[[str], None]:
    """On a terminal, the task at work on one line."""
    import time

    def show(task: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\x1b[K{head}: {_minutes(time.monotonic() - begin)} {task}"[:110], end="", flush=True)

    return show


def _clear() -> None:
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
