"""Checks what stands between a host and giving its GPUs away, and says what to do about it.

`check` looks at a host before it is prepared, `verify` (prepared.py) proves afterwards that VMs can have what was
prepared, and `drift` says what is not as it was recorded. All of them return findings of one kind.

Each check is a function that reads the tree and the inventory; none changes anything. What cannot be seen (a recording
has less than a machine, an old kernel has fewer files) is reported as unknown and never taken for good.
"""

from __future__ import annotations

from typing import Dict, List

from gpuyard.host.checks import cards, drivers, models, platform, shared
from gpuyard.host.machine import Check, Machine
from gpuyard.model.finding import Finding

__all__ = ["CHECKS", "Machine", "check"]


def check(machine: Machine) -> List[Finding]:
    """All findings, in the order in which an operator would go about them."""
    return [
        Finding(code, severity, "", reason, remedy)
        for code, function in CHECKS.items()
        for severity, reason, remedy in function(machine)
    ]


CHECKS: Dict[str, Check] = {
    "gpus": cards.gpus,
    "virtualisation": platform.virtualisation,
    "iommu": platform.iommu,
    "command-line": platform.command_line,
    "interrupts": platform.interrupts,
    "groups": cards.groups,
    "isolation": cards.isolation,
    "reserved-memory": cards.reserved_memory,
    "drivers": drivers.drivers,
    "in-use": drivers.in_use,
    "console": drivers.console,
    "usb": drivers.usb,
    "native-drivers": drivers.native_drivers,
    "vfio": drivers.vfio,
    "variant-drivers": drivers.variants,
    "pending-reboot": platform.pending_reboot,
    "reset": cards.reset,
    "scrub": cards.scrubs,
    "bars": cards.bars,
    "nvswitch": models.nvswitch,
    "quirks": models.quirks,
    "sr-iov": cards.sriov,
    "shared": shared.shared,
    "guests": cards.guests,
    "memory": platform.memory,
    "software": platform.software,
}
"""Code -> check, in the order of the ladder."""
