"""Every place that says what state a GPU is in says the same: the map, the API, both command lines, why, drift, and a
second portal on the same database."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from gpuyard.bookings.controllers.bookings import BookingController
from gpuyard.bookings.pool_view import PREPARE
from gpuyard.cli.main import app
from gpuyard.client.client import Client
from gpuyard.client.portal import open_session
from gpuyard.client.rows import keepings
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.diagnosis.why.facts import Device, HostAnswer, obstacle
from gpuyard.diagnosis.why.read import FactsReader
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import Person
from gpuyard.model.gpu import GpuState, GpuStatus, LedgerWords
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.server.app import create_app
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab.exercise import Exercise
from tests.integration.booked_lab import BookedLab, open_booked_lab, set_reserved
from tests.integration.conftest import RunningLab
from tests.support.booked_sites import open_ledger
from tests.support.inventories import NOON, plain_sources
from tests.support.served import served, write_clouds

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning"),
]

ROOT = Person("root", "root", "id-admin", "admin", frozenset({"admin"}))
STRANGER = "0f1e2d3c-0000-4000-8000-00000000000a"
RULES = {"must_book": False, "grace": "30 min", "dry_run": False, "hold": "10 min"}
PROJECTS = {"art": {"gpus": {"t4": 4}}}
HIDDEN = "hyper18_0000:86:00.0"
LEADER, PEER = "gpu-server_0000:27:00.0", "gpu-server_0000:28:00.0"


@pytest.fixture
def booked(
    lab: RunningLab, operator: CloudApi, example: CompiledSite, exercise: Exercise, tmp_path: Path
) -> Iterator[BookedLab]:
    made = open_booked_lab(lab, operator, tmp_path, RULES, PROJECTS)
    yield made
    made.clear()
    observed = read_objects(operator, example)
    SiteApplier(operator, observed).apply(plan_site(example, observed), lambda step: None)


@pytest.fixture
def migrated(operator: CloudApi) -> Iterator[None]:
    """A pair's leader is held by a consumer that is no server, as of a migration, and reserved besides."""
    provider = operator.get("placement", "/resource_providers", name=LEADER)["resource_providers"][0]["uuid"]
    body = {
        "allocations": {provider: {"resources": {"CUSTOM_GPU_V100": 1}}}, "project_id": "p", "user_id": "u",
        "consumer_generation": None, "consumer_type": "MIGRATION",
    }  # fmt: skip
    operator.request("PUT", "placement", f"/allocations/{STRANGER}", body)
    set_reserved(operator, provider, 1)
    yield
    set_reserved(operator, provider, 0)
    operator.request("DELETE", "placement", f"/allocations/{STRANGER}")


