"""Carries a plan out on a host: writes the journal first, then does one step after the other. Decides nothing.

Killed at any point, it leaves a host on which the next plan finds the rest to do, and a journal from which undo knows
how everything was: a copy of a file is made, and its entry in the journal is on the disk, before the file is touched.
"""

from __future__ import annotations

import fnmatch
import posixpath
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from gpuyard.host.holders import holders
from gpuyard.host.local_host import STATE_FOLDER, CommandFailed, HostAccess
from gpuyard.host.modules import canonical
from gpuyard.host.preparation import bind
from gpuyard.host.preparation.journal import (
    JOURNAL_FILE,
    ORIGINALS,
    Before,
    Journal,
    Run,
    copy_of,
    current,
    load,
    save,
    with_run,
)
from gpuyard.host.preparation.passthrough import LIST_FILE, Passthrough, parse_list, read_list
from gpuyard.host.preparation.plan import in_use
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.tree import Tree
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan, Step, StepVerb

OnStep = Callable[[int, Step], None]
"""Called before each step with its number from 1."""


def apply_plan(
    host: HostAccess, plan: Plan, inventory: Inventory, wishes: Wishes, now: datetime, on_step: OnStep
) -> None:
    """Raises BlockedError when the plan has refusals, GpuyardError with the step that failed."""
    if plan.refusals:
        raise BlockedError(plan.refused)
    left = load(host.tree)
    if left is not None and left.undone:
        _forget(host, left)
    journal = current(host.tree)
    listed = [function.address for function in _listed(host.tree, plan)]
    groups = _groups(inventory, listed)
    if plan.empty and (journal is None or (journal.wishes, journal.groups, journal.intent) == (wishes, groups, ())):
        return
    journal = journal or Journal(since=now.isoformat(timespec="seconds"))
    journal = replace(journal, wishes=wishes, groups=groups, folders=_folders(host.tree, journal, plan))
    journal = replace(journal, intent=_titles(plan.steps))
    save(host, journal)
    # Not only the functions whose driver changes now: that of others changes at the next boot.
    journal = _remember_functions(host, journal, inventory, listed)
    journal, problems = _carry_out(host, plan, _remember(host, journal, plan), on_step)
    if problems:
        raise GpuyardError("; ".join(problems))


def _listed(tree: Tree, plan: Plan) -> Tuple[Passthrough, ...]:
    """The list of functions as it will be."""
    for step in plan.steps:
        if step.kind == "file" and step.name == f"/{LIST_FILE}":
            return parse_list(step.after.get("text", ""))
    return read_list(tree)


def _groups(inventory: Inventory, addresses: Sequence[str]) -> Dict[str, Optional[int]]:
    """Address -> group of the functions, and of those that a VM must have with them; None while the IOMMU is off."""
    groups = {f.iommu_group for f in inventory.functions if f.address in addresses} - {None}
    return {
        f.address: f.iommu_group
        for f in inventory.functions
        if f.address in addresses or (f.iommu_group in groups and not f.stays_with_host)
    }


def apply_undo(host: HostAccess, plan: Plan, on_step: OnStep) -> None:
    """Carry out a plan of plan_undo.py, then remove what gpuyard keeps on the host. Raises as apply_plan does.

    A driver that does not come back (it is no longer there, say) keeps nothing else from being undone; it is told last.
    """
    if plan.refusals:
        raise BlockedError(plan.refused)
    left, journal = load(host.tree), current(host.tree)
    problems: List[str] = []
    if left is None and journal is None:
        host.remove_folder(STATE_FOLDER)  # the last that an undo does, and a crash may have come before it
        return
    if journal is not None:
        # What the commands made is put back below, so the next apply must not take it for up to date.
        journal = replace(journal, runs={name: replace(run, inputs="") for name, run in journal.runs.items()})
        journal, problems = _carry_out(host, plan, journal, on_step)
        save(host, replace(journal, undone=True))  # from here on the copies are not needed
    _forget(host, journal or left or Journal(since=""))
    if problems:
        raise GpuyardError(f"undone, but {'; '.join(problems)}")


def _carry_out(host: HostAccess, plan: Plan, journal: Journal, on_step: OnStep) -> Tuple[Journal, List[str]]:
    """The journal afterwards, and what did not work but stopped nothing."""
    problems: List[str] = []
    for number, step in enumerate(plan.steps, 1):
        journal = replace(journal, intent=_titles(plan.steps[number - 1 :]))
        save(host, journal)
        on_step(number, step)
        try:
            journal = _step(host, step, journal, problems)
        except GpuyardError as error:
            raise GpuyardError(f"{step}: {error}") from None
    journal = replace(journal, intent=())
    save(host, journal)
    return journal, problems


def _titles(steps: Sequence[Step]) -> Tuple[str, ...]:
    return tuple(str(step) for step in steps)


