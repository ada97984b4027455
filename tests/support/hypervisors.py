"""Hosts to prepare: models of Debian machines with GPUs, native drivers, a root disk and an uplink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuyard.host.checks import Machine
from gpuyard.host.judge import judge
from gpuyard.host.scan import scan
from gpuyard.host.tree import LINK
from tests.support.kernel import GRUB_CFG, INITRD, Driver, ModelHost
from tests.support.sysfs import EPYC, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, names

NVME, NIC = "144d:a808", "8086:10d3"
DRIVERS = (
    Driver("nouveau", "nouveau", frozenset({V100, TITAN_XP})),
    Driver("snd_hda_intel", "snd_hda_intel", frozenset({TITAN_XP_AUDIO})),
    Driver("nvme", "nvme", frozenset({NVME}), builtin=True),
    Driver("e1000e", "e1000e", frozenset({NIC})),
    Driver("vfio-pci", "vfio_pci"),
)


def titan_xp() -> ModelHost:
    """Two Titan Xp with their audio functions, each card in a group of its own."""
    sysfs = Sysfs()
    for bus, group in (("01", 13), ("02", 14)):
        sysfs.function(f"{bus}:00.0", TITAN_XP, "0300", group, boot_vga="0")
        sysfs.function(f"{bus}:00.1", TITAN_XP_AUDIO, "0403", group)
    return debian(sysfs)


def epyc() -> ModelHost:
    """Six V100 in four groups, two of which are shared."""
    sysfs = Sysfs()
    for address, group in EPYC:
        sysfs.function(address, V100, "0302", group)
    return debian(sysfs, AMD)


INTEL, AMD = "Intel(R) Xeon(R)", "AMD EPYC 7352 24-Core Processor"


def debian(
    sysfs: Sysfs,
    cpu: str = INTEL,
    command_line: str = "intel_iommu=on",
    grub: str = "quiet",
    groups: dict[str, int] | None = None,
) -> ModelHost:
    """The machine with what every server has, started once.

    `grub`: what else the operator has set in /etc/default/grub. `groups`: those that there will be once the IOMMU is
    on, for a machine that has none yet.
    """
    on = groups is None
    sysfs.function("03:00.0", NVME, "0108", 1 if on else None).disk("nvme0n1", "259:0", "03:00.0")
    sysfs.function("04:00.0", NIC, "0200", 2 if on else None).uplink("eno1", "04:00.0")
    options = f"{grub} {command_line}".strip()
    sysfs.put("sys/class/iommu/dmar0", {})
    sysfs.put("proc/cpuinfo", f"model name\t: {cpu}\nflags\t\t: vmx svm")
    sysfs.put("proc/cmdline", command_line)
    sysfs.put("proc/sys/kernel/osrelease", "6.1.0")
    aliases = [
        f"alias pci:v0000{vendor.upper()}d0000{product.upper()}sv*sd*bc*sc*i* {driver.module}"
        for driver in DRIVERS
        for vendor, product in (ids.split(":") for ids in sorted(driver.ids))
    ]
    sysfs.put("lib/modules/6.1.0/modules.alias", "\n".join(aliases))
    sysfs.put("lib/modules/6.1.0/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko:")
    sysfs.put("lib/modules/6.1.0/modules.builtin", "kernel/drivers/nvme/host/nvme.ko")
    for program in ("update-grub", "update-initramfs"):
        sysfs.put(f"usr/sbin/{program}", "")
    sysfs.put("var/lib/dpkg/status", "")
    sysfs.put("etc/initramfs-tools/modules", "")
    sysfs.put("etc/default/grub", f'GRUB_CMDLINE_LINUX_DEFAULT="{options}"')
    sysfs.put("etc/modprobe.d/blacklist.conf", "blacklist pcspkr")
    sysfs.put(GRUB_CFG, f"# run 0\nlinux /vmlinuz {options}")
    sysfs.put(INITRD, "# run 0\n")
    host = ModelHost(sysfs.nodes, {driver.name: driver for driver in DRIVERS}, groups=groups or {})
    host.boot()
    return host


def look(host: ModelHost) -> Machine:
    """What gpuyard sees of it."""
    inventory = scan(host.tree, names(), {"hostname": "test"}, "test")
    return Machine(host.tree, inventory, judge(inventory))


def flat(host: ModelHost) -> dict[str, object]:
    """Every file, link and empty folder of the host, to compare it with itself."""
    return dict(_flat(host.nodes, ""))


def _flat(nodes: dict[str, Any], above: str) -> Iterator[tuple[str, object]]:
    for name, node in nodes.items():
        if isinstance(node, dict) and node and LINK not in node:
            yield from _flat(node, f"{above}{name}/")
        else:
            yield f"{above}{name}", node if isinstance(node, str) else tuple(node.items())
