"""Finds the processes that hold a device now: those that have its device node open.

A driver lets go of a device only when nobody has it open any more. Until then an unbind waits, in the kernel, without
an end. All that is looked at are the links in ``/proc/PID/fd``; those of other users' processes only root may read.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional

from gpuyard.host.needs import pci_address_of
from gpuyard.host.tree import Tree

NVIDIA_NODE = re.compile(r"/dev/nvidia(\d+)")
NVIDIA_GPUS = "proc/driver/nvidia/gpus"
# Folder of device nodes -> class in sysfs that has a link of the same name into the device. There is one /dev/kfd for
# all GPUs of AMD, which does not tell them apart: whoever uses it has the GPU's render node open as well.
NODE_CLASSES = {"/dev/dri": "drm", "/dev/snd": "sound", "/dev/vfio/devices": "vfio-dev"}

DESKTOP = "systemctl isolate multi-user.target ends the desktop, systemctl set-default multi-user.target keeps it away"
SOUND = "end the sound server, and keep it from starting again"
FABRIC_MANAGER = "nv-fabricmanager"
# What usually holds GPUs, and how to end it.
USUAL_HOLDERS = {
    "nvidia-persistenced": "systemctl disable --now nvidia-persistenced",
    "nv-hostengine": "systemctl disable --now nvidia-dcgm",
    FABRIC_MANAGER: "systemctl disable --now nvidia-fabricmanager",
    "Xorg": DESKTOP,
    "gnome-shell": DESKTOP,
    "kwin_wayland": DESKTOP,
    "pulseaudio": SOUND,
    "pipewire": SOUND,
    "wireplumber": SOUND,
}


@dataclass(frozen=True)
class DeviceHolder:
    """A process that holds a device."""

    pid: int
    command: str
    """``nvidia-persistenced``."""
    device: str
    """The device node that is open, ``/dev/nvidia0``."""

    @property
    def is_vm(self) -> bool:
        return self.device.startswith("/dev/vfio/")

    def __str__(self) -> str:
        return f"{self.command}, process {self.pid}"


@dataclass(frozen=True)
class Processes:
    """What could be seen of all processes."""

    holders: Mapping[str, List[DeviceHolder]]
    """Address of a function -> who holds it."""
    unseen: Mapping[int, str]
    """Process id -> command of those that could not be looked at: each may hold anything."""
    hidden: bool = False
    """Not even a list of processes is there: ``/proc`` hides them, or a recording has none."""


def holders(tree: Tree) -> Dict[str, List[DeviceHolder]]:
    """Address -> who holds the function, of those that could be looked at: all, for root."""
    return dict(look(tree).holders)


def look(tree: Tree) -> Processes:
    """Look at every process once. Process 1 is always there, so without it the others are not to be seen."""
    nodes = _Nodes(tree)
    holders_by_address: Dict[str, List[DeviceHolder]] = {}
    unseen: Dict[int, str] = {}
    pids = [name for name in tree.names("proc") if re.fullmatch("[0-9]{1,10}", name)]
    for pid in sorted(pids, key=int):
        descriptors = tree.names(f"proc/{pid}/fd")
        if not descriptors and not _readable(tree, pid):
            unseen[int(pid)] = _command(tree, pid)
        links = {tree.link(f"proc/{pid}/fd/{descriptor}") for descriptor in descriptors}
        for device in sorted(link for link in links if link and link.startswith("/dev/")):
            for address in nodes.functions(device):
                holders_by_address.setdefault(address, []).append(DeviceHolder(int(pid), _command(tree, pid), device))
    return Processes(holders_by_address, unseen, "1" not in pids)


def _readable(tree: Tree, pid: str) -> bool:
    """Whether a process that shows no open file really has none. A thread of the kernel has no command line."""
    return tree.link(f"proc/{pid}/exe") is not None or not tree.read(f"proc/{pid}/cmdline")


def _command(tree: Tree, pid: str) -> str:
    """The name of the program. ``comm`` ends after 15 letters: ``nvidia-persiste``."""
    short = tree.read(f"proc/{pid}/comm") or ""
    program = (tree.read(f"proc/{pid}/cmdline") or "").split("\0")[0]
    name = posixpath.basename(program.split(" ")[0])
    return name if short and name.startswith(short) else short or name


class _Nodes:
    """Device nodes -> functions. The tables behind it are read when the first node that needs them is met."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._known: Dict[str, List[str]] = {}
        self._groups: Optional[Dict[str, List[str]]] = None

    def functions(self, device: str) -> List[str]:
        """Addresses; a node of /dev/vfio stands for its whole group."""
        if device not in self._known:
            self._known[device] = self._find(device)
        return self._known[device]

    def _find(self, device: str) -> List[str]:
        folder, name = posixpath.split(device)
        nvidia = NVIDIA_NODE.fullmatch(device)
        if folder == "/dev/vfio":
            return self._members(name)
        if nvidia:
            return nvidia_minors(self.tree).get(nvidia.group(1), [])
        if folder in NODE_CLASSES:
            address = pci_address_of(self.tree, class_link(device))
            return [address] if address else []
        return []

    def _members(self, group: str) -> List[str]:
        if self._groups is None:
            self._groups = {}
            for address in self.tree.names("sys/bus/pci/devices"):
                link = self.tree.link(f"sys/bus/pci/devices/{address}/iommu_group")
                self._groups.setdefault(posixpath.basename(link or ""), []).append(address)
        return self._groups.get(group, [])


def class_link(device: str) -> str:
    """The link in sysfs of a node whose folder is among NODE_CLASSES."""
    folder, name = posixpath.split(device)
    return f"sys/class/{NODE_CLASSES[folder]}/{name}"


def nvidia_minors(tree: Tree) -> Dict[str, List[str]]:
    """Number of ``/dev/nvidiaN`` -> its address, as NVIDIA's driver says."""
    minors: Dict[str, List[str]] = {}
    for address in tree.names(NVIDIA_GPUS):
        match = re.search(r"^Device Minor:\s*(\d+)", tree.read(f"{NVIDIA_GPUS}/{address}/information") or "", re.M)
        if match:
            minors[match.group(1)] = [address.lower()]
    return minors
