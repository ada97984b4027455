"""Checks the machine around the GPUs: CPU, IOMMU, kernel options, interrupts, memory, libvirt and QEMU."""

from __future__ import annotations

import re
from typing import Iterable, List, Tuple

from gpuyard.host.checks.software import has_qemu, libvirt_version, qemu_version, text_of
from gpuyard.host.machine import Answer, Machine
from gpuyard.host.preparation import pending
from gpuyard.host.tree import number
from gpuyard.model.finding import Severity

# What nova-compute of 2026.2 refuses to start below.
LEAST_LIBVIRT = (8, 0, 0)
LEAST_QEMU = (6, 2, 0)
HUGE_PAGES = "sys/kernel/mm/hugepages"
GIB_IN_KIB = 2**20


def virtualisation(machine: Machine) -> Answer:
    text = machine.tree.read("proc/cpuinfo") or ""
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = match.group(1).split() if match else []
    if "svm" in flags or "vmx" in flags:
        yield Severity.OK, f"the CPU can run VMs ({'AMD-V' if 'svm' in flags else 'VT-x'})", ""
    elif not match:
        yield (
            Severity.UNKNOWN,
            "the CPU's flags are not to be seen",
            "look for svm or vmx in /proc/cpuinfo on the machine",
        )
    elif "hypervisor" in flags:
        reason = "this machine is a VM itself and is shown no hardware virtualisation (svm, vmx)"
        yield Severity.ERROR, reason, "switch nested virtualisation on where it runs, or use a machine of metal"
    else:
        where = {"AMD": "SVM Mode", "Intel": "VT-x"}.get(machine.vendor, "SVM or VT-x")
        yield Severity.ERROR, "the CPU shows no hardware virtualisation (svm, vmx)", f"enable {where} in the firmware"


def iommu(machine: Machine) -> Answer:
    """By its units and groups. Never by dmesg, which says "IOMMU enabled" also where there is no IOMMU hardware."""
    units, groups = machine.tree.names("sys/class/iommu"), machine.inventory.groups()
    if groups:
        kind = machine.tree.read(f"sys/kernel/iommu_groups/{next(iter(groups))}/type") or "of unknown type"
        yield Severity.OK, f"the IOMMU is on: units {', '.join(units) or 'unknown'}; {len(groups)} groups ({kind})", ""
        return
    remedy = machine.firmware_first or "take what switches it off from the kernel command line and reboot"
    if not machine.firmware_first and machine.vendor == "Intel" and not machine.switched_off:
        remedy = "enable VT-d in the firmware and boot with intel_iommu=on"
    yield Severity.ERROR, "the IOMMU is off: there are no IOMMU groups", remedy


def command_line(machine: Machine) -> Answer:
    words = machine.inventory.facts.command_line.split()
    if "amd_iommu=on" in words:
        yield (
            Severity.WARNING,
            "amd_iommu=on is no option that Linux knows: the AMD IOMMU is on by default",
            "take it out",
        )
    for word in words:
        if word in machine.switched_off:
            yield Severity.ERROR, f"{word} is on the kernel command line", "take it out and reboot"
        if word.startswith("pcie_acs_override="):
            reason = f"{word} makes the kernel show groups that the hardware does not keep apart"
            remedy = "take it out: a VM could reach a GPU of another; gpuyard gives shared groups to one VM whole"
            yield Severity.WARNING, reason, remedy


def interrupts(machine: Machine) -> Answer:
    """By the kernel's own table: a chip whose name begins with IR- sends through the IOMMU's remapping."""
    table = machine.tree.read("proc/interrupts")
    unsafe = machine.tree.read("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts") == "Y" or (
        "vfio_iommu_type1.allow_unsafe_interrupts=1" in machine.inventory.facts.command_line.split()
    )
    firmware = "enable x2APIC or interrupt remapping in the firmware, and take intremap=off from the command line"
    danger = "a VM with a GPU could send any interrupt to the host"
    if not machine.inventory.iommu_on:
        return
    if table is None:
        yield Severity.UNKNOWN, "whether interrupts are remapped cannot be seen", "look for IR- in /proc/interrupts"
    elif "IR-" in table:
        yield Severity.OK, "interrupts are remapped", ""
        if unsafe:
            yield Severity.WARNING, "allow_unsafe_interrupts is set and not needed here", "take it out"
    elif unsafe:
        reason = f"interrupts are not remapped, and allow_unsafe_interrupts lets VFIO go on: {danger}"
        yield Severity.WARNING, reason, f"{firmware}; until then give GPUs to trusted guests only"
    else:
        reason = "interrupts are not remapped, and VFIO refuses devices then"
        yield (
            Severity.ERROR,
            reason,
            f"{firmware}; where that cannot be, allow_unsafe_interrupts=1 and trusted guests only",
        )


