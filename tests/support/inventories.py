"""Invented GPUs that the tests of the portal show, in every state that there is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.runtime.control_loops import Driver, Loop

NOON = datetime(2026, 11, 21, 12, 3, 10, tzinfo=UTC)
NASTY = "<script>alert('no')</script>"


def v100(address: str, group: int, role: GpuRole = GpuRole.LONE, letter: str | None = None, host: str = "epyc") -> Gpu:
    suffix = "_PEER" if role is GpuRole.PEER else ""
    return Gpu(
        host, address, "v100", "Tesla V100 PCIe 16GB", "10de:1db4", role, f"CUSTOM_GPU_V100{suffix}", group, letter, 1
    )


def t4(address: str, group: int | None, host: str) -> Gpu:
    return Gpu(host, address, "t4", "Tesla T4", "10de:1eb8", GpuRole.LONE, "CUSTOM_GPU_T4", group)


LEADER_A = v100("0000:27:00.0", 19, GpuRole.LEADER, "A")
PEER_A = v100("0000:28:00.0", 19, GpuRole.PEER, "A")
LONE = v100("0000:44:00.0", 32)
OTHER = v100("0000:a3:00.0", 75)
LEADER_B = v100("0000:c3:00.0", 87, GpuRole.LEADER, "B")
PEER_B = v100("0000:c4:00.0", 87, GpuRole.PEER, "B")
HELD = t4("0000:3b:00.0", 41, "node10")
BOOKED = t4("0000:5e:00.0", 43, "node10")
BLOCKED = replace(t4("0000:01:00.0", None, "node2"), blocked="the IOMMU is off")
LOST = t4("0000:02:00.0", None, "node2")
GPUS = (LEADER_A, PEER_A, LONE, OTHER, LEADER_B, PEER_B, HELD, BOOKED, BLOCKED, LOST)


def claim(name: str = "training", status: str = "ACTIVE", hours: float = 5) -> Claim:
    since = NOON - timedelta(hours=hours)
    return Claim("7f3c9a1e-0000", name, status, "physics", "ada", since, "p-physics", "u-ada")


STATUSES = (
    GpuStatus(LEADER_A, GpuState.CLAIMED, "", claim()),
    GpuStatus(PEER_A, GpuState.CLAIMED, "", claim()),
    GpuStatus(LONE, GpuState.FREE),
    GpuStatus(OTHER, GpuState.CLAIMED, "server is SHUTOFF and keeps its GPU", claim(NASTY, "SHUTOFF", 220)),
    GpuStatus(LEADER_B, GpuState.FREE),
    GpuStatus(PEER_B, GpuState.STRANDED, "its leader 0000:c3:00.0 is held"),
    GpuStatus(HELD, GpuState.HELD, "scrub"),
    GpuStatus(BOOKED, GpuState.BOOKED, "for ada from 14:00"),
    GpuStatus(BLOCKED, GpuState.BLOCKED, "the IOMMU is off"),
    GpuStatus(LOST, GpuState.LOST, "nova-compute on node2 does not report it"),
)


def changed(gpu: Gpu, state: GpuState, reason: str = "", by: Claim | None = None) -> list[GpuStatus]:
    """STATUSES with one of them different."""
    new = GpuStatus(gpu, state, reason, by)
    return [new if status.gpu == gpu else status for status in STATUSES]


def filled() -> InventoryCache:
    inventory = InventoryCache()
    inventory.publish(NOON, STATUSES)
    return inventory


def plain_sources(**more: Any) -> Sources:
    """Of the portal of a site without bookings, which has seen its GPUs; `more` takes the place of any of it."""
    return Sources(**{"inventory": filled(), "driver": driver(), "site_name": "test", "gpus": GPUS, **more})


def driver(error: str = "", runs: int = 1) -> Driver:
    """With one loop, `look`, which has run; the last of its runs failed if there is an error. Its clocks stand still,
    so that it is never late on a slow machine."""
    made, now = Driver(), datetime.now(UTC)
    problem: list[str] = []

    def run() -> None:
        if problem:
            raise ConnectionError(problem[0])

    loop = made.register(
        Loop("look", "looks at the cloud", 1.0, run, now=lambda: now, steady=lambda: 0.0, essential=True)
    )
    for _ in range(runs):
        loop.run_once("timer")
    if error:
        problem.append(error)
        loop.run_once("timer")
    return made


def test_every_state_is_there_and_every_gpu_once() -> None:
    assert {status.state for status in STATUSES} == set(GpuState)
    assert tuple(status.gpu for status in STATUSES) == GPUS
