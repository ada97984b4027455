"""Finds the PCI functions that the host needs for itself: its disks in use, network ports that are up, and NVSwitches.

A GPU whose IOMMU group holds one of them must stay with the host. A function counts when the kernel says that it is in
use now; an idle disk or a spare network port is not needed. A disk that a process has opened itself, as a VM or a
storage daemon does, is not to be seen in sysfs.
"""

from __future__ import annotations

import posixpath
import re
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from gpuyard.host.fabric import needed_switches
from gpuyard.host.tree import Tree

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NVME_SUBSYSTEM = re.compile(r"sys/devices/virtual/nvme-subsystem/[^/]+")
NVME_CONTROLLER = re.compile(r"nvme\d+")
BLOCK = "sys/class/block"
NET = "sys/class/net"
SOFTWARE_BLOCK = "/virtual/block/"
BTRFS = "sys/fs/btrfs"
IFF_UP = 0x1
ZFS_VOLUME = re.compile(r"zd\d")
VIRTUAL_DEVICE = "0:"  # major number 0: tmpfs, overlay, 9p and the like have no disk below them


def needed_by_host(tree: Tree) -> Dict[str, str]:
    """Address -> use, for every PCI function that a disk in use or a network port that is up hangs below, and for
    NVSwitches that Fabric Manager runs for VMs.

    What is mounted, swap and the default route are named one by one. Of the rest, which may be many disks below one
    controller, the first is named, and only where nothing else needs the function.
    """
    needed = _by_address(tree, [*_disks(tree), *_uplinks(tree), *needed_switches(tree)])
    rest = _by_address(tree, [*_used_disks(tree), *_busy_ports(tree)])
    shown = {address: ", ".join(uses) for address, uses in needed.items()}
    for address, uses in rest.items():
        shown.setdefault(address, _first(uses))
    return shown


def _first(things: List[str]) -> str:
    """``dm-3 and 12 more``."""
    return things[0] + (f" and {len(things) - 1} more" if len(things) > 1 else "")


def _by_address(tree: Tree, uses: Iterable[Tuple[str, str]]) -> Dict[str, List[str]]:
    """Address -> uses, of (use, sysfs path); what hangs below no PCI function is left out."""
    uses_by_address: Dict[str, List[str]] = {}
    for use, path in uses:
        address = pci_address_of(tree, path)
        if address is not None:
            uses_by_address.setdefault(address, []).append(use)
    return uses_by_address


def pci_address_of(tree: Tree, path: str) -> Optional[str]:
    """The PCI function that a device hangs below (a disk below its controller), by its place in sysfs."""
    addresses = PCI_ADDRESS.findall(tree.resolve(path))
    return addresses[-1] if addresses else None


def _disks(tree: Tree) -> Iterator[Tuple[str, str]]:
    """(what it is used for, sysfs path) of each disk below a mounted file system or swap."""
    reported: Set[Tuple[str, str]] = set()
    for use, device in disks_in_use(tree):
        for disk in _below(tree, device):
            if (use, disk) not in reported:
                reported.add((use, disk))
                yield f"{use} on {posixpath.basename(tree.resolve(disk))}", disk


def disks_in_use(tree: Tree) -> List[Tuple[str, str]]:
    """(use, sysfs path) of each block device that is mounted or swapped to."""
    return [*mounted_devices(tree), *_swap_devices(tree)]


def mounted_devices(tree: Tree) -> List[Tuple[str, str]]:
    """``root disk`` or ``disk of /boot``, with the sysfs path of the block device; a device counts once."""
    devices: Dict[str, str] = {}
    for line in mount_lines(tree):
        where, device = line.split()[4], _mounted_device(tree, line)
        if device is not None and (where == "/" or device not in devices):
            devices[device] = "root disk" if where == "/" else f"disk of {where}"
    return [(use, device) for device, use in devices.items()]


def mount_lines(tree: Tree) -> List[str]:
    """The lines of mountinfo that say what is mounted where."""
    return [line for line in (tree.read("proc/self/mountinfo") or "").splitlines() if len(line.split()) > 4]


def _mounted_device(tree: Tree, line: str) -> Optional[str]:
    """The block device of a line of mountinfo. Btrfs gives itself a virtual number, and names its first device."""
    number, source = line.split()[2], mount_source(line)
    if not number.startswith(VIRTUAL_DEVICE):
        return f"sys/dev/block/{number}"
    return f"sys/class/block/{posixpath.basename(tree.resolve(source))}" if source else None


def mount_source(line: str) -> str:
    """``dev/mapper/root``: what is mounted, when that is a device, without the leading slash; else empty."""
    behind = line.partition(" - ")[2].split()
    return behind[1][1:] if len(behind) > 1 and behind[1].startswith("/dev/") else ""


def _swap_devices(tree: Tree) -> List[Tuple[str, str]]:
    lines = (tree.read("proc/swaps") or "").splitlines()[1:]
    names = [posixpath.basename(line.split()[0]) for line in lines if line.startswith("/dev/")]
    return [("swap", f"sys/class/block/{name}") for name in names]


def _used_disks(tree: Tree) -> Iterator[Tuple[str, str]]:
    """(use, sysfs path) of each disk that something else than a mount has: LVM, RAID, multipath, btrfs, ZFS."""
    btrfs, zfs = btrfs_devices(tree), has_zfs(tree)
    for disk, partitions in physical_disks(tree).items():
        names = [disk, *partitions]
        holders = sorted({holder for name in names for holder in tree.names(f"{BLOCK}/{name}/holders")})
        if holders:
            use = f"in use by {_first(holders)}"
        elif btrfs.intersection(names):
            use = "in use by btrfs"
        elif zfs and partitions:  # only ZFS itself knows which partitions it has
            use = "may be part of a ZFS pool"
        else:
            continue
        for path in _below(tree, f"{BLOCK}/{disk}"):
            yield f"disk {disk} ({use})", path


