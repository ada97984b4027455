"""Reads a host's PCI functions, IOMMU groups and facts from sysfs and procfs into an Inventory."""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from itertools import islice
from typing import Container, List, Mapping, Optional, Set, Tuple

from gpuyard.host.needs import PCI_ADDRESS, mounted_devices, needed_by_host
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.tree import BLANK, Folder, Tree, number
from gpuyard.model.host import HostFacts, Inventory
from gpuyard.model.pci import ADDRESS, DeviceType, MdevType, PciFunction, address_key

DEVICES = "sys/bus/pci/devices"
GROUPS = "sys/kernel/iommu_groups"
NO_IOMMU_GROUP = "vfio-noiommu"
NODES = "sys/devices/system/node"
"""Some have memory and no CPU: a Grace Hopper has up to eight of them for a GPU's memory."""
HEX = re.compile(r"0x[0-9a-f]+", re.ASCII)
REGION = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})", re.ASCII)
SECTOR = 512
MDEV_TYPES = "mdev_supported_types"
MOST_TYPES = 256
"""Of one function; NVIDIA's drivers have some dozens."""
MOST_UNITS = 256
"""Of one type of one function that are believed; NVIDIA's drivers make 32 at most."""
MDEV_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
MOST_OF_A_CARD = re.compile(r"\bmax_instance=([0-9]{1,4})\b", re.ASCII)
VENDOR_VGPU = "nvidia/current_vgpu_type"


def scan(tree: Tree, names: PciIds, facts: Optional[Mapping[str, object]] = None, origin: str = "live") -> Inventory:
    """Scan the tree. `facts` replaces single values of HostFacts (a recording may carry the real machine's)."""
    addresses = sorted(filter(ADDRESS.fullmatch, tree.names(DEVICES)), key=address_key)
    pretended = pretended_groups(tree)
    return Inventory(
        facts=_facts(tree, facts or {}),
        functions=tuple(_function(tree, address, names, pretended) for address in addresses),
        needed_by_host=needed_by_host(tree),
        origin=origin,
    )


def pretended_groups(tree: Tree) -> Set[int]:
    """Numbers of the groups that VFIO makes up where there is no IOMMU (its no-IOMMU mode)."""
    numbers = tree.names(GROUPS) if not tree.names("sys/class/iommu") else []
    made_up = (name for name in numbers if tree.read(f"{GROUPS}/{name}/name") == NO_IOMMU_GROUP)
    return {group for group in map(number, made_up) if group is not None}


def _function(tree: Tree, address: str, names: PciIds, pretended: Container[Optional[int]]) -> PciFunction:
    path = tree.resolve(f"{DEVICES}/{address}")
    folder = Folder(tree, path)
    vendor, product = _hex(folder, "vendor", 4), _hex(folder, "device", 4)
    physical = folder.link("physfn")
    total_vfs = number(folder.read("sriov_totalvfs")) or 0
    above = PCI_ADDRESS.findall(path)[:-1]
    numa, group = number(folder.read("numa_node")), number(_basename(folder.link("iommu_group")))
    return PciFunction(
        address=address,
        vendor_id=vendor,
        product_id=product,
        class_code=_hex(folder, "class", 6),
        revision=_hex(folder, "revision", 2),
        subsystem_vendor_id=_hex(folder, "subsystem_vendor", 4) or None,
        subsystem_id=_hex(folder, "subsystem_device", 4) or None,
        vendor_name=names.vendor(vendor),
        product_name=names.product(vendor, product),
        driver=_basename(folder.link("driver")),
        numa_node=numa if numa is not None and numa >= 0 else None,
        iommu_group=None if group in pretended else group,
        device_type=DeviceType.VF if physical else DeviceType.PF if total_vfs else DeviceType.PCI,
        sriov_total_vfs=total_vfs,
        sriov_num_vfs=number(folder.read("sriov_numvfs")) or 0,
        physical_function=_basename(physical),
        boot_vga=folder.read("boot_vga") == "1",
        reset_methods=tuple((folder.read("reset_method") or "").split()),
        bars=_bars(folder.read("resource") or ""),
        parent=above[-1] if above else None,
        mdev_types=mdev_types(tree, path),
        vgpu_type=number(tree.read(f"{path}/{VENDOR_VGPU}")) if physical else None,
    )


