"""The measure of the storm (tests/support/idle_times.py), on cases that can be counted by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpuyard.model.booking import Lane
from tests.support.idle_times import Leased, Worked, idle_times, part
from tests.support.runner_world import NOON


def job(queued: int, begun: int | None, ended: int, runner: str = "", pool: str = "t4", **more: Any) -> Worked:
    def at(seconds: int) -> object:
        return NOON + timedelta(seconds=seconds)

    return Worked(pool, at(queued), None if begun is None else at(begun), at(ended), runner, **more)  # type: ignore[arg-type]


def lease(lane: int, start: int, end: int, runner: str = "") -> Leased:
    return Leased(lane, NOON + timedelta(seconds=start), NOON + timedelta(seconds=end), runner)


@pytest.mark.parametrize(
    ("lanes", "leases", "jobs", "idle"),
    [
        pytest.param([1], [lease(1, 2, 40, "r1")], [job(0, 12, 30, "r1")], [12], id="until its runner has it"),
        pytest.param([1, 2], [lease(1, 2, 40, "r1")], [job(0, 12, 30, "r1")], [12], id="one of two is enough"),
        pytest.param([1], [lease(1, 0, 40)], [job(0, 45, 50, "r1"), job(0, None, 40)], [5], id="booked is not idle"),
        pytest.param(
            [1],
            [lease(1, 0, 20, "r1"), lease(1, 22, 60, "r2")],
            [job(0, 5, 12, "r1"), job(6, 30, 40, "r2")],
            [5, 18],
            id="from the end of one job to the next",
        ),
        pytest.param([1], [lease(1, 0, 90, "spare")], [job(10, None, 60)], [50], id="a runner that nobody needs"),
        pytest.param([1], [], [job(0, None, 30, pool="v100")], [], id="another pool's"),
        pytest.param([1], [], [job(0, None, 30, gpus=2, same_group=True)], [], id="a pair has no use for a lone one"),
        pytest.param([1], [], [job(0, None, 30, gpus=2)], [], id="two of one host, which has one"),
        pytest.param([1, 2], [], [job(0, None, 30, gpus=2)], [30], id="two of one host, which has them"),
    ],
)
def test_idle_times(lanes: list[int], leases: list[Leased], jobs: list[Worked], idle: list[float]) -> None:
    slots = [Lane(id, "t4", "gpu-1", (f"0000:{id:02x}:00.0",)) for id in lanes]
    assert sorted(idle_time.seconds for idle_time in idle_times("t4", slots, leases, jobs)) == idle


def test_parts() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (part(values, 0.5), part(values, 0.95), part(values, 1), part([], 0.5)) == (50, 95, 100, 0)
    assert part([7.0], 0.95) == 7
