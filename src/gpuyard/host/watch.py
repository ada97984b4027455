"""Reports the state of a host's GPUs without any driver of theirs. Reads only, and nothing that resets a device.

A report has every GPU, every function that the host gives away by its list or that is with a VFIO driver, and every
function of the last report. A function that is gone is reported as gone.
"""

from __future__ import annotations

import posixpath
import re
from typing import Dict, Iterable, List, Optional, Sequence

from gpuyard.host import config_space
from gpuyard.host.needs import PCI_ADDRESS
from gpuyard.host.preparation.passthrough import is_vfio, read_list
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import Folder, Tree, number
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport, LogLine
from gpuyard.model.pci import ADDRESS, CLASSES_DISPLAY, GPU_VENDORS, address_key
from gpuyard.model.text import printable

BOOT_ID = "proc/sys/kernel/random/boot_id"
DMI = "sys/class/dmi/id"
SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s", re.ASCII)
WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""Lanes; a link that does not answer reads 63."""
TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}
MOST = 512
"""Functions in one look."""
WORD = 64
"""Characters of a driver, a state, an id."""
TEXT = 200


def look(
    tree: Tree,
    before: Optional[HostReport],
    *,
    number: int,
    time: str,
    host: str = "",
    qemu: str = "",
    log: Sequence[LogLine] = (),
) -> HostReport:
    """The host as it is now.

    `before`: the look before, of which no function is forgotten. `host`: its name in the site file; empty is its own.
    `qemu` and `log` are what HostReport has of that name: reading them takes more than a tree.
    """
    reports = {gpu.address: gpu for gpu in before.gpus} if before else {}
    return HostReport(
        host=host or _text(tree.read("proc/sys/kernel/hostname"), TEXT),
        boot=_text(tree.read(BOOT_ID), WORD),
        number=number,
        time=time,
        kernel=_text(tree.read("proc/sys/kernel/osrelease"), TEXT),
        firmware=_text(" ".join(filter(None, (tree.read(f"{DMI}/bios_{part}") for part in FIRMWARE))), TEXT),
        qemu=qemu,
        gpus=tuple(
            _function(tree, address, ids, reports.get(address)) for address, ids in watched(tree, before).items()
        ),
        log=tuple(log),
    )


FIRMWARE = ("vendor", "version", "date")


def watched(tree: Tree, before: Optional[HostReport] = None) -> Dict[str, str]:
    """Address -> ``vendor:product`` as known until now, in bus order."""
    ids_by_address = {gpu.address: gpu.ids for gpu in before.gpus} if before else {}
    ids_by_address.update({entry.address: entry.ids for entry in read_list(tree) if ADDRESS.fullmatch(entry.address)})
    for address in filter(ADDRESS.fullmatch, tree.names(DEVICES)):
        if address not in ids_by_address and _is_ours(Folder(tree, tree.resolve(f"{DEVICES}/{address}"))):
            ids_by_address[address] = ""
    return {address: ids_by_address[address] for address in sorted(ids_by_address, key=address_key)[:MOST]}


def _is_ours(folder: Folder) -> bool:
    """A GPU, or a function that a VM has or may have."""
    display = (folder.read("class") or "")[2:6] in CLASSES_DISPLAY and (folder.read("vendor") or "")[2:] in GPU_VENDORS
    return display or is_vfio(_basename(folder.link("driver")))


def names(tree: Tree, addresses: Iterable[str]) -> Dict[str, str]:
    """Address that a line of the kernel's log may have -> watched address that it is about: itself, and the port right
    above a single card, which speaks of their link."""
    ports: Dict[str, List[str]] = {}
    watched_addresses = {}
    for address in addresses:
        watched_addresses[address] = address
        above = _above(tree.resolve(f"{DEVICES}/{address}"))
        if above:
            ports.setdefault(above, []).append(address)
    alone = {port: below[0] for port, below in ports.items() if len({child.rpartition(".")[0] for child in below}) == 1}
    return {**alone, **watched_addresses}


def _function(tree: Tree, address: str, ids: str, previous: Optional[GpuReport]) -> GpuReport:
    path = tree.resolve(f"{DEVICES}/{address}")
    folder = Folder(tree, path)
    vendor, product = (_text(folder.read(name), WORD)[2:] for name in ("vendor", "device"))
    if not vendor:
        return GpuReport(address, present=False, ids=_text(ids, WORD))
    power, in_use = _text(folder.read("power_state"), WORD), _in_use(folder)
    read = config_space.of(tree, address)
    first = None if power == "D3cold" and not in_use and _sleeps(previous) else read(0)
    answers = first is not None and first != config_space.SILENCE
    return GpuReport(
        address=address,
        ids=f"{vendor}:{product}",
        config="" if first is None else first.to_bytes(4, "little").hex(),
        driver=_text(_basename(folder.link("driver")), WORD),
        group=number(_basename(folder.link("iommu_group"))),
        link=_link(folder, tree, _above(path)),
        power=power,
        aer={kind: total for kind, total in _errors(folder) if total is not None},
        reset_methods=tuple(_text(folder.read("reset_method"), TEXT).split()),
        in_use=in_use,
        serial=config_space.serial_number(read) if answers else "",
    )


def _sleeps(previous: Optional[GpuReport]) -> bool:
    """Whether it was in D3cold before, and answered when it was read then: a read wakes what sleeps, so there is one in
    each sleep. What has fallen off the bus the kernel takes for asleep too."""
    return previous is not None and previous.power == "D3cold" and previous.config != "ffffffff"


def _in_use(folder: Folder) -> Optional[bool]:
    """vfio-pci enables a device when a process opens it and disables it when that is closed. Who that is, is to be seen
    in /proc by root alone, and takes long on a host with many open files."""
    count = number(folder.read("enable"))
    return None if count is None or not is_vfio(_basename(folder.link("driver"))) else count > 0


def _link(folder: Folder, tree: Tree, above: Optional[str]) -> LinkReport:
    speeds, widths = [_speed(folder.read("max_link_speed"))], [_width(folder.read("max_link_width"))]
    if above is not None:
        port = Folder(tree, tree.resolve(f"{DEVICES}/{above}"))
        speeds.append(_speed(port.read("max_link_speed")))
        widths.append(_width(port.read("max_link_width")))
    return LinkReport(
        speed=_speed(folder.read("current_link_speed")),
        width=_width(folder.read("current_link_width")),
        max_speed=min(speeds) if above else 0.0,  # of one end nobody knows what both can
        max_width=min(widths) if above else 0,
    )


def _speed(text: Optional[str]) -> float:
    """``8.0 GT/s PCIe``; what does not answer has ``Unknown``."""
    match = SPEED.match(text or "")
    return float(match[1]) if match else 0.0


def _width(text: Optional[str]) -> int:
    width = number(text)
    return width if width in WIDTHS and width is not None else 0


def _errors(folder: Folder) -> Iterable[tuple[str, Optional[int]]]:
    for kind, total in TOTALS.items():
        words = [line.split() for line in (folder.read(f"aer_dev_{kind}") or "").splitlines()[-1:]]
        yield kind, next((number(line[1]) for line in words if len(line) == 2 and line[0] == total), None)


def _above(path: str) -> Optional[str]:
    """The port right above a function, by its place in sysfs."""
    addresses = PCI_ADDRESS.findall(path)[:-1]
    return addresses[-1] if addresses else None


def _basename(target: Optional[str]) -> Optional[str]:
    return posixpath.basename(target) if target else None


def _text(text: Optional[str], most: int) -> str:
    return printable((text or "").strip()[:most])[:most]
