"""A GPU that goes bad is out of use at once, on the real services, and comes back when somebody says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.bookings.controllers.bookings import bookings_loop
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.health.controllers.gpus_kept_from_jobs import open_hold_check
from gpuyard.health.records import HealthState, Observation
from gpuyard.model.gpu import GpuState, GpuStatus, provider_name
from gpuyard.openstack.api import CloudApi
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.runtime.control_loops import Driver
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.integration.booked_lab import POOL, BookedLab, Open, open_booked_lab
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
    for booked_lab in made:
        booked_lab.clear()
    observed = read_objects(operator, example)
    SiteApplier(operator, observed).apply(plan_site(example, observed), lambda step: None)


def wait(until: Callable[[], bool], what: str) -> float:
    """Seconds that it took."""
    began = monotonic()
    while not until():
        assert monotonic() - began < PATIENCE, what
        threading.Event().wait(0.05)
    return monotonic() - began


def status_of(booked: BookedLab, host: str, address: str) -> GpuStatus:
    (gpu_status,) = [status for status in booked.statuses() if (status.gpu.host, status.gpu.address) == (host, address)]
    return gpu_status


def is_reserved(booked: BookedLab, provider: str) -> bool:
    rows = booked.operator.get("placement", f"/resource_providers/{provider}/inventories")["inventories"]
    return any(row["reserved"] for row in rows.values())


def test_a_gpu_that_does_not_answer_is_out_of_use_at_once_and_back_by_a_person(
    opened: Open, record_property: Callable[[str, object], None]
) -> None:
    booked = opened(MUST, health={})
    assert booked.health is not None
    service, driver = booked.health.service, Driver()
    holding = driver.register(bookings_loop(booked.controller, 5.0))
    driver.register(booked.health.loop(5.0, holding))
    driver.start()
    try:
        wait(lambda: len(service.store.gpus()) > 0, "GPUs are seen for the first time")
        booking = booked.book("ada", start=3600)
        lane = booked.lanes()[booking.lanes[0]]
        provider = booked.snapshot_providers()[provider_name(lane.host, lane.addresses[0])]
        service.observe([Observation(lane.host, lane.addresses[0], "no-answer", booked.clock(), "ffffffff")])
        took = wait(lambda: is_reserved(booked, provider), "reserved in Placement")
        record_property("quarantine_seconds", round(took, 2))
        print(f"\nfrom observation to reserved: {took:.2f} s")
        wait(lambda: booked.now(booking).lanes != booking.lanes, "its booking has another GPU")
        gpu = service.gpu(lane.name)
        assert (gpu.state, gpu.signal) == (HealthState.QUARANTINED, "no-answer")
        wait(lambda: status_of(booked, lane.host, lane.addresses[0]).state is GpuState.HELD, "it is seen as held")
        reason = "quarantined: its config space reads 0xff (no-answer)"
        wait(lambda: status_of(booked, lane.host, lane.addresses[0]).reason == reason, "with its reason")
        service.release(lane.name, "the host was restarted, and it answers", booked.people["bob"])
        wait(lambda: not is_reserved(booked, provider), "given away again")
        assert status_of(booked, lane.host, lane.addresses[0]).state is GpuState.FREE
        last = service.store.events(lane.host, lane.addresses[0])[0]
        assert (last.after, last.by) == (HealthState.FINE, "bob")
    finally:
        driver.stop()


def test_a_gpu_that_goes_bad_below_a_server_is_kept_when_that_ends(opened: Open) -> None:
    """Nobody gets it in between: it is reserved below the server."""
    booked = opened(MUST, health={})
    assert booked.health is not None
    service, controller = booked.health.service, booked.health.controller
    booking = booked.book("ada", start=0)
    booked.controller.run()
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    booked.controller.run()
    controller.run()
    (gpu,) = [gpu for gpu in service.store.gpus() if gpu.state is HealthState.IN_USE]
    assert boot.server_id in gpu.cause
    check = open_hold_check(booked.compiled, booked.ledger, service, booked.operator)
    assert check.gpus_of(boot.server_id) == (gpu.name,)
    other = next(
        candidate
        for candidate in service.store.gpus()
        if candidate.pool == gpu.pool and candidate.state is HealthState.FINE
    )
    service.quarantine(other.name, "it is on fire", booked.people["bob"])
    assert check.unheld(gpu.pool).startswith(f"GPU {other.name} is not held in Placement yet: ")
    booked.controller.run()
    assert check.unheld(gpu.pool) == ""
    service.observe([Observation(gpu.host, gpu.address, "aer-fatal", booked.clock(), "fatal: 1")])
    controller.run()
    booked.controller.run()
    status = status_of(booked, gpu.host, gpu.address)
    assert status.state is GpuState.CLAIMED
    assert status.reason.startswith("quarantined: a fatal or non-fatal AER error more (aer-fatal); it is kept back")
    name = provider_name(gpu.host, gpu.address)
    assert is_reserved(booked, booked.snapshot_providers()[name])
    booked.exercises["ada"].delete([boot.server_id])
    booked.restart()  # all that it knows is in the store
    booked.controller.run()
    assert booked.health is not None
    booked.health.controller.run()
    assert status_of(booked, gpu.host, gpu.address).state is GpuState.HELD
    assert booked.health.service.gpu(gpu.name).state is HealthState.QUARANTINED
    assert booked.now(booking).lanes != (), "its booking goes on"


def test_a_gpu_that_nova_does_not_reserve_after_its_server_is_not_given_on(opened: Open, tmp_path: Path) -> None:
    """The site says one_time_use, and the lab's nova-compute was given a device_spec without it."""
    pools = {name: dict(pool) for name, pool in YAML(typ="safe").load(EXAMPLE_SITE)["pools"].items()}
    pools[POOL]["one_time_use"] = True
    booked = opened(MUST, health={}, pools=pools)
    assert booked.health is not None
    service = booked.health.service

    def look() -> None:
        assert booked.health is not None
        for loop in (
            booked.controller,
            booked.health.controller,
            booked.health.scrubs,
            booked.health.controller,
            booked.controller,
        ):
            loop.run()

    booked.book("ada", start=0)
    booked.controller.run()
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    look()
    (gpu,) = [gpu for gpu in service.store.gpus() if gpu.state is HealthState.IN_USE]
    booked.exercises["ada"].delete([boot.server_id])
    look()
    record = service.gpu(gpu.name)
    assert (record.state, record.signal) == (HealthState.QUARANTINED, "not-reserved")
    assert is_reserved(booked, booked.snapshot_providers()[provider_name(gpu.host, gpu.address)])
    loaded = load_site(tmp_path / "site.yaml")
    differences = find_drift(loaded.compiled, loaded.inventories, read_world(booked.operator, loaded.compiled))
    hosts = {gpu.host for gpu in booked.compiled.gpus if gpu.pool == POOL}
    assert {difference.object for difference in differences if difference.code == "gpu-not-reserved"} == hosts
