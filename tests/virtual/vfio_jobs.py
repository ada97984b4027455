"""What test_vfio.py does inside the virtual hypervisor: ``python -m tests.virtual.vfio_jobs NAME``.

A job changes the host, looks what the product and the kernel say, and leaves that in $JOB as JSON; what it should be
is said in the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuyard.host.checks import Machine
from gpuyard.host.checks.prepared import verify
from gpuyard.host.checks.vfio import VfioRefusedError, open_group
from gpuyard.host.judge import judge
from gpuyard.host.local_host import AttributeHangs, LocalHost
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation.passthrough import Passthrough
from gpuyard.host.scan import scan
from gpuyard.host.tree import FileTree
from gpuyard.model.pci import PciFunction
from tests.virtual_hypervisor.guest import MEMORY, Edu, Ended, Guest

DEVICES = "sys/bus/pci/devices"
HOST = LocalHost()
Answers = dict[str, object]


def look() -> Machine:
    tree = FileTree()
    inventory = scan(tree, PciIds([], {}))
    return Machine(tree, inventory, judge(inventory))


def wanted(*functions: PciFunction) -> list[Passthrough]:
    return [Passthrough(function.address, function.ids, "vfio-pci") for function in functions]


def groups(machine: Machine) -> dict[str, int | None]:
    return {member.address: member.iommu_group for member in machine.members}


def verified(chosen: Iterable[Passthrough], recorded: Mapping[str, int | None]) -> list[list[str]]:
    """Findings of verify on the host as it is now: code, severity, reason."""
    return [[f.code, f.severity.value, f.reason] for f in verify(look(), list(chosen), recorded)]


def opened(group: int, *addresses: str) -> str:
    """What opening a group comes to: the ids, or the problem."""
    try:
        return " ".join(open_group(group, addresses).values())
    except VfioRefusedError as refused:
        return refused.problem.value


def bind(address: str, driver: str | None) -> None:
    """Give a function to a driver, or to none."""
    HOST.write_attribute(f"{DEVICES}/{address}/driver_override", driver or "")
    if HOST.tree.link(f"{DEVICES}/{address}/driver"):
        HOST.write_attribute(f"{DEVICES}/{address}/driver/unbind", address)
    if driver:
        subprocess.run(["modprobe", driver], check=True)
        HOST.write_attribute("sys/bus/pci/drivers_probe", address)


def bound() -> Answers:
    """Unbound, then bound as apply does; and on the AMD IOMMU of QEMU interrupts are not remapped."""
    machine = look()
    chosen, recorded = wanted(*machine.members), groups(machine)
    first = machine.members[0]
    for member in machine.members:
        bind(member.address, None)
    answers: Answers = {"nothing bound": verified(chosen, recorded)}
    answers["opened"] = opened(first.iommu_group or 0, first.address)
    for member in machine.members:
        bind(member.address, "vfio-pci")
    answers["bound"] = verified(chosen, recorded)
    HOST.write_attribute("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N")
    answers["interrupts not remapped"] = verified(chosen, recorded)
    return answers


def half_bound() -> Answers:
    """A card whose display is with vfio-pci, and its audio with one driver after the other."""
    machine = look()
    display, audio = machine.slots[0].leader, machine.slots[0].companions[0]
    chosen, group = wanted(display, audio), display.iommu_group or 0
    answers: Answers = {"audio with vfio-pci": verified(chosen, groups(machine))}
    for driver in ("snd_hda_intel", "pci-stub", None):
        bind(audio.address, driver)
        answers[f"audio with {driver}"] = verified(chosen, groups(machine))
        answers[f"opened with {driver}"] = opened(group, display.address)
    bind(audio.address, "snd_hda_intel")
    try:
        with Guest(display.address):
            answers["qemu"] = "started"
    except Ended as ended:
        answers["qemu"] = str(ended)
    return answers


def without_iommu() -> Answers:
    machine = look()
    first = machine.members[0]
    return {"verified": verified(wanted(*machine.members), groups(machine)), "opened": opened(0, first.address)}


def guest() -> Answers:
    """A VM on a V100 that shares its group with nobody: what it sees, its DMA, and what the host sees meanwhile."""
    machine = look()
    gpu, other = (slot.leader for slot in machine.slots if not slot.peers)
    group = gpu.iommu_group or 0
    answers: Answers = {"group": group}
    with Guest(gpu.address) as vm:
        answers["ids in the guest"], answers["class in the guest"] = vm.ids(), f"{vm.config(0, 8) >> 8:06x}"
        answers.update(dma(vm))
        answers["opened while it runs"] = opened(group, gpu.address)
        answers["verified while it runs"] = verified(wanted(gpu, other), groups(machine))
        try:
            with Guest(gpu.address):
                answers["second VM"] = "started"
        except Ended as ended:
            answers["second VM"] = str(ended)
        answers["unbind"] = unbind(gpu.address)
        answers["writers while it runs"] = waiting_writers(1)
    answers["writers after it"] = waiting_writers(0)
    bind(gpu.address, "vfio-pci")
    answers["verified after it"] = verified(wanted(gpu), groups(machine))
    return answers


def dma(vm: Guest) -> Answers:
    device, sent = Edu(vm), bytes(range(64))
    inverted = device.inverted(0x12345678)
    vm.write(0x100000, sent)
    device.fetch(0x100000, len(sent))
    device.store(0x200000, len(sent))
    came_back = vm.read(0x200000, len(sent)) == sent
    before = faults()
    device.fetch(MEMORY + 0x1000000, len(sent))
    return {"inverted": hex(inverted), "DMA round trip": came_back, "faults": [before, faults()]}


def faults() -> list[str]:
    kernel = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in kernel.splitlines() if "fault addr" in line]


def unbind(address: str) -> str:
    """What becomes of an unbind that the kernel makes wait."""
    host = LocalHost(attribute_seconds=10)
    # The first write starts the process that writes, which may take seconds here and would pass for a write that hangs.
    host.write_attribute(f"{DEVICES}/{address}/driver_override", "vfio-pci")
    try:
        host.write_attribute(f"{DEVICES}/{address}/driver/unbind", address)
    except AttributeHangs as error:
        return str(error)
    return "done"


def waiting_writers(expected: int) -> int:
    """How many of our processes the kernel makes wait in a write to sysfs, as soon as it is what is expected."""
    deadline = time.monotonic() + 20
    while True:
        count = sum(_waits(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        if count == expected or time.monotonic() > deadline:
            return count
        time.sleep(0.1)


def _waits(process: Path) -> bool:
    """Killed or not, it is in state D as long as unbind has not returned."""
    try:
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        return (state, int(parent)) == ("D", os.getpid()) and b"sysfs_writer" in (process / "cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return False


JOBS = {job.__name__: job for job in (bound, half_bound, without_iommu, guest)}

if __name__ == "__main__":
    Path(os.environ["JOB"], "answers.json").write_text(json.dumps(JOBS[sys.argv[1]](), indent=1))
