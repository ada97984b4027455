"""Builds and changes the file trees of a lab's hosts: a recording, completed by what a recording lacks.

`gpuyard host watch` reads such a tree as it reads a machine. A broken GPU shows here in the same files, with the same
contents, as one that broke in a machine.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import LINK, FileTree
from gpuyard.host.watch import BOOT_ID
from gpuyard.model.pci import ADDRESS
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import private_folder

PARTS = (("sys", "bus"), ("sys", "devices"), ("sys", "kernel"), ("proc", "sys"))
"""Parts of a recording that a watch reads."""
GONE = "sys/bus/pci/gone"
"""Folder with the links of missing devices; the links stay right, as it is as deep as DEVICES."""
CONFIG_SIZE, SERIAL_PLACE = 4096, 0x100
SPEED, WIDTH = "8.0 GT/s PCIe", "16"
KEPT = ".was"
"""Suffix of a file's former version."""


class Fault(StrEnum):
    """The ways in which a GPU breaks."""

    FELL_OFF = "fell-off"
    """It answers no more: its config space reads 0xff."""
    MISSING = "missing"
    """It is not in sysfs."""
    LINK = "link"
    """Its link has one lane left."""
    AER = "aer"
    """Its link counts one more non-fatal error."""
    RESET_FAILS = "reset-fails"
    """The kernel knows no way to reset it any more."""


def plant(root: Path, host: str, recording: str, gpus: Iterable[str]) -> None:
    """Make the tree of a host from the text of its recording; what is there already is deleted. `gpus`: their
    addresses."""
    shutil.rmtree(root, ignore_errors=True)
    private_folder(root)
    nodes = json.loads(recording)["tree"]
    for top, name in PARTS:
        below = nodes.get(top, {}).get(name)
        if isinstance(below, dict):
            _grow(root / top / name, below)
    _write(root / "proc/sys/kernel/hostname", host)
    boot(root)
    for address in gpus:
        _complete(root, host, address)


def boot(root: Path) -> None:
    """Restart the host: give it a new boot id."""
    _write(root / BOOT_ID, str(uuid.uuid4()))


def break_gpu(root: Path, address: str, how: Fault) -> None:
    """Break a GPU. Raises LabError for an address that is no GPU there, or is missing already."""
    folder = _function(root, address)
    if how is Fault.MISSING:
        (root / GONE).mkdir(exist_ok=True)
        (root / DEVICES / address).rename(root / GONE / address)
    elif how is Fault.FELL_OFF:
        _write(folder / "config", b"\xff" * CONFIG_SIZE)
        _write(folder / "current_link_speed", "Unknown")
        _write(folder / "current_link_width", "63")
    elif how is Fault.LINK:
        _write(folder / "current_link_width", "1")
    elif how is Fault.AER:
        fields = (folder / "aer_dev_nonfatal").read_text(encoding="utf-8").split()
        _write(folder / "aer_dev_nonfatal", _errors("NONFATAL", int(fields[-1]) + 1))
    else:
        reset_method = folder / "reset_method"
        if not reset_method.with_name(reset_method.name + KEPT).exists():
            reset_method.rename(reset_method.with_name(reset_method.name + KEPT))
        _write(reset_method, "")


def mend_gpu(root: Path, host: str, address: str) -> None:
    """Mend a GPU and restart its host: nothing less mends these faults. Raises LabError for an address that is no
    GPU."""
    if (root / GONE / address).is_symlink():
        (root / GONE / address).rename(root / DEVICES / address)
    folder = _function(root, address)
    backup = folder / f"reset_method{KEPT}"
    if backup.exists():
        backup.replace(folder / "reset_method")
    _complete(root, host, address)
    boot(root)


def _function(root: Path, address: str) -> Path:
    if not ADDRESS.fullmatch(address):
        raise LabError(f"{address!r} is no PCI address; write it as in 0000:27:00.0")
    resolved = FileTree(str(root)).resolve(f"{DEVICES}/{address}")
    if not (root / resolved / "vendor").exists():
        missing = (root / GONE / address).is_symlink()
        raise LabError(f"{address} is {'missing already' if missing else 'no device of that host'}")
    return root / resolved


def _grow(folder: Path, nodes: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, node in nodes.items():
        if "/" in name or name in ("", ".", ".."):  # a recording is anybody's file
            continue
        if isinstance(node, str):
            _write(folder / name, node)
        elif isinstance(node, dict) and isinstance(node.get(LINK), str):
            (folder / name).symlink_to(node[LINK])
        elif isinstance(node, dict):
            _grow(folder / name, node)


def _complete(root: Path, host: str, address: str) -> None:
    """Write what a recording lacks, for a GPU that is well and is with vfio-pci."""
    folder = _function(root, address)
    _write(folder / "config", _config(folder, f"{host}/{address}"))
    for name, text in (("power_state", "D0"), ("current_link_speed", SPEED), ("current_link_width", WIDTH)):
        _write(folder / name, text)
    for device in (folder, folder.parent):  # the port above it can as much
        _write(device / "max_link_speed", SPEED)
        _write(device / "max_link_width", WIDTH)
    for kind, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        _write(folder / f"aer_dev_{kind}", _errors(total, 0))
    if not (folder / "reset_method").exists():
        _write(folder / "reset_method", "bus")
    driver = folder / "driver"
    driver.unlink(missing_ok=True)
    up = "../" * (len(folder.relative_to(root).parts) - 1)
    driver.symlink_to(f"{up}bus/pci/drivers/vfio-pci")


def _errors(total: str, count: int) -> str:
    return f"Undefined 0\nTOTAL_ERR_{total} {count}"


def _config(folder: Path, name: str) -> bytes:
    """Vendor and product, and a serial number that this place alone has."""
    ids = (int((folder / attribute).read_text(encoding="utf-8"), 16) for attribute in ("vendor", "device"))
    serial = hashlib.sha256(name.encode()).digest()[:8]
    start = struct.pack("<HH", *ids)
    return start + bytes(SERIAL_PLACE - len(start)) + struct.pack("<I", 0x00010003) + serial + bytes(
        CONFIG_SIZE - SERIAL_PLACE - 12
    )  # fmt: skip


def _write(path: Path, content: str | bytes) -> None:
    """A whole file at once: who reads it sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(path)
