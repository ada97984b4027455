"""Kernel options: which ones passthrough needs on this host, and which ones that are set stand in its way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from gpuyard.host.checked import Machine
from gpuyard.host.distribution import configured_options, has_grub_folder, has_grubby
from gpuyard.host.files import GRUB_FILE
from gpuyard.host.journal import Journal
from gpuyard.host.modules import is_builtin
from gpuyard.host.wishes import Wishes

OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")
LEGACY = re.compile(r"^(vfio[-_]pci|pci[-_]stub)\.ids=")
USELESS = ("amd_iommu=on",)
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


def ours(machine: Machine, journal: Optional[Journal]) -> Tuple[str, ...]:
    """The options that gpuyard has set in the boot configuration so far."""
    if has_grub_folder(machine.tree):
        added = re.findall(
            r'^GRUB_CMDLINE_LINUX_DEFAULT="\$GRUB_CMDLINE_LINUX_DEFAULT (.*)"$',
            machine.tree.read(GRUB_FILE) or "",
            re.MULTILINE,
        )
        return tuple(added[0].split()) if added else ()
    run = journal.runs.get("boot loader") if journal else None
    return tuple(run.inputs.split()) if run else ()


def kernel_options(machine: Machine, wishes: Wishes, journal: Optional[Journal]) -> KernelOptions:
    """What is needed and what is in the way, by the boot loader's configuration and the running kernel's options."""
    mine = ours(machine, journal)
    foreign = configured_options(machine.tree, but=GRUB_FILE)
    if not has_grub_folder(machine.tree):
        foreign = {word: where for word, where in foreign.items() if word not in mine}
    wanted = [word for word in _needed(machine, wishes) if word not in foreign]
    unwanted, refusals, notes = _in_the_way(machine, wishes, foreign)
    if (wanted or unwanted) and not has_grub_folder(machine.tree) and not has_grubby(machine.tree):
        running = machine.inventory.facts.command_line.split()
        wanted = [word for word in wanted if word not in running]
        if wanted:
            refusals.append(
                f"the kernel needs {' '.join(wanted)}, and this host's boot loader is neither GRUB with "
                "/etc/default/grub.d nor one that grubby knows: set it by hand and reboot, then plan again"
            )
    return KernelOptions(tuple(wanted), tuple(unwanted), foreign, tuple(refusals), tuple(notes))


def _needed(machine: Machine, wishes: Wishes) -> List[str]:
    words = ["iommu=pt"] if wishes.identity else []
    running = machine.inventory.facts.command_line.split()
    # Where the IOMMU is on without the option, the kernel was built to switch it on. AMD's is on by default everywhere.
    if machine.vendor == "Intel" and ("intel_iommu=on" in running or not machine.inventory.iommu_on):
        words.insert(0, "intel_iommu=on")
    if wishes.unsafe_interrupts and is_builtin(machine.tree, "vfio_iommu_type1"):
        words.append(UNSAFE)  # a module is told in modprobe.d
    return words


def _in_the_way(machine: Machine, wishes: Wishes, foreign: Dict[str, str]) -> Tuple[List[str], List[str], List[str]]:
    """Options to take out, refusals and notes."""
    unwanted: List[str] = []
    refusals: List[str] = []
    notes: List[str] = []
    for word, where in foreign.items():
        if word not in OFF and word not in USELESS and not LEGACY.match(word):
            continue
        if wishes.replace_legacy:
            unwanted.append(word)
        elif word in OFF:
            refusals.append(f"{word} in {where} keeps the IOMMU off: take it out, or let --replace-legacy leave it out")
        elif word in USELESS:
            notes.append(f"{word} in {where} does nothing: the AMD IOMMU is on by default")
        else:
            notes.append(
                f"{word} in {where} takes every card with these ids, also one that the host keeps; binding by address "
                "replaces it: --replace-legacy leaves it out"
            )
    running = machine.inventory.facts.command_line.split()
    refusals += [
        f"the kernel was started with {word}, which is not in the boot configuration: find out who set it"
        for word in running
        if word in OFF and word not in foreign
    ]
    return unwanted, refusals, notes
