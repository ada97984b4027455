"""PCI functions as the kernel shows them, with rules about their addresses, ids and classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Optional, Tuple

ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")

# Makers of what people call a GPU. A display controller of anybody else (ASPEED, Matrox, QEMU) is the console of a
# server or of a virtual machine and is never given away.
GPU_VENDORS = ("10de", "1002", "8086")

CLASS_BRIDGE_PCI = "0604"
CLASSES_DISPLAY = ("0300", "0302", "0380", "1200")  # VGA, 3D, other display, processing accelerator
CLASSES_COMPANION = ("0403", "0c03", "0c80")  # of a card: HDMI audio, USB-C, its UCSI controller
NVIDIA, CLASS_NVSWITCH = "10de", "0680"
# Chipset functions that the host runs on while a driver holds them: host and ISA bridges, SMBus, IOMMU, peripherals.
CLASSES_CHIPSET = ("0600", "0601", "0c05", "0806", "0807", "0880")

CLASS_NAMES = {
    "0101": "IDE interface",
    "0104": "RAID bus controller",
    "0106": "SATA controller",
    "0107": "Serial Attached SCSI controller",
    "0108": "Non-Volatile memory controller",
    "0200": "Ethernet controller",
    "0207": "Infiniband controller",
    "0280": "Network controller",
    "0300": "VGA compatible controller",
    "0302": "3D controller",
    "0380": "Display controller",
    "0403": "Audio device",
    "0500": "RAM memory",
    "0600": "Host bridge",
    "0601": "ISA bridge",
    "0604": "PCI bridge",
    "0680": "Bridge",
    "0700": "Serial controller",
    "0805": "SD Host controller",
    "0806": "IOMMU",
    "0807": "Root Complex Event Collector",
    "0880": "System peripheral",
    "0c03": "USB controller",
    "0c05": "SMBus",
    "0c80": "Serial bus controller",
    "1080": "Encryption controller",
    "1200": "Processing accelerators",
    "1300": "Non-Essential Instrumentation",
}

# Reset methods of the kernel's that a function comes back from as new. `pm` is none: on some GPUs it does nothing.
RESETS_THAT_COUNT = ("device_specific", "acpi", "flr", "af_flr", "bus", "cxl_bus")


class DeviceType(str, Enum):
    """What Nova's ``[pci]alias device_type`` calls a function; an alias of another type never matches it."""

    PCI = "type-PCI"
    PF = "type-PF"
    VF = "type-VF"


@dataclass(frozen=True)
class MdevType:
    """A type of mediated device that a function's driver can make: Nova's mdev type, as ``nvidia-560``."""

    name: str
    title: str = ""
    """The maker's name for it, ``NVIDIA A40-4Q``."""
    available: int = 0
    """Number that can still be made now."""
    made: int = 0
    """Number that there are."""
    most: Optional[int] = None
    """Number that one card can have; None where the driver does not say."""

    @property
    def units(self) -> int:
        """Number of servers that can have one of this function at once, as Nova counts it."""
        return self.available + self.made


@dataclass(frozen=True)
class PciFunction:
    """One PCI function. Ids and the class are lower-case hex without ``0x``, as in ``10de``, ``1db4``, ``030200``."""

    address: str
    """Full four-field address, ``0000:27:00.0``."""
    vendor_id: str
    product_id: str
    class_code: str
    """Six hex digits: base class, subclass, programming interface."""
    revision: str = "00"
    subsystem_vendor_id: Optional[str] = None
    subsystem_id: Optional[str] = None
    vendor_name: Optional[str] = None
    product_name: Optional[str] = None
    driver: Optional[str] = None
    numa_node: Optional[int] = None
    """Its NUMA node; None where the machine has one node or the firmware does not say."""
    iommu_group: Optional[int] = None
    """Number of its IOMMU group; None when the IOMMU is off."""
    device_type: DeviceType = DeviceType.PCI
    sriov_total_vfs: int = 0
    sriov_num_vfs: int = 0
    physical_function: Optional[str] = None
    """The address of the physical function that this virtual function belongs to."""
    boot_vga: bool = False
    """Whether it is the firmware's primary display: the boot console is on it."""
    reset_methods: Tuple[str, ...] = ()
    bars: Tuple[int, ...] = ()
    """Sizes of the memory regions in bytes, in order, without the empty ones."""
    parent: Optional[str] = None
    """The address of the bridge above it, None on a root bus."""
    mdev_types: Tuple[MdevType, ...] = ()
    """Types of mediated devices that its driver can make for servers that share it, by name; empty where it shares
    nothing this way."""
    vgpu_type: Optional[int] = None
    """For a virtual function that NVIDIA's driver gives away without mediated devices (kernels from 6.8 on, Ubuntu
    24.04): the number of the vGPU type that was chosen for it, 0 when none was. None on all others."""

    @property
    def ids(self) -> str:
        """``vendor:product``, the name of a model in a site file and in lspci."""
        return f"{self.vendor_id}:{self.product_id}"

    @property
    def class_id(self) -> str:
        """Base class and subclass, the four digits that lspci prints."""
        return self.class_code[:4]

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI bridge (0604), which forwards for its group and stays with its own driver; an NVSwitch
        (0680) is not."""
        return self.class_id == CLASS_BRIDGE_PCI

    @property
    def stays_with_host(self) -> bool:
        """Whether it never goes to a VM, even when the rest of its group does."""
        return self.is_bridge or self.class_id in CLASSES_CHIPSET

    @property
    def is_display(self) -> bool:
        return self.class_id in CLASSES_DISPLAY

    @property
    def is_gpu(self) -> bool:
        return self.is_display and self.vendor_id in GPU_VENDORS

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual function: a part of a card, never a card of its own."""
        return self.physical_function is not None

    @property
    def mdevs(self) -> int:
        """Number of mediated devices that are made of it."""
        return sum(kind.made for kind in self.mdev_types)

    @property
    def is_nvswitch(self) -> bool:
        return self.class_id == CLASS_NVSWITCH and self.vendor_id == NVIDIA

    @property
    def card(self) -> str:
        """Address without the function number: the functions of one card share it."""
        return self.address.rsplit(".", 1)[0]

    @property
    def short_address(self) -> str:
        """The address as lspci prints it: the domain is left out when it is 0000."""
        return self.address[5:] if self.address.startswith("0000:") else self.address

    @property
    def class_name(self) -> str:
        return CLASS_NAMES.get(self.class_id, f"Class {self.class_id or 'unknown'}")

    @property
    def model(self) -> str:
        """The short name in brackets of pci.ids (``Tesla V100 PCIe 16GB``), or what is known instead."""
        name = self.product_name or ""
        bracket = name[name.find("[") + 1 : name.rfind("]")] if "[" in name else ""
        return bracket or name or self.ids

    @property
    def title(self) -> str:
        """Vendor and product as lspci prints them."""
        vendor = self.vendor_name or f"Vendor {self.vendor_id}"
        return f"{vendor} {self.product_name or 'Device ' + self.product_id}"


@lru_cache(4096)  # hosts of a site have the same few
def address_key(address: str) -> Tuple[int, ...]:
    """Return a sort key that follows the bus order, also for domains of more than four digits (VMD)."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))
