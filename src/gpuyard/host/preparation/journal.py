"""The journal of gpuyard's changes to a host and of its state before them: ``/var/lib/gpuyard/journal.json``.

It is written before anything is changed and after each step, so that whatever happens in between, the next apply or
undo knows how the host was when gpuyard first touched it. Copies of files lie next to it under ``originals``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from gpuyard.host.local_host import STATE_FOLDER, HostAccess
from gpuyard.host.preparation.distribution import UPDATE_GRUB, initramfs_tool
from gpuyard.host.preparation.files import GRUB_FILE, MARK, OUR_FILES
from gpuyard.host.preparation.passthrough import read_list
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.tree import Tree
from gpuyard.model.errors import GpuyardError

JOURNAL_FILE = f"{STATE_FOLDER}/journal.json"
ORIGINALS = f"{STATE_FOLDER}/originals"
FORMAT = 1


@dataclass(frozen=True)
class Before:
    """A function before gpuyard gave it to VFIO."""

    ids: str
    group: Optional[int]
    driver: Optional[str]
    module: Optional[str]
    """The module of the driver, which need not have its name."""
    override: str = ""
    """Its ``driver_override``; empty when there was none."""


@dataclass(frozen=True)
class Run:
    """The last good run of a command that makes boot files."""

    command: Tuple[str, ...]
    inputs: str
    """What it was run for: a digest of files, or kernel options. When that is another now, it must run again."""
    patterns: Tuple[str, ...]
    """Glob patterns of the files that it writes."""
    originals: Mapping[str, str] = field(default_factory=dict)
    """The files as they were before the first run: path -> digest. There are copies of them."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """The files as the last good run left them. Empty while it runs."""
    stale: bool = False
    """Somebody else has changed the files between two runs, so the copies are of a host that is no more."""
    inverse: Tuple[str, ...] = ()
    """The command that takes it back when the files were changed by others since, and copies are of no use."""


@dataclass(frozen=True)
class Journal:
    """All but `wishes` and `groups` is about the time before gpuyard's first change; later ones keep it."""

    since: str
    """UTC time of the first change, ISO 8601."""
    wishes: Wishes = field(default_factory=Wishes)
    """Those of the last apply, which the next plan starts from."""
    files: Tuple[str, ...] = ()
    """Files that gpuyard made, in order; none of them was there."""
    options: Tuple[str, ...] = ()
    """Kernel options that gpuyard has set at one time or another."""
    folders: Tuple[str, ...] = ()
    """Folders that were made for files, innermost first."""
    functions: Mapping[str, Before] = field(default_factory=dict)
    """By address."""
    groups: Mapping[str, Optional[int]] = field(default_factory=dict)
    """Address -> IOMMU group at the last apply, of every function that shares one with a listed one. For verify."""
    modules: Tuple[str, ...] = ()
    """Modules that were not loaded before."""
    runs: Mapping[str, Run] = field(default_factory=dict)
    """By name of the tool."""
    intent: Tuple[str, ...] = ()
    """The steps that were decided on and are not done yet. Not empty after a crash or a failure."""
    undone: bool = False
    """Everything is as before, and only this journal is left to be removed."""


def copy_of(path: str) -> str:
    """Where the copy of a file lies."""
    return f"{ORIGINALS}/{path}"


def load(tree: Tree) -> Optional[Journal]:
    """The host's journal, None when gpuyard has changed nothing. Raises GpuyardError when it cannot be read."""
    text = tree.read(JOURNAL_FILE)
    if text is None:
        if tree.is_hidden(STATE_FOLDER) or "journal.json" in tree.names(STATE_FOLDER):
            raise GpuyardError(f"/{JOURNAL_FILE} cannot be read: run this as root")
        return None
    try:
        data = json.loads(text)
        if data["gpuyard_journal"] > FORMAT:
            raise GpuyardError(
                f"/{JOURNAL_FILE} was written by a newer gpuyard (format {data['gpuyard_journal']}): use that"
            )
        return _from_dict(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuyardError(
            f"/{JOURNAL_FILE} is damaged ({error!r}): mend it, or move it away; without it undo removes what gpuyard "
            f"wrote, and does not know how all was before (copies of boot files are in /{ORIGINALS})"
        ) from None


def current(tree: Tree) -> Optional[Journal]:
    """The journal to plan with; None when gpuyard has changed nothing, or everything was undone.

    Where our files are and no journal is (somebody has cleaned up), one is made of what can be known: the files are
    ours, the boot files have something of ours in them, and the drivers of before are unknown.
    """
    journal = load(tree)
    if journal is not None:
        return None if journal.undone else journal
    files = tuple(path for path in OUR_FILES if MARK in (tree.read(path) or "")[:200])
    if not files:
        return None
    functions = {entry.address: Before(entry.ids, None, None, None) for entry in read_list(tree)}
    tools = [tool for tool in (initramfs_tool(tree), UPDATE_GRUB if GRUB_FILE in files else None) if tool]
    runs = {tool.name: Run(tool.command, "", tool.outputs, inverse=tool.inverse, stale=True) for tool in tools}
    return Journal(since="", files=files, functions=functions, runs=runs)


def _from_dict(data: Dict[str, Any]) -> Journal:
    data.pop("gpuyard_journal")
    functions = {address: Before(**values) for address, values in data.pop("functions").items()}
    runs: Dict[str, Run] = {}
    for name, values in data.pop("runs").items():
        for key in ("command", "patterns", "inverse"):
            values[key] = tuple(values[key])
        runs[name] = Run(**values)
    wishes = Wishes.from_dict(data.pop("wishes"))
    for key in ("files", "folders", "intent", "modules", "options"):
        data[key] = tuple(data[key])
    return Journal(functions=functions, runs=runs, wishes=wishes, **data)


def save(host: HostAccess, journal: Journal) -> None:
    """Make it last. Only root may read it: it shows how the host is set up."""
    host.write_file(JOURNAL_FILE, json.dumps({"gpuyard_journal": FORMAT, **asdict(journal)}, indent=1) + "\n", 0o600)


def with_run(journal: Journal, name: str, run: Run) -> Journal:
    return replace(journal, runs={**journal.runs, name: run})
