"""Finds uses of a GPU besides processes: the console, the firmware's frame buffer in its memory, and USB devices."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

from gpuyard.host.needs import PCI_ADDRESS, pci_address_of
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import Tree
from gpuyard.model.pci import PciFunction

CLASS_USB = "0c03"
FRAME_BUFFER = re.compile(r"efifb|vesafb|BOOTFB|simplefb|simpledrm|simple-framebuffer.*")
USB_DEVICE = re.compile(r"\d+-\d+(\.\d+)*")


def frame_buffers(tree: Tree) -> List[Tuple[str, str]]:
    """(address, name) of each of the firmware's frame buffers that lies in the memory of a PCI function."""
    buffers: List[Tuple[str, str]] = []
    above: List[Tuple[int, str]] = []
    for line in (tree.read("proc/iomem") or "").splitlines():
        depth, name = len(line) - len(line.lstrip()), line.partition(" : ")[2]
        while above and above[-1][0] >= depth:
            above.pop()
        if FRAME_BUFFER.fullmatch(name):
            functions = [owner for _, owner in above if PCI_ADDRESS.fullmatch(owner)]
            if functions and functions[-1] not in [address for address, _ in buffers]:
                buffers.append((functions[-1], name))
        above.append((depth, name))
    return buffers


def text_console(tree: Tree) -> Optional[Tuple[str, str]]:
    """(address, node of the frame buffer) that the text console is shown on: the first one, unless someone moved it."""
    consoles = [f"sys/class/vtconsole/{name}" for name in tree.names("sys/class/vtconsole")]
    bound = [path for path in consoles if tree.read(f"{path}/bind") == "1"]
    buffers = [name for name in tree.names("sys/class/graphics") if re.fullmatch(r"fb[0-9]{1,3}", name)]
    if not buffers or not any("frame buffer" in (tree.read(f"{path}/name") or "") for path in bound):
        return None
    first = min(buffers, key=lambda name: int(name[2:]))
    address = pci_address_of(tree, f"sys/class/graphics/{first}")
    return (address, f"/dev/{first}") if address else None


def usb_devices(tree: Tree, controller: PciFunction) -> List[Tuple[str, str]]:
    """(path, what it is) of each device that is plugged in; a controller's own root hubs are none."""
    path = tree.resolve(f"{DEVICES}/{controller.address}")
    waiting = [f"{path}/{name}" for name in tree.names(path) if re.fullmatch(r"usb\d+", name)]
    devices: List[Tuple[str, str]] = []
    while waiting:
        folder = waiting.pop(0)
        for name in tree.names(folder):
            # A device is a folder here; a link could lead back up, and there would be no end to it.
            if USB_DEVICE.fullmatch(name) and tree.link(f"{folder}/{name}") is None:
                devices.append((f"{folder}/{name}", tree.read(f"{folder}/{name}/product") or f"device {name}"))
                waiting.append(f"{folder}/{name}")
    return devices
