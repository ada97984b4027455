"""Compares settings in the configuration with those that run: a change of boot files counts from the next boot on.

A setting is in one of four states: active, pending, leaving or off, by whether it is on the disk and in the running
kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import List, Optional, Tuple

from gpuyard.host.machine import Machine
from gpuyard.host.preparation.files import GRUB_FILE
from gpuyard.host.preparation.journal import Journal, load
from gpuyard.host.preparation.kernel_options import ours
from gpuyard.host.preparation.passthrough import read_list
from gpuyard.host.tree import Tree
from gpuyard.model.errors import GpuyardError
from gpuyard.model.host import Inventory


class State(str, Enum):
    ACTIVE = "active"
    """Set, and so now."""
    PENDING = "from the next boot on"
    LEAVING = "until the next boot"
    OFF = "off"


@dataclass(frozen=True)
class Setting:
    """One thing that gpuyard sets."""

    name: str
    """``kernel option iommu=pt``, or ``0000:27:00.0 with vfio-pci``."""
    wanted: bool
    """In the configuration, so it will be so after a boot."""
    running: bool
    """So now."""

    @property
    def state(self) -> State:
        if self.wanted:
            return State.ACTIVE if self.running else State.PENDING
        return State.LEAVING if self.running else State.OFF

    @property
    def after_a_boot(self) -> str:
        """What a reboot brings: ``kernel option iommu=pt``, ``no kernel option iommu=pt``."""
        return self.name if self.wanted else f"no {self.name}"


def settings(machine: Machine, journal: Optional[Journal]) -> Tuple[Setting, ...]:
    """Everything that gpuyard has set on this host, or has taken out and still runs."""
    running = machine.inventory.facts.command_line.split()
    result: List[Setting] = [Setting(f"kernel option {word}", True, word in running) for word in ours(machine, journal)]
    result += [Setting(f"kernel option {word}", False, word in running) for word in taken_out(machine.tree)]
    gone = [word for word in (journal.options if journal else ()) if word not in ours(machine, journal)]
    result += [Setting(f"kernel option {word}", False, True) for word in gone if word in running]
    drivers = {function.address: function.driver for function in machine.inventory.functions}
    listed = read_list(machine.tree)
    result += [Setting(f"{f.address} with {f.driver}", True, drivers.get(f.address) == f.driver) for f in listed]
    return tuple(result)


def taken_out(tree: Tree) -> Tuple[str, ...]:
    """Kernel options that our drop-in for GRUB leaves out."""
    case = re.search(r"case \$word in (.*?)\) ;;", tree.read(GRUB_FILE) or "")
    return tuple(re.findall(r"'([^']+)'", case.group(1))) if case else ()


def needs_reboot(settings: Tuple[Setting, ...]) -> Tuple[Setting, ...]:
    """Those for which the host must be rebooted."""
    return tuple(setting for setting in settings if setting.state in (State.PENDING, State.LEAVING))


def seen(tree: Tree, inventory: Inventory) -> Tuple[Setting, ...]:
    """For whoever only looks. Without root the journal is not to be read, and what only it knows is left out."""
    try:
        journal = load(tree)
    except GpuyardError:
        journal = None
    return settings(Machine(tree, inventory, ()), journal)
