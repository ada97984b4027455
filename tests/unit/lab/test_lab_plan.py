"""The plan of a lab: from a site, to a file and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuyard.model.pci import DeviceType, PciFunction
from gpuyard_lab.errors import LabError
from gpuyard_lab.plan import EXAMPLE_SITE, LabDevice, LabPlan, device, plan_of_site


def test_the_example_site_is_a_plan() -> None:
    plan = plan_of_site(EXAMPLE_SITE)
    hosts = {host.name: host for host in plan.hosts}
    server = hosts["gpu-server"]
    assert (server.cpus, server.memory_mib > 500_000, server.disk_gib > 1000) == (48, True, True)
    assert len([d for d in server.pci if (d.vendor_id, d.product_id) == ("10de", "1db4")]) == 6
    assert server.config.count("device_spec = ") == 6
    assert "ram_allocation_ratio = 1.0" in server.config
    assert "alias = " in plan.nova
    assert "device_spec" not in plan.nova
    assert "executor_thread_pool_size = 1" in plan.scheduler


def test_every_function_of_a_host_is_reported_not_only_gpus() -> None:
    plan = plan_of_site(EXAMPLE_SITE)
    assert all(any(d.vendor_id != "10de" for d in host.pci) for host in plan.hosts)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = plan_of_site(EXAMPLE_SITE)
    plan.save(tmp_path / "plan.json")
    assert LabPlan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"hosts": [{"name": "x"}]})])
def test_a_broken_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(LabError, match="name the site with --site"):
        LabPlan.load(tmp_path / "plan.json")


def test_a_virtual_function_names_its_physical_one() -> None:
    function = PciFunction(
        "0000:41:02.0",
        "8086",
        "154c",
        "020000",
        device_type=DeviceType.VF,
        physical_function="0000:41:00.0",
        numa_node=1,
    )
    assert device(function) == LabDevice("0000:41:02.0", "8086", "154c", "type-VF", 1, "0000:41:00.0")
