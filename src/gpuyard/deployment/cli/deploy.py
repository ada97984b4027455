"""``gpuyard site deploy``: the operator's kolla-ansible, step by step in the right order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, SiteOption
from gpuyard.console.prompts import confirmed
from gpuyard.deployment.cli.render import InventoryOption, rendering_of, show_notes
from gpuyard.model.text import printable

if TYPE_CHECKING:
    from gpuyard.deployment.kolla.deploy import DeployStep, Wish

DEFAULT_KOLLA = Path("/etc/kolla")
INTERRUPTED = 130
PROGRAM = "kolla-ansible"


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
        str,
        typer.Option(
            "--limit",
            metavar="PATTERN",
            help="Only these hypervisors, as Ansible's pattern; without a STEP only prechecks and computes run.",
        ),
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
    program: Annotated[
        str, typer.Option("--kolla-ansible", metavar="PROGRAM", help="The kolla-ansible to run.")
    ] = PROGRAM,
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
    from gpuyard.deployment.kolla.deploy import Wish, all_steps, chosen, within_limit
    from gpuyard.deployment.kolla.folder import read_folder
    from gpuyard.deployment.kolla.render import compute_group
    from gpuyard.deployment.kolla.run import find_program
    from gpuyard.model.errors import UsageError
    from gpuyard.site.load import load_site

    if full and tags:
        raise UsageError("--full deploys all services; leave --tags out")
    compiled = load_site(site).compiled
    decides = compiled.site.pci_in_placement == "on"
    wish = Wish(kolla, tuple(inventory or ()), limit, tags, full, decides)
    every = all_steps(wish, compute_group(read_folder(kolla)))
    some = bool(limit and not full and not steps)
    todo = chosen(within_limit(every, first) if some else every, steps or (), first)
    executable = find_program(program)
    _check(compiled.site.release, executable)
    beside = executable.parent / "ansible-inventory"
    rendering = rendering_of(compiled, kolla, wish.inventories, beside if beside.exists() else None)
    _must_be_rendered([str(change.path) for change in rendering.changes], wish, site)
    show_notes(rendering.notes)
    common = _common(wish, site, program, logs)
    remaining = _remaining(every, wish, common) if some else []
    for step in todo:
        print(f"{step.name}: {_shown(executable, step)}  ({step.reason})")
    print(*remaining, sep="\n", end="\n" if remaining else "")
    if not yes and not confirmed(f"Run {len(todo)} steps with {executable}?"):
        print("Nothing was run.")
        raise typer.Exit(1)
    _run(executable, todo, kolla, logs or _state() / "deploy", _ways_on(todo, wish, common, named=bool(steps)))
    print(*remaining, sep="\n", end="\n" if remaining else "")


def _check(release: str, program: Path) -> None:
    from gpuyard.deployment.kolla.deploy import wrong_release
    from gpuyard.deployment.kolla.run import version
    from gpuyard.model.errors import BlockedError

    wrong = wrong_release(version(program), release)
    if wrong:
        raise BlockedError(wrong)


def _must_be_rendered(paths: Sequence[str], wish: Wish, site: Path) -> None:
    import shlex

    from gpuyard.model.errors import BlockedError

    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        command = shlex.join(["gpuyard", "site", "render", *_folder(wish, site)])
        raise BlockedError(f"{paths[0]}{more} would change: the folder is not as the site file says; run: {command}")


def _folder(wish: Wish, site: Path) -> list[str]:
    """The options that say what is deployed from where."""
    words = [] if site == DEFAULT_SITE else ["--site", str(site)]
    return [*words, "--kolla", str(wish.kolla), *(word for path in wish.inventories for word in ("-i", str(path)))]


def _common(wish: Wish, site: Path, program: str, logs: Path | None) -> list[str]:
    """The options of this run that another one for the same site needs too."""
    words = _folder(wish, site)
    words += [] if program == PROGRAM else ["--kolla-ansible", program]
    words += [] if logs is None else ["--logs", str(logs)]
    return [*words, *(["--tags", wish.tags] if wish.tags else [])]


def _ways_on(steps: Sequence[DeployStep], wish: Wish, common: Sequence[str], named: bool) -> list[str]:
    """For each step the command that goes on there: with the rest of those that were named, or with all."""
    import shlex

    words = [*common, *(["--limit", wish.limit] if wish.limit else []), *(["--full"] if wish.full else [])]
    ways = []
    for number, step in enumerate(steps):
        rest = [step.name for step in steps[number:]]
        ways.append(shlex.join(["gpuyard", "site", "deploy", *(rest if named else []), *words]))
        ways[-1] += "" if named else f" --from {step.name}"
    return ways


def _remaining(every: Sequence[DeployStep], wish: Wish, common: Sequence[str]) -> list[str]:
    """Lines about the steps that --limit leaves out, with the command for each of them."""
    import shlex

    from gpuyard.deployment.kolla.deploy import left_out

    before, after = left_out(every)
    lines = []
    for names, when in ((before, "before the hypervisors"), (after, "when all hypervisors are done")):
        if names:
            command = shlex.join(["gpuyard", "site", "deploy", *names, *common])
            lines.append(f"not in this run, because of --limit: {', '.join(names)}; {when}: {command}")
    return lines


def _shown(program: Path, step: DeployStep) -> str:
    import shlex

    return shlex.join([program.name, *step.words])


def _state() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuyard"


def _run(program: Path, steps: Sequence[DeployStep], kolla: Path, logs: Path, ways_on: Sequence[str]) -> None:
    """Run the steps. Raises GpuyardError at the first that fails, with its one of `ways_on`."""
    import time
    from datetime import datetime

    from gpuyard.deployment.kolla.ansible_output import Redactor, secrets_in
    from gpuyard.deployment.kolla.run import run_program
    from gpuyard.model.errors import GpuyardError
    from gpuyard.runtime.config_files import read_text

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
        go_on = f"go on with: {ways_on[number - 1]}"
        if done.code == 0:
            print(f"{head}: done in {took}", flush=True)
            continue
        if done.signals:
            print(f"{head}: interrupted after {took}; kolla-ansible ended with {done.code}; {go_on}", flush=True)
            raise typer.Exit(INTERRUPTED)
        print(f"{head}: failed after {took}", flush=True)
        for failure in done.failures:
            print(f"  {printable(str(failure))}")
        raise GpuyardError(f"step {step.name} failed (exit code {done.code}), the whole output is in {log}; {go_on}")
    print(f"{len(steps)} steps done.")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _progress(head: str, begin: float) -> Callable[[str], None]:
    """On a terminal, the task at work on one line."""
    import time

    def show(task: str) -> None:
        if sys.stdout.isatty():
            text = f"{head}: {_minutes(time.monotonic() - begin)} {printable(task)}"
            print(f"\r\x1b[K{text}"[:110], end="", flush=True)

    return show


def _clear() -> None:
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