def physical_disks(tree: Tree) -> Dict[str, List[str]]:
    """Name -> names of its partitions, of each disk that hangs below a PCI function or an NVMe subsystem."""
    partitions_by_disk: Dict[str, List[str]] = {}
    for name in tree.names(BLOCK):
        if SOFTWARE_BLOCK in (tree.link(f"{BLOCK}/{name}") or ""):
            continue  # a host with many volumes has hundreds, and following every link takes its time
        path = tree.resolve(f"{BLOCK}/{name}")
        if not PCI_ADDRESS.search(path) and not NVME_SUBSYSTEM.match(path):
            continue
        above = posixpath.basename(posixpath.dirname(path))
        if tree.link(f"{BLOCK}/{above}"):
            partitions_by_disk.setdefault(above, []).append(name)
        else:
            partitions_by_disk.setdefault(name, [])
    return partitions_by_disk


def btrfs_devices(tree: Tree) -> Set[str]:
    """Names of all devices of the mounted btrfs file systems, of which mountinfo names the first only."""
    return {name for uuid in tree.names(BTRFS) for name in tree.names(f"{BTRFS}/{uuid}/devices")}


def has_zfs(tree: Tree) -> bool:
    """Whether ZFS is in use: a file system is mounted, or there is a volume."""
    mounted = any(is_zfs(line) for line in mount_lines(tree))
    return mounted or any(ZFS_VOLUME.match(name) for name in tree.names(BLOCK))


def is_zfs(line: str) -> bool:
    """Whether a line of mountinfo is of ZFS. Its source is a name in a pool, no device."""
    return line.partition(" - ")[2].startswith("zfs ")


def _below(tree: Tree, device: str) -> List[str]:
    """The devices at the bottom of LVM, RAID, encryption and NVMe multipath; the device itself if nothing is."""
    return _bottom(device, lambda path: devices_below(tree, path))


def _bottom(top: str, below: Callable[[str], List[str]]) -> List[str]:
    """What has nothing below it, each once. No kernel makes a loop; one in a recording has no bottom but its top."""
    leaves: List[str] = []
    waiting, visited = [top], {top}
    while waiting:
        node = waiting.pop(0)
        lower = below(node)
        waiting[:0] = [path for path in lower if path not in visited]
        visited.update(lower)
        leaves += [] if lower else [node]
    return leaves or [top]


def devices_below(tree: Tree, device: str) -> List[str]:
    """The devices right below one; empty when it is the last.

    A disk of an NVMe subsystem with several controllers (every dual-port disk, also with one port in use) has no
    ``slaves`` and lies under ``devices/virtual``: what it hangs below are the controllers that its subsystem links to.
    """
    subsystem = NVME_SUBSYSTEM.match(tree.resolve(device))
    if subsystem:
        folder = subsystem.group()
        return [f"{folder}/{name}" for name in tree.names(folder) if NVME_CONTROLLER.fullmatch(name)]
    return [f"sys/class/block/{name}" for name in tree.names(f"{device}/slaves")]


def default_route_interfaces(tree: Tree) -> List[str]:
    """Names of the interfaces that IPv4 or IPv6 default routes go out by, in order."""
    names: List[str] = []
    for line in (tree.read("proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            names.append(fields[0])
    for line in (tree.read("proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            names.append(fields[9])
    return list(dict.fromkeys(names))


def _uplinks(tree: Tree) -> Iterator[Tuple[str, str]]:
    for name in default_route_interfaces(tree):
        for port in ports_below(tree, name):
            yield (f"uplink {port}" if port == name else f"uplink {port} (of {name})"), f"sys/class/net/{port}/device"


def ports_below(tree: Tree, name: str) -> List[str]:
    """The ports at the bottom of bonds, bridges and VLANs; the interface itself when it is one."""
    return _bottom(name, lambda interface: lower_interfaces(tree, interface))


def lower_interfaces(tree: Tree, name: str) -> List[str]:
    """The interfaces right below one."""
    return [entry[len("lower_") :] for entry in tree.names(f"{NET}/{name}") if entry.startswith("lower_")]


def _busy_ports(tree: Tree) -> Iterator[Tuple[str, str]]:
    """(use, sysfs path) of each physical port that is up or part of something.

    Whatever goes over it: the default route of a hypervisor often is on a port inside Open vSwitch, which names no
    port below it, and storage, migration and tenant networks have none.
    """
    for name in physical_ports(tree):
        master = tree.link(f"{NET}/{name}/master")
        if _is_up(tree, name):
            yield f"network port {name} (up)", f"{NET}/{name}/device"
        elif master:
            yield f"network port {name} (of {posixpath.basename(master)})", f"{NET}/{name}/device"


def physical_ports(tree: Tree) -> List[str]:
    """Names of the interfaces that have a device, which those made by software have not."""
    return [name for name in tree.names(NET) if tree.link(f"{NET}/{name}/device")]


def _is_up(tree: Tree, name: str) -> bool:
    """Switched on and with a link. Some drivers do not tell their state, and "carrier" cannot be read while off."""
    try:
        on = int(tree.read(f"{NET}/{name}/flags") or "0", 16) & IFF_UP
    except ValueError:
        return False
    return bool(on) and (tree.read(f"{NET}/{name}/operstate") == "up" or tree.read(f"{NET}/{name}/carrier") == "1")
