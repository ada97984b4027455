"""Checks what holds the GPUs: drivers now and at the next boot, processes, the console, and USB devices."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Tuple

from gpuyard.host.checks.attached import CLASS_USB, frame_buffers, text_console, usb_devices
from gpuyard.host.fabric import is_shared
from gpuyard.host.holders import FABRIC_MANAGER, USUAL_HOLDERS, DeviceHolder
from gpuyard.host.judge import PASSTHROUGH_DRIVERS, sharing
from gpuyard.host.machine import Answer, Machine, by_model, named
from gpuyard.host.modules import canonical, ids_by_option, is_available, is_builtin, kept_out
from gpuyard.host.preparation.passthrough import is_vfio
from gpuyard.model.finding import Severity
from gpuyard.model.pci import PciFunction

# Names in /proc/iomem of who has the firmware's frame buffer -> the option that keeps it from that.
FRAME_BUFFERS = {"efifb": "video=efifb:off", "vesafb": "video=vesafb:off"}
VFIO_TAKES_CONSOLE_AWAY = (6, 0)
"""From this kernel on vfio-pci itself sends the firmware's frame buffer away."""


def drivers(machine: Machine) -> Answer:
    bound = [f for f in machine.members if f.driver and is_vfio(f.driver)]
    if bound:
        yield Severity.OK, f"{len(bound)} of {len(machine.members)} functions are with {bound[0].driver}", ""
    others: Dict[str, List[PciFunction]] = {}
    for function in machine.members:
        # The driver of a card that is cut up is the one that cuts it.
        if function.driver and not is_vfio(function.driver) and not any(sharing(function)):
            others.setdefault(function.driver, []).append(function)
    for driver, functions in others.items():
        for cards in by_model(functions):
            if driver in PASSTHROUGH_DRIVERS:
                yield Severity.WARNING, f"{cards}: with {driver}, which QEMU cannot pass on", "use vfio-pci"
            else:
                remedy = "bind it to vfio-pci before Nova offers it: gpuyard host plan shows how"
                yield Severity.WARNING, f"{cards}: with {driver}, a driver of the host", remedy


def in_use(machine: Machine) -> Answer:
    """Processes that hold a member. An unbind waits for them, so they must end before a GPU changes hands."""
    if not any(member.driver for member in machine.members):
        return
    processes, any_holder = machine.processes, False
    for holder, functions in _by_holder(machine):
        any_holder = True
        if holder.is_vm:
            yield Severity.OK, f"a VM ({holder}) has {named(functions)}", ""
        else:
            reason = f"{named(functions)} held through {holder.device} by {holder}: a driver would wait for it"
            yield (
                Severity.WARNING,
                reason,
                _remedy(machine, holder),
            )
    if processes.hidden:
        yield (
            Severity.UNKNOWN,
            "which processes hold a GPU cannot be seen",
            "look again on the machine itself, as root",
        )
    elif processes.unseen:
        suspects = sorted({*processes.unseen.values()} & USUAL_HOLDERS.keys())
        among = f"; among them {', '.join(suspects)}" if suspects else ""
        yield (
            Severity.UNKNOWN,
            f"not all processes could be looked at, and one may hold a GPU{among}",
            "look again as root",
        )
    elif not any_holder:
        yield Severity.OK, "no process holds a GPU or a companion", ""


def _remedy(machine: Machine, holder: DeviceHolder) -> str:
    if holder.command == FABRIC_MANAGER and is_shared(machine.tree):
        return "keep it: it gives VMs their part of the NVSwitch board; restart it once the GPUs are with vfio-pci"
    return USUAL_HOLDERS.get(holder.command, "end it before the GPU is prepared for VMs")


def _by_holder(machine: Machine) -> Iterable[Tuple[DeviceHolder, List[PciFunction]]]:
    """Each process once, with one of the device nodes that it has open and the members that it holds."""
    holders_by_pid: Dict[int, Tuple[DeviceHolder, List[PciFunction]]] = {}
    for member in machine.members:
        for holder in machine.processes.holders.get(member.address, ()):
            functions = holders_by_pid.setdefault(holder.pid, (holder, []))[1]
            if member not in functions:
                functions.append(member)
    return holders_by_pid.values()


