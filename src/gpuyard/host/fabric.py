"""Detects by its configuration whether the host runs NVIDIA's Fabric Manager in its shared model.

An NVSwitch board (HGX) whose GPUs go to several VMs needs it: Fabric Manager keeps the switches on the host and makes a
partition of the board active for each VM. Without, CUDA in a VM with a part of the board fails with error 802.
"""

from __future__ import annotations

from typing import Iterator, Tuple

from gpuyard.host.tree import Tree
from gpuyard.model.pci import CLASS_NVSWITCH, NVIDIA

CONFIGURATION = "usr/share/nvidia/nvswitch/fabricmanager.cfg"
KEY = "FABRIC_MODE"
SHARED = "1"
UNIT = "nvidia-fabricmanager"
WANTED = f"etc/systemd/system/multi-user.target.wants/{UNIT}.service"
USE = "NVSwitch of Fabric Manager"
DEVICES = "sys/bus/pci/devices"


def is_shared(tree: Tree) -> bool:
    """Whether FABRIC_MODE is 1; 0 (bare metal, or one VM that has the whole board) is the default, 2 is vGPU."""
    mode = ""
    for line in (tree.read(CONFIGURATION) or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == KEY:
            mode = value.strip()
    return mode == SHARED


def starts_at_boot(tree: Tree) -> bool:
    return tree.link(WANTED) is not None or tree.read(WANTED) is not None


def needed_switches(tree: Tree) -> Iterator[Tuple[str, str]]:
    """(what it is used for, sysfs path) of each NVSwitch that Fabric Manager must keep on the host."""
    for address in tree.names(DEVICES) if is_shared(tree) else ():
        path = f"{DEVICES}/{address}"
        vendor, kind = ((tree.read(f"{path}/{name}") or "").strip() for name in ("vendor", "class"))
        if vendor == f"0x{NVIDIA}" and kind.startswith(f"0x{CLASS_NVSWITCH}"):
            yield USE, path
