"""How many servers with shares of GPUs could be started."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice
from gpuyard.diagnosis.capacity.reckon import Bootable, Reckoning
from gpuyard.diagnosis.why.facts import Asker, Limit
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.nova.request import request_of
from gpuyard.site.load import LoadedSite
from tests.support.rooms import room_of
from tests.support.shared_cards import H200, T4, h200_host, t4_host
from tests.support.sites import flavor, site

DOCUMENT: dict[str, Any] = {
    "pools": {
        "t4-4q": {"models": [T4], "kind": "vgpu", "type": "nvidia-232"},
        "h200-mig": {"models": [H200], "kind": "vf", "type": "1414"},
    },
    "flavors": {
        "desktop": flavor(gpus={"t4-4q": 1}),
        "seventh": flavor(gpus={"h200-mig": 1}),
        "two": flavor(gpus={"h200-mig": 2}),
    },
}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedSite:
    return site(tmp_path, DOCUMENT, {"a": t4_host(), "b": h200_host(chosen=4)})


def seen(loaded: LoadedSite, used: dict[str, int], asker: Asker | None = None) -> dict[str, Bootable]:
    """With so many of each pool at servers: the first units, and as many less left at their device's provider."""
    resources = room_of(loaded)
    offered = [gpu for gpu in loaded.compiled.gpus if not gpu.blocked]
    count = Counter((gpu.host, gpu.provider, gpu.resource_class, gpu.pool) for gpu in offered)
    hosts = []
    for host in resources.hosts:
        mine = [(key, number) for key, number in count.items() if key[0] == host.node.name]
        devices = tuple(
            FreeDevice(provider, {name: number - used[pool]}, frozenset())
            for (_, provider, name, pool), number in mine
            if number > used[pool]
        )
        hosts.append(replace(host, devices=devices))
    statuses, left = {}, dict(used)
    for gpu in offered:
        left[gpu.pool] -= 1
        state = GpuState.CLAIMED if left[gpu.pool] >= 0 else GpuState.FREE
        statuses[gpu.provider_name] = GpuStatus(gpu, state)
    reckoned: CloudResources = replace(resources, hosts=tuple(hosts))
    return {bootable.flavor.name: bootable for bootable in Reckoning(reckoned, statuses).all_of(asker)}


def test_as_many_as_there_are_units(loaded: LoadedSite) -> None:
    bootables = seen(loaded, {"t4-4q": 0, "h200-mig": 0})
    assert {name: (bootable.now, bootable.gpus, bootable.pool) for name, bootable in bootables.items()} == {
        "desktop": (4, 1, "t4-4q"),
        "seventh": (4, 1, "h200-mig"),
        "two": (2, 2, "h200-mig"),
    }


def test_units_that_servers_have_are_told(loaded: LoadedSite) -> None:
    bootables = seen(loaded, {"t4-4q": 1, "h200-mig": 3})
    assert {name: bootable.now for name, bootable in bootables.items()} == {"desktop": 3, "seventh": 1, "two": 0}
    gpus_by_reason = {
        name: {rest.reason: rest.gpus for rest in bootable.others} for name, bootable in bootables.items()
    }
    assert gpus_by_reason["desktop"]["servers have them"] == 1
    assert gpus_by_reason["seventh"]["servers have them"] == 3


def test_none_is_left(loaded: LoadedSite) -> None:
    bootables = seen(loaded, {"t4-4q": 4, "h200-mig": 4})
    assert {bootable.now for bootable in bootables.values()} == {0}


def test_a_project_s_limit_is_on_the_class_that_its_flavors_ask_for(loaded: LoadedSite) -> None:
    limits = (Limit("class:CUSTOM_GPU_T4_4Q", 2, 0, True), Limit("class:CUSTOM_GPU_H200_MIG_COUNT", 3, 0, True))
    bootables = seen(loaded, {"t4-4q": 0, "h200-mig": 0}, Asker("p", "physics", limits))
    assert {name: bootable.now for name, bootable in bootables.items()} == {"desktop": 2, "seventh": 3, "two": 1}


def test_nova_counts_a_vgpu_in_every_release(loaded: LoadedSite) -> None:
    (desktop,) = (flavor for flavor in room_of(loaded).flavors if flavor.name == "desktop")
    request = request_of(desktop, {}).with_devices({"CUSTOM_GPU_T4_4Q"})
    assert request.counted(devices=False)["class:CUSTOM_GPU_T4_4Q"] == 1
    assert "CUSTOM_GPU_T4_4Q" not in request.amounts