def console(machine: Machine) -> Answer:
    """What the host shows on a GPU. Until the firmware's frame buffer is gone, VFIO cannot reserve the memory."""
    members = {member.address: member for member in machine.members}
    shown = text_console(machine.tree)
    if shown and shown[0] in members:
        gpu, device = members[shown[0]], shown[1]
        reason = f"the text console ({device}) is on {gpu.short_address} {gpu.model}, and goes dark with it"
        yield Severity.WARNING, reason, "make another display the primary one in the firmware"
    for address, name in frame_buffers(machine.tree):
        if address not in members:
            continue
        gpu = members[address]
        reason = f"the console's frame buffer ({name}) is in the memory of {gpu.short_address} {gpu.model}"
        if kernel_version(machine.inventory.facts.kernel) >= VFIO_TAKES_CONSOLE_AWAY:
            yield Severity.OK, f"{reason}; this kernel's vfio-pci takes it away", "the screen stays dark from then on"
        else:
            option = FRAME_BUFFERS.get(name, "initcall_blacklist=sysfb_init")
            remedy = f"make another display the primary one in the firmware, or boot with {option} and without a screen"
            yield Severity.WARNING, reason, remedy


def kernel_version(release: str) -> Tuple[int, ...]:
    """``6.1.0-56-amd64`` -> (6, 1); empty when it is unknown."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", release)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def usb(machine: Machine) -> Answer:
    """Keyboards and the like on a GPU's own USB port go away with the GPU."""
    for member in machine.members:
        plugged = usb_devices(machine.tree, member) if member.class_id == CLASS_USB else []
        if plugged:
            what = ", ".join(text for _, text in plugged)
            reason = (
                f"{member.short_address} USB controller shares the group of a GPU, and the host loses what is on it"
            )
            yield Severity.WARNING, f"{reason}: {what}", "plug it in elsewhere"


def native_drivers(machine: Machine) -> Answer:
    """Native drivers that would take a member at the next boot, before vfio-pci does."""
    takers = machine.takers
    excluded = kept_out(machine.tree, machine.inventory.facts.command_line)
    addresses_by_driver: Dict[str, List[str]] = {}
    for address, modules in takers.items():
        for module in modules:
            if not module.startswith(("vfio", "pci_stub")) and module not in excluded:
                addresses_by_driver.setdefault(module, []).append(machine.inventory.function(address).short_address)
    for module, addresses in sorted(addresses_by_driver.items()):
        remedy = f"gpuyard host apply lets VFIO come first; by hand: softdep {module} pre: vfio-pci"
        yield Severity.WARNING, f"{module} would take {', '.join(addresses)} at boot", remedy
    closed = sorted({module for modules in takers.values() for module in modules} & excluded.keys())
    if closed:
        yield Severity.OK, f"kept out: {', '.join(f'{module} ({excluded[module]})' for module in closed)}", ""


def vfio(machine: Machine) -> Answer:
    available = is_available(machine.tree, "vfio_pci")
    if available is None:
        yield Severity.UNKNOWN, "whether the kernel has vfio-pci cannot be seen", "try modprobe vfio-pci"
    elif not available:
        yield Severity.ERROR, "the kernel has no vfio-pci", "install the kernel package with all modules"
    else:
        builtin = is_builtin(machine.tree, "vfio_pci")
        how = "part of the kernel: options in modprobe.d do not reach it" if builtin else "a module"
        yield Severity.OK, f"vfio-pci is {how}", ""
    for ids, where in ids_by_option(machine.tree, machine.inventory.facts.command_line).items():
        taken = [f.short_address for f in machine.inventory.functions if f.ids == ids]
        if taken:
            reason = f"ids={ids} in {where} takes every device with that id: {', '.join(taken)}"
            yield (
                Severity.WARNING,
                reason,
                "bind by address instead, so that a GPU of the same model can stay with the host",
            )


def variants(machine: Machine) -> Answer:
    """vfio-pci would do, but for what the card can beyond: a driver of its own knows its memory or its migration."""
    functions_by_module: Dict[str, List[PciFunction]] = {}
    for address, modules in machine.takers.items():
        special = [name for name in modules if is_vfio(name) and canonical(name) != "vfio_pci"]
        if special:
            functions_by_module.setdefault(special[0], []).append(machine.inventory.function(address))
    for module, functions in functions_by_module.items():
        for cards in by_model(functions):
            reason = f"{cards}: has a driver of its own for VFIO, {module}"
            remedy = f"bind {module} instead of vfio-pci, and set managed=no for it in Nova (libvirt 10.0, QEMU 8.2.2)"
            yield Severity.WARNING, reason, remedy
