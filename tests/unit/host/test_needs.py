"""What the host needs without a mount or a default route of its own, live and from a recording."""

from __future__ import annotations

import re
from pathlib import Path

from gpuyard.host.needs import needed_by_host
from gpuyard.host.recording import record
from gpuyard.host.tree import LINK, FileTree, RecordedTree
from tests.support.sysfs import Sysfs, names, write

ZFS_ROOT = "30 1 0:27 / / rw,relatime - zfs rpool/ROOT/pve-1 rw,xattr\n"


def machine() -> Sysfs:
    """Two controllers, of disks and of network ports."""
    host = Sysfs().function("01:00.0", "1000:0097", "0107", 5).function("02:00.0", "1000:0097", "0107", 6)
    return host.function("41:00.0", "8086:1563", "0200", 7).function("41:00.1", "8086:1563", "0200", 7)


def needed(host: Sysfs) -> dict[str, str]:
    """Also asserts that a recording says the same."""
    tree = RecordedTree(host.nodes)
    reasons = needed_by_host(tree)
    assert needed_by_host(RecordedTree(record(tree, names(), "x")["tree"])) == reasons
    return reasons


def inside_open_vswitch(host: Sysfs, *ports: str) -> None:
    """The default route on br-ex, a port inside a switch: an interface without ports below it."""
    host.uplink("eno1", "41:00.0")
    host.put("proc/net/route", host.nodes["proc"]["net"]["route"].replace("eno1", "br-ex"))
    host.put("sys/class/net/br-ex", {LINK: "../../devices/virtual/net/br-ex"})
    host.put("sys/devices/virtual/net/br-ex/flags", "0x1003")
    for number, name in enumerate(ports):
        host.port(name, f"41:00.{number}", up=True, master="ovs-system")


def test_the_ports_of_an_open_vswitch_with_the_default_route_inside() -> None:
    host = machine()
    inside_open_vswitch(host, "eno1", "eno2")
    assert needed(host) == {"0000:41:00.0": "network port eno1 (up)", "0000:41:00.1": "network port eno2 (up)"}


def test_a_port_that_is_up_beside_the_uplink() -> None:
    host = machine().uplink("eno1", "41:00.0").port("eno2", "41:00.1", up=True)
    assert needed(host) == {"0000:41:00.0": "uplink eno1", "0000:41:00.1": "network port eno2 (up)"}


def test_a_spare_port_is_not_needed() -> None:
    assert needed(machine().port("eno2", "41:00.1")) == {}


def test_a_port_that_is_switched_on_without_a_link_is_not_needed() -> None:
    host = machine().port("eno2", "41:00.1")
    host.put("sys/devices/pci0000:00/0000:41:00.1/net/eno2/flags", "0x1003")
    assert needed(host) == {}


def test_a_driver_that_does_not_tell_the_state_has_a_carrier() -> None:
    host = machine().port("eno2", "41:00.1", up=True)
    host.put("sys/devices/pci0000:00/0000:41:00.1/net/eno2/operstate", "unknown")
    assert needed(host) == {}
    host.put("sys/devices/pci0000:00/0000:41:00.1/net/eno2/carrier", "1")
    assert needed(host) == {"0000:41:00.1": "network port eno2 (up)"}


def test_a_member_of_a_bond_is_needed_while_its_cable_is_out() -> None:
    assert needed(machine().port("eno2", "41:00.1", master="bond0")) == {"0000:41:00.1": "network port eno2 (of bond0)"}


def test_interfaces_of_software_need_nothing() -> None:
    host = machine()
    host.put("sys/class/net/docker0", {LINK: "../../devices/virtual/net/docker0"})
    host.put("sys/devices/virtual/net/docker0/flags", "0x1003")
    host.put("sys/devices/virtual/net/docker0/operstate", "up")
    assert needed(host) == {}


def test_of_many_ports_of_one_function_the_first_is_named() -> None:
    host = machine()
    for number in range(3):
        host.port(f"eth{number}", "41:00.0", up=True)
    assert needed(host) == {"0000:41:00.0": "network port eth0 (up) and 2 more"}


def test_idle_disks_are_not_needed() -> None:
    assert needed(machine().drive("sda", "01:00.0").drive("sdb", "02:00.0", "sdb1")) == {}


