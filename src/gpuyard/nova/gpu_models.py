"""Table of GPU models with SR-IOV: libvirt reports those as type-PF, and Nova gives them only to aliases of that type.

Only models that are common in servers are in it; for others nothing is known without looking at the host. A firmware
in which SR-IOV is off makes a type-PCI of any of them.

Sources: the PCI ID Project for names; NVIDIA's vGPU user guide (GPUs of the Ampere architecture and later use
SR-IOV; older ones do not), github.com/cloud-hypervisor/cloud-hypervisor/issues/434 (T4: 16 VFs), AMD's MxGPU list of
supported GPUs (github.com/amd/MxGPU-Virtualization), Intel's documentation of the Flex series.
"""

from __future__ import annotations

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
SRIOV = {
    "10de:1eb8": "T4",
    "10de:20b0": "A100", "10de:20b2": "A100", "10de:20b5": "A100", "10de:20f1": "A100", "10de:20f3": "A800",
    "10de:20f5": "A800", "10de:20b7": "A30", "10de:2235": "A40", "10de:2236": "A10", "10de:2237": "A10G",
    "10de:25b6": "A2/A16", "10de:2230": "RTX A6000", "10de:2231": "RTX A5000", "10de:2233": "RTX A5500",
    "10de:26b5": "L40", "10de:26b9": "L40S", "10de:27b8": "L4", "10de:26b1": "RTX 6000 Ada",
    "10de:2321": "H100 NVL", "10de:2322": "H800", "10de:2324": "H800", "10de:2330": "H100", "10de:2331": "H100",
    "10de:2336": "H100", "10de:2339": "H100", "10de:2335": "H200", "10de:233b": "H200 NVL",
    "10de:2901": "B200", "10de:2bb5": "RTX PRO 6000 Blackwell Server",
    "1002:6860": "MI25", "1002:73a1": "V620", "1002:740f": "MI210", "1002:74a1": "MI300X", "1002:74a5": "MI325X",
    "8086:56c0": "Flex 170", "8086:56c1": "Flex 140",
}  # fmt: skip
"""Vendor and product -> name of the model."""
TURING = 0x1E00
"""NVIDIA's first product id of that architecture: no GPU with a lower one has SR-IOV."""


def has_sriov(vendor: str, product: str) -> bool | None:
    """Return whether a model has SR-IOV; None where that is not known."""
    ids = f"{vendor}:{product}".lower()
    if ids in SRIOV:
        return True
    try:
        return False if vendor.lower() == NVIDIA and int(product, 16) < TURING else None
    except ValueError:
        return None


def may_be_gpu(vendor: str, product: str) -> bool:
    """Return whether these ids can be a GPU's: of Intel's devices (network cards, QAT) only those that are known to
    be."""
    is_known = f"{vendor}:{product}".lower() in SRIOV
    return is_known or vendor.lower() in (NVIDIA, AMD) or vendor == "*" or (vendor.lower() == INTEL and product == "*")
