"""Builds sysfs trees for tests: the nested dictionaries of a recording, from one line per function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuyard.host.pci_ids import PciIds
from gpuyard.host.scan import scan
from gpuyard.host.tree import LINK, RecordedTree
from gpuyard.model.host import Inventory

V100 = "10de:1db4"
T4 = "10de:1eb8"
TITAN_XP = "10de:1b02"
TITAN_XP_AUDIO = "10de:10ef"

EPYC = (("27:00.0", 19), ("28:00.0", 19), ("44:00.0", 32), ("a3:00.0", 75), ("c3:00.0", 87), ("c4:00.0", 87))
"""Address and IOMMU group of the six V100 of the EPYC."""


class Sysfs:
    """A machine under construction."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    def put(self, path: str, node: object) -> None:
        folder = self.nodes
        *parents, name = path.split("/")
        for parent in parents:
            folder = folder.setdefault(parent, {})
        folder[name] = node

    def function(
        self, address: str, ids: str, class_id: str = "0302", group: int | None = None, *, below: str = "", **more: str
    ) -> Sysfs:
        """Add a function; `below` is the address of its bridge; `more` are further attribute files and `driver`."""
        full = address if address.count(":") == 2 else f"0000:{address}"
        bridge = f"0000:{below}/" if below else ""
        path = f"sys/devices/pci0000:00/{bridge}{full}"
        self.put(f"sys/bus/pci/devices/{full}", {LINK: f"../../../{path.removeprefix('sys/')}"})
        vendor, product = ids.split(":")
        files = {"vendor": f"0x{vendor}", "device": f"0x{product}", "class": f"0x{class_id}00", "revision": "0xa1"}
        driver = more.pop("driver", None)
        for name, text in {**files, "numa_node": "-1", **more}.items():
            self.put(f"{path}/{name}", text)
        if group is not None:
            self.put(f"{path}/iommu_group", {LINK: f"../../../kernel/iommu_groups/{group}"})
        if driver is not None:
            self.put(f"{path}/driver", {LINK: f"../../../bus/pci/drivers/{driver}"})
        return self

    def disk(self, name: str, number: str, controller: str, mount: str = "/") -> Sysfs:
        """A mounted disk below the controller at an address."""
        path = f"devices/pci0000:00/0000:{controller}/nvme/nvme0/{name}"
        self.put(f"sys/{path}/size", "2097152000")
        self.put(f"sys/dev/block/{number}", {LINK: f"../../{path}"})
        self.put(f"sys/class/block/{name}", {LINK: f"../../{path}"})
        mounts = self.nodes.get("proc", {}).get("self", {}).get("mountinfo", "")
        self.put("proc/self/mountinfo", f"{mounts}22 1 {number} / {mount} rw - ext4 /dev/{name} rw\n")
        return self

    def uplink(self, name: str, address: str) -> Sysfs:
        """A network port at an address that the default route goes out by."""
        path = f"devices/pci0000:00/0000:{address}/net/{name}"
        self.put(f"sys/class/net/{name}", {LINK: f"../../{path}"})
        self.put(f"sys/{path}/device", {LINK: f"../../../0000:{address}"})
        header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        self.put("proc/net/route", f"{header}\n{name}\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0")
        return self

    def port(self, name: str, address: str, *, up: bool = False, **links: str) -> Sysfs:
        """A network port that no default route goes out by; `links` such as ``master`` name other interfaces."""
        path = f"devices/pci0000:00/0000:{address}/net/{name}"
        self.put(f"sys/class/net/{name}", {LINK: f"../../{path}"})
        self.put(f"sys/{path}/device", {LINK: f"../../../0000:{address}"})
        for file, text in {"flags": "0x1003" if up else "0x1002", "operstate": "up" if up else "down"}.items():
            self.put(f"sys/{path}/{file}", text)
        for link, target in links.items():
            self.put(f"sys/{path}/{link}", {LINK: f"../../../../virtual/net/{target}"})
        return self

    def drive(self, name: str, controller: str, *partitions: str, **holders: str) -> Sysfs:
        """A disk that is not mounted; `holders`: disk or partition -> the device that is made of it, ``dm-3``."""
        path = f"devices/pci0000:00/0000:{controller}/host0/block/{name}"
        folders = {name: path, **{partition: f"{path}/{partition}" for partition in partitions}}
        for device, folder in folders.items():
            self.put(f"sys/class/block/{device}", {LINK: f"../../{folder}"})
            self.put(f"sys/{folder}/size", "2097152000")
            self.put(f"sys/{folder}/holders", {})
        for device, holder in holders.items():
            self.put(f"sys/{folders[device]}/holders/{holder}", {LINK: f"/sys/devices/virtual/block/{holder}"})
        return self

    def process(self, pid: int, command: str, *devices: str) -> Sysfs:
        """A process that can be looked at, with device nodes that it has open."""
        self.put(f"proc/{pid}/comm", command[:15])
        self.put(f"proc/{pid}/cmdline", f"/usr/bin/{command}\0--option")
        self.put(f"proc/{pid}/exe", {LINK: f"/usr/bin/{command}"})
        for number, device in enumerate(("socket:[4711]", *devices)):
            self.put(f"proc/{pid}/fd/{number}", {LINK: device})
        return self

    def stranger(self, pid: int, command: str) -> Sysfs:
        """A process of somebody else: its open files are not to be seen."""
        self.put(f"proc/{pid}/comm", command[:15])
        self.put(f"proc/{pid}/cmdline", f"/usr/bin/{command}\0--option")
        return self

    def node(self, kind: str, name: str, address: str) -> Sysfs:
        """The device `name` of a class (``drm``, ``sound``) that a function without a bridge above it has."""
        self.put(f"sys/class/{kind}/{name}", {LINK: f"../../devices/pci0000:00/0000:{address}/{kind}/{name}"})
        return self

    def inventory(self, **facts: object) -> Inventory:
        return scan(RecordedTree(self.nodes), names(), {"hostname": "test", **facts}, "test")

    def recording(self, **facts: object) -> str:
        """As the text of a recording file."""
        facts = {"hostname": "test", "cpus": 48, "memory_mib": 515072, "disk_gib": 1800, **facts}
        return json.dumps(
            {"gpuyard_recording": 1, "made": "by a test", "facts": facts, "names": {}, "tree": self.nodes}
        )


def names() -> PciIds:
    return PciIds([], {"10de": "NVIDIA Corporation", V100: "GV100GL [Tesla V100 PCIe 16GB]", T4: "TU104GL [Tesla T4]"})


def epyc() -> Sysfs:
    """The machine with six V100 in four IOMMU groups."""
    machine = Sysfs()
    for address, group in EPYC:
        machine.function(address, V100, group=group, numa_node="0" if group < 50 else "1")
    return machine


def write(machine: Sysfs, root: Path) -> None:
    """The machine as real files and links below a folder."""
    for name, node in machine.nodes.items():
        _write(node, root / name)


def _write(node: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(node, str):
        path.write_text(node)
    elif LINK in node:
        path.symlink_to(node[LINK])
    else:
        for name, child in node.items():
            _write(child, path / name)
