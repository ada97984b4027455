"""The ladder of checks: each thing that can be wrong with a host, with its reason and its remedy."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.host.checks import CHECKS, Machine, check
from gpuyard.host.checks.acs import parse
from gpuyard.host.checks.cards import is_consumer
from gpuyard.host.judge import judge
from gpuyard.host.modules import is_available, is_builtin, kept_out, modalias, takers
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.recording import dumps, record, replay_tree
from gpuyard.host.scan import scan
from gpuyard.host.tree import FileTree, RecordedTree
from gpuyard.model.finding import Finding, Severity, worst
from gpuyard.model.pci import PciFunction
from tests.support.sysfs import T4, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, names, write

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
    return machine.process(1, "systemd")


def findings(machine: Sysfs) -> list[Finding]:
    tree = RecordedTree(machine.nodes)
    inventory = scan(tree, PciIds([], {TITAN_XP: "GP102 [TITAN Xp]", T4: "TU104GL [Tesla T4]"}))
    return check(Machine(tree, inventory, judge(inventory)))


def of(name: str, machine: Sysfs) -> list[tuple[Severity, str, str]]:
    return [(f.severity, f.reason, f.remedy) for f in findings(machine) if f.code == name]


def test_a_machine_that_is_right_has_nothing_to_warn_of() -> None:
    assert [f for f in findings(good()) if f.severity is not Severity.OK] == []
    assert {f.code for f in findings(good())} >= {"gpus", "iommu", "interrupts", "groups", "drivers", "vfio"}


@pytest.mark.parametrize(
    ("path", "text", "name", "level", "says", "remedy"),
    [
        ("proc/cpuinfo", "model name: AMD EPYC\nflags: fpu", "virtualisation", Severity.ERROR, "svm, vmx", "SVM Mode in the firmware"),
        ("proc/cpuinfo", "model name: Intel Xeon\nflags: fpu", "virtualisation", Severity.ERROR, "svm, vmx", "VT-x"),
        ("proc/cpuinfo", "flags: hypervisor", "virtualisation", Severity.ERROR, "is a VM itself", "nested virtualisation"),
        ("proc/cpuinfo", "model name: AMD EPYC", "virtualisation", Severity.UNKNOWN, "not to be seen", "/proc/cpuinfo"),
        ("proc/cmdline", "amd_iommu=on", "command-line", Severity.WARNING, "on by default", "take it out"),
        ("proc/cmdline", "intel_iommu=off", "command-line", Severity.ERROR, "intel_iommu=off is on", "reboot"),
        ("proc/interrupts", "24: PCI-MSI", "interrupts", Severity.ERROR, "not remapped, and VFIO refuses", "x2APIC"),
        ("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y", "interrupts", Severity.WARNING, "is set and not needed", "take it out"),
        ("proc/cmdline", "vfio-pci.ids=10de:1db4", "vfio", Severity.WARNING, "takes every device with that id: 27:00.0, 28:00.0, 44:00.0", "by address"),
        ("etc/modprobe.d/vfio.conf", "options vfio-pci ids=10de:1db4,10de:10ef", "vfio", Severity.WARNING, "ids=10de:1db4 in /etc/modprobe.d/vfio.conf", "by address"),
        (f"{MODULES}/modules.dep", "", "vfio", Severity.ERROR, "the kernel has no vfio-pci", "install the kernel package"),
        (f"{MODULES}/modules.builtin", "kernel/drivers/vfio/pci/vfio-pci.ko", "vfio", Severity.OK, "do not reach it", ""),
        ("etc/modprobe.d/gpu.conf", "", "native-drivers", Severity.WARNING, "nouveau would take 27:00.0, 28:00.0, 44:00.0 at boot", "softdep nouveau pre: vfio-pci"),
        ("etc/modprobe.d/gpu.conf", "softdep nouveau pre: vfio-pci", "native-drivers", Severity.OK, "nouveau (softdep in /etc/modprobe.d/gpu.conf)", ""),
        ("proc/cmdline", "pcie_acs_override=downstream,multifunction", "command-line", Severity.WARNING, "does not keep apart", "take it out"),
        ("proc/sys/vm/overcommit_memory", "1", "memory", Severity.WARNING, "vm.overcommit_memory is 1", "set it to 0"),
        ("proc/sys/vm/overcommit_memory", "2", "memory", Severity.WARNING, "CommitLimit at most", "vm.overcommit_ratio"),
        ("sys/kernel/iommu_groups/32/reserved_regions", "0x7a000000 0x7b7fffff direct\n0xfee00000 0xfeefffff msi", "reserved-memory", Severity.ERROR, "group 32 (44:00.0): a platform RMRR", "VFIO refuses"),
        ("usr/lib/x86_64-linux-gnu/libvirt.so.0", {"->": "libvirt.so.0.10002.0"}, "software", Severity.OK, "libvirt 10.2.0 is installed", ""),
        ("usr/lib64/libvirt.so.0", {"->": "libvirt.so.0.7002.1"}, "software", Severity.WARNING, "libvirt 7.2.1 is installed, and Nova 2026.2 wants 8.0.0", "container"),
        ("var/lib/dpkg/status", "Package: x\n\nPackage: qemu-system-x86\nStatus: install ok installed\nVersion: 1:8.2.2+ds-0ubuntu1\n\n", "software", Severity.OK, "QEMU 8.2.2 is installed", ""),
        ("var/lib/dpkg/status", "Package: qemu-system-x86\nStatus: install ok installed\nVersion: 1:5.2+dfsg-11\n", "software", Severity.WARNING, "QEMU 5.2 is installed, and Nova 2026.2 wants 6.2.0", "update"),
        ("var/lib/dpkg/status", "Package: qemu-system-x86\nStatus: deinstall ok config-files\nVersion: 1:7.2\n", "software", Severity.OK, "no libvirt or QEMU is to be seen", "install them"),
        ("usr/libexec/qemu-kvm", "", "software", Severity.OK, "QEMU, whose version cannot be told without running it, is installed", ""),
        ("proc/meminfo", "SwapTotal: 8388608 kB", "memory", Severity.OK, "8 GiB of swap", "ram_allocation_ratio at 1.0"),
    ],
)  # fmt: skip
def test_each_thing_that_can_be_said(
    path: str, text: object, name: str, level: Severity, says: str, remedy: str
) -> None:
    machine = good()
    machine.put(path, text)
    findings = of(name, machine)
    assert any(l is level and says in reason and remedy in what for l, reason, what in findings), findings  # noqa: E741


def test_interrupts_that_are_not_remapped_and_let_through_are_a_warning() -> None:
    machine = good()
    machine.put("proc/interrupts", "24: PCI-MSI")
    machine.put("proc/cmdline", "vfio_iommu_type1.allow_unsafe_interrupts=1")
    ((level, reason, remedy),) = of("interrupts", machine)
    assert level is Severity.WARNING
    assert "a VM with a GPU could send any interrupt to the host" in reason
    assert "trusted guests only" in remedy


def test_where_the_iommu_is_off_nothing_is_said_of_groups_or_slots() -> None:
    """Neither GPUs that could be given away, nor cards to be moved."""
    machine = good()
    for address in ("27:00.0", "28:00.0", "44:00.0"):
        del machine.nodes["sys"]["devices"]["pci0000:00"][f"0000:{address}"]["iommu_group"]
    assert of("groups", machine) == []
    assert of("iommu", machine) == [
        (Severity.ERROR, "the IOMMU is off: there are no IOMMU groups", "enable IOMMU (AMD-Vi) in the firmware")
    ]


def test_a_gpu_or_a_bus_that_cannot_be_read_is_blocked() -> None:
    machine = good().function("45:00.0", V100, group=33, vendor="")
    assert any("45:00.0 3D controller may be a GPU" in reason for _, reason, _ in of("gpus", machine))
    ((level, reason, _),) = of("gpus", Sysfs())
    assert level is Severity.ERROR
    assert "no PCI function is to be seen" in reason


def test_no_iommu_is_told_by_vendor_and_never_by_what_dmesg_says() -> None:
    machine = Sysfs().function("27:00.0", V100)
    machine.put("proc/cpuinfo", "model name: Intel(R) Xeon(R)\nflags: vmx")
    machine.put("proc/cmdline", "quiet")
    assert of("iommu", machine) == [
        (Severity.ERROR, "the IOMMU is off: there are no IOMMU groups", "enable VT-d in the firmware and boot with intel_iommu=on")
    ]  # fmt: skip
    machine.put("proc/cmdline", "intel_iommu=on")
    assert of("iommu", machine)[0][2] == "enable VT-d in the firmware"


def test_a_group_that_the_host_needs_is_blocked_with_the_judge_s_reason() -> None:
    machine = good().function("01:00.0", "144d:a808", "0108", 32, driver="nvme").disk("nvme0n1", "259:0", "01:00.0")
    assert any(
        level is Severity.ERROR and "root disk on nvme0n1" in reason for level, reason, _ in of("groups", machine)
    )
    assert worst(findings(machine)) is Severity.ERROR


def test_drivers_of_the_host_and_pci_stub_are_named_by_function() -> None:
    machine = Sysfs().function("18:00.0", TITAN_XP, "0300", 39, driver="nouveau")
    machine.function("18:00.1", TITAN_XP_AUDIO, "0403", 39, driver="pci-stub")
    reasons = [reason for _, reason, _ in of("drivers", machine)]
    assert any("18:00.0" in reason and "nouveau, a driver of the host" in reason for reason in reasons)
    assert any("18:00.1" in reason and "pci-stub" in reason for reason in reasons)


def test_a_gpu_with_a_vfio_driver_of_its_own() -> None:
    machine = good()
    machine.put(f"{MODULES}/modules.alias", "alias vfio_pci:v000010DEd00001DB4sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci")
    assert "nvgrace_gpu_vfio_pci" in of("variant-drivers", machine)[0][1]


def test_big_bars_no_reset_and_sr_iov() -> None:
    region = "0x0000380000000000 0x0000381fffffffff 0x000000000014220c"
    machine = Sysfs().function("18:00.0", T4, group=1, resource=region, sriov_totalvfs="16", reset_method="")
    assert of("bars", machine)[0][1] == "18:00.0 Tesla T4: a BAR of 128 GiB"
    assert "no way to reset 18:00.0 Tesla T4 is shown" in of("reset", machine)[0][1]
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


def bridge_config(kind: int = 6, acs: tuple[int, int] | None = None) -> bytes:
    """Configuration space of a PCIe port with a power management and an express capability."""
    config = bytearray(4096)
    config[0x06], config[0x34] = 0x10, 0x40
    config[0x40:0x44] = bytes([0x01, 0x50, 0, 0])
    config[0x50:0x54] = bytes([0x10, 0, 0x02 | kind << 4, 0])
    struct.pack_into("<I", config, 0x100, 0x0003 | 1 << 16 | 0x148 << 20)  # device serial number
    if acs:
        struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, *acs)
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "weakness"),
    [
        (bridge_config(), "no ACS"),
        (bridge_config(kind=4), "no ACS"),
        (bridge_config(acs=(0x005F, 0x0000)), "ACS switched off"),
        (bridge_config(acs=(0x005F, 0x001D)), ""),
        (bridge_config(acs=(0x0011, 0x0011)), ""),  # what it cannot switch it does anyway
        (bridge_config(kind=5), ""),  # the upstream port of a switch
        (bridge_config(kind=7), "conventional PCI below it"),
        (bytes(256), "conventional PCI below it"),
        (b"\xff" * 4096, "conventional PCI below it"),  # it does not answer
    ],
)
def test_acs_registers(config: bytes, weakness: str) -> None:
    assert parse(config).weakness == weakness


def shared() -> Sysfs:
    """Two GPUs behind ports of a switch, one of which cannot keep them apart."""
    machine = good()
    machine.nodes["sys"]["bus"]["pci"]["devices"].clear()
    machine.function("25:00.0", "10b5:8747", "0604", 19, driver="pcieport")
    for address in ("27:00.0", "28:00.0"):
        machine.function(address, V100, group=19, below="25:00.0", driver="vfio-pci", reset_method="bus")
    return machine


def test_the_bridge_that_makes_a_group_is_named(tmp_path: Path) -> None:
    machine = shared()
    assert of("isolation", machine) == []  # its registers are not to be seen
    write(machine, tmp_path)
    config = tmp_path / "sys/bus/pci/devices/0000:25:00.0/config"
    config.write_bytes(bridge_config()[:64])  # what the kernel shows to those who are not root
    tree = FileTree(str(tmp_path))
    inventory = scan(tree, names())
    look = Machine(tree, inventory, judge(inventory))
    assert [f for f in check(look) if f.code == "isolation"] == []
    config.write_bytes(bridge_config())
    (finding,) = [f for f in check(look) if f.code == "isolation"]
    assert finding.severity is Severity.OK
    assert finding.reason == "group 19 (27:00.0, 28:00.0) is one because of 25:00.0 (no ACS)"
    recorded_tree, again = replay_tree(dumps(record(tree, names(), "x")), "x")
    assert finding in check(Machine(recorded_tree, again, judge(again)))


def test_relaxable_regions_are_no_platform_rmrr() -> None:
    machine = good()
    machine.put("sys/kernel/iommu_groups/32/reserved_regions", "0x0 0xffff direct-relaxable\n0xfee00000 0xfeefffff msi")
    assert of("reserved-memory", machine) == []


def consumer() -> Sysfs:
    """A card with display, audio and USB-C, as it is on a desktop."""
    machine = good()
    machine.function("18:00.0", TITAN_XP, "0300", 39, driver="nvidia", reset_method="bus")
    machine.function("18:00.1", TITAN_XP_AUDIO, "0403", 39, driver="snd_hda_intel")
    machine.function("18:00.2", "10de:1ad6", "0c03", 39, driver="xhci_hcd")
    return machine


def test_processes_that_hold_a_gpu_and_vms() -> None:
    machine = consumer().node("sound", "controlC1", "18:00.1").node("drm", "renderD128", "18:00.0")
    machine.put("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: TITAN Xp\nDevice Minor: \t 3")
    machine.process(812, "nvidia-persistenced", "/dev/nvidiactl", "/dev/nvidia3")
    machine.process(900, "pipewire", "/dev/snd/controlC1", "/dev/snd/timer")
    machine.process(4711, "qemu-system-x86_64", "/dev/vfio/vfio", "/dev/vfio/19")
    assert of("in-use", machine) == [
        (Severity.WARNING, "18:00.0 held through /dev/nvidia3 by nvidia-persistenced, process 812: a driver would wait for it", "systemctl disable --now nvidia-persistenced"),
        (Severity.WARNING, "18:00.1 held through /dev/snd/controlC1 by pipewire, process 900: a driver would wait for it", "end the sound server, and keep it from starting again"),
        (Severity.OK, "a VM (qemu-system-x86_64, process 4711) has 27:00.0, 28:00.0", ""),
    ]  # fmt: skip


def test_silence_about_processes_is_never_taken_for_good() -> None:
    machine = good()
    assert of("in-use", machine) == [(Severity.OK, "no process holds a GPU or a companion", "")]
    machine.stranger(812, "nvidia-persistenced").stranger(813, "chronyd")
    ((level, reason, remedy),) = of("in-use", machine)
    assert (level, remedy) == (Severity.UNKNOWN, "look again as root")
    assert reason.endswith("one may hold a GPU; among them nvidia-persistenced")
    del machine.nodes["proc"]["1"]
    assert of("in-use", machine)[0][1] == "which processes hold a GPU cannot be seen"


IOMEM = """\
00000000-00000fff : Reserved
c0000000-d1ffffff : PCI Bus 0000:01
  c0000000-cfffffff : 0000:18:00.0
    c0000000-c02fffff : BOOTFB
      c0000000-c02fffff : efifb
  d0000000-d1ffffff : 0000:27:00.0
    d0000000-d0ffffff : vfio-pci
