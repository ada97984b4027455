"""Who else sets drivers at boot, and displays that the kernel itself uses."""

from __future__ import annotations

import pytest

from gpuyard.host.preparation.binders import busy_display, other_binders
from gpuyard.host.preparation.files import script_file, unit_files
from gpuyard.host.tree import LINK, RecordedTree
from gpuyard.model.pci import PciFunction
from tests.support.sysfs import Sysfs

GPU, OTHER = "0000:01:00.0", "0000:41:00.0"


def notes(**files: str) -> list[str]:
    """Of a host with these files, by path."""
    host = Sysfs()
    for path, text in files.items():
        host.put(path, text)
    return other_binders(RecordedTree(host.nodes), [GPU])


def test_a_host_without_other_binders_has_no_notes() -> None:
    harmless = {
        "etc/modprobe.d/nouveau.conf": "blacklist nouveau\noptions vfio-pci disable_vga=1\n",
        "etc/udev/rules.d/70-net.rules": 'SUBSYSTEM=="net", NAME="eno1"\n# driver_override is not used\n',
        "etc/systemd/system/backup.service": "[Service]\nExecStart=/bin/true\n# not for vfio-pci\n",
        "etc/rc.local": "#!/bin/sh\n# echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override\nexit 0\n",
    }
    assert notes(**harmless) == []


@pytest.mark.parametrize("name", [GPU, f"pci-{GPU}"])
def test_driverctl(name: str) -> None:
    binder_notes = notes(**{f"etc/driverctl.d/{name}": "nvidia", f"etc/driverctl.d/{OTHER}": "vfio-pci"})
    assert binder_notes == [f"driverctl gives {GPU} to nvidia at each boot: delete /etc/driverctl.d/{name}"]


def test_udev_rules_with_their_lines() -> None:
    rule = f'# ours\nACTION=="add", KERNEL=="{GPU}", ATTR{{driver_override}}="vfio-pci"\n'
    (note,) = notes(
        **{"etc/udev/rules.d/10-vfio.rules": rule, "lib/udev/rules.d/11-dpdk.rules": rule.replace(GPU, OTHER)}
    )
    assert note.startswith("/etc/udev/rules.d/10-vfio.rules:2: a udev rule sets driver_override: take it out")


def test_a_udev_rule_by_vendor_may_mean_a_gpu() -> None:
    rule = 'ACTION=="add", ATTR{vendor}=="0x10de", ATTR{driver_override}="vfio-pci"'
    assert len(notes(**{"usr/lib/udev/rules.d/10-vfio.rules": rule})) == 1


def test_a_udev_rule_is_read_once_and_from_the_first_folder() -> None:
    rule = 'ACTION=="add", ATTR{driver_override}="vfio-pci"'
    both = {f"{folder}/udev/rules.d/10-vfio.rules": rule for folder in ("usr/lib", "lib")}  # one is a link to the other
    assert [note.split(":")[0] for note in notes(**both)] == ["/usr/lib/udev/rules.d/10-vfio.rules"]
    assert notes(**both, **{"etc/udev/rules.d/10-vfio.rules": ""}) == [], "an empty one switches it off"


def test_the_rule_of_driverctl_does_nothing_by_itself() -> None:
    rule = 'ACTION=="add", TEST=="$sys$devpath/driver_override", ENV{SYSTEMD_WANTS}="driverctl@$kernel.service"'
    assert notes(**{"usr/lib/udev/rules.d/05-driverctl.rules": rule}) == []


def test_modprobe_lines_about_vfio() -> None:
    lines = "install vfio-pci /bin/false\ninstall vfio_pci /sbin/override.sh $CMDLINE_OPTS\nblacklist vfio\n"
    binder_notes = notes(**{"etc/modprobe.d/hardening.conf": lines})
    assert [note.split(": ", 1)[0] for note in binder_notes] == ["/etc/modprobe.d/hardening.conf"] * 3
    assert "'install vfio-pci' forbids to load it: take the line out" in binder_notes[0]
    assert "runs /sbin/override.sh $CMDLINE_OPTS instead of it: take the line out" in binder_notes[1]
    assert "'blacklist vfio' does not keep gpuyard from loading it by name" in binder_notes[2]