@pytest.fixture
def lost(operator: CloudApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement does not have one of the GPUs."""
    get = operator.get

    def without(service: str, path: str, **query: object) -> dict[str, Any]:
        answer = get(service, path, **query)
        if path == "/resource_providers":
            rows = [row for row in answer["resource_providers"] if row["name"] != HIDDEN]
            answer = {**answer, "resource_providers": rows}
        return answer

    monkeypatch.setattr(operator, "get", without)


def test_every_place_says_the_same_of_every_gpu(
    booked: BookedLab, migrated: None, lost: None, operator: CloudApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booked.controller.run()
    assert booked.boot("bob").status == "ACTIVE"
    by_hand, held = [status.gpu for status in booked.statuses() if status.state is GpuState.FREE][-2:]
    set_reserved(operator, booked.snapshot_providers()[by_hand.provider_name], 1)
    now = booked.clock()
    (hold,) = booked.ledger.hold([f"{held.host}/{held.address}"], now, now + timedelta(days=1), ROOT, "fan")
    booking = booked.book("ada")
    booked.controller.run()
    booked.clock.until(booking.ask.start - 1.5 * PREPARE)
    booked.controller.run()
    statuses = booked.statuses(None)
    states = {status.gpu.provider_name: status for status in statuses}
    # What is there to be compared is there.
    assert {status.state for status in statuses} == set(GpuState) - {GpuState.BLOCKED}
    assert (states[by_hand.provider_name].state, states[by_hand.provider_name].booking) == (GpuState.HELD, "")
    assert (states[held.provider_name].state, states[held.provider_name].booking) == (GpuState.HELD, hold.id)
    assert [s.booking for s in statuses if s.state is GpuState.BOOKED] == [booking.id]
    assert [states[name].state for name in (LEADER, PEER, HIDDEN)] == [
        GpuState.CLAIMED, GpuState.STRANDED, GpuState.LOST,
    ]  # fmt: skip

    compare_processes(booked, tmp_path, statuses)
    loaded = load_site(tmp_path / "site.yaml")
    with served(booked.ledger, [booked.people["bob"]], statuses) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, [booked.people["bob"]])))
        rows = Client(open_session("bob", url)).gpus()
        listed = CliRunner().invoke(app, ["gpu", "list", "--os-cloud", "bob", "--url", url, "-f", "json"]).stdout
        columns, table = of_openstack(Client(open_session("bob", url)))
    assert of_page(statuses) == {f"{s.gpu.address} on {s.gpu.host}": s.state.value for s in statuses}
    assert [row["state"] for row in rows] == [status.state.value for status in statuses]
    mine = [{name: "" if value is None else value for name, value in row.items()} for row in json.loads(listed)]
    assert mine == [dict(zip(columns, row, strict=True)) for row in table]
    assert [(row["State"], row["Reason"]) for row in mine] == [(s.state.value, s.reason) for s in statuses]

    words = keepings(rows)
    compare_why(operator, loaded, states, words)
    compare_drift(operator, loaded, states, words)


def of_page(statuses: list[GpuStatus]) -> dict[str, str]:
    """GPU -> state, of the boxes of the map."""
    inventory = InventoryCache()
    inventory.publish(NOON, statuses)
    page = (
        TestClient(
            create_app(
                plain_sources(inventory=inventory, gpus=[status.gpu for status in statuses]),
                ["testserver"],
            )
        )
        .get("/")
        .text
    )
    boxes = re.findall(r'data-state="([a-z]+)" aria-label="([^"]+)"', page)
    return {name: state for state, name in boxes}


def compare_processes(booked: BookedLab, folder: Path, statuses: list[GpuStatus]) -> None:
    """A second portal on the same database keeps no bookings, and says of every GPU what the first one says."""
    taker = SnapshotTaker(booked.operator, booked.compiled.gpus, booked.compiled.flavors)
    with closing(open_ledger(folder, booked.compiled, booked.clock)) as ledger:
        second = BookingController(booked.operator, booked.compiled, ledger, taker, booked.clock)
        second.run()
        assert second.waits == ("another process on this database leads bookings",)
        assert second.words == booked.controller.words
        assert gpu_statuses(booked.compiled.gpus, taker.take(booked.clock()), second.words) == statuses


def of_openstack(client: Client) -> tuple[Any, Any]:
    """As `openstack gpu list`."""
    openstack: Any = SimpleNamespace(client_manager=SimpleNamespace(gpu=client))
    (entry,) = [entry_point for entry_point in entry_points(group="openstack.gpu.v1") if entry_point.name == "gpu_list"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # osc_lib warns of itself
        command = entry.load()(openstack, None)
    listing: tuple[Any, Any] = command.take_action(command.get_parser("gpu list").parse_args([]))
    return listing


def compare_why(operator: CloudApi, loaded: LoadedSite, states: dict[str, GpuStatus], words: LedgerWords) -> None:
    flavors_by_pool = {flavor.pool: flavor.name for flavor in loaded.compiled.flavors if flavor.pool}
    devices: dict[str, Device] = {}
    for name in [*flavors_by_pool.values(), "gpu_pair-a"]:
        with Reader(operator) as cloud:
            reader = FactsReader(cloud, loaded)
            facts, request = reader.read(name, None, None)
            every = [HostAnswer(host.name, (obstacle("gpu", "", ""),)) for host in facts.hosts]
            devices |= {
                device.provider: device for device in reader.closer(facts, words).look(facts, request, every).devices
            }
    assert devices.keys() == states.keys()
    for name, device in devices.items():
        status = states[name]
        if status.state is GpuState.STRANDED:  # the leader's cause names it
            assert device.address in devices[LEADER].stranded
        else:
            assert (name, device.state, device.booking) == (name, status.state.value, status.booking)
        if status.state in (GpuState.HELD, GpuState.BOOKED, GpuState.LOST):
            assert device.reason in (status.reason, "is not in Placement: is the site's device_spec deployed?")


def compare_drift(operator: CloudApi, loaded: LoadedSite, states: dict[str, GpuStatus], words: LedgerWords) -> None:
    world = read_world(operator, loaded.compiled)
    findings = find_drift(loaded.compiled, loaded.inventories, world, words)
    held = {finding.object: finding for finding in findings if finding.code == "gpu-held"}
    statuses_by_gpu = {
        f"{s.gpu.host} {s.gpu.address}": s for s in states.values() if s.state in (GpuState.HELD, GpuState.BOOKED)
    }
    assert held.keys() == statuses_by_gpu.keys()
    for name, status in statuses_by_gpu.items():
        assert (status.booking or "reserved=0") in held[name].remedy
    (gone,) = [finding for finding in findings if finding.code == "gpu-lost"]
    assert [s.gpu.address for s in states.values() if s.state is GpuState.LOST] == ["0000:86:00.0"]
    assert "0000:86:00.0" in gone.reason
    holders = {name for name, device in world.devices.items() if device.holders}
    assert holders == {name for name, status in states.items() if status.state is GpuState.CLAIMED}
