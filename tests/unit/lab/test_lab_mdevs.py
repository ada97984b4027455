"""vGPUs of the lab: Nova's libvirt driver reports them and makes them, on devices that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.site.options import render_ini
from gpuyard_lab.plan import LabHost, LabPlan, lab_host
from gpuyard_lab.services.options import HOST_OPTIONS, mdev_options, options_in_force
from tests.support.libvirt_driver import exception
from tests.support.services import nova_configuration
from tests.support.shared_cards import A40, T4, a40_host, t4_host
from tests.support.sites import site
from tests.support.sysfs import Sysfs

POOL = {"kind": "vgpu"}


def host_of(folder: Path, machine: Sysfs, **pool: Any) -> LabHost:
    loaded = site(folder, {"pools": {"part": {**POOL, **pool}}}, {"host": machine})
    config = render_ini(loaded.compiled.options_of("nova-compute", "host").options)
    return lab_host("host", loaded.inventories["host"], config)


@contextmanager
def driver_of(folder: Path, host: LabHost) -> Iterator[Any]:
    """With the options of its host in force, as in the process of the lab's Nova."""
    from gpuyard_lab.services.mdevs import MdevDriver

    file = folder / "host.conf"
    file.write_text(host.config)
    with nova_configuration(folder, "") as conf, options_in_force(conf, file, HOST_OPTIONS | mdev_options(conf, file)):
        yield MdevDriver(host.pci)


def tree() -> Any:
    from nova.compute.provider_tree import ProviderTree

    made = ProviderTree()
    made.new_root("host", "00000000-0000-4000-8000-00000000000a")
    return made


def allocation(providers: Any, name: str, number: int = 1) -> dict[str, Any]:
    return {providers.data(name).uuid: {"resources": {"CUSTOM_GPU_PART": number}}}


def test_a_card_has_as_many_as_it_makes_and_no_more(tmp_path: Path) -> None:
    host = host_of(tmp_path, t4_host(), models=[T4], type="nvidia-232")
    with driver_of(tmp_path, host) as driver:
        providers = tree()
        driver.report(providers, "host", None)
        (name,) = providers.get_provider_uuids("host")[1:]
        data = providers.data(name)
        assert data.name == "host_pci_0000_18_00_0"
        assert {key: row["total"] for key, row in data.inventory.items()} == {"CUSTOM_GPU_PART": 4}
        for number in range(4):
            driver.give(f"server-{number}", allocation(providers, data.name))
        assert len({mdev for made in driver.instance_claimed_mdevs.values() for mdev in made}) == 4
        with pytest.raises(exception.ComputeResourcesUnavailable):
            driver.give("one-too-many", allocation(providers, data.name))
        driver.take_back("server-0")
        driver.give("another", allocation(providers, data.name))
        driver.report(providers, "host", None)
        assert providers.data(name).inventory["CUSTOM_GPU_PART"]["total"] == 4, "those that are made count as before"


def test_each_virtual_function_is_a_provider_until_the_card_is_full(tmp_path: Path) -> None:
    host = host_of(tmp_path, a40_host(), models=[A40], type="nvidia-560")
    with driver_of(tmp_path, host) as driver:
        assert len(driver.makers()) == 24
        providers = tree()
        driver.report(providers, "host", None)
        assert len(list(providers.get_provider_uuids("host"))) == 1 + 24
        for number, name in enumerate(driver.makers()[:12]):
            driver.give(f"server-{number}", allocation(providers, f"host_{name}"))
        assert len(driver.makers()) == 24, "all twelve that the first card has are made, and all of the second can be"


def test_a_plan_keeps_what_can_be_made(tmp_path: Path) -> None:
    plan = LabPlan((host_of(tmp_path, t4_host(), models=[T4], type="nvidia-232"),))
    plan.save(tmp_path / "plan.json")
    assert LabPlan.load(tmp_path / "plan.json") == plan


def test_options_of_another_host_are_gone_with_it(tmp_path: Path) -> None:
    host = host_of(tmp_path, t4_host(), models=[T4], type="nvidia-232")
    with driver_of(tmp_path, host) as driver:
        assert driver.supported_vgpu_types == ["nvidia-232"]
    with nova_configuration(tmp_path, "") as conf:
        assert conf.devices.enabled_mdev_types == []
        assert mdev_options(conf, Path("/dev/null")) == set()
