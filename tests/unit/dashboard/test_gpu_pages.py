"""The table of GPUs, the pages of a GPU and of a host, and the page of whoever looks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gpuyard.dashboard.gpu_presenter import PAGE
from gpuyard.health.records import HealthState, HostContact
from gpuyard.health.web.host_checks import RecordedChecks
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.finding import Severity
from gpuyard.model.gpu import Claim, GpuState, GpuStatus
from gpuyard.model.host import HostFacts
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport
from gpuyard.model.world import HostService
from gpuyard.server.app import create_app
from tests.support.health_portals import ADAS, HealthPortal, fill, health_portal, site_gpus, status_of, turn
from tests.support.inventories import GPUS, NASTY, plain_sources, t4
from tests.support.ledgers import ADA, BOB, EVE, HOUR, NOON, ROOT, ask
from tests.support.pages_world import furnish
from tests.support.sites import site
from tests.support.sysfs import epyc

ADAS_GPU = f"gpu-1/{ADAS}"


@pytest.fixture
def client() -> TestClient:
    """Of a site without bookings."""
    return TestClient(create_app(plain_sources(), ["testserver"]))


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    return made(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> HealthPortal:
    """For those who only look, and for what its hosts say."""
    return made(tmp_path_factory.mktemp("portal"))


def made(folder: Path) -> HealthPortal:
    portal = health_portal(folder)
    fill(portal)
    furnish(portal)
    return portal


def rows(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="gpu\?name=(.*?)">', page)


# The table


def test_filters_and_search_are_in_the_address(client: TestClient) -> None:
    assert len(rows(client.get("/gpus").text)) == len(GPUS)
    assert rows(client.get("/gpus?pool=t4&state=held").text) == ["node10/0000:3b:00.0"]
    assert rows(client.get("/gpus?q=&pool=&state=&host=node2").text) == ["node2/0000:01:00.0", "node2/0000:02:00.0"]
    assert len(rows(client.get("/gpus?q=ADA+physics").text)) == 3
    page = client.get("/gpus?q=scrub").text
    assert 'value="scrub"' in page
    assert 'href="v1/gpus?q=scrub&amp;format=csv"' in page
    assert client.get("/v1/gpus?q=scrub&format=csv").text.count("\n") == 2
    assert "No GPU matches" in client.get("/gpus?q=nowhere").text


@pytest.mark.parametrize("query", ["pool=x", "host=x", "state=x", "page=0", "nonsense=1", f"q={'x' * 201}"])
def test_what_is_no_filter_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/gpus?{query}", headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.text


def test_nothing_hostile_gets_through(client: TestClient) -> None:
    for path in ("/gpus", f"/gpus?q={NASTY}", "/gpu?name=epyc/0000:a3:00.0", "/host?name=epyc", f"/host?name={NASTY}"):
        assert NASTY not in client.get(path, headers={"accept": "text/html"}).text, path


def test_many_gpus_are_several_small_pages() -> None:
    gpus = [t4(f"0000:{n:02x}:00.0", n, f"host-{n % 250}") for n in range(2000)]
    claim = Claim("7f3c9a1e-0000-4000-8000-000000000000", "a-server-with-a-name", "ACTIVE", "project", "somebody", NOON)
    inventory = InventoryCache()
    inventory.publish(NOON, [GpuStatus(gpu, GpuState.CLAIMED, "", claim) for gpu in gpus])
    client = TestClient(create_app(plain_sources(inventory=inventory, gpus=gpus), ["testserver"]))
    page, all_rows = "gpus", []
    while page:
        answer = client.get(page.replace("&amp;", "&"))
        assert len(answer.content) < 200_000
        all_rows += rows(answer.text)
        page = next(iter(re.findall(r'<a href="(gpus[^"]*)" rel="next">', answer.text)), "")
    assert len(all_rows) == len(set(all_rows)) == 2000
    assert len(rows(client.get("/gpus?page=99999").text)) == 2000 % PAGE or PAGE


def test_before_the_first_look_there_is_none() -> None:
    client = TestClient(create_app(plain_sources(inventory=InventoryCache()), ["testserver"]))
    for path in ("/gpus", "/gpu?name=epyc/0000:27:00.0", "/host?name=epyc"):
        assert client.get(path).status_code == 503


# A GPU


def test_a_gpu_without_bookings_and_health(client: TestClient) -> None:
    page = client.get("/gpu?name=epyc/0000:27:00.0").text
    for text in ("claimed", "training", "ada", "leader of set A", "CUSTOM_GPU_V100", "10de:1db4", "NUMA node"):
        assert text in page, text
    assert 'href="gpu?name=epyc/0000:28:00.0"' in page
    assert "Reserved from now on" not in page
    assert "the IOMMU is off" in client.get("/gpu?name=node2/0000:01:00.0").text
    for name in ("epyc/0000:99:00.0", "nowhere/0000:27:00.0", "", "x" * 301):
        assert client.get(f"/gpu?name={name}").status_code in (404, 422)


def test_a_gpu_with_what_keeps_it(shared: HealthPortal) -> None:
    page = shared.browser(EVE).client.get("/gpu?name=gpu-1/0000:c3:00.0").text
    assert "new riser card" in page
    assert "in repair" in page
    assert "data-step" not in page
    assert "data-step" in shared.browser(ROOT).client.get("/gpu?name=gpu-1/0000:c3:00.0").text
    peer = shared.browser(EVE).client.get("/gpu?name=gpu-1/0000:28:00.0").text
    assert "peer in set A" in peer
    assert "Not for the next 60 days." in peer


# A host


def look(**changes: object) -> HostReport:
    reports = tuple(
        GpuReport(
            gpu.address, ids=gpu.ids, driver="vfio-pci", group=gpu.group, link=LinkReport(8.0, 16, 8.0, 16), power="D0"
        )
        for gpu in site_gpus()
        if gpu.host == "gpu-1"
    )
    plain = HostReport("gpu-1", "boot", 1, "2026-11-23T12:00:00Z", "6.12.9", "AMI 2.4", "8.2.2", reports)
    return replace(plain, **changes)  # type: ignore[arg-type]


def host_page(portal: HealthPortal, report: HostReport | None = None) -> str:
    if report is not None:
        portal.service.store.hear(HostContact("gpu-1", portal.clock(), json.dumps(report.as_dict())))
    return portal.browser(ROOT).client.get("/host?name=gpu-1").text


def test_a_host_for_everybody(shared: HealthPortal) -> None:
    shared.service.store.hear(HostContact("gpu-2", shared.clock(), json.dumps(look(host="gpu-2").as_dict())))
    page = shared.browser(EVE).client.get("/host?name=gpu-2").text
    assert "power supply" in page
    for text in ("6.12.9", "AMI 2.4", "root", "data-step", "vfio-pci"):
        assert text not in page.replace("Page root", ""), text
    assert shared.browser(EVE).client.get("/host?name=gpu-9").status_code == 404


def test_a_host_for_admins(shared: HealthPortal) -> None:
    page = host_page(shared, look())
    for text in ("6.12.9", "AMI 2.4", "8.2.2", "vfio-pci", "8 GT/s x16", "heard", "1 min ago"):
        assert text.lower() in page.lower(), text
    assert "notice" not in page.partition("<main")[2]


DRIFTS: list[tuple[Callable[[GpuReport], GpuReport], str]] = [
    (lambda gpu: replace(gpu, present=False), "it is gone from the bus"),
    (lambda gpu: replace(gpu, ids="10de:1eb8"), "it is a 10de:1eb8, and the site expects 10de:1db4"),
    (lambda gpu: replace(gpu, group=99), "it is in IOMMU group 99"),
    (lambda gpu: replace(gpu, link=LinkReport(8.0, 4, 8.0, 16)), "its link has 4 of 16 lanes"),
    (lambda gpu: replace(gpu, aer={"fatal": 2, "correctable": 0}), "2 fatal"),
]


@pytest.mark.parametrize(("change", "text"), DRIFTS)
def test_what_differs_from_the_site_is_said(
    shared: HealthPortal, change: Callable[[GpuReport], GpuReport], text: str
) -> None:
    first, *others = look().gpus
    assert text in host_page(shared, look(gpus=(change(first), *others)))


def test_a_gpu_that_the_host_does_not_name_and_another_kernel_are_said(portal: HealthPortal) -> None:
    facts = {"gpu-1": HostFacts("gpu-1", kernel="6.1.0", cpu_model="EPYC 7763", cpus=128, memory_mib=1 << 20)}
    portal.app.state.feed._sources.facts.update(facts)
    page = host_page(portal, look(gpus=look().gpus[1:]))
    assert "It says nothing of GPU 0000:27:00.0." in page
    assert "It runs kernel 6.12.9; the site file was recorded with 6.1.0." in page
    assert "EPYC 7763, 128 CPUs" in page


@pytest.mark.parametrize(
    ("service", "everybody", "admins"),
    [
        (HostService("gpu-1", True, True), "up", "up"),
        (HostService("gpu-1", True, False, "bad fan"), "up, but disabled", "up, but disabled: bad fan"),
        (HostService("gpu-1", False, True), "down", "down"),
        (HostService("gpu-1", False, True, forced_down=True), "down (forced)", "down (forced)"),
    ],
)
def test_its_service(portal: HealthPortal, service: HostService, everybody: str, admins: str) -> None:
    portal.inventory.publish(NOON, [status_of(gpu) for gpu in site_gpus()], {"gpu-1": service})
    for person, text in ((EVE, everybody), (ROOT, admins)):
        assert f">{text}</span>" in portal.browser(person).client.get("/host?name=gpu-1").text


# Mine


def test_servers_bookings_and_what_is_wrong_with_them(shared: HealthPortal) -> None:
    page = shared.browser(ADA).client.get("/mine").text
    assert "1 server with 1 GPU." in page
    assert "training, last run" in page
    assert "begins in 2 h" in page
    assert "without a booking of yours" in page
    assert "students" not in page
    assert "suspect" in page
    bob = shared.browser(BOB).client.get("/mine").text
    assert "No server of yours has a GPU now." in bob
    assert "students" in bob
    assert "training" not in bob


def test_what_ends_when(portal: HealthPortal) -> None:
    portal.ledger.create(ask(0.5, 6, gpu=ADAS_GPU, comment="this one"), ADA, wait=False)
    portal.clock.forward(hours=1)
    portal.ledger.upkeep.advance()
    page = portal.browser(ADA).client.get("/mine").text
    assert "the next booking ends in 5 h" in page
    assert "booked until 2026-11-23 18:30 UTC" in page
    assert "ends in 5 h" in page


def test_nobody_else_of_that_name_counts(portal: HealthPortal) -> None:
    """Claims have names: of a project that is none of theirs it is somebody else."""
    other = Claim("x", "hers", "ACTIVE", "biology@other", ADA.user, NOON - HOUR)
    gpu = site_gpus()[0]
    portal.inventory.publish(NOON, [GpuStatus(gpu, GpuState.CLAIMED, "", other)])
    assert "No server of yours has a GPU now." in portal.browser(ADA).client.get("/mine").text


def test_a_bad_gpu_of_theirs_is_told(portal: HealthPortal) -> None:
    turn(portal, ADAS_GPU, HealthState.QUARANTINED, HOUR, "its config space reads 0xff", signal="no-answer")
    page = portal.browser(ADA).client.get("/mine").text
    assert "What is wrong" in page
    assert "its config space reads 0xff" in page


def test_who_switches_the_project_comes_back_to_the_same_page(shared: HealthPortal) -> None:
    ada = shared.browser(ADA)
    page = ada.client.get("/gpus?q=v100&state=free").text
    (back,) = re.findall(r'name="next" value="(.*?)"', page)
    answer = ada.client.post("/project", data={"project": "p-biology", "next": back.replace("&amp;", "&")})
    assert answer.headers["location"] == "./gpus?q=v100&state=free"


def test_a_host_has_the_results_of_its_checks_for_admins(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    checks = RecordedChecks(loaded := site(tmp_path / "site", {}, {"gpu-1": epyc()}))
    findings = checks.of("gpu-1")
    assert [finding.severity.rank for finding in findings] == sorted(finding.severity.rank for finding in findings)
    assert ("gpus", Severity.OK) in {(finding.code, finding.severity) for finding in findings}
    assert checks.of("gpu-9") == ()
    portal = health_portal(tmp_path, checks=checks.of)
    rows = portal.browser(ROOT).client.get("/host?name=gpu-1&csv=checks").text.splitlines()
    assert len(rows) == 1 + len(findings)
    assert 'id="checks"' not in portal.browser(ADA).client.get("/host?name=gpu-1").text
    (loaded.path.parent / loaded.site.hosts["gpu-1"].recording).unlink()
    (gone,) = RecordedChecks(loaded).of("gpu-1")
    assert (gone.code, gone.severity) == ("recording", Severity.UNKNOWN)
    assert "cannot be read" in gone.reason
