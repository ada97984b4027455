"""Reading sysfs: what a scan makes of attributes that are there, odd, or missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuyard.host.needs import needed_by_host
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.recording import check_facts, dumps, record, replay
from gpuyard.host.report import line, lines, to_dict, verdict_lines
from gpuyard.host.scan import count_list, scan
from gpuyard.host.tree import LINK, FileTree, RecordedTree
from gpuyard.model.errors import UsageError
from gpuyard.model.pci import DeviceType
from tests.support.sysfs import T4, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, epyc, names


def test_the_epyc_reads_like_the_seed_s_lsiommu() -> None:
    seed = "IOMMU Group 19 27:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] [10de:1db4]"
    shown = lines(epyc().inventory())
    assert len(shown) == 6
    assert shown[0].startswith(f"{seed} (rev a1)")
    assert [text.split()[2] for text in shown] == ["19", "19", "32", "75", "87", "87"]


def test_device_types_as_nova_will_see_them() -> None:
    machine = Sysfs()
    machine.function("18:00.0", T4, group=1, sriov_totalvfs="16", sriov_numvfs="0")
    machine.function("18:00.4", T4, group=2)
    machine.put("sys/devices/pci0000:00/0000:18:00.4/physfn", {LINK: "../0000:18:00.0"})
    machine.function("27:00.0", V100, group=3)
    inventory = machine.inventory()
    assert [f.device_type for f in inventory.functions] == [DeviceType.PF, DeviceType.VF, DeviceType.PCI]
    assert inventory.functions[1].physical_function == "0000:18:00.0"
    assert [f.address for f in inventory.gpus] == ["0000:18:00.0", "0000:27:00.0"], (
        "a virtual function is no GPU to give"
    )


def test_missing_attributes_are_normal() -> None:
    (function,) = Sysfs().function("27:00.0", V100).inventory().functions
    assert function.iommu_group is None
    assert function.numa_node is None
    assert function.driver is None
    assert function.boot_vga is False
    assert function.reset_methods == ()
    assert function.bars == ()


def test_bars_leave_out_empty_and_port_regions() -> None:
    regions = "\n".join(
        [
            "0x00000000fb000000 0x00000000fbffffff 0x0000000000040200",
            "0x0000000000000000 0x0000000000000000 0x0000000000000000",
            "0x000000000000e000 0x000000000000e07f 0x0000000000040101",
            "0x0000380000000000 0x00003807ffffffff 0x000000000014220c",
        ]
    )
    (function,) = Sysfs().function("27:00.0", V100, resource=regions).inventory().functions
    assert function.bars == (16 * 2**20, 32 * 2**30)


def test_parent_is_the_bridge_above() -> None:
    machine = Sysfs().function("20:00.0", "1022:1483", "0604", 1).function("27:00.0", V100, group=1, below="20:00.0")
    assert [f.parent for f in machine.inventory().functions] == [None, "0000:20:00.0"]


@pytest.mark.parametrize(("text", "count"), [("", 0), ("0", 1), ("0-3", 4), ("0-3,8,10-11", 7)])
def test_kernel_lists(text: str, count: int) -> None:
    assert count_list(text) == count


def test_domains_of_more_than_four_digits_sort_behind() -> None:
    machine = Sysfs().function("10000:e1:00.0", V100).function("0000:ff:00.0", V100).function("0000:02:00.0", V100)
    assert [f.address for f in machine.inventory().functions] == ["0000:02:00.0", "0000:ff:00.0", "10000:e1:00.0"]


def test_the_root_disk_is_found_below_lvm() -> None:
    machine = Sysfs().function("01:00.0", "144d:a808", "0108", 5).disk("nvme0n1", "259:0", "01:00.0", "/boot")
    machine.put("sys/devices/virtual/block/dm-0/slaves/nvme0n1", {LINK: "../../../../pci0000:00/x"})
    machine.put("sys/dev/block/253:0", {LINK: "../../devices/virtual/block/dm-0"})
    boot = machine.nodes["proc"]["self"]["mountinfo"]
    machine.put("proc/self/mountinfo", f"{boot}23 1 253:0 / / rw - ext4 /dev/mapper/vg-root rw\n")
    needed = needed_by_host(RecordedTree(machine.nodes))
    assert needed == {"0000:01:00.0": "disk of /boot on nvme0n1, root disk on nvme0n1"}


def test_the_root_disk_is_found_below_btrfs_and_device_mapper() -> None:
    machine = Sysfs().function("01:00.0", "144d:a808", "0108", 5).disk("nvme0n1", "259:0", "01:00.0", "/boot")
    machine.put("dev/mapper/root", {LINK: "../dm-0"})
    machine.put("sys/class/block/dm-0", {LINK: "../../devices/virtual/block/dm-0"})
    machine.put("sys/devices/virtual/block/dm-0/slaves/nvme0n1", {LINK: "../../../../pci0000:00/x"})
    machine.put(
        "proc/self/mountinfo", "23 1 0:31 /@ / rw - btrfs /dev/mapper/root rw\n24 1 0:5 / /tmp rw - tmpfs none rw"
    )
    tree = RecordedTree(machine.nodes)
    assert needed_by_host(tree) == {"0000:01:00.0": "root disk on nvme0n1"}
    assert needed_by_host(RecordedTree(record(tree, names(), "x")["tree"])) == needed_by_host(tree)


def test_the_root_disk_is_found_below_nvme_multipath() -> None:
    machine = Sysfs().function("01:00.0", "144d:a808", "0108", 5)
    machine.put("sys/dev/block/259:0", {LINK: "../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"})
    subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    machine.put(f"{subsystem}/nvme0n1/size", "1")
    machine.put(f"{subsystem}/nvme0", {LINK: "../../../pci0000:00/0000:01:00.0/nvme/nvme0"})
    machine.put("proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw")
    tree = RecordedTree(machine.nodes)
    assert list(needed_by_host(tree)) == ["0000:01:00.0"]
    assert needed_by_host(RecordedTree(record(tree, names(), "x")["tree"])) == needed_by_host(tree)


def test_the_uplink_is_found_below_a_bond() -> None:
    machine = Sysfs().function("41:00.0", "8086:1563", "0200", 7).uplink("eno1", "41:00.0")
    machine.put("sys/class/net/bond0", {LINK: "../../devices/virtual/net/bond0"})
    machine.put("sys/devices/virtual/net/bond0/lower_eno1", {LINK: "../../../pci0000:00/0000:41:00.0/net/eno1"})
    machine.put("proc/net/route", machine.nodes["proc"]["net"]["route"].replace("eno1", "bond0"))
    assert needed_by_host(RecordedTree(machine.nodes)) == {"0000:41:00.0": "uplink eno1 (of bond0)"}


def test_a_recording_replays_to_the_same_inventory_and_so_does_a_folder(tmp_path: Path) -> None:
    machine = epyc().function("01:00.0", "144d:a808", "0108", 5).disk("nvme0n1", "259:0", "01:00.0")
    machine.function("41:00.0", "8086:1563", "0200", 7, driver="ixgbe").uplink("eno1", "41:00.0")
    machine.put("proc/sys/kernel/hostname", "gpu-server")
    materialise(machine.nodes, tmp_path)
    pci_ids = PciIds.of_this_machine()
    inventory = scan(FileTree(str(tmp_path)), pci_ids, origin="x")
    text = dumps(record(FileTree(str(tmp_path)), pci_ids, "x"))
    replayed = replay(text, "file")
    assert replayed == inventory
    assert replayed.facts.hostname == "gpu-server"
    assert replayed.facts.disk_gib == 1000
    assert set(replayed.needed_by_host) == {"0000:01:00.0", "0000:41:00.0"}
    assert dumps(record(RecordedTree({}), names(), "nothing")).startswith("{")


def materialise(nodes: dict[str, object], folder: Path) -> None:
    """Write nested dictionaries as files, folders and links."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, node in nodes.items():
        if isinstance(node, str):
            (folder / name).write_text(node + "\n")
        elif isinstance(node, dict) and LINK in node:
            os.symlink(str(node[LINK]), folder / name)
        elif isinstance(node, dict):
            materialise(node, folder / name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a recording"),
        ("[]", "no 'gpuyard_recording'"),
        ('{"gpuyard_recording": 9}', "format 9, this gpuyard reads format 1"),
        ('{"gpuyard_recording": 1, "tree": []}', "'tree' must be an object"),
        ('{"gpuyard_recording": 1, "facts": {"cpus": "many"}}', "cpus must be a whole number"),
        ('{"gpuyard_recording": 1, "facts": {"cpu": 1}}', "unknown host fact 'cpu'"),
    ],
)
def test_a_file_that_is_no_recording_says_so(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replay(text, "site/host.json")


def test_links_in_a_loop_end() -> None:
    tree = RecordedTree({"a": {LINK: "b"}, "b": {LINK: "a"}})
    assert tree.read("a/vendor") is None
    assert tree.names("a") == []


def test_facts_may_come_as_text() -> None:
    assert check_facts({"cpus": "48", "hostname": "x"}) == {"cpus": 48, "hostname": "x"}


def test_names_come_from_the_list_that_travels_along() -> None:
    ids = PciIds.of_this_machine()
    assert ids.vendor("10de") == "NVIDIA Corporation"
    assert ids.product("10de", "1db4") == "GV100GL [Tesla V100 PCIe 16GB]"
    assert ids.product("10de", "10ef") == "GP102 HDMI Audio Controller"
    assert ids.product("10de", "ffff") is None
    assert ids.vendor("ffee") is None


def test_a_product_of_the_next_vendor_is_not_taken() -> None:
    ids = PciIds([b"0001  One\n\t1000  Mine\n0002  Two\n\t2000  Other\n"])
    assert ids.product("0001", "2000") is None
    assert ids.product("0002", "2000") == "Other"


def test_what_the_json_says_of_slots() -> None:
    machine = Sysfs().function("18:00.0", TITAN_XP, "0300", 39, driver="nouveau")
    machine.function("18:00.1", TITAN_XP_AUDIO, "0403", 39, driver="snd_hda_intel")
    data = to_dict(machine.inventory())
    assert data["slots"][0]["leader"] == "0000:18:00.0"
    assert data["slots"][0]["companions"] == ("0000:18:00.1",)
    assert data["capacity"] == {"gpus": 1, "single_gpu_vms": 1, "whole_slot_vms": 1}
    assert "no IOMMU group" in line(Sysfs().function("27:00.0", V100).inventory().functions[0])


def test_verdicts_for_people() -> None:
    usable = Sysfs().function("27:00.0", V100, group=19).inventory()
    assert verdict_lines(usable)[-1].startswith("1 GPU can be given away: at once to 1 VM")
    without = Sysfs().function("c5:00.0", "1a03:2000", "0300").inventory()
    assert verdict_lines(without) == ["no GPU of NVIDIA, AMD or Intel is on the PCI bus"]


def test_a_bus_or_a_gpu_that_cannot_be_read_is_said_and_not_counted_as_none() -> None:
    assert verdict_lines(Sysfs().inventory())[0].startswith("no PCI function is to be seen")
    machine = Sysfs().function("27:00.0", V100, group=19).function("28:00.0", V100, group=20, vendor="\0")
    message = "28:00.0 3D controller may be a GPU: its vendor cannot be read"
    assert message in verdict_lines(machine.inventory())
    assert to_dict(machine.inventory())["unreadable"] == (message,)


def test_without_an_iommu_only_gpus_and_their_cards_are_shown() -> None:
    machine = Sysfs().function("27:00.0", TITAN_XP, "0300").function("27:00.1", TITAN_XP_AUDIO, "0403")
    inventory = machine.function("41:00.0", "8086:1563", "0200").inventory()
    assert [text.split()[3] for text in lines(inventory)] == ["27:00.0", "27:00.1"]
    assert len(lines(inventory, everything=True)) == 3


def test_nodes_that_have_memory_only_are_no_numa_nodes_of_the_host() -> None:
    machine = Sysfs().function("27:00.0", V100)
    machine.put("sys/devices/system/node", {"online": "0-9", "has_cpu": "0-1", "has_memory": "0-9"})
    tree = RecordedTree(machine.nodes)
    assert scan(tree, names()).facts.numa_nodes == 2
    assert replay(dumps(record(tree, names(), "x")), "x").facts.numa_nodes == 2


def test_groups_of_vfio_s_no_iommu_mode_are_none() -> None:
    machine = Sysfs().function("27:00.0", V100, group=0)
    machine.put("sys/kernel/iommu_groups/0/name", "vfio-noiommu")
    tree = RecordedTree(machine.nodes)
    assert not scan(tree, names()).iommu_on
    assert not replay(dumps(record(tree, names(), "x")), "x").iommu_on
