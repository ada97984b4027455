"""GPUs that an evacuated server left behind on its old host: nobody's use, and not free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.health.controllers.health import gpu_observations
from gpuyard.health.limits import SitePlace
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.gpu import Gpu, GpuKind, GpuRole, GpuState
from gpuyard.model.world import Snapshot
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.objects import FlavorObject

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DEAD, NEW, CLASS = "gpu-03", "gpu-01", "CUSTOM_GPU_T4"
GPUS = [Gpu(host, "0000:01:00.0", "t4", "Tesla T4", "10de:1eb8", GpuRole.LONE, CLASS, 1) for host in (DEAD, NEW)]
SHARES = [
    Gpu(host, f"0000:41:00.0~{n}", "a40", "A40", "10de:2235", GpuRole.LONE, "CUSTOM_GPU_A40", 1, kind=GpuKind.VGPU)
    for host in (DEAD, NEW)
    for n in (1, 2)
]


class EvacuatedCloud(CloudApi):
    """Answers as Nova and Placement do after an evacuation from gpu-03 to gpu-01. `server`: fields of the server in the
    list; `now`: those that it has when it is asked for itself; `migration`: the status of its migration, or the status
    of the refusal to list any."""

    def __init__(
        self,
        server: Mapping[str, Any] = {},
        now: Mapping[str, Any] = {},
        migration: str | int = "done",
        alias: str = "t4:1",
    ) -> None:
        services = dict.fromkeys(("compute", "placement", "identity", "image", "network"))
        super().__init__(SimpleNamespace(config=SimpleNamespace(name="test", region_name=""), **services))  # type: ignore[arg-type]
        self.row = {
            "id": "s1", "name": "train", "status": "ACTIVE", "OS-EXT-STS:task_state": None,
            "OS-EXT-SRV-ATTR:host": NEW, "tenant_id": "p", "user_id": "u", "created": "2026-11-20T12:00:00Z",
            "updated": "2026-11-23T11:00:00Z", "OS-SRV-USG:launched_at": "2026-11-23T11:00:00.000000",
            "flavor": {"original_name": "f", "vcpus": 1, "ram": 1, "disk": 1, "ephemeral": 0, "swap": 0,
                       "extra_specs": {"pci_passthrough:alias": alias} if alias else {"resources:CUSTOM_GPU_A40": "1"}},
        } | dict(server)  # fmt: skip
        self.now, self.migration = now, migration
        names = [f"{host}_{rest}" for rest in ("0000:01:00.0", "pci_0000_41_00_0") for host in (DEAD, NEW)]
        self.held = names[:2] if alias else names[2:]
        self.rows: list[dict[str, Any]] = [
            {"uuid": name, "name": name, "root_provider_uuid": name.partition("_")[0],
             "parent_provider_uuid": name.partition("_")[0] if "_" in name else None}
            for name in (DEAD, NEW, *names)
        ]  # fmt: skip
        self.asked: list[str] = []

    def request(self, method: str, service: str, path: str, *_: Any, **query: Any) -> dict[str, Any]:
        self.asked.append(path)
        match path.strip("/").split("/"):
            case ["servers", "detail"]:
                return {"servers": [self.row]}
            case ["servers", _]:
                return {"server": {**self.row, **self.now}}
            case ["os-migrations"]:
                if isinstance(self.migration, int):
                    raise CloudError("you may not", self.migration)
                assert query == {"instance_uuid": "s1", "limit": 1000}
                return {"migrations": [
                    {"uuid": "m1", "instance_uuid": "s1", "status": self.migration, "migration_type": "evacuation",
                     "source_compute": DEAD, "dest_compute": NEW},
                ]}  # fmt: skip
            case ["os-services"]:
                return {"services": [_service(DEAD, "down"), _service(NEW, "up")]}
            case ["os-hypervisors", "detail"]:
                return {
                    "hypervisors": [{"hypervisor_hostname": host, "service": {"host": host}} for host in (DEAD, NEW)]
                }
            case ["resource_providers"]:
                amount = query.get("resources", "").partition(":")[2]
                free = [row for row in self.rows if "_pci_" in row["name"]] if amount == "1" else []
                return {"resource_providers": free if "resources" in query else self.rows}
            case ["allocations", "s1"]:
                return {"allocations": {name: {"resources": {CLASS: 1}} for name in self.held}}
            case ["resource_providers", _, "inventories"]:
                stock = {"total": 2, "reserved": 0, "allocation_ratio": 1.0, "max_unit": 2}
                return {"inventories": {"CUSTOM_GPU_A40": stock}}
            case ["resource_providers", name, "allocations"]:
                return {"allocations": {"s1": {"resources": {"CUSTOM_GPU_A40": 1}}} if name in self.held else {}}
            case ["users" | "projects" as kind, _]:
                return {kind[:-1]: {"name": f"a {kind[:-1]}", "domain_id": "default"}}
        raise AssertionError(path)

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        return self.request("GET", service, path, **query)


def _service(host: str, state: str) -> dict[str, str]:
    return {"host": host, "state": state, "status": "enabled"}


def taken(cloud: EvacuatedCloud, gpus: list[Gpu] = GPUS) -> Snapshot:
    return SnapshotTaker(cloud, gpus, ()).take(NOW)


def test_a_server_has_the_gpus_of_its_own_host_alone() -> None:
    snapshot = taken(EvacuatedCloud())
    assert snapshot.holders == {f"{NEW}_0000:01:00.0": "s1"}
    assert snapshot.left_behind == {f"{DEAD}_0000:01:00.0": "s1"}
    old, new = gpu_statuses(GPUS, snapshot)
    assert (new.state, new.claim and new.claim.server_id) == (GpuState.CLAIMED, "s1")
    assert (old.state, old.claim) == (GpuState.BLOCKED, None), "nobody's use, and not free either"
    assert "left behind by server train (s1), which is on gpu-01 now" in old.reason
    assert "gpuyard host leftovers gpu-03 --clean" in old.reason


T4 = FlavorObject("f", 1, 1, 1, extra_specs={"pci_passthrough:alias": "t4:1"}, pool="t4")
TWO = [replace(GPUS[1], address=f"0000:0{n}:00.0") for n in (1, 2)]
FIRST, SECOND = (gpu.provider_name for gpu in TWO)


def counted_twice(**more: Any) -> EvacuatedCloud:
    """It was migrated within the dead host's cloud, and Placement has two GPUs of its new host for it."""
    cloud = EvacuatedCloud(**more)
    cloud.rows.append({**cloud.rows[3], "uuid": SECOND, "name": SECOND})
    cloud.held = [SECOND, FIRST]
    return cloud


