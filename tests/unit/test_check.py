"""The ladder of checks: each thing that can be wrong with a host, with its reason and its remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.host.check import CHECKS, Machine, check, worst
from gpuyard.host.judge import judge
from gpuyard.host.modules import is_available, is_builtin, kept_out, modalias, takers
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.recording import dumps, record, replay_tree
from gpuyard.host.scan import scan
from gpuyard.host.tree import FileTree, RecordedTree
from gpuyard.model.finding import Finding, Level
from tests.support.sysfs import T4, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, epyc, names

RELEASE = "6.1.0"
MODULES = f"lib/modules/{RELEASE}"


def good() -> Sysfs:
    """The EPYC as it should be, with everything that checks look at."""
    machine = Sysfs()
    for address, group in (("27:00.0", 19), ("28:00.0", 19), ("44:00.0", 32)):
        machine.function(address, V100, group=group, driver="vfio-pci", reset_method="flr bus")
    machine.put("proc/cpuinfo", "model name\t: AMD EPYC 7352 24-Core Processor\nflags\t\t: fpu svm lm")
    machine.put("proc/interrupts", "  24:  0  0  IR-PCI-MSI-0000:00:01.1  0-edge  PCIe PME")
    machine.put("proc/cmdline", "quiet iommu=pt")
    machine.put("proc/meminfo", "MemTotal: 16384 kB\nSwapTotal: 0 kB")
    machine.put("proc/sys/kernel/osrelease", RELEASE)
    machine.put("sys/class/iommu/ivhd0", {"->": "../../devices/virtual/iommu/ivhd0"})
    machine.put("sys/kernel/iommu_groups/19/type", "identity")
    machine.put(f"{MODULES}/modules.builtin", "kernel/drivers/vfio/vfio.ko")
    machine.put(f"{MODULES}/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz")
    machine.put(
        f"{MODULES}/modules.alias",
        "alias pci:v000010DEd*sv*sd*bc03sc02i00* nouveau\nalias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci",
    )
    machine.put("etc/modprobe.d/gpu.conf", "# by hand\nblacklist nouveau")
    return machine


def findings(machine: Sysfs) -> list[Finding]:
    inventory = machine.inventory()
    return check(Machine(RecordedTree(machine.nodes), inventory, judge(inventory)))


def of(name: str, machine: Sysfs) -> list[tuple[Level, str, str]]:
    return [(f.level, f.reason, f.remedy) for f in findings(machine) if f.check == name]


def test_a_machine_that_is_right_has_nothing_to_warn_of() -> None:
    assert [f for f in findings(good()) if f.level is not Level.OK] == []
    assert {f.check for f in findings(good())} >= {"gpus", "iommu", "interrupts", "groups", "drivers", "vfio"}


@pytest.mark.parametrize(
    ("path", "text", "name", "level", "says", "remedy"),
    [
        ("proc/cpuinfo", "model name: AMD EPYC\nflags: fpu", "virtualisation", Level.BLOCKED, "svm, vmx", "SVM Mode in the firmware"),
        ("proc/cpuinfo", "model name: Intel Xeon\nflags: fpu", "virtualisation", Level.BLOCKED, "svm, vmx", "VT-x"),
        ("proc/cpuinfo", "flags: hypervisor", "virtualisation", Level.BLOCKED, "is a VM itself", "nested virtualisation"),
        ("proc/cpuinfo", "model name: AMD EPYC", "virtualisation", Level.WARNING, "not to be seen", "/proc/cpuinfo"),
        ("proc/cmdline", "amd_iommu=on", "command line", Level.WARNING, "on by default", "take it out"),
        ("proc/cmdline", "intel_iommu=off", "command line", Level.BLOCKED, "intel_iommu=off is on", "reboot"),
        ("proc/interrupts", "24: PCI-MSI", "interrupts", Level.BLOCKED, "not remapped, and VFIO refuses", "x2APIC"),
        ("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y", "interrupts", Level.WARNING, "is set and not needed", "take it out"),
        ("proc/cmdline", "vfio-pci.ids=10de:1db4", "vfio", Level.WARNING, "takes every device with that id: 27:00.0, 28:00.0, 44:00.0", "by address"),
        ("etc/modprobe.d/vfio.conf", "options vfio-pci ids=10de:1db4,10de:10ef", "vfio", Level.WARNING, "ids=10de:1db4 in /etc/modprobe.d/vfio.conf", "by address"),
        (f"{MODULES}/modules.dep", "", "vfio", Level.BLOCKED, "the kernel has no vfio-pci", "install the kernel package"),
        (f"{MODULES}/modules.builtin", "kernel/drivers/vfio/pci/vfio-pci.ko", "vfio", Level.OK, "do not reach it", ""),
        ("etc/modprobe.d/gpu.conf", "", "native drivers", Level.WARNING, "nouveau would take 27:00.0, 28:00.0, 44:00.0 at boot", "softdep nouveau pre: vfio-pci"),
        ("etc/modprobe.d/gpu.conf", "softdep nouveau pre: vfio-pci", "native drivers", Level.OK, "nouveau (softdep in /etc/modprobe.d/gpu.conf)", ""),
        ("proc/meminfo", "SwapTotal: 8388608 kB", "memory", Level.OK, "8 GiB of swap", "ram_allocation_ratio at 1.0"),
    ],
)  # fmt: skip
def test_each_thing_that_can_be_said(path: str, text: str, name: str, level: Level, says: str, remedy: str) -> None:
    machine = good()
    machine.put(path, text)
    found = of(name, machine)
    assert any(l is level and says in reason and remedy in what for l, reason, what in found), found  # noqa: E741


def test_interrupts_that_are_not_remapped_and_let_through_are_a_warning() -> None:
    machine = good()
    machine.put("proc/interrupts", "24: PCI-MSI")
    machine.put("proc/cmdline", "vfio_iommu_type1.allow_unsafe_interrupts=1")
    ((level, reason, remedy),) = of("interrupts", machine)
    assert level is Level.WARNING
    assert "a VM with a GPU could send any interrupt to the host" in reason
    assert "trusted guests only" in remedy


def test_no_iommu_is_told_by_vendor_and_never_by_what_dmesg_says() -> None:
    machine = Sysfs().function("27:00.0", V100)
    machine.put("proc/cpuinfo", "model name: Intel(R) Xeon(R)\nflags: vmx")
    machine.put("proc/cmdline", "quiet")
    assert of("iommu", machine) == [
        (Level.BLOCKED, "the IOMMU is off: there are no IOMMU groups", "enable VT-d in the firmware and boot with intel_iommu=on")
    ]  # fmt: skip
    machine.put("proc/cmdline", "intel_iommu=on")
    assert of("iommu", machine)[0][2] == "enable VT-d in the firmware"


def test_a_group_that_the_host_needs_is_blocked_with_the_judge_s_reason() -> None:
    machine = good().function("01:00.0", "144d:a808", "0108", 32, driver="nvme").disk("nvme0n1", "259:0", "01:00.0")
    assert any(
        level is Level.BLOCKED and "root disk on nvme0n1" in reason for level, reason, _ in of("groups", machine)
    )
    assert worst(findings(machine)) is Level.BLOCKED


def test_drivers_of_the_host_and_pci_stub_are_named_by_function() -> None:
    machine = Sysfs().function("18:00.0", TITAN_XP, "0300", 39, driver="nouveau")
    machine.function("18:00.1", TITAN_XP_AUDIO, "0403", 39, driver="pci-stub")
    reasons = [reason for _, reason, _ in of("drivers", machine)]
    assert any("18:00.0" in reason and "nouveau, a driver of the host" in reason for reason in reasons)
    assert any("18:00.1" in reason and "pci-stub" in reason for reason in reasons)


def test_a_gpu_with_a_vfio_driver_of_its_own() -> None:
    machine = good()
    machine.put(f"{MODULES}/modules.alias", "alias vfio_pci:v000010DEd00001DB4sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci")
    assert "nvgrace_gpu_vfio_pci" in of("variant drivers", machine)[0][1]


def test_big_bars_no_reset_and_sr_iov() -> None:
    region = "0x0000380000000000 0x0000381fffffffff 0x000000000014220c"
    machine = Sysfs().function("18:00.0", T4, group=1, resource=region, sriov_totalvfs="16", reset_method="")
    assert of("bars", machine)[0][1].endswith("has a BAR of 128 GiB")
    assert "shows no way to be reset" in of("reset", machine)[0][1]
    assert "type-PF" in of("sr-iov", machine)[0][1]


def test_modalias_is_what_the_kernel_writes() -> None:
    (function,) = Sysfs().function(
        "27:00.0", V100, group=1, subsystem_vendor="0x10de", subsystem_device="0x1214"
    ).inventory().functions  # fmt: skip
    assert modalias(function) == "pci:v000010DEd00001DB4sv000010DEsd00001214bc03sc02i00"


def test_module_names_may_be_spelt_either_way() -> None:
    tree = RecordedTree(good().nodes)
    assert is_available(tree, "vfio-pci") is True
    assert is_builtin(tree, "vfio_pci") is False
    assert kept_out(tree, "modprobe.blacklist=nvidia-drm,nvidiafb") == {
        "nvidia_drm": "modprobe.blacklist on the kernel command line",
        "nvidiafb": "modprobe.blacklist on the kernel command line",
        "nouveau": "blacklist in /etc/modprobe.d/gpu.conf",
    }


def test_a_recording_can_be_checked_like_the_machine() -> None:
    tree = RecordedTree(good().nodes)
    known = PciIds.of_this_machine()
    inventory = scan(tree, known)
    live = check(Machine(tree, inventory, judge(inventory)))
    again_tree, again = replay_tree(dumps(record(tree, known, "x")), "x")
    assert check(Machine(again_tree, again, judge(again))) == live


def test_this_machine_gets_a_calm_answer() -> None:
    """Whatever it is, every check comes to its end."""
    tree = FileTree("/")
    inventory = scan(tree, names())
    found = check(Machine(tree, inventory, judge(inventory)))
    assert found
    assert {f.check for f in found} <= CHECKS.keys()
    assert takers(tree, inventory.functions) is not None


def test_the_command_prints_the_ladder_and_ends_with_3_when_blocked(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(dumps(record(RecordedTree(good().nodes), names(), "x")))
    result = CliRunner().invoke(app, ["host", "check", "--from", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ok       gpus")
    file.write_text(epyc().recording())
    result = CliRunner().invoke(app, ["host", "check", "--from", str(file), "-f", "json"])
    assert result.exit_code == 3
    blocked = [row["Check"] for row in json.loads(result.stdout) if row["Level"] == "blocked"]
    assert blocked == ["iommu"]
