"""A host of the lab is maintained: its booking goes elsewhere, it is drained, worked on, checked, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.apply import SiteApplier
from gpuyard.cloud.observe.objects import read_objects
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.keeper.bookings import bookings_loop
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.host_looks import HostLooks
from gpuyard.model.gpu import GpuState
from gpuyard.model.watch import GpuLook, HostLook
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import RunningLab
from tests.integration.test_health import MUST, wait

pytestmark = pytest.mark.lab
HOST = "cld-dfa-gpu-03"
XP, TITAN = f"{HOST}/0000:3b:00.0", f"{HOST}/0000:af:00.0"


@pytest.fixture
def booked(lab: RunningLab, operator: CloudApi, example: CompiledSite, tmp_path: Path) -> Iterator[BookedLab]:
    made = open_booked_lab(lab, operator, tmp_path, MUST, health={})
    yield made
    made.clear()
    seen = read_objects(operator, example)
    SiteApplier(operator, seen).apply(plan_site(example, seen), lambda step: None)


def test_a_host_is_drained_worked_on_checked_and_given_back(booked: BookedLab) -> None:
    assert booked.health is not None
    desk, looks = booked.health.maintenance, HostLooks(booked.health.desk, {HOST})
    later = booked.book("ada", start=3600, pool="titan-xp", gpu=XP)
    now = booked.book("ada", start=0, pool="gtx-titan")
    flavor = next(one.name for one in booked.compiled.flavors if one.pool == "gtx-titan")
    driver = Driver()
    holding = driver.register(bookings_loop(booked.keeper, 2.0))
    driver.register(booked.health.loop(2.0, holding))
    driver.register(booked.health.maintenance_loop(1.0))
    driver.start()
    try:
        wait(lambda: booked.now(now).usable_since is not None, "its owner is let in")
        boot = booked.boot("ada", flavor)
        assert boot.status == "ACTIVE", boot.fault
        wait(lambda: booked.now(now).claimed is not None, "the server is seen")
        start = booked.clock()
        id = desk.plan(HOST, start, start + timedelta(hours=2), "kernel 6.12", booked.people["bob"]).id
        (lane,) = (booked.lanes()[lane] for lane in booked.now(later).lanes)
        assert lane.host != HOST, "what can be elsewhere is"
        wait(lambda: _reserved(booked) == {XP, TITAN}, "nobody new gets in, below the server neither")
        assert desk.view(id).maintenance.state is MaintenanceState.DRAINING
        wait(lambda: [one.server_id for one in desk.view(id).servers] == [boot.server_id], "who is in the way is shown")

        booked.exercises["ada"].delete([boot.server_id])
        booked.ledger.end(now.id, booked.people["ada"])
        wait(lambda: desk.view(id).maintenance.state is MaintenanceState.IN_WORK, "it is empty")
        words = {one.reason for one in booked.statuses(None) if one.gpu.host == HOST and one.state is GpuState.HELD}
        assert words == {desk.view(id).maintenance.words}
        desk.done(id, "6.12 runs", booked.people["bob"])
        wait(lambda: bool(desk.view(id).maintenance.problems), "it was not heard of yet")
        assert _reserved(booked) == {XP, TITAN}

        booked.clock.forward(seconds=2)
        gpus = tuple(GpuLook(name.partition("/")[2], True, "10de:1b06", "1b0610de", "vfio-pci") for name in (XP, TITAN))
        looks.hear(HOST, json.dumps(HostLook(HOST, "boot-2", 1, "", "6.12", gpus=gpus).as_dict()).encode())
        wait(lambda: desk.view(id).maintenance.state is MaintenanceState.BACK, "it is well")
        wait(lambda: not _reserved(booked), "everybody may have its GPUs again")
    finally:
        driver.stop()


def _reserved(booked: BookedLab) -> set[str]:
    """``host/address`` of the GPUs of the host that are reserved in Placement."""
    names = {gpu.provider_name: f"{gpu.host}/{gpu.address}" for gpu in booked.compiled.gpus if gpu.host == HOST}
    return {names[name] for name in booked.reserved() if name in names}
