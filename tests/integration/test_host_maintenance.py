"""A host of the lab is maintained: its booking goes elsewhere, it is drained, worked on, checked, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.controllers.bookings import bookings_loop
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.model.gpu import GpuState
from gpuyard.model.host_report import GpuReport, HostReport
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.disabled_reason import Purpose
from gpuyard.openstack.host_maintenance import MaintenanceCloud
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.runtime.control_loops import Driver
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import RunningLab
from tests.integration.test_health import MUST, wait

pytestmark = pytest.mark.lab
HOST = "cld-dfa-gpu-03"
XP, TITAN = f"{HOST}/0000:3b:00.0", f"{HOST}/0000:af:00.0"


@pytest.fixture
def booked(
    lab: RunningLab, applied: None, operator: CloudApi, example: CompiledSite, tmp_path: Path
) -> Iterator[BookedLab]:
    made = open_booked_lab(lab, operator, tmp_path, MUST, health={})
    yield made
    made.clear()
    observed = read_objects(operator, example)
    SiteApplier(operator, observed).apply(plan_site(example, observed), lambda step: None)


def test_a_host_is_drained_worked_on_checked_and_given_back(booked: BookedLab) -> None:
    assert booked.health is not None
    service, looks = booked.health.maintenance, HostReportIntake(booked.health.service, {HOST})
    later = booked.book("ada", start=3600, pool="titan-xp", gpu=XP)
    now = booked.book("ada", start=0, pool="gtx-titan")
    flavor = next(flavor.name for flavor in booked.compiled.flavors if flavor.pool == "gtx-titan")
    driver = Driver()
    holding = driver.register(bookings_loop(booked.controller, 2.0))
    driver.register(booked.health.loop(2.0, holding))
    driver.register(booked.health.maintenance_loop(1.0))
    driver.start()
    try:
        wait(lambda: booked.now(now).usable_since is not None, "its owner is let in")
        boot = booked.boot("ada", flavor)
        assert boot.status == "ACTIVE", boot.fault
        wait(lambda: booked.now(now).claimed is not None, "the server is seen")
        start = booked.clock()
        id = service.plan(HOST, start, start + timedelta(hours=2), "kernel 6.12", booked.people["bob"]).id
        (lane,) = (booked.lanes()[lane] for lane in booked.now(later).lanes)
        assert lane.host != HOST, "what can be elsewhere is"
        wait(lambda: _reserved(booked) == {XP, TITAN}, "nobody new gets in, below the server neither")
        assert service.view(id).maintenance.state is MaintenanceState.DRAINING
        wait(
            lambda: [server.server_id for server in service.view(id).servers or ()] == [boot.server_id],
            "who is in the way is shown",
        )

        booked.exercises["ada"].delete([boot.server_id])
        booked.ledger.end(now.id, booked.people["ada"])
        wait(lambda: service.view(id).maintenance.state is MaintenanceState.IN_WORK, "it is empty")
        words = {
            status.reason
            for status in booked.statuses(None)
            if status.gpu.host == HOST and status.state is GpuState.HELD
        }
        assert words == {service.view(id).maintenance.words}
        service.done(id, "6.12 runs", booked.people["bob"])
        wait(lambda: bool(service.view(id).maintenance.problems), "it was not heard of yet")
        assert _reserved(booked) == {XP, TITAN}

        booked.clock.forward(seconds=2)
        gpus = tuple(
            GpuReport(name.partition("/")[2], True, "10de:1b06", "1b0610de", "vfio-pci") for name in (XP, TITAN)
        )
        looks.hear(HOST, json.dumps(HostReport(HOST, "boot-2", 1, "", "6.12", gpus=gpus).as_dict()).encode())
        wait(lambda: service.view(id).maintenance.state is MaintenanceState.BACK, "it is well")
        wait(lambda: not _reserved(booked), "everybody may have its GPUs again")
    finally:
        driver.stop()


def test_servers_without_gpus_keep_their_host_from_work(booked: BookedLab, operator: CloudApi) -> None:
    """Nova takes no server there any more, whoever asks; one that is there goes down only when somebody has named it;
    and the host is open again for its check."""
    assert booked.health is not None
    service, looks, door = (
        booked.health.maintenance,
        HostReportIntake(booked.health.service, {HOST}),
        ComputeService(operator, HOST),
    )
    server = _boot_there(booked, operator)
    driver = Driver()
    holding = driver.register(bookings_loop(booked.controller, 2.0))
    driver.register(booked.health.loop(2.0, holding))
    driver.register(booked.health.maintenance_loop(1.0))
    driver.start()
    try:
        start = booked.clock()
        id = service.plan(HOST, start, start + timedelta(hours=2), "kernel 6.12", booked.people["bob"]).id
        wait(lambda: door.tag is not None, "nova-compute is disabled")
        tag = door.tag
        assert tag is not None
        assert tag.purpose is Purpose.MAINTENANCE
        with pytest.raises(ServerFailedError, match="No valid host"):
            _boot_there(booked, operator)
        operator.request("POST", "compute", f"/servers/{server}/action", {"os-stop": None})
        wait(lambda: _status(operator, server) == "SHUTOFF", "it is off, and still there")
        wait(lambda: service.view(id).maintenance.problems == (), "nothing but the server is in the way")
        view = service.view(id)
        assert view.maintenance.state is MaintenanceState.DRAINING
        assert [(server.server_id, server.server_status) for server in view.servers or ()] == [(server, "SHUTOFF")]
        servers = MaintenanceCloud(operator).servers(HOST, _provider(operator))
        assert list(servers) == [server]
        service.allow(id, [server], "it is mine", booked.people["bob"])
        wait(lambda: service.view(id).maintenance.state is MaintenanceState.IN_WORK, "work may begin")
        service.done(id, "6.12 runs", booked.people["bob"])
        wait(lambda: door.look().enabled, "the check needs it open")
        booked.clock.forward(seconds=2)
        gpus = tuple(
            GpuReport(name.partition("/")[2], True, "10de:1b06", "1b0610de", "vfio-pci") for name in (XP, TITAN)
        )
        looks.hear(HOST, json.dumps(HostReport(HOST, "boot-2", 1, "", "6.12", gpus=gpus).as_dict()).encode())
        wait(lambda: service.view(id).maintenance.state is MaintenanceState.BACK, "it is well")
    finally:
        driver.stop()
        operator.request("DELETE", "compute", f"/servers/{server}")
        if (left := door.tag) is not None:
            door.open(left)


class ServerFailedError(Exception):
    """Nova says why."""


def _boot_there(booked: BookedLab, operator: CloudApi) -> str:
    """A server without GPUs on the host, by an admin who names it."""
    flavor = next(flavor.name for flavor in booked.compiled.flavors if flavor.pool is None)
    id = next(row["id"] for row in operator.pages("compute", "/flavors", "flavors") if row["name"] == flavor)
    body = {
        "name": "no-gpu", "flavorRef": id, "imageRef": booked.exercises["ada"]._image, "networks": "none", "host": HOST,
    }  # fmt: skip
    server = str(operator.request("POST", "compute", "/servers", {"server": body})["server"]["id"])
    wait(lambda: _status(operator, server) != "BUILD", "it is built, or it is not")
    row = operator.get("compute", f"/servers/{server}")["server"]
    if row["status"] != "ACTIVE":
        operator.request("DELETE", "compute", f"/servers/{server}")
        raise ServerFailedError(row["fault"]["message"])
    assert row["OS-EXT-SRV-ATTR:host"] == HOST
    return server


def _status(operator: CloudApi, server: str) -> str:
    return str(operator.get("compute", f"/servers/{server}")["server"]["status"])


def _provider(operator: CloudApi) -> str:
    return str(next(row["uuid"] for row in operator.providers() if row["name"] == HOST))


def _reserved(booked: BookedLab) -> set[str]:
    """``host/address`` of the GPUs of the host that are reserved in Placement."""
    names = {gpu.provider_name: f"{gpu.host}/{gpu.address}" for gpu in booked.compiled.gpus if gpu.host == HOST}
    return {names[name] for name in booked.reserved() if name in names}
