"""Damages the tree of a machine as hardware, firmware, other kernels and other people do: every file is input."""

from __future__ import annotations

import json
import random
from typing import Any

from gpuyard.host.tree import LINK
from tests.support.sysfs import T4, TITAN_XP_AUDIO, V100, Sysfs

TEXTS = (
    "",
    "\n",
    "\0",
    "0x10de\n\0",
    "0x",
    "0xzz",
    "-",
    "-1",
    "0-",
    "0-3,x",
    ",,",
    "1 2 3",
    "²",
    "٣",
    "9" * 5000,
    "0-" + "9" * 30,
    "options",
    "softdep",
    "blacklist",
    "install",
    "alias pci:v000010DEd*",
    "direct",
    "on (unreadable)",
    "y",
    "Y\n\0",
    "0:0",
    "a:b",
    " - ",
    "/dev/",
    "GRUB_CMDLINE_LINUX='",
    "\N{REPLACEMENT CHARACTER}",
    "\x1b[2J",
    "\udcff",
    "[" * 3000,
    "$",
    " $x",
    "0000:27:00.0",
    "..",
    "../..",
    "fb9999999999",
    "{}",
    "[]",
    "null",
    "Device Minor: x",
)
NAMES = (
    "",
    ".",
    "..",
    "²",
    "0000:zz:00.0",
    "0000:00:1f.7\n",
    "nvme0",
    "lower_",
    "lower_bond0",
    "slaves",
    "usb1",
    "1-1",
    "fb",
    "fb0",
    "hugepages-kB",
    "9" * 400,
    "1",
    "\udcff",
    "x.conf",
    "a b",
    "-0",
    "journal.json",
)


def machine() -> Sysfs:
    """A small machine with one of everything that is read."""
    made = Sysfs()
    made.function("00:01.0", "1022:1483", "0604", 19, driver="pcieport", acs="4 001d 001d")
    made.function(
        "27:00.0",
        V100,
        group=19,
        below="00:01.0",
        driver="vfio-pci",
        reset_method="flr bus",
        sriov_totalvfs="16",
        resource="0x0 0xffffff 0x40200\n0x0 0x0 0x0",
    )
    made.function("28:00.0", T4, "0302", 20, driver="nouveau", boot_vga="0", subsystem_vendor="0x10de")
    made.function("28:00.1", TITAN_XP_AUDIO, "0403", 20, driver="snd_hda_intel")
    made.function("28:00.2", "10de:1ad6", "0c03", 20, driver="xhci_hcd")
    made.function("01:00.0", "144d:a808", "0108", 5, driver="nvme").function("41:00.0", "8086:1563", "0200", 6)
    made.disk("nvme0n1", "259:0", "01:00.0").drive("sda", "01:00.0", "sda1", sda1="dm-3")
    made.uplink("eno1", "41:00.0").port("eno2", "41:00.0", up=True, master="bond0")
    made.put("sys/devices/virtual/block/dm-3", {"slaves": {"sda1": {LINK: "x"}}, "size": "9"})
    made.put("sys/class/block/dm-3", {LINK: "../../devices/virtual/block/dm-3"})
    made.put("sys/devices/virtual/net/bond0", {"lower_eno1": {LINK: "x"}, "lower_eno2": {LINK: "x"}})
    made.put("sys/class/net/bond0", {LINK: "../../devices/virtual/net/bond0"})
    usb = "sys/devices/pci0000:00/0000:28:00.2/usb1"
    made.put(f"{usb}/1-1", {"product": "Keyboard", "1-1.1": {"product": "Mouse"}})
    made.put("sys/fs/btrfs/uuid/devices/sda1", {LINK: "x"})
    made.put("sys/class/iommu/dmar0", {LINK: "../../devices/virtual/iommu/dmar0"})
    made.put(
        "sys/kernel/iommu_groups", {"19": {"type": "DMA", "reserved_regions": "0x0 0x1 direct"}, "20": {"type": "DMA"}}
    )
    made.put("sys/kernel/mm/hugepages/hugepages-2048kB", {"nr_hugepages": "4", "free_hugepages": "2"})
    made.put("sys/devices/system", {"cpu": {"online": "0-7"}, "node": {"online": "0-1", "has_cpu": "0-1"}})
    made.put("sys/class/vtconsole/vtcon0", {"bind": "1", "name": "(M) frame buffer device"})
    made.put("sys/class/graphics/fb0", {LINK: "../../devices/pci0000:00/0000:28:00.0/graphics/fb0"})
    made.put("sys/firmware/acpi/tables", {"DMAR": ""})
    made.put("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y")
    made.node("drm", "card0", "28:00.0").process(1, "systemd").process(70, "Xorg", "/dev/dri/card0", "/dev/vfio/19")
    made.stranger(71, "nvidia-persistenced").put("proc/driver/nvidia/gpus/0000:28:00.0/information", "Device Minor: 0")
    proc = made.nodes["proc"]
    proc["self"]["mountinfo"] += "23 1 0:30 / /b rw - btrfs /dev/dm-3 rw\n24 1 0:31 / /z rw - zfs pool/root rw\n"
    proc |= {
        "cpuinfo": "model name\t: Intel(R) Xeon(R)\nflags\t\t: vmx",
        "meminfo": "MemTotal: 1024 kB\nSwapTotal: 8 kB",
        "swaps": "Filename Type\n/dev/dm-3 partition 1 0 -2",
        "cmdline": "quiet intel_iommu=on vfio-pci.ids=10de:1db4",
        "interrupts": "24: IR-PCI-MSI",
        "iomem": "0-1 : PCI Bus 0000:00\n  0-1 : 0000:28:00.0\n    0-1 : efifb",
    }
    made.put("proc/net/ipv6_route", f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} 0 0 0 0 bond0")
    made.put("proc/sys/kernel", {"osrelease": "6.1.0", "hostname": "test"})
    made.put("proc/sys/vm/overcommit_memory", "1")
    made.put(
        "lib/modules/6.1.0",
        {
            "modules.builtin": "kernel/drivers/vfio/vfio.ko",
            "modules.softdep": "softdep nouveau pre: drm",
            "modules.alias": "alias pci:v000010DEd*sv*sd*bc03sc02i00* nouveau\nalias vfio_pci:v*d*sv* vfio_pci",
            "modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz",
        },
    )
    made.put("etc/modprobe.d/a.conf", "options vfio-pci ids=10de:1db4\nblacklist vfio\nsoftdep nouveau pre: vfio-pci")
    made.put("etc/gpuyard/passthrough", "0000:27:00.0 10de:1db4 vfio-pci")
    made.put("etc/default", {"grub": 'GRUB_CMDLINE_LINUX="iommu=off"', "grub.d": {"x.cfg": "GRUB_CMDLINE_LINUX=a"}})
    made.put("etc/driverctl.d/0000:28:00.0", "vfio-pci")
    made.put("etc/udev/rules.d/x.rules", 'ATTR{driver_override}="vfio-pci"')
    made.put("boot/loader/entries/a.conf", "title a\noptions $kernelopts iommu=pt")
    made.put("boot/grub2/grubenv", "kernelopts=ro quiet\ntuned_params=")
    made.put("usr/sbin", {"update-grub": "", "update-initramfs": "", "grubby": ""})
    made.put("usr/lib/x86_64-linux-gnu/libvirt.so.0", {LINK: "libvirt.so.0.10002.0"})
    made.put("var/lib/dpkg/status", "Package: qemu-system-x86\nStatus: install ok installed\nVersion: 1:8.2.2+ds\n")
    return made


