"""The state of the site: for everybody, as much as the site allows, and also when what it is made of is away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request

from gpuyard.bookings.store import StoreError
from gpuyard.dashboard.sources import Sources
from gpuyard.dashboard.status import SiteStatus, site_status
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.server.app import create_app
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.problems import Refusal
from gpuyard.web.settings import PortalSettings
from tests.support.health_portals import HealthPortal, fill, fine, health_portal, site_gpus
from tests.support.inventories import STATUSES, driver, filled, plain_sources
from tests.support.ledgers import ADA, BOB, DAY, NOON, ROOT
from tests.support.pages_world import furnish
from tests.support.portals import ROOMY, without_ids
from tests.support.served import serving

PRIVATE = ("gpu-1", "gpu-2", "gpu-3", "power supply", "new riser card", "kernel 6.12", "ada", "bob", "root", "training")
"""Hosts, what operators said, and people."""


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path)
    fill(made)
    furnish(made)
    return made


def test_everybody_sees_counts_and_times(portal: HealthPortal) -> None:
    status = portal.browser().client.get("/v1/status").json()
    assert (status["site"], status["state"], status["known"]) == ("test-site", "reduced", True)
    assert {pool["name"]: (pool["total"], pool["free"]) for pool in status["pools"]} == {"v100": (6, 5), "t4": (2, 2)}
    assert [(incident["pool"], incident["what"], incident["gpus"]) for incident in status["incidents"]] == [
        ("t4", "quarantined", 1), ("v100", "in repair", 1), ("v100", "quarantined", 1), ("v100", "suspect", 1),
    ]  # fmt: skip
    assert [(entry["kind"], entry["on"], entry["gpus"], entry["pools"]) for entry in status["planned"]] == [
        ("maintenance", True, 1, ["t4"]), ("maintenance", False, 1, ["t4"]), ("hold", False, 1, ["v100"]),
    ]  # fmt: skip
    (loop,) = status["loops"]
    assert (loop["name"], loop["late"], loop["failures"]) == ("look", False, 0)


@pytest.mark.parametrize("path", ["/status", "/v1/status"])
def test_strangers_see_no_hosts_and_no_words(portal: HealthPortal, path: str) -> None:
    shown = portal.browser().client.get(path).text
    assert [word for word in PRIVATE if word in without_ids(shown).replace("gpuyard", "")] == []
    shown_to_ada = portal.browser(ADA).client.get(path).text
    assert [word for word in PRIVATE[:6] if word not in shown_to_ada] == []


def test_the_site_may_tell_strangers_more_or_nothing(tmp_path: Path) -> None:
    for settings, status in ((replace(ROOMY, anonymous_details=True), 200), (replace(ROOMY, public_status=False), 303)):
        folder = tmp_path / str(status)
        folder.mkdir()
        portal = health_portal(folder, settings)
        fine(portal)
        furnish(portal)
        stranger = portal.browser().client
        answer = stranger.get("/status")
        assert answer.status_code == status
        assert ("power supply" in answer.text) == ("gpu-2" in answer.text) == (status == 200)
        assert stranger.get("/v1/status").status_code == (200 if status == 200 else 401)
        assert "power supply" in portal.browser(ADA).client.get("/status").text


def test_what_is_private_needs_a_login_still(portal: HealthPortal) -> None:
    stranger = portal.browser().client
    for path in ("/statuses", "/status/", "/v1/status/x", "/v1/gpus"):
        assert stranger.get(path).status_code in (303, 401), path
    assert stranger.post("/v1/status").status_code == 401


def test_without_bookings_it_is_there_too() -> None:
    client = TestClient(create_app(plain_sources(), ["testserver"]))
    status = client.get("/v1/status").json()
    assert [(incident["pool"], incident["what"], incident["hosts"]) for incident in status["incidents"]] == [
        ("t4", "blocked", ["node2"]), ("t4", "lost", ["node2"]),
    ]  # fmt: skip
    assert status["planned"] == []
    page = client.get("/status").text
    assert "Some GPUs are out of use" in page
    assert 'href="./status" aria-current=page' in page
    assert "login" not in page


def test_all_is_well_when_nothing_is_out_of_use(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fine(portal)
    client = portal.browser().client
    assert client.get("/v1/status").json()["state"] == "well"
    assert "Nothing that is known." in client.get("/status").text


def test_a_gpu_counts_once(portal: HealthPortal) -> None:
    portal.inventory.publish(
        NOON, [GpuStatus(gpu, GpuState.LOST, "nova-compute does not report it") for gpu in site_gpus()]
    )
    status = portal.browser().client.get("/v1/status").json()
    assert sum(incident["gpus"] for incident in status["incidents"]) == len(site_gpus())


def test_a_cloud_that_does_not_answer_leaves_the_last_truth_with_its_age(tmp_path: Path) -> None:
    inventory, loops = filled(), driver(runs=0)
    client = TestClient(
        create_app(
            plain_sources(inventory=inventory, driver=loops, now=lambda: NOON + DAY),
            ["testserver"],
        )
    )
    status = client.get("/v1/status").json()
    assert status["state"] == "stale"
    assert status["age"] == int((NOON + DAY - inventory.latest().taken_at).total_seconds())  # type: ignore[union-attr]
    assert sum(pool["total"] for pool in status["pools"]) == len(STATUSES)
    page = client.get("/status").text
    assert "Not known at the moment" in page
    assert "This part of gpuyard has not got through for too long: look." in page


def test_before_the_first_look_nothing_is_said_of_gpus() -> None:
    client = TestClient(create_app(plain_sources(inventory=InventoryCache(), driver=driver(runs=0)), ["testserver"]))
    status = client.get("/v1/status").json()
    assert (status["state"], status["pools"], status["taken_at"]) == ("unknown", [], None)
    assert "has not answered since gpuyard began" in client.get("/status").text


def test_it_answers_when_keystone_and_the_database_do_not(
    portal: HealthPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = portal.browser(ADA).client
    portal.people.down = True
    portal.clock.forward(hours=0.5)  # so that it is asked whether she is still let in
    monkeypatch.setattr(portal.store, "get_session", _broken)
    monkeypatch.setattr(portal.ledger, "find", _broken)
    assert ada.get("/v1/gpus").status_code == 503
    status = ada.get("/v1/status").json()
    assert (status["known"], status["state"], status["incidents"]) == (False, "stale", [])
    assert sum(pool["total"] for pool in status["pools"]) == len(site_gpus())
    assert "The database does not answer" in ada.get("/status").text


def _broken(*_: object, **__: object) -> None:
    raise StoreError("the database is away")


def test_an_admin_sees_why_a_loop_fails(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fine(portal)
    (loop,) = portal.app.state.feed._sources.driver.loops
    loop._run = lambda: _broken()
    loop.run_once("timer")
    assert "the database is away" in portal.browser(ROOT).client.get("/status").text
    assert "the database is away" not in portal.browser().client.get("/status").text


# A whole lab course behind one address


def test_two_hundred_who_look_at_once_from_one_address_get_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal = health_portal(tmp_path, PortalSettings())
    fill(portal)
    reads: list[object] = []

    def counted(sources: Sources, *, details: bool, holds: bool) -> SiteStatus:
        reads.append(details)
        return site_status(sources, details=details, holds=holds)

    monkeypatch.setattr("gpuyard.dashboard.status_pages.site_status", counted)
    with serving(portal.app) as url, ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(lambda _: httpx2.get(f"{url}/status"), range(200)))
        tag = responses[0].headers["etag"]
        assert {(response.status_code, response.headers["etag"]) for response in responses} == {(200, tag)}
        assert len({response.text for response in responses}) == 1
        assert reads == [False]
        again = httpx2.get(f"{url}/status", headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == "public, max-age=1"
        assert "Cookie" in responses[0].headers["vary"]


def test_what_strangers_share_is_no_older_than_a_second(portal: HealthPortal) -> None:
    stranger = portal.browser().client
    before = stranger.get("/v1/status").json()
    portal.service.quarantine("gpu-3/0000:18:00.0", "it smells", ROOT)
    assert stranger.get("/v1/status").json() == before
    portal.clock.forward(hours=1 / 3600)
    after = stranger.get("/v1/status").json()
    assert [sum(incident["gpus"] for incident in status["incidents"]) for status in (before, after)] == [4, 5]


def test_nobody_shares_the_page_of_who_has_logged_in(portal: HealthPortal) -> None:
    ada, bob, stranger = portal.browser(ADA), portal.browser(BOB), portal.browser()
    pages = [(browser, browser.client.get("/status")) for browser in (ada, stranger, bob)]
    for member in (ada, bob):
        csrf_shown = {other is member: member.csrf in page.text for other, page in pages}
        assert csrf_shown == {True: True, False: False}
    assert [page.headers["cache-control"] for _, page in pages] == ["no-store", "public, max-age=1", "no-store"]


def test_two_hundred_may_keep_the_page_open_at_one_address(tmp_path: Path) -> None:
    time, portal = [1000.0], health_portal(tmp_path, PortalSettings())
    authenticator = Authenticator(portal.people, portal.store, PortalSettings(), portal.clock, lambda: time[0])
    request = Request({"type": "http", "client": ("192.0.2.7", 1), "headers": []})
    for _ in range(10 * 60 // 30):  # the page loads itself again every 30 s
        for _ in range(200):
            authenticator.refuse_too_many_looks(request)
        time[0] += 30
    assert _let_in(authenticator.refuse_too_many_looks, request, 2000) == 1000
    # What is made for each who looks has the limit that it had.
    assert _let_in(authenticator.refuse_too_many_anonymous_reads, request, 300) == 240


def _let_in(door: Callable[[Request], None], request: Request, tries: int) -> int:
    for number in range(tries):
        try:
            door(request)
        except Refusal:
            return number
    return tries
