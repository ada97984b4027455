"""Starts a lab, ends it, and reports its status. Only one command at a time may start or end a lab."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard_lab import processes
from gpuyard_lab.databases import check_template
from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.example import planned_example
from gpuyard_lab.files import private_folder
from gpuyard_lab.plan import LabPlan, plan_of_site
from gpuyard_lab.releases.catalogue import OWN, lab_release
from gpuyard_lab.releases.install import Say, ensure_release
from gpuyard_lab.settings import EXAMPLE, Lab, LabSettings, resolve
from gpuyard_lab.start import Report, Start
from gpuyard_lab.status import LabStatus, look

MISREAD = set("$%#\n")
"""Characters that mean something else to OpenStack's configuration in the path of a file, in places that are out of our
reach."""


def up(
    settings: LabSettings, plan: LabPlan | None = None, report: Report | None = None, say: Say | None = None
) -> LabStatus:
    """Bring a lab up, whatever state an earlier command has left it in; return when it can be used.

    Without a plan, its hosts are those of the site file, else those of the last start. A lab that is up as it should be
    is left alone (the status has no phases then); one that is up with other hosts, ports or options is started again.
    ``report`` hears of each phase as it ends, ``say`` how far an installation is. Raises LabSettingsError before
    anything is started, LabError when something does not start; then nothing is left running.
    """
    _require_lab_folder(settings.state)
    private_folder(settings.state)
    with _locked(settings.state):
        lab, before = resolve(settings)
        plan, lab = (plan, replace(lab, site="")) if plan else (_plan_for(lab, settings), lab)
        if not plan.hosts:
            raise LabSettingsError("a lab needs a host; name a site that has one with --site")
        _require_usable(lab, before, settings.fresh)
        _require_for(lab, plan)
        if lab.release != OWN:
            ensure_release(lab_release(lab.release), lab.releases, say or _nothing)
        if not settings.fresh and before and _same(lab, before) and plan == _plan_of(lab):
            now = look(settings.state)
            if now.healthy:
                lab.save()
                return now
        start = Start(lab, plan, before, report or _nothing)
        start.run(fresh=settings.fresh or not lab.complete)
        return replace(look(settings.state), phases=start.phases)


def down(settings: LabSettings) -> int:
    """End all processes of a lab, and keep its data; return how many there were."""
    if not (settings.state / "lab.json").exists():  # processes may outlive their folder
        return processes.end_all(settings.state)
    with _locked(settings.state):
        return processes.end_all(settings.state)


def status(settings: LabSettings) -> LabStatus:
    """Return the processes of a lab, and whether it can be used."""
    return look(settings.state)


def _same(lab: Lab, before: Lab) -> bool:
    """Return whether what runs is what is wanted, wherever its hosts were read from."""
    return replace(lab, site=before.site) == before


def _nothing(heard: object) -> None:
    pass


def _plan_of(lab: Lab) -> LabPlan | None:
    try:
        return LabPlan.load(lab.plan_file)
    except LabError:
        return None


def _plan_for(lab: Lab, settings: LabSettings) -> LabPlan:
    """Plan from the site file, read again each time; a lab whose site file is gone keeps the hosts it had."""
    if lab.site == EXAMPLE:
        with TemporaryDirectory() as folder:
            return plan_of_site(planned_example(lab.release, Path(folder)))
    file = lab.site_file
    if file and (file == settings.site or file.exists()):
        return plan_of_site(file)
    return LabPlan.load(lab.plan_file)


def _require_usable(lab: Lab, before: Lab | None, fresh: bool) -> None:
    if lab.database:
        check_template(lab.database)
    if before and before.complete and before.database != lab.database and not fresh:
        raise LabSettingsError("a lab keeps the database that it was started with; start over with --fresh")
    if lab.release != OWN:
        lab_release(lab.release)  # is there one?
    if before and before.complete and before.release != lab.release and not fresh:
        raise LabSettingsError(
            f"this lab runs OpenStack {before.release}, and keeps what it has in that release's databases; start over "
            "with --fresh, or choose another folder with --state"
        )


def _require_for(lab: Lab, plan: LabPlan) -> None:
    """Raise LabSettingsError when a lab of another release is to run a site that is not of that release."""
    if lab.release != OWN and plan.release not in ("", lab.release):
        raise LabSettingsError(
            f"{lab.site} is a site of OpenStack {plan.release}, and the lab is to run {lab.release}: write "
            f'release: "{lab.release}" in it, or start the lab with --release {plan.release} --fresh'
        )


def _require_lab_folder(state: Path) -> None:
    """Refuse a folder with other things in it: starting over deletes what is in there."""
    if misread := MISREAD & set(str(state)):
        raise LabSettingsError(f"{state} has a {misread.pop()!r} in its path; choose another folder with --state")
    if not state.exists():
        return
    if not state.is_dir():
        raise LabSettingsError(f"{state} is not a folder; choose another with --state")
    names = {entry.name for entry in state.iterdir()}
    if names - {"lock"} and "lab.json" not in names:
        raise LabSettingsError(f"{state} has something else in it than a lab; choose an empty folder with --state")


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Let one command run at a time per lab. The kernel drops the lock of a command that dies."""
    with open(state / "lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another command is starting or ending the lab in {state} right now") from None
        yield