def mdev_types(tree: Tree, path: str) -> Tuple[MdevType, ...]:
    """What the driver of the function at a path can make of it, by name."""
    type_names = (name for name in tree.names(f"{path}/{MDEV_TYPES}") if MDEV_TYPE.fullmatch(name))
    return tuple(_mdev_type(tree, f"{path}/{MDEV_TYPES}/{name}", name) for name in islice(type_names, MOST_TYPES))


def _mdev_type(tree: Tree, folder: str, name: str) -> MdevType:
    most = MOST_OF_A_CARD.search(tree.read(f"{folder}/description") or "")
    return MdevType(
        name=name,
        title=(tree.read(f"{folder}/name") or "").strip()[:100],
        available=min(max(0, number(tree.read(f"{folder}/available_instances")) or 0), MOST_UNITS),
        made=min(len(tree.names(f"{folder}/devices")), MOST_UNITS),
        most=int(most.group(1)) if most else None,
    )


def _hex(folder: Folder, name: str, digits: int) -> str:
    """A hex attribute without its ``0x``, padded; empty when the kernel does not have it, or has no such number."""
    return _digits(folder.read(name) or "", digits)


@lru_cache(4096)  # a site has thousands of functions of few kinds
def _digits(text: str, digits: int) -> str:
    text = text.strip(BLANK).lower()
    return text[2:].zfill(digits) if HEX.fullmatch(text) and len(text) <= digits + 2 else ""


def _basename(target: Optional[str]) -> Optional[str]:
    return posixpath.basename(target) if target else None


@lru_cache(4096)
def _bars(resource: str) -> Tuple[int, ...]:
    """Sizes in bytes of the non-empty memory regions among the first six lines of ``resource``."""
    sizes: List[int] = []
    for line in resource.splitlines()[:6]:
        region = REGION.fullmatch(line.strip())
        start, end, flags = (int(part, 16) for part in region.groups()) if region else (0, 0, 0)
        if end > start and not flags & 0x100:  # IORESOURCE_IO: port ranges are no BAR that a guest maps
            sizes.append(end - start + 1)
    return tuple(sizes)


def _facts(tree: Tree, facts: Mapping[str, object]) -> HostFacts:
    observed = {
        "hostname": tree.read("proc/sys/kernel/hostname") or "",
        "kernel": tree.read("proc/sys/kernel/osrelease") or "",
        "command_line": tree.read("proc/cmdline") or "",
        "cpu_model": _value(tree.read("proc/cpuinfo") or "", "model name"),
        "address_bits": number(_value(tree.read("proc/cpuinfo") or "", "address sizes").partition(" ")[0]) or 0,
        "cpus": count_list(tree.read("sys/devices/system/cpu/online") or ""),
        "memory_mib": (number(_value(tree.read("proc/meminfo") or "", "MemTotal").partition(" ")[0]) or 0) // 1024,
        "disk_gib": _root_disk_gib(tree),
        "numa_nodes": count_list(tree.read(f"{NODES}/has_cpu") or tree.read(f"{NODES}/online") or "") or 1,
    }
    unknown = sorted(set(facts) - set(observed))
    if unknown:
        raise ValueError(f"unknown host fact {unknown[0]!r}; known are {', '.join(sorted(observed))}")
    observed.update(facts)
    return HostFacts(**observed)  # type: ignore[arg-type]  # the values come from JSON; recording.load checks them


def _value(text: str, key: str) -> str:
    """The value of the first ``key : value`` line."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def count_list(ranges: str) -> int:
    """How many numbers a kernel list such as ``0-3,8`` names; what is no such list names none."""
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        count += max(high - low + 1, 0) if low is not None and high is not None else 0
    return count


def _root_disk_gib(tree: Tree) -> int:
    for use, path in mounted_devices(tree):
        if use == "root disk":
            return (number(tree.read(f"{path}/size")) or 0) * SECTOR // 1024**3
    return 0
