"""A GPU that goes bad is out of use at once, on the real services, and comes back when somebody says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.apply import SiteApplier
from gpuyard.cloud.observe.objects import read_objects
from gpuyard.health.records import HealthState, Observation
from gpuyard.keeper.bookings import bookings_loop
from gpuyard.keeper.driver import Driver
from gpuyard.lab.exercise import Exercise
from gpuyard.model.gpu import GpuState, GpuStatus, provider_name
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site
from tests.integration.booked_lab import BookedLab, Open, open_booked_lab
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

MUST = {"must_book": True, "grace": "30 min", "dry_run": False, "hold": "10 min"}
PATIENCE = 30.0
"""Seconds, on a machine that has other things to do."""


@pytest.fixture
def opened(
    lab: RunningLab, operator: CloudApi, example: CompiledSite, exercise: Exercise, tmp_path: Path
) -> Iterator[Open]:
    """Makes a lab whose GPUs are followed; everything is as it was afterwards."""
    made: list[BookedLab] = []

    def make(booking: dict[str, Any], projects: dict[str, Any] | None = None, **more: Any) -> BookedLab:
        made.append(open_booked_lab(lab, operator, tmp_path, booking, projects, **more))
        return made[-1]

    yield make
    for one in made:
        one.clear()
    seen = read_objects(operator, example)
    SiteApplier(operator, seen).apply(plan_site(example, seen), lambda step: None)


def wait(until: Callable[[], bool], what: str) -> float:
    """Seconds that it took."""
    began = monotonic()
    while not until():
        assert monotonic() - began < PATIENCE, what
        threading.Event().wait(0.05)
    return monotonic() - began


def status_of(booked: BookedLab, host: str, address: str) -> GpuStatus:
    (found,) = [one for one in booked.statuses() if (one.gpu.host, one.gpu.address) == (host, address)]
    return found


def is_reserved(booked: BookedLab, provider: str) -> bool:
    rows = booked.operator.get("placement", f"/resource_providers/{provider}/inventories")["inventories"]
    return any(row["reserved"] for row in rows.values())


def test_a_gpu_that_does_not_answer_is_out_of_use_at_once_and_back_by_a_person(
    opened: Open, record_property: Callable[[str, object], None]
) -> None:
    booked = opened(MUST, health={})
    assert booked.health is not None
    desk, driver = booked.health.desk, Driver()
    holding = driver.register(bookings_loop(booked.keeper, 5.0))
    driver.register(booked.health.loop(5.0, holding))
    driver.start()
    try:
        wait(lambda: len(desk.store.gpus()) > 0, "GPUs are seen for the first time")
        booking = booked.book("ada", start=3600)
        lane = booked.lanes()[booking.lanes[0]]
        provider = booked.snapshot_providers()[provider_name(lane.host, lane.addresses[0])]
        desk.observe([Observation(lane.host, lane.addresses[0], "no-answer", booked.clock(), "ffffffff")])
        took = wait(lambda: is_reserved(booked, provider), "reserved in Placement")
        record_property("quarantine_seconds", round(took, 2))
        print(f"\nfrom observation to reserved: {took:.2f} s")
        wait(lambda: booked.now(booking).lanes != booking.lanes, "its booking has another GPU")
        gpu = desk.gpu(lane.name)
        assert (gpu.state, gpu.signal) == (HealthState.QUARANTINED, "no-answer")
        wait(lambda: status_of(booked, lane.host, lane.addresses[0]).state is GpuState.HELD, "it is seen as held")
        reason = "quarantined: its config space reads 0xff (no-answer)"
        wait(lambda: status_of(booked, lane.host, lane.addresses[0]).reason == reason, "with its reason")
        desk.release(lane.name, "the host was restarted, and it answers", booked.people["bob"])
        wait(lambda: not is_reserved(booked, provider), "given away again")
        assert status_of(booked, lane.host, lane.addresses[0]).state is GpuState.FREE
        last = desk.store.events(lane.host, lane.addresses[0])[0]
        assert (last.after, last.by) == (HealthState.FINE, "bob")
    finally:
        driver.stop()


def test_a_gpu_that_goes_bad_below_a_server_is_kept_when_that_ends(opened: Open) -> None:
    """Nobody gets it in between: it is reserved below the server."""
    booked = opened(MUST, health={})
    assert booked.health is not None
    desk, keeper = booked.health.desk, booked.health.keeper
    booking = booked.book("ada", start=0)
    booked.keeper.run()
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    booked.keeper.run()
    keeper.run()
    (gpu,) = [one for one in desk.store.gpus() if one.state is HealthState.IN_USE]
    assert boot.server_id in gpu.cause
    desk.observe([Observation(gpu.host, gpu.address, "aer-fatal", booked.clock(), "fatal: 1")])
    keeper.run()
    booked.keeper.run()
    status = status_of(booked, gpu.host, gpu.address)
    assert status.state is GpuState.CLAIMED
    assert status.reason.startswith("quarantined: a fatal or non-fatal AER error more (aer-fatal); it is kept back")
    name = provider_name(gpu.host, gpu.address)
    assert is_reserved(booked, booked.snapshot_providers()[name])
    booked.exercises["ada"].delete([boot.server_id])
    booked.restart()  # all that it knows is in the store
    booked.keeper.run()
    assert booked.health is not None
    booked.health.keeper.run()
    assert status_of(booked, gpu.host, gpu.address).state is GpuState.HELD
    assert booked.health.desk.gpu(gpu.name).state is HealthState.QUARANTINED
    assert booked.now(booking).lanes != (), "its booking goes on"