@pytest.mark.parametrize(
    ("server", "migration"),
    [
        ({}, "confirmed"),
        ({"status": "VERIFY_RESIZE"}, "finished"),
        ({"OS-EXT-STS:task_state": "powering-off"}, "confirmed"),
    ],
)
def test_a_server_has_as_many_gpus_as_its_flavor_asks_for(server: dict[str, Any], migration: str) -> None:
    taker = SnapshotTaker(counted_twice(server=server, migration=migration), TWO, [T4])
    snapshot = taker.take(NOW)
    assert (snapshot.holders, snapshot.left_behind) == ({FIRST: "s1"}, {SECOND: "s1"})
    has, spare = gpu_statuses(TWO, snapshot)
    assert (has.state, spare.state, spare.claim) == (GpuState.CLAIMED, GpuState.BLOCKED, None)
    assert "beyond what its flavor f asks for" in spare.reason
    assert f"gpuyard host leftovers {NEW} --clean" in spare.reason


@pytest.mark.parametrize(
    ("server", "migration", "flavor"),
    [
        ({"status": "RESIZE", "OS-EXT-STS:task_state": "resize_migrated"}, "post-migrating", T4),
        ({"status": "VERIFY_RESIZE"}, "reverting", T4),
        ({}, 403, T4),
        ({}, "confirmed", replace(T4, extra_specs={"pci_passthrough:alias": "another:1"})),
        ({}, "confirmed", replace(T4, pool=None)),
    ],
)
def test_where_that_cannot_be_told_placement_is_believed(
    server: dict[str, Any], migration: str | int, flavor: FlavorObject
) -> None:
    snapshot = SnapshotTaker(counted_twice(server=server, migration=migration), TWO, [flavor]).take(NOW)
    assert (len(snapshot.holders), snapshot.left_behind) == (2, {})


