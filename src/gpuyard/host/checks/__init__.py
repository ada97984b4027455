"""A ladder of checks: what stands between this machine and giving its GPUs away, and what to do about it.

Each check is a function that reads the tree and the inventory and says what is so; none changes anything. What cannot
be seen (a recording has less than a machine, an old kernel has fewer files) is said as such and never taken for good.
"""

from __future__ import annotations

from typing import Dict, Iterable, List

from gpuyard.host.checks import cards, drivers, platform
from gpuyard.host.machine import Check, Machine
from gpuyard.model.finding import Finding, Level

__all__ = ["CHECKS", "Machine", "check", "worst"]


def check(machine: Machine) -> List[Finding]:
    """All findings, in the order in which an operator would go about them."""
    return [
        Finding(name, level, reason, remedy)
        for name, function in CHECKS.items()
        for level, reason, remedy in function(machine)
    ]


def worst(findings: Iterable[Finding]) -> Level:
    levels = {finding.level for finding in findings}
    return Level.BLOCKED if Level.BLOCKED in levels else Level.WARNING if Level.WARNING in levels else Level.OK


CHECKS: Dict[str, Check] = {
    "gpus": cards.gpus,
    "virtualisation": platform.virtualisation,
    "iommu": platform.iommu,
    "command line": platform.command_line,
    "interrupts": platform.interrupts,
    "groups": cards.groups,
    "isolation": cards.isolation,
    "reserved memory": cards.reserved_memory,
    "drivers": drivers.drivers,
    "in use": drivers.in_use,
    "console": drivers.console,
    "usb": drivers.usb,
    "native drivers": drivers.native_drivers,
    "vfio": drivers.vfio,
    "variant drivers": drivers.variants,
    "pending reboot": platform.pending_reboot,
    "reset": cards.reset,
    "bars": cards.bars,
    "sr-iov": cards.sriov,
    "guests": cards.guests,
    "memory": platform.memory,
    "software": platform.software,
}
"""Name -> check, in the order of the ladder."""
