"""A ladder of checks: what stands between this machine and giving its GPUs away, and what to do about it.

Each check is a function that reads the tree and the inventory and says what is so; none changes anything. What cannot
be seen (a recording has less than a machine, an old kernel has fewer files) is said as such and never taken for good.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Tuple

from gpuyard.host.judge import PASSTHROUGH_DRIVERS, capacity
from gpuyard.host.modules import canonical, ids_by_option, is_available, is_builtin, kept_out, takers
from gpuyard.host.tree import Tree
from gpuyard.model.finding import Finding, Level
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.model.slot import Slot

GIB = 2**30
BIG_BAR = 32 * GIB
"""From here on firmware needs "Above 4G Decoding", and a guest UEFI, q35 and enough address bits."""
RESET_WORKS = ("flr", "pm", "bus", "device_specific", "af_flr", "acpi")


@dataclass(frozen=True)
class Machine:
    """What the checks look at."""

    tree: Tree
    inventory: Inventory
    slots: Tuple[Slot, ...]

    @property
    def members(self) -> List[PciFunction]:
        """GPUs and companions of all slots, in bus order."""
        found = [function for slot in self.slots for function in (*slot.gpus, *slot.companions)]
        return sorted(found, key=self.inventory.functions.index)

    @property
    def vendor(self) -> str:
        """``AMD``, ``Intel``, or empty for others."""
        model = self.inventory.facts.cpu_model
        return "AMD" if "AMD" in model else "Intel" if "Intel" in model else ""


def check(machine: Machine) -> List[Finding]:
    """All findings, in the order in which an operator would go about them."""
    return [
        Finding(name, level, reason, remedy)
        for name, function in CHECKS.items()
        for level, reason, remedy in function(machine)
    ]


def worst(findings: Iterable[Finding]) -> Level:
    levels = {finding.level for finding in findings}
    return Level.BLOCKED if Level.BLOCKED in levels else Level.WARNING if Level.WARNING in levels else Level.OK


Answer = Iterable[Tuple[Level, str, str]]


def _gpus(machine: Machine) -> Answer:
    gpus = machine.inventory.gpus
    if not gpus:
        remedy = "if there should be one, look at its seat and its power, and whether the firmware shows it"
        yield Level.BLOCKED, "no GPU of NVIDIA, AMD or Intel is on the PCI bus: nothing to give away", remedy
        return
    models: Dict[str, int] = {}
    for gpu in gpus:
        models[f"{gpu.model} [{gpu.ids}]"] = models.get(f"{gpu.model} [{gpu.ids}]", 0) + 1
    yield Level.OK, ", ".join(f"{count} x {model}" for model, count in models.items()), ""


def _virtualisation(machine: Machine) -> Answer:
    text = machine.tree.read("proc/cpuinfo") or ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = found.group(1).split() if found else []
    if "svm" in flags or "vmx" in flags:
        yield Level.OK, f"the CPU can run VMs ({'AMD-V' if 'svm' in flags else 'VT-x'})", ""
    elif not found:
        yield Level.WARNING, "the CPU's flags are not to be seen", "look for svm or vmx in /proc/cpuinfo on the machine"
    elif "hypervisor" in flags:
        reason = "this machine is a VM itself and is shown no hardware virtualisation (svm, vmx)"
        yield Level.BLOCKED, reason, "switch nested virtualisation on where it runs, or use a machine of metal"
    else:
        where = {"AMD": "SVM Mode", "Intel": "VT-x"}.get(machine.vendor, "SVM or VT-x")
        yield Level.BLOCKED, "the CPU shows no hardware virtualisation (svm, vmx)", f"enable {where} in the firmware"


def _iommu(machine: Machine) -> Answer:
    """By its units and groups. Never by dmesg, which says "IOMMU enabled" also where there is no IOMMU hardware."""
    units, groups = machine.tree.names("sys/class/iommu"), machine.inventory.groups()
    if units and groups:
        kind = machine.tree.read(f"sys/kernel/iommu_groups/{next(iter(groups))}/type") or "of unknown type"
        yield Level.OK, f"the IOMMU is on: units {', '.join(units)}; {len(groups)} groups ({kind})", ""
        return
    command_line = machine.inventory.facts.command_line.split()
    if "hypervisor" in (machine.tree.read("proc/cpuinfo") or ""):
        remedy = "this machine is a VM: give it an emulated IOMMU where it runs, or use a machine of metal"
    elif machine.vendor == "Intel" and "intel_iommu=on" not in command_line:
        remedy = "enable VT-d in the firmware and boot with intel_iommu=on"
    else:
        remedy = {"AMD": "enable IOMMU (AMD-Vi) in the firmware", "Intel": "enable VT-d in the firmware"}.get(
            machine.vendor, "enable the IOMMU in the firmware"
        )
    yield Level.BLOCKED, "the IOMMU is off: there are no IOMMU groups", remedy


def _command_line(machine: Machine) -> Answer:
    words = machine.inventory.facts.command_line.split()
    if "amd_iommu=on" in words:
        yield Level.WARNING, "amd_iommu=on is no option that Linux knows: the AMD IOMMU is on by default", "take it out"
    for word in words:
        if word in ("intel_iommu=off", "amd_iommu=off", "iommu=off"):
            yield Level.BLOCKED, f"{word} is on the kernel command line", "take it out and reboot"


def _interrupts(machine: Machine) -> Answer:
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
        yield Level.WARNING, "whether interrupts are remapped is not to be seen", "look for IR- in /proc/interrupts"
    elif "IR-" in table:
        yield Level.OK, "interrupts are remapped", ""
        if unsafe:
            yield Level.WARNING, "allow_unsafe_interrupts is set and not needed here", "take it out"
    elif unsafe:
        reason = f"interrupts are not remapped, and allow_unsafe_interrupts lets VFIO go on: {danger}"
        yield Level.WARNING, reason, f"{firmware}; until then give GPUs to trusted guests only"
    else:
        reason = "interrupts are not remapped, and VFIO refuses devices then"
        yield (
            Level.BLOCKED,
            reason,
            f"{firmware}; where that cannot be, allow_unsafe_interrupts=1 and trusted guests only",
        )


def _groups(machine: Machine) -> Answer:
    for slot in machine.slots:
        gpus = ", ".join(gpu.short_address for gpu in slot.gpus)
        name = f"group {slot.group}" if slot.group is not None else "no group"
        if not slot.usable:
            for reason in slot.reasons:
                yield (
                    Level.BLOCKED,
                    f"{name} ({gpus}): {reason}",
                    "keep it with the host, or move the card to another PCIe slot",
                )
        elif len(slot.gpus) > 1:
            remedy = (
                "nothing to do: gpuyard offers them as leader and peers; another PCIe slot, or ACS, may separate them"
            )
            yield Level.OK, f"{name} is shared by {len(slot.gpus)} GPUs ({gpus}): they go to one VM together", remedy
    room = capacity(machine.slots)
    if room.gpus:
        yield Level.OK, f"{room.gpus} GPUs can be given away, to at most {room.single_gpu_vms} VMs at once", ""


def _drivers(machine: Machine) -> Answer:
    bound = [f for f in machine.members if f.driver in PASSTHROUGH_DRIVERS]
    if bound:
        yield Level.OK, f"{len(bound)} of {len(machine.members)} functions are with {bound[0].driver}", ""
    for function in machine.members:
        if function.driver == "pci-stub":
            remedy = "use vfio-pci: QEMU cannot pass a device that is with pci-stub"
            yield Level.WARNING, f"{function.short_address} {function.model} is with pci-stub", remedy
        elif function.driver not in (None, *PASSTHROUGH_DRIVERS):
            reason = f"{function.short_address} {function.model} is with {function.driver}, a driver of the host"
            yield Level.WARNING, reason, "bind it to vfio-pci before Nova offers it"


def _takers(machine: Machine) -> Answer:
    """Native drivers that would take a member at the next boot, before vfio-pci does."""
    found = takers(machine.tree, machine.members)
    kept = kept_out(machine.tree, machine.inventory.facts.command_line)
    open_doors: Dict[str, List[str]] = {}
    for address, modules in found.items():
        for module in modules:
            if not module.startswith(("vfio", "pci_stub")) and module not in kept:
                open_doors.setdefault(module, []).append(machine.inventory.function(address).short_address)
    for module, addresses in sorted(open_doors.items()):
        remedy = f"softdep {module} pre: vfio-pci, or blacklist {module} if the host needs it for nothing else"
        yield Level.WARNING, f"{module} would take {', '.join(addresses)} at boot", remedy
    closed = sorted({module for modules in found.values() for module in modules} & kept.keys())
    if closed:
        yield Level.OK, f"kept out: {', '.join(f'{module} ({kept[module]})' for module in closed)}", ""


def _vfio(machine: Machine) -> Answer:
    available = is_available(machine.tree, "vfio_pci")
    if available is None:
        yield Level.WARNING, "whether the kernel has vfio-pci is not to be seen", "try modprobe vfio-pci"
    elif not available:
        yield Level.BLOCKED, "the kernel has no vfio-pci", "install the kernel package with all modules"
    else:
        builtin = is_builtin(machine.tree, "vfio_pci")
        how = "part of the kernel: options in modprobe.d do not reach it" if builtin else "a module"
        yield Level.OK, f"vfio-pci is {how}", ""
    for ids, where in ids_by_option(machine.tree, machine.inventory.facts.command_line).items():
        taken = [f.short_address for f in machine.inventory.functions if f.ids == ids]
        if taken:
            reason = f"ids={ids} in {where} takes every device with that id: {', '.join(taken)}"
            yield (
                Level.WARNING,
                reason,
                "bind by address instead, so that a GPU of the same model can stay with the host",
            )


def _variants(machine: Machine) -> Answer:
    for address, modules in takers(machine.tree, machine.members).items():
        variants = [name for name in modules if name.startswith("vfio_") or name.endswith("_vfio_pci")]
        special = [name for name in variants if canonical(name) != "vfio_pci"]
        if special:
            function = machine.inventory.function(address)
            reason = f"{function.short_address} {function.model} has a driver of its own for VFIO: {', '.join(special)}"
            yield Level.WARNING, reason, f"bind {special[0]} instead of vfio-pci, and set managed=no for it in Nova"


def _reset(machine: Machine) -> Answer:
    for gpu in machine.inventory.gpus:
        if not any(method in RESET_WORKS for method in gpu.reset_methods):
            reason = f"{gpu.short_address} {gpu.model} shows no way to be reset"
            yield Level.WARNING, reason, "a VM may find it as the last one left it; test starting a second VM on it"


def _bars(machine: Machine) -> Answer:
    for gpu in machine.inventory.gpus:
        largest = max(gpu.bars, default=0)
        if largest >= BIG_BAR:
            reason = f"{gpu.short_address} {gpu.model} has a BAR of {largest // GIB} GiB"
            yield (
                Level.WARNING,
                reason,
                "images need hw_machine_type=q35 and hw_firmware_type=uefi, flavors hw:maxphysaddr_mode=passthrough",
            )


def _sriov(machine: Machine) -> Answer:
    capable = [gpu for gpu in machine.inventory.gpus if gpu.sriov_total_vfs]
    if capable:
        names = ", ".join(gpu.short_address for gpu in capable)
        yield Level.OK, f"SR-IOV is on in the firmware of {names}: Nova sees them as type-PF", ""


def _memory(machine: Machine) -> Answer:
    meminfo = machine.tree.read("proc/meminfo") or ""
    swap = re.search(r"^SwapTotal:\s+(\d+)", meminfo, re.MULTILINE)
    if machine.inventory.gpus and swap and int(swap.group(1)):
        reason = f"{int(swap.group(1)) // 2**20} GiB of swap: the memory of a VM with a GPU is pinned and never swapped"
        yield Level.OK, reason, "keep ram_allocation_ratio at 1.0 on this host; gpuyard writes it so"


CHECKS: Dict[str, Callable[[Machine], Answer]] = {
    "gpus": _gpus,
    "virtualisation": _virtualisation,
    "iommu": _iommu,
    "command line": _command_line,
    "interrupts": _interrupts,
    "groups": _groups,
    "drivers": _drivers,
    "native drivers": _takers,
    "vfio": _vfio,
    "variant drivers": _variants,
    "reset": _reset,
    "bars": _bars,
    "sr-iov": _sriov,
    "memory": _memory,
}
"""Name -> check, in the order of the ladder."""
