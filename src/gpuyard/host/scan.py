"""Reads a host's PCI functions, IOMMU groups and facts from sysfs and procfs into an Inventory."""

from __future__ import annotations

import posixpath
from typing import List, Mapping, Optional, Tuple

from gpuyard.host.needs import PCI_ADDRESS, mounted_devices, needed_by_host
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.tree import Folder, Tree
from gpuyard.model.host import HostFacts, Inventory
from gpuyard.model.pci import DeviceType, PciFunction, address_key

DEVICES = "sys/bus/pci/devices"
SECTOR = 512


def scan(tree: Tree, names: PciIds, facts: Optional[Mapping[str, object]] = None, origin: str = "live") -> Inventory:
    """Scan the tree. `facts` replaces single values of HostFacts (a recording may carry the real machine's)."""
    addresses = sorted(tree.names(DEVICES), key=address_key)
    return Inventory(
        facts=_facts(tree, facts or {}),
        functions=tuple(_function(tree, address, names) for address in addresses),
        needed_by_host=needed_by_host(tree),
        origin=origin,
    )


def _function(tree: Tree, address: str, names: PciIds) -> PciFunction:
    path = tree.resolve(f"{DEVICES}/{address}")
    here = Folder(tree, path)
    vendor, product = _hex(here, "vendor", 4), _hex(here, "device", 4)
    physical = here.link("physfn")
    total_vfs = _int(here, "sriov_totalvfs") or 0
    above = PCI_ADDRESS.findall(path)[:-1]
    group = here.link("iommu_group")
    numa = _int(here, "numa_node")
    return PciFunction(
        address=address,
        vendor_id=vendor,
        product_id=product,
        class_code=_hex(here, "class", 6),
        revision=_hex(here, "revision", 2),
        subsystem_vendor_id=_hex(here, "subsystem_vendor", 4) or None,
        subsystem_id=_hex(here, "subsystem_device", 4) or None,
        vendor_name=names.vendor(vendor),
        product_name=names.product(vendor, product),
        driver=_basename(here.link("driver")),
        numa_node=numa if numa is not None and numa >= 0 else None,
        iommu_group=int(posixpath.basename(group)) if group else None,
        device_type=DeviceType.VF if physical else DeviceType.PF if total_vfs else DeviceType.PCI,
        sriov_total_vfs=total_vfs,
        sriov_num_vfs=_int(here, "sriov_numvfs") or 0,
        physical_function=_basename(physical),
        boot_vga=here.read("boot_vga") == "1",
        reset_methods=tuple((here.read("reset_method") or "").split()),
        bars=_bars(here.read("resource") or ""),
        parent=above[-1] if above else None,
    )


def _hex(folder: Folder, name: str, digits: int) -> str:
    """A hex attribute without its ``0x``, padded; empty when the kernel does not have it."""
    text = folder.read(name)
    return text[2:].lower().zfill(digits) if text and text.startswith("0x") else ""


def _int(folder: Folder, name: str) -> Optional[int]:
    text = folder.read(name)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _basename(target: Optional[str]) -> Optional[str]:
    return posixpath.basename(target) if target else None


def _bars(resource: str) -> Tuple[int, ...]:
    """Sizes in bytes of the non-empty memory regions among the first six lines of ``resource``."""
    sizes: List[int] = []
    for line in resource.splitlines()[:6]:
        start, end, flags = (int(part, 16) for part in line.split())
        if end > start and not flags & 0x100:  # IORESOURCE_IO: port ranges are no BAR that a guest maps
            sizes.append(end - start + 1)
    return tuple(sizes)


def _facts(tree: Tree, given: Mapping[str, object]) -> HostFacts:
    seen = {
        "hostname": tree.read("proc/sys/kernel/hostname") or "",
        "kernel": tree.read("proc/sys/kernel/osrelease") or "",
        "command_line": tree.read("proc/cmdline") or "",
        "cpu_model": _value(tree.read("proc/cpuinfo") or "", "model name"),
        "cpus": count_list(tree.read("sys/devices/system/cpu/online") or ""),
        "memory_mib": int((_value(tree.read("proc/meminfo") or "", "MemTotal") or "0 kB").split()[0]) // 1024,
        "disk_gib": _root_disk_gib(tree),
        "numa_nodes": count_list(tree.read("sys/devices/system/node/online") or "") or 1,
    }
    unknown = sorted(set(given) - set(seen))
    if unknown:
        raise ValueError(f"unknown host fact {unknown[0]!r}; known are {', '.join(sorted(seen))}")
    seen.update(given)
    return HostFacts(**seen)  # type: ignore[arg-type]  # the values come from JSON; recording.load checks them


def _value(text: str, key: str) -> str:
    """The value of the first ``key : value`` line."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def count_list(ranges: str) -> int:
    """How many numbers a kernel list such as ``0-3,8`` names."""
    count = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _root_disk_gib(tree: Tree) -> int:
    for use, path in mounted_devices(tree):
        if use == "root disk":
            return (_int(Folder(tree, path), "size") or 0) * SECTOR // 1024**3
    return 0