def test_what_was_left_behind_stays_so_while_nova_is_at_work_on_the_server_again() -> None:
    cloud = counted_twice(migration="confirmed")
    taker = SnapshotTaker(cloud, TWO, [T4])
    taker.take(NOW)
    cloud.row |= {"status": "REBUILD", "OS-EXT-STS:task_state": "rebuilding"}
    assert taker.take(NOW).left_behind == {SECOND: "s1"}


def test_of_a_share_too() -> None:
    snapshot = taken(EvacuatedCloud(alias=""), SHARES)
    assert list(snapshot.holders) == [f"{NEW}_0000:41:00.0~1"]
    assert list(snapshot.left_behind) == [f"{DEAD}_0000:41:00.0~1"]
    states = [gpu_status.state.value for gpu_status in gpu_statuses(SHARES, snapshot)]
    assert states == ["blocked", "blocked", "claimed", "free"], "the dead host's other share has no nova-compute"


@pytest.mark.parametrize(
    ("server", "now", "migration"),
    [
        ({"OS-EXT-STS:task_state": "rebuilding", "status": "REBUILD", "OS-EXT-SRV-ATTR:host": DEAD}, {}, "accepted"),
        ({"status": "VERIFY_RESIZE"}, {}, "finished"),
        # Nova clears the task before it gives the server its new host, and ends the migration last.
        ({"OS-EXT-SRV-ATTR:host": DEAD}, {}, "pre-migrating"),
        ({"OS-EXT-SRV-ATTR:host": DEAD}, {"OS-EXT-SRV-ATTR:host": NEW}, "done"),
        ({}, {"OS-EXT-STS:task_state": "rebuilding"}, "done"),
        ({}, {}, 403),
        ({}, {}, 401),
    ],
)
def test_while_nova_is_at_it_or_does_not_say_placement_is_believed(
    server: dict[str, Any], now: dict[str, Any], migration: str | int
) -> None:
    snapshot = taken(EvacuatedCloud(server, now, migration))
    assert sorted(snapshot.holders) == [f"{NEW}_0000:01:00.0", f"{DEAD}_0000:01:00.0"]
    assert snapshot.left_behind == {}


def test_a_refusal_that_is_none_of_policy_is_no_answer() -> None:
    with pytest.raises(CloudError):
        taken(EvacuatedCloud(migration=500))


def test_a_server_that_stays_as_it_is_is_asked_about_once() -> None:
    cloud = EvacuatedCloud()
    taker = SnapshotTaker(cloud, GPUS, ())
    assert taker.take(NOW).left_behind == taker.take(NOW).left_behind != {}
    assert cloud.asked.count("/os-migrations") == 1
    cloud.row = {**cloud.row, "updated": "2026-11-23T11:30:00Z"}
    taker.take(NOW)
    assert cloud.asked.count("/os-migrations") == 2


def test_health_knows_nothing_of_what_was_left_behind() -> None:
    """The old guest may still be there: the GPU is looked after when nova-compute has taken it away."""
    places = tuple(SitePlace(gpu.host, gpu.address, gpu.pool, gpu.host) for gpu in GPUS)
    observations = gpu_observations(places, CloudObservation(taken(EvacuatedCloud()), frozenset()))
    assert {name: observation.server for name, observation in observations.items()} == {f"{NEW}/0000:01:00.0": "s1"}