def test_scripts_of_guides() -> None:
    loop = f'for dev in "{GPU} 0000:01:00.1"; do echo vfio-pci >/sys/bus/pci/devices/$dev/driver_override; done\n'
    binder_notes = notes(
        **{
            "etc/initramfs-tools/scripts/init-top/vfio.sh": loop,
            "etc/rc.local": "modprobe vfio_pci; echo 10de 1db4 >/sys/bus/pci/drivers/vfio-pci/new_id\n",
            "etc/systemd/system/vfio.service": f"[Service]\nExecStart=/bin/sh -c '{loop.strip()}'\n",
            "etc/systemd/system/dpdk.service": f"[Service]\nExecStart=dpdk-devbind.py -b vfio-pci {OTHER}\n",
        }
    )
    assert [note.split()[0] for note in binder_notes] == [
        "/etc/initramfs-tools/scripts/init-top/vfio.sh",
        "/etc/rc.local",
        "/etc/systemd/system/vfio.service",
    ]
    assert [note.endswith("then make the initramfs again") for note in binder_notes] == [True, False, False]


def test_what_gpuyard_wrote_is_not_another_binder() -> None:
    ours = {file.path: file.text for file in unit_files()}
    ours["etc/initramfs-tools/scripts/init-top/gpuyard"] = script_file().text
    assert notes(**ours) == []


def gpu(driver: str | None) -> PciFunction:
    return PciFunction(GPU, "10de", "1b02", "030000", driver=driver)


def console(host: Sysfs, *, bound: bool = True) -> Sysfs:
    host.put("sys/class/vtconsole/vtcon0/name", "(S) dummy device")
    host.put("sys/class/vtconsole/vtcon0/bind", "0")
    host.put("sys/class/vtconsole/vtcon1/name", "(M) frame buffer device")
    host.put("sys/class/vtconsole/vtcon1/bind", "1" if bound else "0")
    return host.function("01:00.0", "10de:1b02", "0300", 1).function("02:00.0", "1a03:2000", "0300", 2)


@pytest.mark.parametrize(("modeset", "dangerous"), [("Y", True), ("N", False), (None, False)])
def test_nvidia_with_modeset_is_held_by_the_kernel(modeset: str | None, dangerous: bool) -> None:
    host = Sysfs()
    if modeset:
        host.put("sys/module/nvidia_drm/parameters/modeset", modeset)
    reason = busy_display(RecordedTree(host.nodes), gpu("nvidia"))
    assert ("never return" in reason) is dangerous
    for driver in ("vfio-pci", "snd_hda_intel", None):
        assert busy_display(RecordedTree(host.nodes), gpu(driver)) == "", "the module is of other cards"


@pytest.mark.parametrize("driver", ["amdgpu", "i915", "xe", "radeon", "nouveau"])
def test_the_text_console_on_a_frame_buffer_of_the_card(driver: str) -> None:
    host = console(Sysfs()).node("graphics", "fb0", "01:00.0")
    assert "/dev/fb0" in busy_display(RecordedTree(host.nodes), gpu(driver))
    for simple in ("bochs-drm", "ast", "vfio-pci", None):
        assert busy_display(RecordedTree(host.nodes), gpu(simple)) == ""


def test_no_console_on_the_card_is_no_danger() -> None:
    elsewhere = console(Sysfs()).node("graphics", "fb0", "02:00.0")
    elsewhere.put("sys/class/graphics/fbcon", {LINK: "../../devices/virtual/graphics/fbcon"})
    assert busy_display(RecordedTree(elsewhere.nodes), gpu("amdgpu")) == ""
    unbound = console(Sysfs(), bound=False).node("graphics", "fb0", "01:00.0")
    assert busy_display(RecordedTree(unbound.nodes), gpu("amdgpu")) == ""
    assert busy_display(RecordedTree(Sysfs().nodes), gpu("amdgpu")) == ""
