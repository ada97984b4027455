"""Reads and formats the list of functions that go to VMs, which outlives a reboot: ``/etc/gpuyard/passthrough``.

One line per function, ``ADDRESS VENDOR:PRODUCT DRIVER``. The ids are there so that another card that sits there one day
is left alone. The files that bind them at boot are in files.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional, Tuple

from gpuyard.host.tree import Tree

LIST_FILE = "etc/gpuyard/passthrough"


VFIO_DRIVER = "vfio-pci"


def is_vfio(driver: Optional[str]) -> bool:
    """Whether it is vfio-pci or a variant of it for certain devices: ``nvgrace-gpu-vfio-pci``, ``mlx5_vfio_pci``."""
    return driver is not None and driver.replace("_", "-").endswith(VFIO_DRIVER)


@dataclass(frozen=True)
class Passthrough:
    """One function that shall be with a VFIO driver."""

    address: str
    ids: str
    """``vendor:product``."""
    driver: str
    """As in ``/sys/bus/pci/drivers``: ``vfio-pci``, or a variant of it."""

    def __str__(self) -> str:
        return f"{self.address} {self.ids} {self.driver}"


def read_list(tree: Tree) -> Tuple[Passthrough, ...]:
    """What the host's list holds; empty when there is none."""
    return parse_list(tree.read(LIST_FILE) or "")


def parse_list(text: str) -> Tuple[Passthrough, ...]:
    """The entries of a list. Lines that nobody can read are left out, as the script does."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return tuple(Passthrough(*words) for words in lines if len(words) == 3)


def render_list(functions: Iterable[Passthrough]) -> str:
    """The lines of the list, without the head that files.py gives every file."""
    return "".join(f"{function}\n" for function in functions)
