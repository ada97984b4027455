"""What is kept for servers with GPUs is enough for them, whatever the others take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.site.capacity import NOGPU_DISK, NOGPU_MEMORY, NOGPU_VCPU, Size, parse_cpu_set
from gpuyard.site.compile import CompiledSite
from gpuyard.site.problems import SiteError
from gpuyard.site.provider_config import render_provider_config
from tests.support.services import cpu_set, get_provider_configs
from tests.support.sites import flavor, site
from tests.support.sysfs import Sysfs

V100 = "10de:1db4"


def machine(groups: list[int]) -> Sysfs:
    """A host with as many IOMMU groups as there are numbers, each with so many V100."""
    made, bus = Sysfs(), 0x10
    for group, size in enumerate(groups, 1):
        for _ in range(size):
            made.function(f"{bus:02x}:00.0", V100, group=group)
            bus += 1
    return made


def compiled(folder: Path, host: dict[str, Any], flavors: dict[str, Any], groups: list[int]) -> CompiledSite:
    hosts = {"host": {"recording": "host.json", **host}}
    return site(folder, {"hosts": hosts, "flavors": flavors}, {"host": machine(groups)}).compiled


def test_the_arithmetic_of_a_mixed_host(tmp_path: Path) -> None:
    flavors = {
        "one": flavor(vcpus=4, ram="16 GiB", disk="40 GiB", gpus={"v100": 1}),
        "two": flavor(vcpus=10, ram="24 GiB", disk="20 GiB", gpus={"v100": 2}),
        "pair": flavor(vcpus=6, ram="64 GiB", disk="20 GiB", gpus={"v100": 2}, same_group=True),
        "cpu": flavor(vcpus=8, ram="8 GiB", disk="0 GiB", ephemeral="10 GiB"),
    }
    host = {"reserve": "largest-flavors", "overhead": {"vcpus": 4, "ram": "2 GiB", "disk": "100 GiB"}}
    result = compiled(tmp_path, host, flavors, [2, 1, 1])
    (capacity,) = result.capacities
    # 44 of the 48 CPUs x 4. A slot's share is 5 vCPUs (half of "two"), 16 GiB and 40 GiB ("one"); the group of two can
    # also have a "pair".
    assert capacity.total == Size(44 * 4, 515072 - 2048, 1800 - 100)
    assert capacity.needed == capacity.reserve == Size(6 + 5 + 5, 65536 + 2 * 16384, 3 * 40)
    assert result.provider_config_of("host").inventories == {
        "CUSTOM_GPU_V100_COUNT": 4,
        NOGPU_VCPU: 176 - 16,
        NOGPU_MEMORY: 513024 - 98304,
        NOGPU_DISK: 1700 - 120,
    }
    specs = {flavor.name: flavor.extra_specs for flavor in result.flavors}
    assert specs["cpu"] == {
        f"resources:{NOGPU_VCPU}": "8",
        f"resources:{NOGPU_MEMORY}": "8192",
        f"resources:{NOGPU_DISK}": "10",
        "trait:CUSTOM_SITE_TEST": "required",
    }
    assert not [key for key in specs["one"] if "NOGPU" in key]


def test_dedicated_cpus_are_the_host_s_own_or_shared_ones(tmp_path: Path) -> None:
    """Without a set of its own for them, Nova takes them from the shared ones."""
    flavors = {"one": flavor(vcpus=4, gpus={"v100": 1}, properties={"hw:cpu_policy": "dedicated"})}
    (shared,) = compiled(tmp_path, {"reserve": "largest-flavors"}, flavors, [1]).capacities
    assert shared.needed.vcpus == 4
    sets = {"cpu_shared_set": "0-7", "cpu_dedicated_set": "8-15"}
    (own,) = compiled(tmp_path, {"reserve": "largest-flavors", **sets}, flavors, [1]).capacities
    assert own.needed.vcpus == 0


def test_a_host_that_keeps_nothing_bounds_nothing(tmp_path: Path) -> None:
    hosts = {"host": {"recording": "host.json", "reserve": "largest-flavors"}, "other": {"recording": "other.json"}}
    document = {"hosts": hosts, "flavors": {"one": flavor(gpus={"v100": 1}), "cpu": flavor()}}
    result = site(tmp_path, document, {"host": machine([1]), "other": Sysfs()}).compiled
    assert result.provider_config_of("other").inventories[NOGPU_VCPU] == 1_000_000_000


def test_a_disk_that_is_not_the_root_disk(tmp_path: Path) -> None:
    flavors = {"one": flavor(disk="9000 GiB", gpus={"v100": 1})}
    with pytest.raises(SiteError, match=r"write 1800 GiB or less, or say with 'disk' of the hosts what servers have"):
        compiled(tmp_path, {}, flavors, [1])
    assert compiled(tmp_path, {"disk": "20 TiB"}, flavors, [1]).capacities[0].total.disk == 20 * 1024


def test_a_class_of_which_nothing_is_left_stays(tmp_path: Path) -> None:
    everything = {"reserve": {"vcpus": 4 * 48, "ram": "1 GiB", "disk": "1 GiB"}}
    result = compiled(tmp_path, everything, {"cpu": flavor(vcpus=1)}, [1])
    assert result.provider_config_of("host").inventories[NOGPU_VCPU] == 0
    text = render_provider_config(result.provider_config_of("host"))
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "gpuyard.yaml").write_text(text)
    config = get_provider_configs(str(tmp_path / "p"))["$COMPUTE_NODE"]
    inventories = {name: inventory for row in config["inventories"]["additional"] for name, inventory in row.items()}
    assert (inventories[NOGPU_VCPU]["total"], inventories[NOGPU_VCPU]["reserved"]) == (1, 1)


def test_a_reserve_that_is_too_small_is_said(tmp_path: Path) -> None:
    flavors = {"one": flavor(gpus={"v100": 1})}
    result = compiled(tmp_path, {"reserve": {"vcpus": 2, "ram": "8 GiB", "disk": "20 GiB"}}, flavors, [1])
    (note,) = result.notes
    assert note == (
        "host host keeps 2 vCPUs, 8192 MiB, 20 GiB for servers with GPUs, and the largest flavors in all its slots "
        "need 4 vCPUs, 8192 MiB, 20 GiB: a free GPU may find no room; write 'reserve: largest-flavors' or more"
    )
    per_gpu = {"reserve": {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "per_gpu": True}}
    result = compiled(tmp_path, per_gpu, flavors, [1, 1, 2])
    assert (result.capacities[0].reserve, result.notes) == (Size(12, 3 * 8192, 60), ())


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"reserve": {"vcpus": 1000}}, "is more than servers can have on the host"),
        ({"cpu_shared_set": "0-50"}, "the host has the CPUs 0-47, and 48 is beyond them"),
        ({"cpu_shared_set": "9-3"}, "the range '9-3' runs backwards"),
        ({"cpu_shared_set": "0-7", "cpu_dedicated_set": "7-9"}, "CPU 7 is in cpu_shared_set too"),
        ({"cpu_shared_set": "0-7", "overhead": {"vcpus": 1}}, "Nova refuses reserved CPUs beside CPU sets"),
        ({"reserve": "all"}, "reserve"),
        ({"overhead": {"vcpus": 48}}, "the host has 48 in all; write less"),
        ({"cpu_allocation_ratio": float("inf")}, "cpu_allocation_ratio"),
        ({"cpu_shared_set": "0-99999999999"}, "cpu_shared_set"),
        ({"cpu_shared_set": "first"}, "cpu_shared_set"),
    ],
)
def test_what_a_host_cannot_have(tmp_path: Path, host: dict[str, Any], message: str) -> None:
    with pytest.raises(SiteError, match=message.replace("(", r"\(")):
        compiled(tmp_path, host, {"one": flavor(gpus={"v100": 1})}, [1])


sizes = st.builds(
    lambda vcpus, ram, disk: {"vcpus": vcpus, "ram": f"{ram} GiB", "disk": f"{disk} GiB"},
    st.integers(1, 8), st.integers(1, 24), st.integers(1, 80),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    wanted=st.lists(st.tuples(sizes, st.integers(1, 3), st.booleans()), min_size=1, max_size=4),
    choices=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_any_mix_of_gpu_servers_fits_into_the_reserve(
    tmp_path: Path, groups: list[int], wanted: list[tuple[dict[str, Any], int, bool]], choices: list[int]
) -> None:
    """Servers with GPUs that the slots allow, chosen at random, never need more than is kept."""
    flavors = {}
    for index, (size, count, whole) in enumerate(wanted):
        possible = count in groups if whole and count > 1 else count <= len(groups)
        if possible:
            flavors[f"f{index}"] = {**size, "gpus": {"v100": count}, "same_group": whole and count > 1}
    if not flavors:
        return
    (capacity,) = compiled(tmp_path, {"reserve": "largest-flavors"}, flavors, groups).capacities
    free, used = list(groups), Size()
    for choice in choices:
        chosen = flavors[sorted(flavors)[choice % len(flavors)]]
        count = chosen["gpus"]["v100"]
        if chosen["same_group"]:
            if count not in free:
                continue
            free.remove(count)
        elif count > len(free):
            continue
        else:
            del free[:count]
        used += Size(chosen["vcpus"], int(chosen["ram"].split()[0]) * 1024, int(chosen["disk"].split()[0]))
    assert used.fits(capacity.reserve)


@given(
    st.lists(st.tuples(st.sampled_from(["", "^"]), st.integers(0, 60), st.integers(0, 4)), min_size=1, max_size=5).map(
        lambda parts: ",".join(f"{sign}{low}" + (f"-{low + more}" if more else "") for sign, low, more in parts)
    )
)
def test_sets_of_cpus_are_read_as_nova_reads_them(text: str) -> None:
    assert parse_cpu_set(text) == cpu_set(text)
