"""Machines whose cards several servers share, as their kernels show them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.host.tree import LINK
from tests.support.sysfs import Sysfs

A40, A100, H200 = "10de:2235", "10de:20f1", "10de:2335"
FLEX, V620, V620_VF = "8086:56c0", "1002:73a1", "1002:73ae"
T4 = "10de:1eb8"

TYPES = {
    "nvidia-558": ("NVIDIA A40-2Q", 24),
    "nvidia-560": ("NVIDIA A40-4Q", 12),
    "nvidia-566": ("NVIDIA A40-48Q", 1),
    "nvidia-232": ("GRID T4-4Q", 4),
    "nvidia-233": ("GRID T4-8Q", 2),
    "nvidia-234": ("GRID T4-16Q", 1),
    "nvidia-474": ("GRID A100-1-5C", 7),
    "nvidia-478": ("GRID A100-7-40C", 1),
}
"""Name of an mdev type -> its title, and how many a card can have.

Names and titles: NVIDIA's vgpuConfig.xml of driver 510.47.03, as a public guide to vGPUs tabulates it (A40, T4, A100);
of the A40 also a listing of mdev_supported_types of a card, with how many of each it can have."""


def mdev_types(machine: Sysfs, path: str, available: Mapping[str, int], made: Mapping[str, int]) -> None:
    """What a driver shows below a function: types with how many more it could make, and how many it has made."""
    for name in {**available, **made}:
        title, most = TYPES[name]
        folder = f"{path}/mdev_supported_types/{name}"
        machine.put(f"{folder}/name", title)
        machine.put(f"{folder}/description", f"num_heads=4, frl_config=60, framebuffer=4096M, max_instance={most}")
        machine.put(f"{folder}/available_instances", str(available.get(name, 0)))
        machine.put(f"{folder}/device_api", "vfio-pci")
        machine.put(f"{folder}/devices", {})
        for number in range(made.get(name, 0)):
            machine.put(f"{folder}/devices/00000000-0000-4000-8000-{number:012}", "")


def path_of(address: str) -> str:
    return f"sys/devices/pci0000:00/0000:{address}"


def classic(machine: Sysfs, address: str, group: int, made: Mapping[str, int], available: Mapping[str, int]) -> None:
    """A card of before Ampere: its physical function makes mediated devices."""
    machine.function(address, T4, group=group, driver="nvidia", sriov_totalvfs="16", sriov_numvfs="0")
    mdev_types(machine, path_of(address), available, made)


def card(
    machine: Sysfs, bus: str, ids: str, vfs: int, group: int, *, vf_ids: str = "", driver: str, **more: str
) -> None:
    """A card with virtual functions on, from ``BUS:00.4`` on, each in a group of its own. `driver`: of these."""
    physical = f"{bus}:00.0"
    machine.function(physical, ids, group=group, driver=more.pop("physical_driver", "nvidia"), sriov_totalvfs=str(vfs),
                     sriov_numvfs=str(vfs))  # fmt: skip
    for number in range(vfs):
        address = vf(bus, number)
        machine.function(address, vf_ids or ids, group=group + 1 + number, driver=driver, **more)
        machine.put(f"{path_of(address)}/physfn", {LINK: f"../0000:{physical}"})


def vf(bus: str, number: int) -> str:
    slot, function = divmod(number + 4, 8)
    return f"{bus}:{slot:02x}.{function}"


def a40_host() -> Sysfs:
    """Two A40 with 16 virtual functions each, that make mediated devices; two are made on the first card."""
    machine = Sysfs()
    for bus, group in (("41", 40), ("81", 80)):
        card(machine, bus, A40, 16, group, driver="nvidia")
        for number in range(16):
            made = {"nvidia-560": 1} if bus == "41" and number < 2 else {}
            room = {"nvidia-560": 0 if made else 1, "nvidia-558": 0 if bus == "41" else 1}
            mdev_types(machine, path_of(vf(bus, number)), room, made)
    return machine


def mig_host() -> Sysfs:
    """An A100 in MIG mode: its virtual functions make vGPUs that are backed by a seventh of it each."""
    machine = Sysfs()
    card(machine, "41", A100, 16, 40, driver="nvidia")
    for number in range(16):
        mdev_types(machine, path_of(vf("41", number)), {"nvidia-474": 1, "nvidia-478": 0}, {})
    return machine


def h200_host(chosen: int = 3) -> Sysfs:
    """A kernel of 6.8 and later: no mediated devices, but a type that is chosen for `chosen` of eight functions."""
    machine = Sysfs()
    card(machine, "41", H200, 8, 40, driver="nvidia")
    for number in range(8):
        folder = f"{path_of(vf('41', number))}/nvidia"
        machine.put(f"{folder}/current_vgpu_type", "1414" if number < chosen else "0")
        machine.put(f"{folder}/creatable_vgpu_types", "1428 : NVIDIA H200X-141C\n1414 : NVIDIA H200X-1-18C")
    return machine


def t4_host() -> Sysfs:
    """Two T4 of which one makes vGPUs, and has some, and the other one has some of another type."""
    machine = Sysfs()
    classic(machine, "18:00.0", 1, {"nvidia-232": 1}, {"nvidia-232": 3, "nvidia-234": 0})
    classic(machine, "3b:00.0", 2, {"nvidia-234": 1}, {"nvidia-232": 0, "nvidia-234": 0})
    return machine


def other_makers_host() -> Sysfs:
    """A Flex 170 of Intel and a V620 of AMD, whose virtual functions are bound for servers."""
    machine = Sysfs()
    card(machine, "41", FLEX, 4, 40, driver="vfio-pci", physical_driver="i915")
    card(machine, "81", V620, 2, 80, vf_ids=V620_VF, driver="vfio-pci", physical_driver="gim")
    return machine