"""


@pytest.mark.parametrize(
    ("kernel", "name", "level", "remedy"),
    [
        ("5.15.0-100-generic", "BOOTFB", Severity.WARNING, "initcall_blacklist=sysfb_init"),
        ("5.15.0-100-generic", "efifb", Severity.WARNING, "video=efifb:off"),
        ("6.1.0-56-amd64", "efifb", Severity.OK, "stays dark"),
    ],
)
def test_a_console_in_the_memory_of_a_gpu(kernel: str, name: str, level: Severity, remedy: str) -> None:
    machine = consumer()
    machine.put("proc/sys/kernel/osrelease", kernel)
    machine.put("proc/iomem", IOMEM.replace("BOOTFB", name))
    ((severity, reason, what),) = of("console", machine)
    assert severity is level
    assert f"({name}) is in the memory of 18:00.0 TITAN Xp" in reason
    assert remedy in what


def test_the_text_console_is_on_the_first_frame_buffer() -> None:
    machine = consumer().node("graphics", "fb10", "44:00.0").node("graphics", "fb2", "18:00.0")
    machine.put("sys/class/vtconsole/vtcon0/name", "(S) dummy device")
    machine.put("sys/class/vtconsole/vtcon0/bind", "1")
    machine.put("sys/class/vtconsole/vtcon1/name", "(M) frame buffer device")
    machine.put("sys/class/vtconsole/vtcon1/bind", "0")
    assert of("console", machine) == []
    machine.put("sys/class/vtconsole/vtcon1/bind", "1")
    ((level, reason, _),) = of("console", machine)
    assert level is Severity.WARNING
    assert reason == "the text console (/dev/fb2) is on 18:00.0 TITAN Xp, and goes dark with it"
    machine.node("graphics", "fb0", "01:00.0")  # the display of a BMC
    assert of("console", machine) == []


def test_a_console_on_another_display_is_nobody_s_business() -> None:
    machine = good()
    machine.put("proc/iomem", IOMEM)
    assert of("console", machine) == []


def test_keyboards_on_a_gpu_s_usb_port() -> None:
    machine = consumer()
    port = "sys/devices/pci0000:00/0000:18:00.2/usb3"
    machine.put(f"{port}/product", "xHCI Host Controller")
    assert of("usb", machine) == []
    machine.put(f"{port}/3-1/product", "USB Hub")
    machine.put(f"{port}/3-1/3-1.4/product", "Dell Keyboard")
    machine.put(f"{port}/3-1/3-1:1.0/bInterfaceClass", "09")
    ((level, reason, _),) = of("usb", machine)
    assert level is Severity.WARNING
    assert reason.endswith("the host loses what is on it: USB Hub, Dell Keyboard")


def test_huge_pages_are_told_by_size() -> None:
    machine = good()
    for name, total, free in (("2048kB", "0", "0"), ("1048576kB", "96", "90")):
        machine.put(f"sys/kernel/mm/hugepages/hugepages-{name}/nr_hugepages", total)
        machine.put(f"sys/kernel/mm/hugepages/hugepages-{name}/free_hugepages", free)
    ((level, reason, remedy),) = of("memory", machine)
    assert level is Severity.OK
    assert reason.startswith("96 huge pages of 1 GiB (96 GiB) are set aside, 90 of them free")
    assert "reserved_host_memory_mb" in remedy


@pytest.mark.parametrize(
    ("name", "class_id", "expected"),
    [
        ("GP102 [TITAN Xp]", "0300", True),
        ("GA102 [GeForce RTX 3090]", "0300", True),
        ("GK104GL [Quadro K4200]", "0300", True),
        ("GF100GL [Quadro 6000]", "0300", True),
        ("TU102GL [Quadro RTX 6000/8000]", "0300", False),
        ("GA102GL [RTX A6000]", "0300", False),
        ("GV100GL [Tesla V100 PCIe 16GB]", "0302", False),
    ],
)
def test_cards_whose_driver_looks_for_a_hypervisor(name: str, class_id: str, expected: bool) -> None:
    card = PciFunction("0000:18:00.0", "10de", "1b02", f"{class_id}00", product_name=name)
    assert is_consumer(card) is expected


def test_consumer_cards_and_companions_are_told_for_the_site() -> None:
    (_, reason, remedy), (_, companions, _) = of("guests", consumer())
    assert reason.startswith("18:00.0 ")
    assert "code 43" in reason
    assert "hide_hypervisor: true" in remedy
    assert companions.endswith("18:00.1 Audio device, 18:00.2 USB controller")


def test_a_variant_of_vfio_pci_is_no_driver_of_the_host() -> None:
    machine = Sysfs().function("18:00.0", T4, group=1, driver="nvgrace_gpu_vfio_pci")
    assert of("drivers", machine) == [(Severity.OK, "1 of 1 functions are with nvgrace_gpu_vfio_pci", "")]


def everything() -> Sysfs:
    """A machine that gives every check something to say."""
    machine = consumer().node("sound", "controlC1", "18:00.1")
    machine.put("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: x\nGPU UUID: GPU-secret\nDevice Minor: 0")
    machine.process(812, "nvidia-persistenced", "/dev/nvidia0").process(900, "pipewire", "/dev/snd/controlC1")
    machine.process(4711, "qemu-system-x86_64", "/dev/vfio/19").stranger(5000, "gnome-shell").stranger(6000, "secret")
    machine.put("sys/class/vtconsole/vtcon1/bind", "1")
    machine.put("sys/class/vtconsole/vtcon1/name", "(M) frame buffer device")
    machine.node("graphics", "fb0", "18:00.0")
    machine.put("proc/iomem", IOMEM)
    machine.put("proc/sys/vm/overcommit_memory", "1")
    machine.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
    machine.put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12")
    machine.put("sys/kernel/iommu_groups/39/reserved_regions", "0x7a000000 0x7b7fffff direct")
    machine.put("sys/devices/pci0000:00/0000:18:00.2/usb3/3-1/product", "Keyboard")
    machine.put("sys/devices/pci0000:00/0000:18:00.2/usb3/3-1/serial", "secret")
    machine.put("usr/lib/x86_64-linux-gnu/libvirt.so.0", {"->": "libvirt.so.0.9000.0"})
    machine.put("usr/bin/qemu-system-x86_64", "")
    machine.put("etc/gpuyard/passthrough", "0000:18:00.0 10de:1b02 vfio-pci")
    package = "Package: qemu-system-x86\nStatus: install ok installed\nMaintainer: secret\nVersion: 1:7.2+dfsg"
    machine.put("var/lib/dpkg/status", f"Package: secret\n\n{package}\n\n")
    return machine


@pytest.mark.parametrize("make", [good, everything, shared])
def test_a_recording_can_be_checked_like_the_machine(make: Callable[[], Sysfs]) -> None:
    tree = RecordedTree(make().nodes)
    pci_ids = PciIds.of_this_machine()
    inventory = scan(tree, pci_ids)
    live = check(Machine(tree, inventory, judge(inventory)))
    text = dumps(record(tree, pci_ids, "x"))
    again_tree, again = replay_tree(text, "x")
    assert check(Machine(again_tree, again, judge(again))) == live
    assert "secret" not in text


def test_every_check_has_something_to_say_of_that_machine() -> None:
    silent = {"command-line", "isolation", "variant-drivers", "reset", "bars", "sr-iov", "shared", "nvswitch", "quirks"}
    assert {f.code for f in findings(everything())} == CHECKS.keys() - silent


def test_this_machine_gets_a_calm_answer() -> None:
    """Whatever it is, every check comes to its end."""
    tree = FileTree("/")
    inventory = scan(tree, names())
    findings = check(Machine(tree, inventory, judge(inventory)))
    assert findings
    assert {f.code for f in findings} <= CHECKS.keys()
    assert takers(tree, inventory.functions) is not None


def test_the_command_prints_the_ladder_and_ends_with_3_when_blocked(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(dumps(record(RecordedTree(good().nodes), names(), "x")))
    result = CliRunner().invoke(app, ["host", "check", "--from", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ok       gpus")
    file.write_text(Sysfs().function("27:00.0", V100).recording())
    result = CliRunner().invoke(app, ["host", "check", "--from", str(file), "-f", "json"])
    assert result.exit_code == 3
    blocked = [row["code"] for row in json.loads(result.stdout) if row["severity"] == "error"]
    assert blocked == ["iommu"]


NVSWITCH = "10de:22a3"
FABRIC = "usr/share/nvidia/nvswitch/fabricmanager.cfg"
STARTS = "etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service"


def board(mode: str = "", *, starts: bool = True) -> Sysfs:
    machine = good().function("87:00.0", NVSWITCH, "0680", group=114).function("88:00.0", NVSWITCH, "0680", group=114)
    if mode:
        machine.put(FABRIC, f"# FABRIC_MODE=0 is bare metal\nFABRIC_MODE={mode}\nFABRIC_MODE_RESTART=0\n")
    if starts:
        machine.put(STARTS, {"->": "/lib/systemd/system/nvidia-fabricmanager.service"})
    return machine


def test_an_nvswitch_board_without_fabric_manager_in_the_shared_model() -> None:
    for machine in (board(), board("0")):
        ((severity, reason, remedy),) = of("nvswitch", machine)
        assert severity is Severity.WARNING
        assert "87:00.0, 88:00.0" in reason
        assert "error 802" in reason
        assert "FABRIC_MODE=1" in remedy


def test_fabric_manager_in_the_shared_model_keeps_its_switches_and_is_not_to_be_stopped() -> None:
    machine = board("1")
    ((severity, reason, _),) = of("nvswitch", machine)
    assert severity is Severity.OK
    assert "keeps the NVSwitches" in reason
    inventory = scan(RecordedTree(machine.nodes), PciIds([], {}))
    assert inventory.needed_by_host["0000:87:00.0"] == "NVSwitch of Fabric Manager"
    ((severity, reason, remedy),) = of("nvswitch", board("1", starts=False))
    assert severity is Severity.ERROR
    assert remedy == "systemctl enable --now nvidia-fabricmanager"


def test_a_recording_says_how_fabric_manager_runs() -> None:
    machine = board("1")
    text = dumps(record(RecordedTree(machine.nodes), PciIds([], {}), "for a test"))
    tree, inventory = replay_tree(text, "the recording")
    assert of("nvswitch", machine) == [
        (f.severity, f.reason, f.remedy)
        for f in check(Machine(tree, inventory, judge(inventory)))
        if f.code == "nvswitch"
    ]
    assert tree.read(FABRIC) == "FABRIC_MODE=1"


def test_models_that_people_have_met_trouble_with() -> None:
    machine = good().function("a1:00.0", "10de:2b85", group=40).function("a2:00.0", "10de:2901", group=41)
    findings = of("quirks", machine)
    assert [("#853" in reason, "QEMU 10.1" in reason) for _, reason, _ in findings] == [(True, False), (False, True)]
    package = "Package: qemu-system-x86\nStatus: install ok installed\nVersion: 1:10.2.0+dfsg-1\n"
    machine.put("var/lib/dpkg/status", package)
    assert ["#853" in reason for _, reason, _ in of("quirks", machine)] == [True]
    assert of("quirks", good()) == []
