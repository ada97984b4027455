"""The root of a disk as a folder, for what is quicker done before the machine boots; without mounts or loop devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.virtual_hypervisor import build as building

DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
"""What programs need that run in it: the minor numbers of character devices."""


def unpacked(image: Path, root: Path) -> Path:
    """What is on a disk that is one ext4, in a new folder. Raises Missing."""
    building.need_root("the root of a disk")
    root.mkdir()
    building.run([building.which("debugfs") or "debugfs", "-R", f"rdump / {root}", str(image)])
    for name, minor in DEVICES.items():
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)
    return root


def packed(root: Path, image: Path, mib: int) -> Path:
    """A disk of that size with what is in the folder. Raises Missing."""
    program = building.which("mke2fs") or "mke2fs"
    building.run([program, "-q", "-F", "-t", "ext4", "-d", str(root), str(image), f"{mib}M"])
    return image
