"""Finds the versions of the host's own libvirt and QEMU by files: asking the programs would take longer than all
else."""

from __future__ import annotations

import re
from typing import Optional, Tuple

from gpuyard.host.tree import Tree

LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
LIBVIRT = "libvirt.so.0"
QEMU_PROGRAMS = (
    ("usr/libexec", "qemu-kvm"),
    ("usr/bin", "qemu-system-x86_64"),
    ("usr/bin", "qemu-system-aarch64"),
)
DPKG_STATUS = "var/lib/dpkg/status"
QEMU_PACKAGES = ("qemu-system-x86", "qemu-system-arm")
Version = Tuple[int, ...]


def libvirt_version(tree: Tree) -> Optional[Version]:
    """By the name that the library's link leads to: ``libvirt.so.0.9000.0`` is 9.0.0. None when there is none."""
    for folder in LIBRARY_FOLDERS:
        match = re.search(r"libvirt\.so\.0\.([0-9]{1,9})\.([0-9]{1,9})$", tree.link(f"{folder}/{LIBVIRT}") or "")
        if match:
            number = int(match.group(1))
            return number // 1000, number % 1000, int(match.group(2))
    return None


def has_qemu(tree: Tree) -> bool:
    return any(program in tree.names(folder) for folder, program in QEMU_PROGRAMS)


def qemu_version(tree: Tree) -> Optional[Version]:
    """By dpkg's list of packages; None when it is not there (rpm's database is not for reading) or has none."""
    text = qemu_package(tree)
    match = re.search(r"^Version: (?:[0-9]{1,9}:)?([0-9]{1,9}(?:\.[0-9]{1,9})*)", text, re.MULTILINE)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def qemu_package(tree: Tree) -> str:
    """The entry of QEMU's package, when it is installed; the file is large, so it is searched and not parsed."""
    status = "\n" + (tree.read(DPKG_STATUS) or "")
    for package in QEMU_PACKAGES:
        start = status.find(f"\nPackage: {package}\n")
        if start >= 0:
            end = status.find("\n\n", start + 1)
            entry = status[start + 1 : end if end >= 0 else len(status)]
            if "\nStatus: install ok installed\n" in entry:
                return entry
    return ""


def text_of(version: Version) -> str:
    return ".".join(map(str, version))
