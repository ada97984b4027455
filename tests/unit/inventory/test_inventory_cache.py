"""The yard: one writer, readers who wait, and a number that means the same statuses."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.inventory.controllers.cache import InventoryCache, InventoryView
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
GPU = Gpu("node", "0000:01:00.0", "v100", "Tesla V100", "10de:1db4", GpuRole.LONE, "CUSTOM_GPU_V100", 1)


def statuses(state: GpuState) -> list[GpuStatus]:
    return [GpuStatus(GPU, state)]


def test_nothing_is_known_at_first() -> None:
    assert InventoryCache().latest() is None


def test_what_was_published_is_the_latest() -> None:
    inventory = InventoryCache()
    view = inventory.publish(NOON, statuses(GpuState.FREE))
    assert inventory.latest() == view == InventoryView(1, NOON, tuple(statuses(GpuState.FREE)))


def test_the_same_statuses_are_the_same_generation_but_were_seen_later() -> None:
    inventory = InventoryCache()
    inventory.publish(NOON, statuses(GpuState.FREE))
    view = inventory.publish(NOON + timedelta(seconds=1), statuses(GpuState.FREE))
    assert (view.generation, view.taken_at) == (1, NOON + timedelta(seconds=1))


@given(st.lists(st.sampled_from(GpuState)))
def test_the_generation_rises_by_one_with_every_change(states: list[GpuState]) -> None:
    inventory, expected, before = InventoryCache(), 0, None
    for state in states:
        expected += state is not before
        before = state
        assert inventory.publish(NOON, statuses(state)).generation == expected


def test_a_reader_is_woken_by_a_change() -> None:
    inventory = InventoryCache()
    first = inventory.publish(NOON, statuses(GpuState.FREE))
    views: list[InventoryView | None] = []
    reader = threading.Thread(target=lambda: views.append(inventory.wait(first.generation, 10)))
    reader.start()
    inventory.publish(NOON, statuses(GpuState.FREE))  # no change: wakes nobody
    second = inventory.publish(NOON, statuses(GpuState.HELD))
    reader.join(5)
    assert views == [second]


def test_a_reader_who_is_behind_does_not_wait() -> None:
    inventory = InventoryCache()
    inventory.publish(NOON, statuses(GpuState.FREE))
    latest = inventory.publish(NOON, statuses(GpuState.HELD))
    start = monotonic()
    assert inventory.wait(1, 10) == latest
    assert monotonic() - start < 1


def test_waiting_ends_without_a_change() -> None:
    inventory = InventoryCache()
    assert inventory.wait(0, 0.01) is None
    view = inventory.publish(NOON, statuses(GpuState.FREE))
    assert inventory.wait(view.generation, 0.01) == view