def memory(machine: Machine) -> Answer:
    """VFIO pins all memory of a VM with a GPU, so what helps other VMs to share a host's memory does not help here."""
    if not machine.inventory.gpus:
        return
    meminfo = machine.tree.read("proc/meminfo") or ""
    swap = re.search(r"^SwapTotal: +([0-9]{1,18})\b", meminfo, re.MULTILINE)
    if swap and int(swap.group(1)):
        reason = (
            f"{int(swap.group(1)) // GIB_IN_KIB} GiB of swap: the memory of a VM with a GPU is pinned and never swapped"
        )
        yield Severity.OK, reason, "keep ram_allocation_ratio at 1.0 on this host; gpuyard writes it so"
    overcommit = machine.tree.read("proc/sys/vm/overcommit_memory")
    if overcommit == "1":
        reason = (
            "vm.overcommit_memory is 1: the kernel promises memory that it does not have, and a VM pins all of its own"
        )
        yield (
            Severity.WARNING,
            f"{reason}; then something is killed",
            "set it to 0, the default, and ram_allocation_ratio to 1.0",
        )
    elif overcommit == "2":
        reason = (
            "vm.overcommit_memory is 2: the kernel promises CommitLimit at most, half of the memory if nobody raised it"
        )
        yield (
            Severity.WARNING,
            reason,
            "set it to 0, the default, or CommitLimit (vm.overcommit_ratio) above what VMs need",
        )
    for size, total, free in _huge_pages(machine):
        reserved = f"{total} huge pages of {_size(size)} ({_size(total * size)}) are set aside, {free} of them free"
        remedy = "Nova counts them as memory for every VM: add what they take to reserved_host_memory_mb"
        yield Severity.OK, f"{reserved}: only VMs whose flavor has hw:mem_page_size get them", remedy


def _huge_pages(machine: Machine) -> Iterable[Tuple[int, int, int]]:
    """(size in KiB, number, free) of each size that there are pages of."""
    for name in machine.tree.names(HUGE_PAGES):
        size = number(name[len("hugepages-") : -len("kB")])
        total, free = (number(machine.tree.read(f"{HUGE_PAGES}/{name}/{kind}_hugepages")) for kind in ("nr", "free"))
        if size and total:
            yield size, total, free or 0


def _size(kib: int) -> str:
    return f"{kib // GIB_IN_KIB} GiB" if kib >= GIB_IN_KIB else f"{kib // 1024} MiB"


def software(machine: Machine) -> Answer:
    """By files. A libvirt in a container (Kolla) leaves none on the host."""
    libvirt, qemu = libvirt_version(machine.tree), qemu_version(machine.tree)
    installed: List[str] = [f"libvirt {text_of(libvirt)}"] if libvirt else []
    if qemu:
        installed.append(f"QEMU {text_of(qemu)}")
    elif has_qemu(machine.tree):
        installed.append("QEMU, whose version cannot be told without running it,")
    if not installed:
        reason = "no libvirt or QEMU is to be seen on the host itself: right where they run in containers (Kolla)"
        yield Severity.OK, reason, "otherwise install them with nova-compute"
        return
    for name, version, least in (("libvirt", libvirt, LEAST_LIBVIRT), ("QEMU", qemu, LEAST_QEMU)):
        if version and version < least[: len(version)]:
            reason = f"{name} {text_of(version)} is installed, and Nova 2026.2 wants {text_of(least)} or newer"
            yield Severity.WARNING, reason, "update it, unless Nova's runs in a container"
    yield Severity.OK, f"{' and '.join(installed)} {'are' if len(installed) > 1 else 'is'} installed", ""


def pending_reboot(machine: Machine) -> Answer:
    """What gpuyard has set and does not run yet, or the other way round."""
    settings = pending.seen(machine.tree, machine.inventory)
    for setting in pending.needs_reboot(settings):
        yield Severity.WARNING, f"{setting.name}: {setting.state.value}", "reboot, then gpuyard host verify"
    running = sum(setting.state is pending.State.ACTIVE for setting in settings)
    if running:
        yield Severity.OK, f"{running} settings of gpuyard's are in force", ""
