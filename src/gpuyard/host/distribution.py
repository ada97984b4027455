"""How the host's distribution sets kernel options and makes its initramfs, and which options are set there now."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

from gpuyard.host.tree import Tree

PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
GRUB_DEFAULTS = "etc/default/grub"
GRUB_FOLDER = "etc/default/grub.d"
GRUB_VARIABLE = re.compile(r"^\s*(?:export\s+)?GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?=(.*)$")
ENTRIES = "boot/loader/entries"


@dataclass(frozen=True)
class Tool:
    """A command that makes boot files anew from configuration."""

    name: str
    """What it makes, for people and for the journal: ``boot loader``, ``initramfs``."""
    command: Tuple[str, ...]
    outputs: Tuple[str, ...]
    """Glob patterns of the files that it writes."""
    undo_command: Tuple[str, ...] = ()
    """What takes it back, when that is not the same command once our files are gone."""

    @property
    def inverse(self) -> Tuple[str, ...]:
        return self.undo_command or self.command


UPDATE_GRUB = Tool("boot loader", ("update-grub",), ("boot/grub/grub.cfg",))
UPDATE_INITRAMFS = Tool("initramfs", ("update-initramfs", "-u", "-k", "all"), ("boot/initrd.img-*",))
DRACUT = Tool("initramfs", ("dracut", "--regenerate-all", "--force"), ("boot/initramfs-*.img",))
GRUBBY_OUTPUTS = (f"{ENTRIES}/*.conf", GRUB_DEFAULTS, "etc/kernel/cmdline", "boot/grub2/grubenv")


def grubby(wanted: Iterable[str], unwanted: Iterable[str], ours: Iterable[str], foreign: Iterable[str]) -> Tool:
    """Adds and takes out options of all kernels, and of those that are installed later.

    Taking it back takes out `ours`, all that gpuyard has added so far, and adds what it took out of the `foreign`.
    """
    return Tool("boot loader", _grubby(wanted, unwanted), GRUBBY_OUTPUTS, _grubby(foreign, ours))


def _grubby(wanted: Iterable[str], unwanted: Iterable[str]) -> Tuple[str, ...]:
    added, removed = " ".join(wanted), " ".join(unwanted)
    options = [f"--args={added}"] if added else []
    return ("grubby", "--update-kernel=ALL", *options, *([f"--remove-args={removed}"] if removed else []))


def has_program(tree: Tree, name: str) -> bool:
    return any(name in tree.names(folder) for folder in PROGRAM_FOLDERS)


def has_grub_folder(tree: Tree) -> bool:
    """Debian and its kin: /etc/default/grub.d is read by update-grub. Others have the file and not the folder's use."""
    return has_program(tree, "update-grub") and tree.read(GRUB_DEFAULTS) is not None


def has_grubby(tree: Tree) -> bool:
    return has_program(tree, "grubby")


def initramfs_tool(tree: Tree) -> Optional[Tool]:
    if has_program(tree, "update-initramfs") and tree.names("etc/initramfs-tools"):
        return UPDATE_INITRAMFS
    return DRACUT if has_program(tree, "dracut") else None


def configured_options(tree: Tree, but: str) -> Dict[str, str]:
    """Kernel option -> ``FILE:LINE`` where the boot loader's configuration has it; the file `but` is left out."""
    files = [GRUB_DEFAULTS, *(f"{GRUB_FOLDER}/{name}" for name in tree.names(GRUB_FOLDER) if name.endswith(".cfg"))]
    found: Dict[str, str] = {}
    for file in files:
        for number, line in enumerate((tree.read(file) or "").splitlines(), 1):
            match = GRUB_VARIABLE.match(line)
            if match and file != but:
                for option in _words(match.group(1)):
                    found.setdefault(option, f"/{file}:{number}")
    for option in [word for words in entry_options(tree).values() for word in words]:
        found.setdefault(option, f"/{ENTRIES}")
    return found


def entry_options(tree: Tree) -> Dict[str, List[str]]:
    """Kernel options of each boot loader entry (BLS); those of the environment block stand in for ``$kernelopts``."""
    environment = re.search(r"^kernelopts=(.*)$", tree.read("boot/grub2/grubenv") or "", re.MULTILINE)
    entries: Dict[str, List[str]] = {}
    for name in tree.names(ENTRIES):
        options = re.findall(r"^options\s+(.*)$", tree.read(f"{ENTRIES}/{name}") or "", re.MULTILINE)
        text = " ".join(options).replace("$kernelopts", environment.group(1) if environment else "")
        entries[name] = text.split()
    return entries


def _words(value: str) -> List[str]:
    """The options in a shell assignment's value; what refers to a variable is none."""
    try:
        text = " ".join(shlex.split(value, comments=True))
    except ValueError:  # a quote that is never closed: the shell would not take the file either
        return []
    return [word for word in text.split() if not word.startswith("$")]