class Mangler:
    """Damages copies of one tree, the same ones for a seed."""

    def __init__(self, nodes: dict[str, Any], seed: int) -> None:
        self._text = json.dumps(nodes)
        self._random = random.Random(seed)

    def tree(self) -> dict[str, Any]:
        """A copy with some damages, one in ten with many."""
        nodes: dict[str, Any] = json.loads(self._text)
        for _ in range(self._random.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 60))):
            self._damage(nodes)
        return nodes

    def _damage(self, nodes: dict[str, Any]) -> None:
        places = list(_places(nodes))
        folder, name = self._random.choice(places)
        other_folder, other = self._random.choice(places)
        node = folder.get(name)
        change = self._random.randrange(9)
        if change == 0:
            folder[name] = self._random.choice(TEXTS)
        elif change == 1 and isinstance(node, str):
            at = self._random.randrange(len(node) + 1)
            folder[name] = node[:at] + self._random.choice(TEXTS) + node[at + self._random.randrange(4) :]
        elif change == 2 and isinstance(node, str):
            words = node.split(" ")
            del words[self._random.randrange(len(words))]
            folder[name] = " ".join(words)
        elif change == 3:
            folder.pop(name, None)
        elif change == 4:
            folder[name] = {}
        elif change == 5:
            folder[name] = {LINK: self._random.choice((".", "..", name, "../" + other, "/" + other, "", *TEXTS))}
        elif change == 6:
            folder[self._random.choice(NAMES)] = node
        elif change == 7:  # also a folder into itself: the cycles that slaves/ and lower_* could have
            folder[name] = json.loads(json.dumps(other_folder.get(other)))
        else:
            folder[f"{self._random.choice(('lower_', '', 'slaves/'))}{other}"] = {LINK: "x"}

    def text(self, text: str) -> str:
        """A recording with single letters changed, cut off or repeated."""
        for _ in range(self._random.randint(1, 4)):
            at, width = self._random.randrange(len(text) + 1), self._random.randrange(40)
            piece = self._random.choice(
                ("", "0", "null", "{}", "[]", "-1", '"', "\\u001b", "\\ud800", "\x00", "1e999", text[at : at + width])
            )
            text = text[:at] + piece + text[at + self._random.choice((0, 1, width)) :]
        return text


def _places(folder: dict[str, Any]) -> Any:
    for name, node in folder.items():
        yield folder, name
        if isinstance(node, dict) and LINK not in node:
            yield from _places(node)
