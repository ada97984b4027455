"""Which IOMMU groups can be given away, and why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.host.judge import capacity, judge
from gpuyard.model.slot import Verdict
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, epyc


def test_the_epyc_has_four_slots_with_six_gpus() -> None:
    slots = judge(epyc().inventory())
    assert [(slot.group, len(slot.gpus), slot.usable) for slot in slots] == [
        (19, 2, True),
        (32, 1, True),
        (75, 1, True),
        (87, 2, True),
    ]
    assert slots[0].leader.short_address == "27:00.0"
    assert [gpu.short_address for gpu in slots[0].peers] == ["28:00.0"]
    room = capacity(slots)
    assert (room.gpus, room.single_gpu_vms, room.whole_slot_vms) == (6, 4, 4)


def test_without_an_iommu_every_gpu_is_blocked_and_told_what_to_switch_on() -> None:
    slots = judge(Sysfs().function("27:00.0", V100).function("28:00.0", V100).inventory())
    assert [slot.verdict for slot in slots] == [Verdict.BLOCKED] * 2
    assert slots[0].reasons == ("the IOMMU is off: gpuyard host check says what to switch on",)
    assert capacity(slots).gpus == 0


def test_audio_is_a_companion_and_does_not_block() -> None:
    machine = Sysfs().function("18:00.0", TITAN_XP, "0300", 39, driver="nouveau")
    (slot,) = judge(machine.function("18:00.1", TITAN_XP_AUDIO, "0403", 39, driver="snd_hda_intel").inventory())
    assert slot.usable
    assert [f.short_address for f in slot.companions] == ["18:00.1"]
    assert slot.notes == ("not prepared yet, on a driver of the host: 18:00.0 (nouveau), 18:00.1 (snd_hda_intel)",)


@pytest.mark.parametrize(
    ("address", "ids", "class_id"),
    [
        ("00:14.0", "8086:a36d", "0c03"),
        ("00:1f.3", "8086:a348", "0403"),
        ("00:1f.5", "8086:a324", "0c80"),
        ("00:1d.0", "8086:4b58", "0680"),
        ("27:00.4", "1022:15e1", "0c03"),
        ("28:00.0", "10de:10ef", "0403"),
    ],
    ids=["USB", "sound", "serial bus", "bridge", "USB of an APU, in the slot of its GPU", "of another card"],
)
def test_what_is_on_the_mainboard_is_no_companion(address: str, ids: str, class_id: str) -> None:
    machine = Sysfs().function("27:00.0", TITAN_XP, "0300", 1).function(address, ids, class_id, 1)
    (slot,) = judge(machine.inventory())
    assert slot.companions == ()
    assert f"the host loses {address}" in slot.notes[0]


def test_what_is_behind_the_switch_of_a_card_is_its_companion() -> None:
    """An Arc has its sound on another bus, behind its own switch; a switch of the mainboard has a port upstream too."""
    for maker, companions in (("8086", ["04:00.0"]), ("10b5", [])):
        machine = Sysfs().function("00:01.0", "8086:2030", "0604", 1)
        for port, below in (("01:00.0", "00:01.0"), ("02:01.0", "01:00.0"), ("02:04.0", "01:00.0")):
            machine.function(port, f"{maker}:4fa0", "0604", 1, below=below)
        machine.function("03:00.0", "8086:56a0", "0300", 1, below="02:01.0")
        machine.function("04:00.0", "8086:4f90", "0403", 1, below="02:04.0")
        (slot,) = judge(machine.inventory())
        assert [f.short_address for f in slot.companions] == companions


def test_a_root_port_of_the_gpu_s_maker_is_not_on_its_card() -> None:
    machine = Sysfs().function("00:01.0", "8086:2030", "0604", 1).function("00:02.0", "8086:2031", "0604", 1)
    machine.function("03:00.0", "8086:56a0", "0300", 1, below="00:01.0")
    (slot,) = judge(machine.function("03:01.0", "8086:4f90", "0403", 1, below="00:01.0").inventory())
    assert slot.companions == ()


def test_a_pci_bridge_in_the_group_stays_with_the_host_but_an_nvswitch_goes_along() -> None:
    machine = Sysfs().function("20:00.0", "1022:1483", "0604", 1, driver="pcieport").function("27:00.0", V100, group=1)
    (slot,) = judge(machine.function("29:00.0", "10de:1af1", "0680", 1).inventory())
    assert slot.usable
    assert [f.short_address for f in slot.companions] == ["29:00.0"]


def test_the_root_disk_in_the_group_blocks_it() -> None:
    machine = Sysfs().function("27:00.0", V100, group=1).function("01:00.0", "144d:a808", "0108", 1, driver="nvme")
    (slot,) = judge(machine.disk("nvme0n1", "259:0", "01:00.0").inventory())
    assert slot.verdict is Verdict.BLOCKED
    assert "needed by the host: root disk on nvme0n1" in slot.reasons[0]


def test_an_idle_disk_in_the_group_is_lost_to_the_host_but_does_not_block() -> None:
    machine = Sysfs().function("27:00.0", V100, group=1).function("01:00.0", "144d:a808", "0108", 1, driver="nvme")
    (slot,) = judge(machine.inventory())
    assert slot.usable
    assert "the host loses 01:00.0 Non-Volatile memory controller" in slot.notes[0]


def test_the_uplink_in_the_group_blocks_it() -> None:
    machine = Sysfs().function("27:00.0", V100, group=1).function("41:00.0", "8086:1563", "0200", 1, driver="ixgbe")
    (slot,) = judge(machine.uplink("eno1", "41:00.0").inventory())
    assert not slot.usable
    assert "uplink eno1" in slot.reasons[0]


@pytest.mark.parametrize(
    ("ids", "class_id", "more", "says"),
    [
        (TITAN_XP, "0300", {"boot_vga": "1"}, "boot console"),
        (V100, "0302", {"sriov_totalvfs": "16", "sriov_numvfs": "4"}, "4 virtual functions switched on"),
        ("1022:790b", "0c05", {"driver": "piix4_smbus"}, "part of the chipset"),
    ],
)
def test_other_things_that_keep_a_group_with_the_host(ids: str, class_id: str, more: dict[str, str], says: str) -> None:
    machine = Sysfs().function("27:00.0", V100, group=1).function("28:00.0", ids, class_id, 1, **more)
    (slot,) = judge(machine.inventory())
    assert not slot.usable
    assert says in " ".join(slot.reasons)


def test_the_console_of_a_server_is_no_gpu() -> None:
    assert judge(Sysfs().function("c5:00.0", "1a03:2000", "0300", 4, boot_vga="1").inventory()) == ()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
def test_slots_are_the_groups_and_no_gpu_is_in_two(members: list[tuple[int, bool]]) -> None:
    machine = Sysfs()
    for index, (group, is_gpu) in enumerate(members):
        machine.function(f"{index:02x}:00.0", V100 if is_gpu else "8086:1563", "0302" if is_gpu else "0200", group)
    slots = judge(machine.inventory())
    gpus = [gpu.address for slot in slots for gpu in slot.gpus]
    assert len(gpus) == len(set(gpus)) == sum(is_gpu for _, is_gpu in members)
    assert len({slot.group for slot in slots}) == len(slots)
    assert all(gpu.iommu_group == slot.group for slot in slots for gpu in slot.gpus)
    room = capacity(slots)
    assert room.single_gpu_vms <= room.gpus
