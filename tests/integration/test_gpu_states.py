"""The state of every GPU, from the real Placement and Nova: each way in which one stops being free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.snapshot import FORGET_AFTER, SnapshotTaker, smallest_flavors
from gpuyard.site.compile import CompiledSite
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab


def at(statuses: list[GpuStatus], host: str, address: str) -> GpuStatus:
    (status,) = (s for s in statuses if (s.gpu.host, s.gpu.address) == (host, f"0000:{address}"))
    return status


@pytest.fixture
def held(operator: CloudApi) -> Iterator[str]:
    """The provider of one K4200, reserved by the operator."""
    rows = operator.get("placement", "/resource_providers", name="c4130_0000:84:00.0")["resource_providers"]
    path = f"/resource_providers/{rows[0]['uuid']}/inventories"

    def reserve(number: int) -> None:
        inventories = operator.get("placement", path)
        inventories["inventories"]["CUSTOM_GPU_K4200"]["reserved"] = number
        operator.request("PUT", "placement", path, inventories)

    reserve(1)
    yield "84:00.0"
    reserve(0)


def test_all_are_free_in_an_idle_lab(exercise: Exercise) -> None:
    assert {(s.state, s.reason) for s in exercise.statuses()} == {(GpuState.FREE, "")}


def test_a_server_s_gpu_is_claimed_and_the_peer_of_its_leader_stranded(exercise: Exercise) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    pairs = [exercise.boot("gpu_pair-a"), *(exercise.boot("gpu_tiny") for _ in range(3))]
    statuses = exercise.statuses()
    mine = {s.gpu.address: s for s in statuses if s.claim and s.claim.server_id == pairs[0].server_id}
    assert list(mine) == ["0000:27:00.0", "0000:28:00.0"]
    claim = mine["0000:27:00.0"].claim
    assert claim is not None
    assert (claim.project, claim.user, claim.server_status) == ("demo", "demo", "ACTIVE")
    assert claim.since is not None
    assert before < claim.since <= datetime.now(UTC)
    peer = at(statuses, "gpu-server", "c4:00.0")
    assert peer.state is GpuState.STRANDED
    assert peer.reason.startswith("its leader 0000:c3:00.0 is taken by server gpuyard-exercise-")


def test_a_server_that_is_shut_off_keeps_its_gpu_and_one_that_is_shelved_does_not(
    exercise: Exercise, user: CloudApi
) -> None:
    boot = exercise.boot("k40c.2cores")
    user.request("POST", "compute", f"/servers/{boot.server_id}/action", {"os-stop": None})
    exercise.wait_for_status(boot.server_id, "SHUTOFF")
    status = at(exercise.statuses(), "hyper18", "86:00.0")
    assert (status.state, status.reason) == (GpuState.CLAIMED, "server is SHUTOFF and keeps its GPU")
    user.request("POST", "compute", f"/servers/{boot.server_id}/action", {"shelve": None})
    exercise.wait_for_status(boot.server_id, "SHELVED_OFFLOADED")
    assert at(exercise.statuses(), "hyper18", "86:00.0").state is GpuState.FREE


def test_a_gpu_that_the_operator_reserves_is_held(exercise: Exercise, held: str) -> None:
    status = at(exercise.statuses(), "c4130", held)
    assert (status.state, status.reason) == (
        GpuState.HELD,
        "reserved in Placement: for a booking, maintenance, quarantine or scrub",
    )
    assert at(exercise.statuses(), "c4130", "88:00.0").state is GpuState.FREE


def test_a_disabled_host_blocks_its_gpus_with_the_operator_s_reason(exercise: Exercise, operator: CloudApi) -> None:
    (service,) = (
        s for s in operator.get("compute", "/os-services", binary="nova-compute")["services"] if s["host"] == "hyper18"
    )
    path = f"/os-services/{service['id']}"
    operator.request("PUT", "compute", path, {"status": "disabled", "disabled_reason": "new fan"})
    try:
        status = at(exercise.statuses(), "hyper18", "86:00.0")
        assert (status.state, status.reason) == (
            GpuState.BLOCKED,
            "nova-compute on hyper18 is disabled: new fan",
        )
    finally:
        operator.request("PUT", "compute", path, {"status": "enabled"})


def test_a_host_without_room_strands_its_free_gpu(exercise: Exercise, operator: CloudApi) -> None:
    """The memory of hyper18 is taken away as an operator would, by reserving it, and given back in the end."""
    rows = operator.get("placement", "/resource_providers", name="hyper18")["resource_providers"]
    path = f"/resource_providers/{rows[0]['uuid']}/inventories"
    before = operator.get("placement", path)
    changed = json.loads(json.dumps(before))
    changed["inventories"]["MEMORY_MB"]["reserved"] = changed["inventories"]["MEMORY_MB"]["total"] - 1024
    operator.request("PUT", "placement", path, changed)
    try:
        status = at(exercise.statuses(), "hyper18", "86:00.0")
        assert (status.state, status.reason) == (
            GpuState.STRANDED,
            "hyper18 has no CPU, RAM or disk left for any flavor of pool k40c",
        )
    finally:
        generation = operator.get("placement", path)["resource_provider_generation"]
        operator.request("PUT", "placement", path, {**before, "resource_provider_generation": generation})


def test_a_gpu_that_the_site_expects_and_the_cloud_does_not_have_is_lost(
    operator: CloudApi, example: CompiledSite, applied: None
) -> None:
    moved = [
        type(gpu)(**{**vars(gpu), "address": "0000:87:00.0"}) if gpu.host == "hyper18" else gpu for gpu in example.gpus
    ]
    statuses = gpu_statuses(moved, SnapshotTaker(operator, moved, example.flavors).take(datetime.now(UTC)))
    status = at(statuses, "hyper18", "87:00.0")
    assert status.state is GpuState.LOST
    assert "nova-compute on hyper18 does not report 0000:87:00.0" in status.reason


def test_a_consumer_that_is_no_server_is_shown_and_not_hidden(exercise: Exercise, operator: CloudApi) -> None:
    rows = operator.get("placement", "/resource_providers", name="hyper18_0000:86:00.0")["resource_providers"]
    orphan = "0f1e2d3c-0000-4000-8000-000000000001"
    operator.request(
        "PUT",
        "placement",
        f"/allocations/{orphan}",
        {
            "allocations": {rows[0]["uuid"]: {"resources": {"CUSTOM_GPU_K40C": 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        },
    )
    try:
        status = at(exercise.statuses(), "hyper18", "86:00.0")
        assert status.state is GpuState.CLAIMED
        assert f"allocated to {orphan}, which is no server with GPUs" in status.reason
    finally:
        operator.request("DELETE", "placement", f"/allocations/{orphan}")


def test_calls_are_bounded_and_do_not_grow_with_gpus_or_servers(
    exercise: Exercise, operator: CloudApi, example: CompiledSite
) -> None:
    """The table of docs/architecture.md, counted."""
    boots = exercise.boot_together(["t4.15cores90GB"] * 3)
    assert {boot.status for boot in boots} == {"ACTIVE"}
    taker = SnapshotTaker(operator, example.gpus, example.flavors)
    now = datetime.now(UTC)
    classes = len({gpu.resource_class for gpu in example.gpus})
    sizes = len({amounts for smallest in smallest_flavors(example.flavors).values() for amounts in smallest})
    steady = 1 + classes + 1 + 1 + sizes
    first = taker.take(now)
    assert first.calls == steady + len(boots) + 2, "the first time: each server, one user, one project"
    assert taker.take(now).calls == steady, "nothing has changed"
    assert taker.take(now + 2 * FORGET_AFTER).calls == steady + len(boots), "what was remembered is checked again"
    exercise.delete(boot.server_id for boot in boots)
    assert taker.take(now).calls == steady


def test_what_nova_does_not_date_is_seen_at_once(exercise: Exercise, operator: CloudApi, example: CompiledSite) -> None:
    """A server loses its GPU behind Nova's back: Placement would give it away."""
    boot = exercise.boot("k40c.2cores")
    taker = SnapshotTaker(operator, example.gpus, example.flavors)
    now = datetime.now(UTC)
    assert boot.server_id in taker.take(now).holders.values()
    operator.request("DELETE", "placement", f"/allocations/{boot.server_id}")
    snapshot = taker.take(now)
    assert boot.server_id not in snapshot.holders.values()
    assert not snapshot.unexplained
    exercise.delete([boot.server_id])


def test_the_list_on_the_command_line(lab: RunningLab, exercise: Exercise) -> None:
    boot = exercise.boot("k40c.2cores")
    common = ["gpu", "list", "--os-cloud", ADMIN_CLOUD, "--site", str(lab.lab.site_file)]
    rows = json.loads(CliRunner().invoke(app, [*common, "--host", "hyper18", "-f", "json"]).stdout)
    assert [(row["State"], row["Server"], row["Project"], row["User"]) for row in rows] == [
        ("claimed", boot.name, "demo", "demo")
    ]
    assert rows[0]["Since"].endswith("Z")
    table = CliRunner().invoke(app, [*common, "--pool", "v100", "-c", "State", "-c", "Address", "-c", "Slot"]).stdout
    assert "| free  | 0000:28:00.0 | peer A   |" in table
    value = CliRunner().invoke(app, [*common, "--state", "claimed", "-f", "value", "-c", "Address"]).stdout
    assert value == "0000:86:00.0\n"
