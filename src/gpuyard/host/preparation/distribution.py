"""Finds the tools by which the distribution sets kernel options and makes its initramfs, and the options that are
set."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from gpuyard.host.tree import Tree

PROGRAMS = {"update-grub", "grubby", "update-initramfs", "dracut"}
PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
INITRAMFS_TOOLS = "etc/initramfs-tools"
OSTREE_BOOTED = "run/ostree-booted"
GRUB_DEFAULTS = "etc/default/grub"
GRUB_FOLDER = "etc/default/grub.d"
GRUB_VARIABLE = re.compile(r"^\s*(?:export\s+)?GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?=(.*)$")
ENTRIES = "boot/loader/entries"
RESCUE = "-0-rescue"
GRUBENV = "boot/grub2/grubenv"
COMMAND_LINE = "etc/kernel/cmdline"
"""What kernels get that are installed later, since RHEL 9. grubby makes it where it is missing."""
ADD, REMOVE = "--args", "--remove-args"


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
DRACUT = Tool(
    "initramfs",
    ("dracut", "--regenerate-all", "--force"),
    (
        # As RHEL, SUSE and Debian name them. Not the rescue image, and not kdump's, which kdump makes anew by itself.
        *(f"boot/initramfs-[!0]*{end}.img" for end in ("[!p]", "[!m]p", "[!u]mp")),
        "boot/initrd-[0-9]*",
        "boot/initrd.img-*",
    ),
)


def grubby(tree: Tree, added: Iterable[str], removed: Iterable[str], taken: Iterable[str], ours: Iterable[str]) -> Tool:
    """Adds and takes out options of all kernels, and of those that are installed later.

    Taking it back adds what was `taken` out so far and takes out `ours`, all that gpuyard has added.
    """
    return Tool("boot loader", _grubby(tree, added, removed), grubby_outputs(tree), _grubby(tree, taken, ours))


def _grubby(tree: Tree, added: Iterable[str], removed: Iterable[str]) -> Tuple[str, ...]:
    options = [f"{name}={words}" for name, words in ((ADD, " ".join(added)), (REMOVE, " ".join(removed))) if words]
    # Last, because grubby loses the argument that comes after it.
    leave = ["--no-etc-grub-update"] if grubby_spoils_defaults(tree) else []
    return ("grubby", "--update-kernel=ALL", *options, *leave)


def grubby_words(command: Sequence[str], name: str) -> Tuple[str, ...]:
    """The kernel options in one argument, ADD or REMOVE, of a call of grubby."""
    return tuple(word for part in command if part.startswith(f"{name}=") for word in part[len(name) + 1 :].split())


def grubby_outputs(tree: Tree) -> Tuple[str, ...]:
    """The files that grubby changes. GRUB itself writes to its environment block at boot, so it is left out if it can.

    The environment block may be a link to one on the EFI partition, which must stay a link.
    """
    used = "kernelopts" in _environment(tree) or tree.read(GRUBENV) is None
    return (f"{ENTRIES}/*.conf", GRUB_DEFAULTS, COMMAND_LINE, *([tree.resolve(GRUBENV)] if used else []))


def grubby_spoils_defaults(tree: Tree) -> bool:
    """Whether grubby would overwrite other lines of /etc/default/grub: each that begins like the one it looks for."""
    lines = (tree.read(GRUB_DEFAULTS) or "").splitlines()
    matches = [line for line in lines if line.startswith("GRUB_CMDLINE_LINUX")]
    return len(matches) > 1 or any(not line.startswith("GRUB_CMDLINE_LINUX=") for line in matches)


def why_not_grubby(tree: Tree) -> Optional[str]:
    """Why grubby cannot set the options of this host; None when it can."""
    if not has_program(tree, "grubby"):
        return "this host's boot loader is neither GRUB with /etc/default/grub.d nor one that grubby knows"
    if not entry_options(tree):
        return f"grubby needs boot loader entries, and there is none to be read in /{ENTRIES} (that takes root)"
    if re.search(r"^GRUB_ENABLE_BLSCFG=[\"']?false", tree.read(GRUB_DEFAULTS) or "", re.MULTILINE):
        return f"grubby changes the entries in /{ENTRIES}, which GRUB_ENABLE_BLSCFG=false in /{GRUB_DEFAULTS} turns off"
    if "kernelopts" not in _environment(tree) and any(
        "$kernelopts" in _options(tree, name) for name in entry_files(tree)
    ):
        return (
            f"the entries in /{ENTRIES} take their options from $kernelopts, which is not in /{GRUBENV} "
            "(grub2-mkconfig -o /boot/grub2/grub.cfg puts it there)"
        )
    return None


def is_ostree(tree: Tree) -> bool:
    return tree.read(OSTREE_BOOTED) is not None


def has_program(tree: Tree, name: str) -> bool:
    return any(name in tree.names(folder) for folder in PROGRAM_FOLDERS)


def has_grub_folder(tree: Tree) -> bool:
    """Debian and its kin: /etc/default/grub.d is read by update-grub. Others have the file and not the folder's use."""
    return has_program(tree, "update-grub") and tree.read(GRUB_DEFAULTS) is not None