def _step(host: HostAccess, step: Step, journal: Journal, problems: List[str]) -> Journal:
    path = step.name[1:]
    if step.kind == "group":
        # Minutes may have passed since the plan: an initramfs was made, or somebody was asked.
        busy = list(in_use([step], holders(host.tree)))
        if busy:
            raise GpuyardError("; ".join(busy))
        if step.verb is StepVerb.BIND:
            bind.bind(host, step.after)
        else:
            problems += bind.release(host, {address: journal.functions[address] for address in step.after})
    elif step.kind == "module":
        with suppress(CommandFailed):  # somebody else uses it by now
            host.run(["modprobe", "-r", step.name])
    elif step.kind == "command":
        host.run(step.after["command"])
        return _ran(host, step, journal)
    elif step.verb is StepVerb.DELETE:
        host.remove_file(path)
    elif step.verb is StepVerb.RESTORE:
        host.copy_file(copy_of(path), path)
    else:
        host.write_file(path, step.after["text"], step.after["mode"])
        if host.tree.read(path) != step.after["text"].rstrip("\n"):
            raise GpuyardError("what was written is not what is there")
    return journal


def _ran(host: HostAccess, step: Step, journal: Journal) -> Journal:
    """Remember what a command left, to know later whether somebody else has changed it since."""
    if step.name not in journal.runs:
        return journal
    run = replace(journal.runs[step.name], inputs=step.after["inputs"], outputs=digests(host, step.after["outputs"]))
    return with_run(journal, step.name, run)


def digests(host: HostAccess, patterns: Sequence[str]) -> Dict[str, str]:
    """Path -> SHA-256 of every file that matches."""
    digests_by_path = {path: host.digest(path) for path in matching(host.tree, patterns)}
    return {path: digest for path, digest in digests_by_path.items() if digest is not None}


def _remember(host: HostAccess, journal: Journal, plan: Plan) -> Journal:
    """Copy what the plan will change and nothing has changed yet, and note it. Nothing of the host is touched."""
    for step in plan.steps:
        if step.kind == "file":
            journal = _remember_file(journal, step.name[1:])
        elif step.kind == "command":
            journal = _remember_outputs(host, journal, step)
        elif step.verb is StepVerb.BIND:
            journal = _remember_modules(host.tree, journal, step)
    return journal


def _remember_file(journal: Journal, path: str) -> Journal:
    """A file at one of our paths is ours or not there: a plan with somebody else's is refused."""
    return journal if path in journal.files else replace(journal, files=(*journal.files, path))


def _remember_outputs(host: HostAccess, journal: Journal, step: Step) -> Journal:
    """Copies are made before the first run only: later there would be something of ours in them."""
    run, now, after = journal.runs.get(step.name), digests(host, step.after["outputs"]), step.after
    if run is None:
        for path in now:
            host.copy_file(path, copy_of(path))
        run = Run((), "", tuple(after["outputs"]), now)
    elif now != dict(run.outputs or run.originals):
        run = replace(run, stale=True)  # a kernel was installed, or a run was cut off
    started = replace(run, command=tuple(after["command"]), inverse=tuple(after["inverse"]), inputs="", outputs={})
    return with_run(replace(journal, options=_options(journal, after)), step.name, started)


def _options(journal: Journal, after: Mapping[str, Any]) -> Tuple[str, ...]:
    """Those that were set at one time or another, with those of a command for the boot loader."""
    return tuple(dict.fromkeys([*journal.options, *after.get("options", ())]))


def _remember_functions(host: HostAccess, journal: Journal, inventory: Inventory, addresses: Iterable[str]) -> Journal:
    functions: Dict[str, Before] = dict(journal.functions)
    for address in addresses:
        function = inventory.function(address)
        if address not in functions or functions[address].ids != function.ids:  # another card is there now
            functions[address] = bind.before(host.tree, address, function.ids, function.iommu_group)
    return replace(journal, functions=functions)


def _remember_modules(tree: Tree, journal: Journal, step: Step) -> Journal:
    modules = {canonical(driver) for driver in step.after.values()}
    new = sorted(module for module in modules - {*journal.modules} if not tree.names(f"sys/module/{module}"))
    return replace(journal, modules=(*journal.modules, *new))


def _folders(tree: Tree, journal: Journal, plan: Plan) -> Tuple[str, ...]:
    """Those of the journal, and those that writing the files and the journal will make."""
    folders = set(journal.folders)
    for path in [JOURNAL_FILE, *(step.name[1:] for step in plan.steps if step.kind == "file")]:
        folder = posixpath.dirname(path)
        while folder and not _is_folder(tree, folder):
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return tuple(sorted(folders, key=lambda folder: (-folder.count("/"), folder)))


def _is_folder(tree: Tree, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return name in tree.names(parent or ".")


def matching(tree: Tree, patterns: Sequence[str]) -> Tuple[str, ...]:
    """Files that match glob patterns, which have wildcards in the last part only."""
    paths: List[str] = []
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        paths += [f"{folder}/{entry}" for entry in fnmatch.filter(tree.names(folder), name)]
    return tuple(paths)


def _forget(host: HostAccess, journal: Journal) -> None:
    """Remove what gpuyard keeps on a host. The journal goes last, so that the rest can be done after a crash."""
    for path in journal.files:
        host.remove_file(path)  # also what a crash in the middle of writing it has left
    _remove_below(host, ORIGINALS)
    for folder in journal.folders:
        host.remove_folder(folder)
    host.remove_file(JOURNAL_FILE)
    host.remove_folder(STATE_FOLDER)


def _remove_below(host: HostAccess, folder: str) -> None:
    for name in host.tree.names(folder):
        path = f"{folder}/{name}"
        if host.digest(path) is None:
            _remove_below(host, path)
        else:
            host.remove_file(path)
    host.remove_folder(folder)
