"""The yard: one writer, readers who wait, and a number that means the same statuses."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.keeper.yard import Yard, YardView
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
GPU = Gpu("node", "0000:01:00.0", "v100", "Tesla V100", "10de:1db4", GpuRole.LONE, "CUSTOM_GPU_V100", 1)


def statuses(state: GpuState) -> list[GpuStatus]:
    return [GpuStatus(GPU, state)]


def test_nothing_is_known_at_first() -> None:
    assert Yard().latest() is None


def test_what_was_published_is_the_latest() -> None:
    yard = Yard()
    view = yard.publish(NOON, statuses(GpuState.FREE))
    assert yard.latest() == view == YardView(1, NOON, tuple(statuses(GpuState.FREE)))


def test_the_same_statuses_are_the_same_generation_but_were_seen_later() -> None:
    yard = Yard()
    yard.publish(NOON, statuses(GpuState.FREE))
    view = yard.publish(NOON + timedelta(seconds=1), statuses(GpuState.FREE))
    assert (view.generation, view.taken_at) == (1, NOON + timedelta(seconds=1))


@given(st.lists(st.sampled_from(GpuState)))
def test_the_generation_rises_by_one_with_every_change(states: list[GpuState]) -> None:
    yard, expected, before = Yard(), 0, None
    for state in states:
        expected += state is not before
        before = state
        assert yard.publish(NOON, statuses(state)).generation == expected


def test_a_reader_is_woken_by_a_change() -> None:
    yard = Yard()
    first = yard.publish(NOON, statuses(GpuState.FREE))
    seen: list[YardView | None] = []
    reader = threading.Thread(target=lambda: seen.append(yard.wait(first.generation, 10)))
    reader.start()
    yard.publish(NOON, statuses(GpuState.FREE))  # no change: wakes nobody
    second = yard.publish(NOON, statuses(GpuState.HELD))
    reader.join(5)
    assert seen == [second]


def test_a_reader_who_is_behind_does_not_wait() -> None:
    yard = Yard()
    yard.publish(NOON, statuses(GpuState.FREE))
    latest = yard.publish(NOON, statuses(GpuState.HELD))
    start = monotonic()
    assert yard.wait(1, 10) == latest
    assert monotonic() - start < 1


def test_waiting_ends_without_a_change() -> None:
    yard = Yard()
    assert yard.wait(0, 0.01) is None
    view = yard.publish(NOON, statuses(GpuState.FREE))
    assert yard.wait(view.generation, 0.01) == view
