"""Plans kernel options: those that passthrough needs on this host, and those that are set and stand in its way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from gpuyard.host.machine import IOMMU_OFF, Machine
from gpuyard.host.modules import is_builtin
from gpuyard.host.preparation.distribution import (
    ADD,
    GRUB_DEFAULTS,
    REMOVE,
    Tool,
    configured_options,
    entry_options,
    grubby,
    grubby_spoils_defaults,
    grubby_words,
    has_grub_folder,
    is_ostree,
    options_everywhere,
    tuned_options,
    why_not_grubby,
)
from gpuyard.host.preparation.files import GRUB_FILE
from gpuyard.host.preparation.journal import Journal
from gpuyard.host.preparation.wishes import Wishes

LEGACY = re.compile(r"^(vfio[-_]pci|pci[-_]stub)\.ids=")
USELESS = ("amd_iommu=on",)
OSTREE = (
    "ostree makes this host's boot entries and initramfs, and gpuyard does not: set kernel options with "
    "'rpm-ostree kargs', and prepare a host with packages instead"
)
UNSAFE = "vfio_iommu_type1.allow_unsafe_interrupts=1"


@dataclass(frozen=True)
class KernelOptions:
    """What the boot loader must be told."""

    wanted: Tuple[str, ...] = ()
    """Options that gpuyard has to set, in all: those that are set elsewhere are left out."""
    unwanted: Tuple[str, ...] = ()
    """Options that are set elsewhere and must be taken out."""
    foreign: Dict[str, str] = field(default_factory=dict)
    """Every option that is set elsewhere -> ``FILE:LINE``."""
    refusals: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    tool: Optional[Tool] = None
    """The call of grubby that is missing, where it sets the options."""


def ours(machine: Machine, journal: Optional[Journal]) -> Tuple[str, ...]:
    """The options that gpuyard has set in the boot configuration so far."""
    if has_grub_folder(machine.tree):
        added = re.findall(
            r'^GRUB_CMDLINE_LINUX_DEFAULT="\$GRUB_CMDLINE_LINUX_DEFAULT (.*)"$',
            machine.tree.read(GRUB_FILE) or "",
            re.MULTILINE,
        )
        return tuple(added[0].split()) if added else ()
    present = configured_options(machine.tree, but=GRUB_FILE)
    return tuple(word for word in grubby_words(_inverse(journal), REMOVE) if word in present)


def _inverse(journal: Optional[Journal]) -> Tuple[str, ...]:
    """What takes the last call of grubby back. In the journal before the call, so it holds also after a crash."""
    run = journal.runs.get("boot loader") if journal else None
    return run.inverse if run else ()


def kernel_options(machine: Machine, wishes: Wishes, journal: Optional[Journal]) -> KernelOptions:
    """What is needed and what is in the way, by the boot loader's configuration and the running kernel's options."""
    # By GPU: which group one is in may be known only once the options are there.
    wanted_at_all = any(wishes.wants(gpu.address) for gpu in machine.inventory.gpus)
    needed = _needed(machine, wishes) if wanted_at_all else []
    mine = ours(machine, journal)
    foreign = configured_options(machine.tree, but=GRUB_FILE)
    if has_grub_folder(machine.tree):
        missing = [word for word in needed if not _is_given(word, foreign)]
        unwanted, refusals, notes = _in_the_way(machine, wishes, foreign)
        return KernelOptions(tuple(missing), tuple(unwanted), foreign, tuple(refusals), tuple(notes))
    foreign = {word: where for word, where in foreign.items() if word not in mine}
    unwanted, refusals, notes = _in_the_way(machine, wishes, foreign)
    # One of several kernels with an option is not enough.
    others = (options_everywhere(machine.tree) if entry_options(machine.tree) else {*foreign}) - {*mine}
    missing = [word for word in needed if not _is_given(word, others)]
    options = KernelOptions(tuple(missing), tuple(unwanted), foreign, tuple(refusals), tuple(notes))
    if is_ostree(machine.tree):
        return replace(options, wanted=(), unwanted=(), refusals=(*refusals, *([OSTREE] if wanted_at_all else [])))
    why_not = why_not_grubby(machine.tree)
    return _by_hand(machine, options, why_not) if why_not else _with_grubby(machine, wishes, options, mine, journal)


def _by_hand(machine: Machine, options: KernelOptions, why: str) -> KernelOptions:
    """Where nothing can set options, what the kernel runs with is good enough, and the rest is for the operator."""
    running = machine.inventory.facts.command_line.split()
    missing = [word for word in options.wanted if not _is_given(word, running)]
    refusals = [*options.refusals]
    if missing:
        refusals.append(f"the kernel needs {' '.join(missing)}, and {why}: set it by hand and reboot, then plan again")
    refusals += [
        f"{word} in {options.foreign[word]} must go, and {why}: take it out by hand, then plan again"
        for word in options.unwanted
    ]
    return replace(options, wanted=tuple(missing), unwanted=(), refusals=tuple(refusals))


def _with_grubby(
    machine: Machine, wishes: Wishes, options: KernelOptions, mine: Sequence[str], journal: Optional[Journal]
) -> KernelOptions:
    everywhere = options_everywhere(machine.tree)
    last = journal.runs.get("boot loader") if journal else None
    # A call that did not end may have left some of its files as they were, and not all of them are looked at here.
    ended = last is not None and {*options.wanted} <= {*last.inputs.split()}
    missing = [word for word in options.wanted if word not in everywhere or not ended]
    # grubby keeps one value of an option, so adding one takes another out.
    displaced = {old: new for old in options.foreign for new in missing if _key(old) == _key(new) and old != new}
    notes = [f"{old} in {options.foreign[old]} gives way to {new}" for old, new in displaced.items()]

    def stays_out(word: str) -> bool:
        return (wishes.replace_legacy and _is_legacy(word)) or _key(word) in [_key(option) for option in options.wanted]

    taken = [word for word in grubby_words(_inverse(journal), ADD) if stays_out(word) or word not in everywhere]
    back = [word for word in taken if not stays_out(word)]
    taken += [word for word in (*options.unwanted, *displaced) if word not in taken]
    surplus = [word for word in mine if word not in options.wanted]
    added, removed = [*missing, *back], [*options.unwanted, *surplus]
    if not added and not removed:
        return options
    if grubby_spoils_defaults(machine.tree):
        words = " ".join(options.wanted) or "nothing of gpuyard's"
        notes.append(
            f"grubby would overwrite other lines of /{GRUB_DEFAULTS}, so it leaves that file alone: have {words} in "
            "GRUB_CMDLINE_LINUX there before you run grub2-mkconfig"
        )
    tool = grubby(machine.tree, added, removed, taken, [*options.wanted, *surplus])
    return replace(options, notes=(*options.notes, *notes), tool=tool)


def _key(word: str) -> str:
    return word.partition("=")[0]


def _is_given(option: str, words: Iterable[str]) -> bool:
    """Whether ``NAME=VALUE`` is among them, also as one of several values: ``intel_iommu=on,sm_on``."""
    name, _, value = option.partition("=")
    return any(_key(word) == name and value in word.partition("=")[2].split(",") for word in words)


def _is_legacy(word: str) -> bool:
    return word in IOMMU_OFF or word in USELESS or bool(LEGACY.match(word))


def _needed(machine: Machine, wishes: Wishes) -> List[str]:
    words = ["iommu=pt"] if wishes.identity else []
    running = machine.inventory.facts.command_line.split()
    # Where the IOMMU is on without the option, the kernel was built to switch it on. AMD's is on by default everywhere.
    if machine.vendor == "Intel" and (_is_given("intel_iommu=on", running) or not machine.inventory.iommu_on):
        words.insert(0, "intel_iommu=on")
    if wishes.unsafe_interrupts and is_builtin(machine.tree, "vfio_iommu_type1"):
        words.append(UNSAFE)  # a module is told in modprobe.d
    return words


def _in_the_way(machine: Machine, wishes: Wishes, foreign: Dict[str, str]) -> Tuple[List[str], List[str], List[str]]:
    """Options to take out, refusals and notes."""
    unwanted: List[str] = []
    refusals: List[str] = []
    notes: List[str] = []
    tuned = tuned_options(machine.tree)
    if not machine.inventory.gpus:
        return unwanted, refusals, notes
    for word, where in foreign.items():
        if not _is_legacy(word):
            continue
        if wishes.replace_legacy and word in tuned:
            refusals.append(f"{word} is set by tuned ($tuned_params): take it out of tuned's profile, then plan again")
        elif wishes.replace_legacy:
            unwanted.append(word)
        elif word in IOMMU_OFF:
            refusals.append(f"{word} in {where} keeps the IOMMU off: take it out, or let --replace-legacy leave it out")
        elif word in USELESS:
            notes.append(f"{word} in {where} does nothing: the AMD IOMMU is on by default")
        else:
            notes.append(
                f"{word} in {where} takes every card with these ids, also one that the host keeps; binding by address "
                "replaces it: --replace-legacy leaves it out"
            )
    refusals += [
        f"the kernel was started with {word}, which is not in the boot configuration: find out who set it"
        for word in machine.switched_off
        if word not in foreign
    ]
    return unwanted, refusals, notes