def test_disks_of_lvm_and_of_arrays_are_needed() -> None:
    host = machine().drive("sda", "01:00.0", sda="dm-3").drive("sdb", "02:00.0", "sdb1", "sdb2", sdb2="md0")
    assert needed(host) == {"0000:01:00.0": "disk sda (in use by dm-3)", "0000:02:00.0": "disk sdb (in use by md0)"}


def test_of_many_disks_and_holders_the_first_are_named() -> None:
    host = machine()
    for number, name in enumerate(("sda", "sdb", "sdc")):
        host.drive(name, "01:00.0", **{name: f"dm-{number}"})
    host.put("sys/devices/pci0000:00/0000:01:00.0/host0/block/sda/holders/dm-7", {LINK: "../dm-7"})
    assert needed(host) == {"0000:01:00.0": "disk sda (in use by dm-0 and 1 more) and 2 more"}


def test_what_is_mounted_says_enough() -> None:
    host = machine().disk("sda", "8:0", "01:00.0").drive("sdb", "01:00.0", sdb="dm-3")
    assert needed(host) == {"0000:01:00.0": "root disk on sda"}


def test_disks_with_partitions_are_needed_where_zfs_is_mounted() -> None:
    host = machine().drive("sda", "01:00.0", "sda1", "sda9").drive("sdb", "02:00.0")
    host.put("proc/self/mountinfo", ZFS_ROOT + ZFS_ROOT.replace(" / / ", " / /data "))
    assert needed(host) == {"0000:01:00.0": "disk sda (may be part of a ZFS pool)"}
    text = record(RecordedTree(host.nodes), names(), "x")["tree"]["proc"]["self"]["mountinfo"]
    assert text == ZFS_ROOT.rstrip("\n"), "one of them is enough"


def test_a_volume_of_zfs_is_use_as_well() -> None:
    host = machine().drive("sda", "01:00.0", "sda1")
    host.put("sys/class/block/zd16", {LINK: "../../devices/virtual/block/zd16"})
    assert needed(host) == {"0000:01:00.0": "disk sda (may be part of a ZFS pool)"}


def test_the_second_disk_of_btrfs() -> None:
    host = machine().disk("sda", "8:0", "01:00.0").drive("sdb", "02:00.0", "sdb1")
    host.put("sys/fs/btrfs/0e1f/devices/sda", {LINK: "../../../../block/sda"})
    host.put("sys/fs/btrfs/0e1f/devices/sdb1", {LINK: "../../../../block/sdb1"})
    host.put("sys/fs/btrfs/features/raid1c34", "0")
    assert needed(host) == {"0000:01:00.0": "root disk on sda", "0000:02:00.0": "disk sdb (in use by btrfs)"}


def test_a_held_disk_of_an_nvme_subsystem_needs_its_controller() -> None:
    host = Sysfs().function("01:00.0", "144d:a808", "0108", 5)
    subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0"
    host.put("sys/class/block/nvme0n1", {LINK: f"../../{subsystem}/nvme0n1"})
    host.put("sys/class/block/nvme0n1p1", {LINK: f"../../{subsystem}/nvme0n1/nvme0n1p1"})
    host.put(f"sys/{subsystem}/nvme0n1/nvme0n1p1/holders/dm-0", {LINK: "../../../../../block/dm-0"})
    host.put(f"sys/{subsystem}/nvme0", {LINK: "../../../pci0000:00/0000:01:00.0/nvme/nvme0"})
    assert needed(host) == {"0000:01:00.0": "disk nvme0n1 (in use by dm-0)"}


def test_this_machine_reads_like_its_recording() -> None:
    """Every kind of device of a real kernel is walked; what is found is a property of this machine alone."""
    tree = FileTree("/")
    reasons = needed_by_host(tree)
    assert reasons == needed_by_host(RecordedTree(record(tree, names(), "x")["tree"]))
    assert all(re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) for address in reasons)


def test_a_folder_reads_like_a_recording(tmp_path: Path) -> None:
    host = machine().drive("sdb", "02:00.0", "sdb1", sdb1="dm-3")
    inside_open_vswitch(host, "eno1")
    write(host, tmp_path)
    assert needed_by_host(FileTree(str(tmp_path))) == needed(host) != {}