def initramfs_tool(tree: Tree) -> Optional[Tool]:
    if has_program(tree, "update-initramfs") and tree.names(INITRAMFS_TOOLS):
        return UPDATE_INITRAMFS
    return DRACUT if has_program(tree, "dracut") else None


def configured_options(tree: Tree, but: str) -> Dict[str, str]:
    """Kernel option -> ``FILE:LINE`` where the boot loader's configuration has it; the file `but` is left out."""
    files = [GRUB_DEFAULTS, *(f"{GRUB_FOLDER}/{name}" for name in tree.names(GRUB_FOLDER) if name.endswith(".cfg"))]
    if has_program(tree, "grubby") and entry_files(tree) and grubby_spoils_defaults(tree):
        files = []  # the entries are what counts, and nothing changes that file
    places_by_option: Dict[str, str] = {}
    for file in files:
        for number, line in enumerate((tree.read(file) or "").splitlines(), 1):
            match = GRUB_VARIABLE.match(line)
            if match and file != but:
                for option in _words(match.group(1)):
                    places_by_option.setdefault(option, f"/{file}:{number}")
    for path, options in entry_options(tree).items():
        for option in options:
            places_by_option.setdefault(option, f"/{path}")
    for option in (tree.read(COMMAND_LINE) or "").split() if entry_files(tree) else []:
        places_by_option.setdefault(option, f"/{COMMAND_LINE}:1")
    return places_by_option


def entry_options(tree: Tree) -> Dict[str, List[str]]:
    """Path -> kernel options of each boot loader entry (BLS), with what GRUB's environment block has for ``$NAME``."""
    environment = _environment(tree)
    entries: Dict[str, List[str]] = {}
    for path in entry_files(tree):
        words = [environment.get(word[1:], "") if word[0] == "$" else word for word in _options(tree, path)]
        entries[path] = " ".join(words).split()
    return entries


def options_everywhere(tree: Tree) -> Set[str]:
    """Kernel options that all entries have, and kernels that are installed later get.

    Not counting the rescue entry: it is there to boot when the others do not.
    """
    entries = entry_options(tree)
    option_lists = [words for path, words in entries.items() if RESCUE not in path] or list(entries.values())
    later = tree.read(COMMAND_LINE)
    option_lists += [later.split()] if later is not None and option_lists else []
    return set.intersection(*(set(words) for words in option_lists)) if option_lists else set()


def tuned_options(tree: Tree) -> Set[str]:
    """Those that entries have by ``$tuned_params``: tuned's, and nothing that grubby could take out."""
    used = any("$tuned_params" in _options(tree, name) for name in entry_files(tree))
    return set(_environment(tree).get("tuned_params", "").split()) if used else set()


def entry_files(tree: Tree) -> List[str]:
    """The boot loader's entries."""
    return [f"{ENTRIES}/{name}" for name in tree.names(ENTRIES) if name.endswith(".conf")]


def _options(tree: Tree, path: str) -> List[str]:
    lines: List[str] = re.findall(r"^options\s+(.*)$", tree.read(path) or "", re.MULTILINE)
    return " ".join(lines).split()


def _environment(tree: Tree) -> Dict[str, str]:
    """GRUB's environment block."""
    return dict(re.findall(r"^(\w+)=(.*)$", tree.read(GRUBENV) or "", re.MULTILINE))


def _words(value: str) -> List[str]:
    """The options in a shell assignment's value; what refers to a variable is none."""
    try:
        text = " ".join(shlex.split(value, comments=True))
    except ValueError:  # a quote that is never closed: the shell would not take the file either
        return []
    return [word for word in text.split() if not word.startswith("$")]
