"""Table of NVIDIA's GPU architectures, with the drivers, kernel modules and CUDA toolkits that serve each. Pure but for
the list of PCI ids.

Sources:
- kernel modules: NVIDIA's "Transitions Fully Towards Open-Source GPU Kernel Modules" (July 2024): Turing and later can
  have the open ones; Grace Hopper and Blackwell have these only; Maxwell, Pascal and Volta the proprietary ones only.
- driver branches: NVIDIA's notes: 390 is the last for Fermi, 470 for Kepler, 580 for Maxwell, Pascal and Volta. The
  README of NVIDIA/open-gpu-kernel-modules has Blackwell since 570.86.15 (B200), Blackwell Ultra since 580.82.07 (B300).
- ids: the PCI ID Project's list of 2026.08.22 for their chips, and the README of NVIDIA/open-gpu-kernel-modules
  595.45.04 ("Compatible GPUs") for their products.
- CUDA and GPU: what `ptxas --help` of NVIDIA's wheels on PyPI names as --gpu-name (nvidia-cuda-nvcc-cu11 11.7.99 and
  11.8.89, -cu12 12.0.140, 12.6.85, 12.8.93 and 12.9.86, nvidia-cuda-nvcc 13.0.88 and 13.5.37).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.host.pci_ids import PciIds
from gpuyard.nova.gpu_models import NVIDIA

OPEN, PROPRIETARY = "open", "proprietary"


@dataclass(frozen=True)
class Generation:
    """An architecture of NVIDIA's GPUs."""

    name: str
    modules: tuple[str, ...]
    first: int = 0
    """The first branch that drives them; 0 for one that nobody has any more."""
    last: int | None = None
    """The last one; None while there is none."""
    cuda_first: tuple[int, int] = (0, 0)
    """The first CUDA toolkit that makes code for it; (0, 0) for one that nobody has any more."""
    cuda_last: int | None = None
    """The last major version of CUDA that does; None while there is none."""

    def driven_by(self, branch: int) -> bool:
        """Return whether a driver branch drives its GPUs."""
        return self.first <= branch and (self.last is None or branch <= self.last)


GENERATIONS = {
    "GF": Generation("Fermi", (PROPRIETARY,), last=390, cuda_last=8),
    "GK": Generation("Kepler", (PROPRIETARY,), last=470, cuda_last=11),
    "GM": Generation("Maxwell", (PROPRIETARY,), last=580, cuda_last=12),
    "GP": Generation("Pascal", (PROPRIETARY,), last=580, cuda_last=12),
    "GV": Generation("Volta", (PROPRIETARY,), last=580, cuda_last=12),
    "TU": Generation("Turing", (OPEN, PROPRIETARY), first=410, cuda_first=(10, 0)),
    "GA": Generation("Ampere", (OPEN, PROPRIETARY), first=450, cuda_first=(11, 0)),
    "AD": Generation("Ada", (OPEN, PROPRIETARY), first=525, cuda_first=(11, 8)),
    "GH": Generation("Hopper", (OPEN, PROPRIETARY), first=525, cuda_first=(11, 8)),
    "GB": Generation("Blackwell", (OPEN,), first=570, cuda_first=(12, 8)),
    "GB11": Generation("Blackwell Ultra", (OPEN,), first=580, cuda_first=(12, 9)),
}
"""Beginning of a chip's name -> its generation, as the PCI ID Project has them: ``GV100GL [Tesla V100 PCIe 16GB]``. The
longer one counts where two fit."""
GRACE_HOPPER = Generation("Grace Hopper", (OPEN,), first=525, cuda_first=(11, 8))
"""A Hopper that is bound to a Grace CPU: the chip's name begins as any Hopper's."""
NEWER = {
    GENERATIONS["TU"]: ("1e35",),  # T10
    GENERATIONS["GA"]: ("20bd", "2584", "25b0", "25b2"),  # A800; RTX 3050, A1000, A400
    GENERATIONS["AD"]: (
        "26b7", "26b9", "26ba", "26bb", "27b6",  # L20, L40S, L20, L30, L2
        "26b2", "26b3", "27b1", "27b2", "28b0",  # RTX 5000, 5880, 4500, 4000, 2000
        "2685", "2689", "2702", "2703", "2705", "2709", "2783", "2788", "2805", "2808", "2882",  # GeForce RTX 40
    ),
    GENERATIONS["GH"]: (
        "230c", "230e", "2328", "2329", "232c",  # H20 NVL16, twice, H20B, H20, H20 with HBM3e
        "2335", "233b", "2337", "2338", "233a", "233d",  # H200, H200 NVL; H100 with 64 and 96 GB, H800 NVL, H100 96 GB
    ),
    GRACE_HOPPER: ("2342", "2348"),  # GH200 with 120 and with 480 GB; with 144 GB
    GENERATIONS["GB"]: (
        "2901", "2909", "2920", "2941", "29bc",  # B200, twice, B100, GB200, B100
        "2bb1", "2bb2", "2bb3", "2bb4", "2bb5", "2bb9", "2bbc",  # RTX PRO 5000 and 6000 Blackwell; bb5: Server Edition
        "2c31", "2c33", "2c34", "2c3a", "2d30",  # RTX PRO 4500, 4000, 4000, 4500 Server Edition, 2000 Blackwell
        "2b85", "2b87", "2b8c", "2c02", "2c05", "2d04", "2d05", "2d83", "2f04", "2f06",  # GeForce RTX 50
    ),
    GENERATIONS["GB11"]: ("3182", "31a1", "31c2", "31c3"),  # B300, GB300
}  # fmt: skip
"""Products for data centres, workstations and desktops that two lists of PCI ids lack, both of April 2023: the one that
travels with gpuyard, and Debian 12's."""
GENERATION_OF_NEWER = {product: generation for generation, products in NEWER.items() for product in products}


def generation_of(model: str, names: PciIds) -> Generation | None:
    """Return the generation of a model (PCI ids as a pool has them); None for an unknown chip, or one that is not
    NVIDIA's."""
    vendor, _, product = model.partition(":")
    if vendor != NVIDIA:
        return None
    if product in GENERATION_OF_NEWER:
        return GENERATION_OF_NEWER[product]
    name = names.product(vendor, product) or ""
    if "GH200" in name:
        return GRACE_HOPPER
    return GENERATIONS.get(name[:4]) or GENERATIONS.get(name[:2])


def is_unknown(model: str, names: PciIds) -> bool:
    """Return whether a model is NVIDIA's and its generation is unknown."""
    return model.startswith(f"{NVIDIA}:") and generation_of(model, names) is None
