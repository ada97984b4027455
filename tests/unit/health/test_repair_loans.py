"""A GPU that is out of use is lent to the project for repairs: in the API, on the pages and on the command line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.model.booking import BookingKind, BookingState
from gpuyard.model.errors import GpuyardError
from gpuyard.site.health_rules import SiteHealth
from tests.support.health_portals import HealthPortal, fine, health_portal, site_gpus
from tests.support.ledgers import ADA, BOB, ROOT, ask, open_ledger
from tests.support.served import RealClock, served, write_clouds

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
GPU = "gpu-1/0000:c3:00.0"
PATH = f"/v1/health/{GPU}"
RULES = SiteHealth.model_validate({"repair": {"project": "biology"}})


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path, rules=RULES)
    fine(made)
    return made


def test_it_is_lent_to_that_project_and_comes_back(portal: HealthPortal) -> None:
    client = portal.program(ROOT)
    early = client.post(f"{PATH}/repair/lend", json={})
    assert (early.status_code, "one that is quarantined or in repair can be lent" in early.text) == (409, True)
    portal.service.quarantine(GPU, "it smells", ROOT)
    assert "lend" in client.get(PATH).json()["gpu"]["may"]
    answer = client.post(f"{PATH}/repair/lend", json={"minutes": 240, "comment": "cuda-memcheck"})
    assert answer.status_code == 200, answer.text
    loan = answer.json()["loan"]
    assert (loan["kind"], loan["project"], loan["gpu_names"], loan["state"]) == ("loan", "biology", [GPU], "active")
    assert loan["comment"] == f"repair of {GPU}: cuda-memcheck"
    row = answer.json()["gpu"]
    assert row["state"] == "quarantined"
    assert row["lent"].startswith("lent to project biology until 2026-11-23 ")
    assert "return" in row["may"]
    assert "lend" not in row["may"]
    assert "lent to project biology" in portal.browser(ROOT).client.get("/health").text
    again = client.post(f"{PATH}/repair/lend", json={})
    assert (again.status_code, "is lent to project biology until" in again.text) == (409, True)
    back = client.post(f"{PATH}/repair/return", json={"comment": "it is the riser"})
    assert (back.status_code, back.json()["lent"], back.json()["state"]) == (200, "", "quarantined")
    assert portal.ledger.get(loan["id"]).state is BookingState.ENDED
    assert client.post(f"{PATH}/repair/return", json={}).status_code == 409
    causes = [event.cause for event in portal.service.store.events("gpu-1")]
    assert causes[0] == "it is given back by project biology: it is the riser"
    assert causes[1].startswith("it is lent to project biology until")
    assert [entry.action for entry in portal.ledger.audit(10) if entry.target == GPU] == [
        "gpu.return", "gpu.lend", "gpu.quarantine"
    ]  # fmt: skip


def test_it_comes_back_by_time(portal: HealthPortal) -> None:
    portal.service.quarantine(GPU, "it smells", ROOT)
    portal.program(ROOT).post(f"{PATH}/repair/lend", json={"minutes": 30})
    portal.clock.forward(minutes=31)
    portal.ledger.upkeep.advance()
    assert portal.ledger.loans.of(GPU) is None
    assert portal.program(ROOT).get(PATH).json()["gpu"]["lent"] == ""
    assert portal.service.gpu(GPU).state is HealthState.QUARANTINED


def test_it_comes_back_with_the_end_of_its_repair(portal: HealthPortal) -> None:
    client = portal.program(ROOT)
    for steps in (("repair/start", "repair/done"), ("release",)):
        portal.service.quarantine(GPU, "it smells", ROOT)
        loan = client.post(f"{PATH}/repair/lend", json={}).json()["loan"]
        for step in steps:
            assert portal.ledger.get(loan["id"]).state is BookingState.ACTIVE
            assert client.post(f"{PATH}/{step}", json={"comment": "a new fan"}).status_code == 200
        assert portal.ledger.get(loan["id"]).state is BookingState.ENDED
        assert client.get(PATH).json()["gpu"]["lent"] == ""


def test_a_loan_of_gpuyard_itself_is_not_given_back_by_hand(portal: HealthPortal) -> None:
    portal.service.quarantine(GPU, "it smells", ROOT)
    until = portal.clock() + timedelta(hours=1)
    portal.ledger.loans.lend(GPU, "p-biology", "biology", until, "accept", ROOT, server="accept-1")
    assert portal.program(ROOT).post(f"{PATH}/repair/return", json={}).status_code == 409
    assert "return" not in portal.program(ROOT).get(PATH).json()["gpu"]["may"]


def test_who_has_booked_that_very_gpu_is_in_the_way(portal: HealthPortal) -> None:
    portal.ledger.create(ask(0, 3, gpu=GPU), ADA)
    portal.ledger.upkeep.advance()
    portal.service.quarantine(GPU, "it smells", ROOT)
    refused = portal.program(ROOT).post(f"{PATH}/repair/lend", json={})
    assert (refused.status_code, "is booked by ada" in refused.text) == (409, True), refused.text


def test_a_site_without_such_a_project_lends_nothing(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fine(portal)
    portal.service.quarantine(GPU, "it smells", ROOT)
    refused = portal.program(ROOT).post(f"{PATH}/repair/lend", json={})
    assert (refused.status_code, "the site file names no project for repairs" in refused.text) == (409, True)
    assert "lend" not in portal.program(ROOT).get(PATH).json()["gpu"]["may"]
    for person in (ADA, BOB):
        assert portal.program(person).post(f"{PATH}/repair/lend", json={}).status_code == 403


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, people = RealClock(), (ROOT, BOB)
    ledger = open_ledger(tmp_path, None, clock)
    service = HealthService(HealthStore(ledger.database), ledger, RULES, clock)
    for gpu in site_gpus():
        service.store.put(GpuHealth(gpu.host, gpu.address, gpu.pool, HealthState.FINE, clock()))
    service.quarantine(GPU, "it smells", ROOT)

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["gpu", "repair", *words, "--os-cloud", "root"])
        if isinstance(result.exception, GpuyardError):
            return str(result.exception)
        assert result.exception is None, result.output
        return result.stdout

    with served(ledger, people, health=HealthServices(service)) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, people)))
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.delenv("GPUYARD_URL", raising=False)
        lent = run("lend", GPU, "--for", "4h", "--comment", "look")
        assert lent.startswith(f"GPU {GPU} is lent to project biology until ")
        (loan,) = ledger.loans.current()
        assert loan.kind is BookingKind.LOAN
        assert (
            timedelta(hours=4) - timedelta(minutes=1) < loan.ask.end - loan.ask.start <= timedelta(hours=4, minutes=1)
        )
        assert f"gpuyard booking open {loan.id}" in lent
        assert "is lent to project biology until" in run("lend", GPU)
        assert "no unit 'x'" in run("lend", GPU, "--for", "4x")
        assert run("return", GPU) == f"GPU {GPU} is lent no more; it is quarantined.\n"
        assert "is not lent for its repair" in run("return", GPU)
    ledger.close()
