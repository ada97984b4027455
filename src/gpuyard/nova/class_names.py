"""Normalizes names of resource classes and traits as Nova does."""

from __future__ import annotations

import re

STANDARD_CLASSES = (
    "VCPU", "MEMORY_MB", "DISK_GB", "PCI_DEVICE", "SRIOV_NET_VF", "NUMA_SOCKET", "NUMA_CORE", "NUMA_THREAD",
    "NUMA_MEMORY_MB", "IPV4_ADDRESS", "VGPU", "VGPU_DISPLAY_HEAD", "NET_BW_EGR_KILOBIT_PER_SEC",
    "NET_BW_IGR_KILOBIT_PER_SEC", "PCPU", "MEM_ENCRYPTION_CONTEXT", "FPGA", "PGPU",
    "NET_PACKET_RATE_KILOPACKET_PER_SEC", "NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC",
    "NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC",
)  # fmt: skip
"""The names of os-resource-classes, which get no CUSTOM_."""
STANDARD_TRAITS = ("HW_", "COMPUTE_", "MISC_", "OWNER_", "STORAGE_")


def class_name(name: str) -> str:
    """Return the resource class that Nova makes of a name."""
    upper = name.upper()
    if upper in STANDARD_CLASSES or upper.startswith("CUSTOM_"):
        return upper
    return "CUSTOM_" + re.sub("[^0-9A-Z]+", "_", upper)


def class_of(given: object, vendor: str, product: str) -> str:
    """Return the resource class of a device with the class `given`, or of its ids where that is none."""
    if isinstance(given, str) and given:
        return class_name(given)
    return f"CUSTOM_PCI_{vendor}_{product}".upper()


def trait_names(traits: object) -> frozenset[str]:
    """Return the traits that Nova makes of ``gpu_set_a,HW_X``. Standard traits are recognized by their prefixes."""
    names = (name.upper() for name in traits.split(",") if name) if isinstance(traits, str) else ()
    return frozenset(
        name if name.startswith(("CUSTOM_", *STANDARD_TRAITS)) else "CUSTOM_" + re.sub("[^0-9A-Z]+", "_", name)
        for name in names
    )
