"""The state of each GPU, and its reason, from a snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.gpu import Gpu, GpuRole, GpuState
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from tests.support.sites import site

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVER = Server("id-1", "training", "ACTIVE", "gpu-server", "physics", "ada", "gpu_tiny", NOW, NOW)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gpu, ...]:
    return site(tmp_path_factory.mktemp("site")).compiled.gpus


def world(gpus: tuple[Gpu, ...]) -> Snapshot:
    """All GPUs of one host free."""
    names = [gpu.provider_name for gpu in gpus]
    return Snapshot(
        taken_at=NOW,
        providers={name: Provider(name, name, "gpu-server") for name in [*names, "gpu-server"]},
        allocatable=frozenset(names),
        holders={},
        reserved=frozenset(),
        roomy_hosts={"v100": frozenset({"gpu-server"})},
        servers={"id-1": SERVER},
        services={"gpu-server": HostService("gpu-server", up=True, enabled=True)},
    )


def states(gpus: tuple[Gpu, ...], snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    return {s.gpu.address[5:7]: (s.state.value, s.reason) for s in gpu_statuses(gpus, snapshot)}


def test_all_free(gpus: tuple[Gpu, ...]) -> None:
    assert set(states(gpus, world(gpus)).values()) == {("free", "")}


def test_a_server_s_gpu_says_who_has_it_since_when(gpus: tuple[Gpu, ...]) -> None:
    snapshot = replace(
        world(gpus),
        holders={"gpu-server_0000:44:00.0": "id-1"},
        allocatable=world(gpus).allocatable - {"gpu-server_0000:44:00.0"},
    )
    status = next(s for s in gpu_statuses(gpus, snapshot) if s.gpu.address == "0000:44:00.0")
    assert status.state is GpuState.CLAIMED
    assert status.claim is not None
    assert (status.claim.server_name, status.claim.project, status.claim.user) == ("training", "physics", "ada")
    assert status.claim.since == NOW


def test_a_server_that_is_shut_off_keeps_its_gpu(gpus: tuple[Gpu, ...]) -> None:
    snapshot = replace(
        world(gpus),
        holders={"gpu-server_0000:44:00.0": "id-1"},
        servers={"id-1": replace(SERVER, status="SHUTOFF")},
    )
    assert states(gpus, snapshot)["44"] == ("claimed", "server is SHUTOFF and keeps its GPU")


def test_a_consumer_that_is_no_server_is_told_as_such(gpus: tuple[Gpu, ...]) -> None:
    snapshot = replace(world(gpus), holders={"gpu-server_0000:44:00.0": "migration-7"})
    state, reason = states(gpus, snapshot)["44"]
    assert state == "claimed"
    assert "migration-7, which is no server" in reason


def test_the_peer_of_a_leader_that_is_taken_alone_is_stranded(gpus: tuple[Gpu, ...]) -> None:
    snapshot = replace(world(gpus), holders={"gpu-server_0000:27:00.0": "id-1"})
    states_by_bus = states(gpus, snapshot)
    assert states_by_bus["28"] == ("stranded", "its leader 0000:27:00.0 is taken by server training")
    assert states_by_bus["c4"] == ("free", ""), "the other pair is not touched"


def test_the_peer_of_a_held_leader_is_stranded(gpus: tuple[Gpu, ...]) -> None:
    name = "gpu-server_0000:27:00.0"
    snapshot = replace(world(gpus), reserved=frozenset({name}), allocatable=world(gpus).allocatable - {name})
    states_by_bus = states(gpus, snapshot)
    assert states_by_bus["27"][0] == "held"
    assert states_by_bus["28"] == ("stranded", "its leader 0000:27:00.0 is held")


def test_a_host_without_room_strands_its_free_gpus(gpus: tuple[Gpu, ...]) -> None:
    snapshot = replace(world(gpus), roomy_hosts={"v100": frozenset()})
    state, reason = states(gpus, snapshot)["44"]
    assert state == "stranded"
    assert reason == "gpu-server has no CPU, RAM or disk left for any flavor of pool v100"


@pytest.mark.parametrize(
    ("service", "says"),
    [
        (HostService("gpu-server", up=False, enabled=True), "nova-compute on gpu-server is down"),
        (HostService("gpu-server", up=True, enabled=False, disabled_reason="fan"), "is disabled: fan"),
        (None, "has no nova-compute service"),
    ],
)
def test_a_host_that_is_closed_blocks_its_free_gpus(
    gpus: tuple[Gpu, ...], service: HostService | None, says: str
) -> None:
    services = {"gpu-server": service} if service else {}
    state, reason = states(gpus, replace(world(gpus), services=services))["44"]
    assert state == "blocked"
    assert says in reason


def test_a_gpu_that_is_not_there_is_lost(gpus: tuple[Gpu, ...]) -> None:
    providers = {k: v for k, v in world(gpus).providers.items() if k != "gpu-server_0000:44:00.0"}
    states_by_bus = states(gpus, replace(world(gpus), providers=providers))
    assert states_by_bus["44"][0] == "lost"
    assert "does not report 0000:44:00.0" in states_by_bus["44"][1]
    assert "no nova-compute has reported host gpu-server" in states(gpus, replace(world(gpus), providers={}))["44"][1]


def test_what_placement_has_otherwise_is_blocked_with_what_is_odd(gpus: tuple[Gpu, ...]) -> None:
    name = "gpu-server_0000:44:00.0"
    odd = {name: "Placement has it as CUSTOM_PCI_10DE_1DB4"}
    snapshot = replace(world(gpus), allocatable=world(gpus).allocatable - {name}, unexplained=odd)
    assert states(gpus, snapshot)["44"] == ("blocked", "Placement has it as CUSTOM_PCI_10DE_1DB4")


def test_a_gpu_that_the_host_needs_is_blocked_whatever_placement_says(tmp_path: Path, gpus: tuple[Gpu, ...]) -> None:
    needed = tuple(replace(gpu, blocked="root disk") if gpu.address.startswith("0000:44") else gpu for gpu in gpus)
    assert states(needed, world(gpus))["44"] == ("blocked", "root disk")


@given(data=st.data())
def test_every_gpu_has_one_state_and_every_state_but_free_its_reason(
    gpus: tuple[Gpu, ...], data: st.DataObject
) -> None:
    names = [gpu.provider_name for gpu in gpus]
    some = st.sets(st.sampled_from(names))
    snapshot = replace(
        world(gpus),
        providers={name: Provider(name, name, "gpu-server") for name in data.draw(some)},
        allocatable=frozenset(data.draw(some)),
        holders={name: data.draw(st.sampled_from(["id-1", "other"])) for name in data.draw(some)},
        reserved=frozenset(data.draw(some)),
        roomy_hosts=data.draw(st.sampled_from([{}, {"v100": frozenset()}, {"v100": frozenset({"gpu-server"})}])),
    )
    statuses = gpu_statuses(gpus, snapshot)
    assert [status.gpu for status in statuses] == list(gpus)
    for status in statuses:
        assert status.reason or status.state is GpuState.FREE or status.claim
        if status.state is GpuState.FREE and status.gpu.role is GpuRole.PEER:
            leader = next(s for s in statuses if s.gpu.role is GpuRole.LEADER and s.gpu.group == status.gpu.group)
            assert leader.state is GpuState.FREE, "a peer can only be had with its leader"
