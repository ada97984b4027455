"""More RAM can mean fewer GPUs: the arithmetic of a guest's addresses."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.site.address_space import CLASSIC, GIB, AddressSpace, taken
from gpuyard.site.load import load_site
from tests.support.sites import flavor, write_site
from tests.support.sysfs import Sysfs

H100 = "10de:2331"


def bar(size: int, begin: int = 1 << 44) -> str:
    """A line of sysfs' `resource` for a 64-bit BAR."""
    return f"0x{begin:016x} 0x{begin + size - 1:016x} 0x000000000014220c"


def machine(gpus: int, width: str, model: str = "Intel(R) Xeon(R) Platinum 8480+") -> Sysfs:
    made = Sysfs()
    for number in range(gpus):
        resource = "\n".join([bar(16 * 2**20), bar(128 * GIB), bar(32 * 2**20)])
        made.function(f"{number + 0x10:02x}:00.0", H100, group=number, resource=resource)
    made.put("proc/cpuinfo", f"model name\t: {model}\n{width}flags\t\t: vmx")
    return made


def notes(folder: Path, ram: str, gpus: int, host: Sysfs, **pool: object) -> list[str]:
    text = {
        "pools": {"h100": {"models": [H100], **pool}},
        "flavors": {"big": flavor(ram=ram, gpus={"h100": gpus})},
        "hosts": {"host": {"recording": "host.json", "overhead": {"ram": "0 MiB"}}},
    }
    path = write_site(folder, json.dumps({"site": "test", **text}), {"host": host})
    (folder / "host.json").write_text(host.recording(hostname="host", memory_mib=4 * 2**20))
    return [note for note in load_site(path).compiled.notes if "addresses" in note]


def test_big_bars_are_asked_for_where_qemus_forty_bits_are_too_few(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, "64 GiB", 1, machine(2, "address sizes\t: 46 bits physical, 57 bits virtual\n"))
    assert note == (
        "servers of big may not see all of their GPUs on host: the GPUs' BARs take 129 GiB of addresses, and with 64 "
        "GiB of RAM and 40 bits UEFI has 32 GiB for them; write big_bars: true for its pool"
    )


def test_the_hosts_own_width_is_enough_for_eight(tmp_path: Path) -> None:
    host = machine(8, "address sizes\t: 52 bits physical, 57 bits virtual\n")
    assert notes(tmp_path, "1024 GiB", 8, host, big_bars=True) == []


def test_more_ram_means_fewer_gpus(tmp_path: Path) -> None:
    host = machine(2, "address sizes\t: 41 bits physical, 48 bits virtual\n")
    assert notes(tmp_path, "1700 GiB", 1, host, big_bars=True) == []
    (note,) = notes(tmp_path, "1800 GiB", 1, host, big_bars=True)
    assert note.endswith("with 1800 GiB of RAM and 41 bits UEFI has 32 GiB for them; write less RAM")


def test_a_recording_that_does_not_say_the_width_is_not_judged_by_it(tmp_path: Path) -> None:
    assert notes(tmp_path, "64 GiB", 2, machine(2, ""), big_bars=True) == []


def test_amd_is_believed_to_have_forty_bits() -> None:
    assert AddressSpace(64 * GIB, 40, trusted=True).window == 128 * GIB
    assert AddressSpace(64 * GIB, 40, trusted=False).window == CLASSIC


@given(st.lists(st.lists(st.sampled_from([0, 2**24, 2**25, 2**28, 2**34, 2**35, 2**37]), max_size=6), max_size=8))
def test_what_bars_take_is_never_less_than_their_sum(functions: list[list[int]]) -> None:
    large = [size for bars in functions for size in bars if size >= 2**25]
    assert sum(large) <= taken(functions) <= 2 * len(functions) * sum(large)


@given(st.integers(1, 4096), st.integers(36, 46), st.booleans())
def test_more_ram_never_means_a_larger_window(gib: int, bits: int, trusted: bool) -> None:
    assert AddressSpace((gib + 1) * GIB, bits, trusted).window <= AddressSpace(gib * GIB, bits, trusted).window
