"""Checks for known problems of certain models: NVSwitch boards, and cards that need more than others do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

from gpuyard.host import fabric
from gpuyard.host.checks.software import Version, qemu_version, text_of
from gpuyard.host.machine import Answer, Machine, by_model
from gpuyard.model.finding import Severity


@dataclass(frozen=True)
class Quirk:
    """What people have met with models, and where they told of it."""

    ids: Tuple[str, ...]
    """``vendor:product``."""
    what: str
    remedy: str
    source: str = ""
    since_qemu: Optional[Version] = None
    """A QEMU of at least this version has no trouble with it."""


QUIRKS = (
    Quirk(
        ("10de:2b85", "10de:2b87", "10de:2c02", "10de:2c05", "10de:2f04"),
        "hosts have frozen when a VM with it was shut down, since its reset failed",
        "start and end a few servers on it before users do",
        "NVIDIA/open-gpu-kernel-modules#853",
    ),
    Quirk(
        ("1002:74a1", "1002:75a3"),
        "its config space has read 0xff after a function level reset until the host was restarted",
        "start and end a few servers on it before users do",
        "amd/MxGPU-Virtualization#25",
    ),
    Quirk(
        ("10de:2901",),
        "it needs QEMU 10.1 (or x-no-mmap=on, which Nova does not set)",
        "update QEMU, also where it runs in a container",
        since_qemu=(10, 1),
    ),
)


def quirks(machine: Machine) -> Answer:
    version = qemu_version(machine.tree)
    for quirk in QUIRKS:
        affected = [gpu for gpu in machine.inventory.gpus if gpu.ids in quirk.ids]
        if quirk.since_qemu and version and version >= quirk.since_qemu:
            continue
        version_note = f"; here is {text_of(version)}" if quirk.since_qemu and version else ""
        source = f" ({quirk.source})" if quirk.source else ""
        for cards in by_model(affected):
            yield Severity.WARNING, f"{cards}: {quirk.what}{version_note}{source}", quirk.remedy


def nvswitch(machine: Machine) -> Answer:
    """Who runs the NVSwitches of a board whose GPUs go to VMs."""
    switches: List[str] = [f.short_address for f in machine.inventory.functions if f.is_nvswitch]
    if not switches or not machine.inventory.gpus:
        return
    names = ", ".join(switches)
    if not fabric.is_shared(machine.tree):
        reason = (
            f"this board has NVSwitches ({names}), and no Fabric Manager in the shared model: in a VM that has a part "
            "of its GPUs CUDA fails with error 802, since nobody activates their partition"
        )
        remedy = (
            f"give the whole board with its switches to one VM at a time, or set {fabric.KEY}=1 in "
            f"/{fabric.CONFIGURATION} and start {fabric.UNIT}"
        )
        yield Severity.WARNING, reason, remedy
    elif not fabric.starts_at_boot(machine.tree):
        reason = (
            f"Fabric Manager is in the shared model and {fabric.UNIT} does not start at boot: CUDA in VMs would fail "
        )
        yield Severity.ERROR, f"{reason}with error 802", f"systemctl enable --now {fabric.UNIT}"
    else:
        yield Severity.OK, f"Fabric Manager (shared model) keeps the NVSwitches {names} on the host", ""
