"""Maintenances of hosts in the API, on the pages, in the metrics and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.cli.main import app
from gpuyard.drain.cli.host_moves import _maintained
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.maintenance import MaintenanceState, transition
from gpuyard.health.store import HealthStore
from gpuyard.health.store.maintenances import MaintenanceStore
from gpuyard.model.errors import GpuyardError
from gpuyard.model.world import Server, Snapshot
from gpuyard.site.health_rules import SiteHealth
from tests.support.clouds import NoCloud
from tests.support.health_portals import HealthPortal, fine, health_portal, site_gpus
from tests.support.inventories import NASTY
from tests.support.ledgers import ADA, EVE, ROOT, ask, open_ledger
from tests.support.nova_samples import silent_service
from tests.support.portals import ROOMY
from tests.support.served import RealClock, served, write_clouds

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
HOUR = timedelta(hours=1)
PLAN = {"host": "gpu-3", "start": "2026-11-23T15:00:00Z", "end": "2026-11-23T18:00:00Z", "comment": "new kernel"}


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path)
    fine(made)
    return made


def planned(portal: HealthPortal, **more: str) -> Any:
    answer = portal.program(ROOT).post("/v1/maintenances", json={**PLAN, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def emptied(store: MaintenanceStore) -> None:
    """The last server has left: nobody looks at a cloud here."""
    for maintenance in store.open():
        if maintenance.state is MaintenanceState.DRAINING:
            assert store.put(transition(maintenance, MaintenanceState.IN_WORK, maintenance.since))


def test_one_is_planned_begun_longer_done_and_in_the_list(portal: HealthPortal) -> None:
    row = planned(portal)
    assert (row["host"], row["state"], row["by"], row["gpus"]) == ("gpu-3", "planned", "root", 1)
    assert (row["start"], row["end"]) == (PLAN["start"], PLAN["end"])
    assert row["may"] == ["start", "allow", "extend", "cancel"]
    client, path = portal.program(ROOT), f"/v1/maintenances/{row['id']}"
    holds = client.get("/v1/holds").json()["bookings"]
    assert [(hold["comment"], hold["start"]) for hold in holds] == [("maintenance of gpu-3: new kernel", PLAN["start"])]
    assert client.post(f"{path}/start", json={"comment": "now"}).json()["state"] == "draining"
    longer = client.post(f"{path}/extend", json={"end": "2026-11-23T20:00:00Z"}).json()
    assert longer["end"] == "2026-11-23T20:00:00Z"
    gpus = client.get("/v1/health", params={"host": "gpu-3"}).json()["gpus"]
    assert [gpu["maintenance"] for gpu in gpus] == ["maintenance of gpu-3: new kernel, until 2026-11-23 20:00 UTC"]
    early = client.post(f"{path}/done", json={"comment": "6.12 runs"})
    assert (early.status_code, "no work has begun on gpu-3" in early.text) == (409, True), early.text
    assert client.get(path).json()["may"] == ["allow", "extend", "cancel"]
    emptied(portal.service.maintenances)
    done = client.post(f"{path}/done", json={"comment": "6.12 runs"}).json()
    assert done["state"] == "checking"
    assert len(done["problems"]) == 2, done["problems"]
    over = client.post(f"{path}/done", json={"comment": "I have looked", "unchecked": True}).json()
    assert (over["state"], over["may"], over["done_by"]) == ("back", [], "root")
    assert client.get("/v1/maintenances").json()["maintenances"] == []
    assert [entry["id"] for entry in client.get("/v1/maintenances?past=true").json()["maintenances"]] == [row["id"]]
    assert client.get(path).json()["state"] == "back"
    assert client.get("/v1/holds").json()["bookings"] == []


def test_who_is_in_the_way_is_named(portal: HealthPortal) -> None:
    (booking,) = portal.ledger.create(ask(1, 4, gpu="gpu-1/0000:c3:00.0"), ADA)
    row = planned(portal, host="gpu-1")
    assert [(entry["id"], entry["user"], entry["kind"]) for entry in row["bookings"]] == [
        (booking.id, "ada", "booking")
    ]


def test_what_one_would_mean_is_said_and_nothing_is_changed(portal: HealthPortal) -> None:
    """It says what then happens."""
    (stays,) = portal.ledger.create(ask(2, 4, pool="t4", gpu="gpu-2/0000:18:00.0"), ADA)
    (moves,) = portal.ledger.create(ask(3, 1, pool="t4"), ADA)
    before = [portal.ledger.get(booking.id) for booking in (stays, moves)]
    client, body = portal.program(ROOT), {name: PLAN[name] for name in ("host", "start", "end")}
    answer = client.post("/v1/maintenances/check", json=body)
    assert answer.status_code == 200, answer.text
    assert [portal.ledger.get(booking.id) for booking in (stays, moves)] == before
    assert client.get("/v1/holds").json()["bookings"] == []
    assert client.get("/v1/maintenances?past=true").json()["maintenances"] == []
    row = answer.json()
    assert row["servers"] == []
    assert [booking["id"] for booking in (*row["moves"], *row["stays"])] == [moves.id], "the only one on that host"
    in_the_way = [booking["id"] for booking in planned(portal)["bookings"]]
    assert in_the_way == [booking["id"] for booking in row["stays"]]
    for wrong, status in (({"host": "nowhere"}, 404), ({"end": PLAN["start"]}, 409)):
        assert client.post("/v1/maintenances/check", json={**body, **wrong}).status_code == status
    assert portal.program(ADA).post("/v1/maintenances/check", json=body).status_code == 403


def test_what_cannot_be_is_refused_in_words(portal: HealthPortal) -> None:
    client = portal.program(ROOT)
    row = planned(portal)
    cases: list[tuple[str, dict[str, object], int, str]] = [
        ("", {**PLAN}, 409, "host gpu-3 has a maintenance already, from 2026-11-23 15:00 UTC"),
        ("", {**PLAN, "host": "nowhere"}, 404, "there is no host 'nowhere' with GPUs of the site; there are gpu-1"),
        ("", {**PLAN, "host": "gpu-2", "end": PLAN["start"]}, 409, "is not after the start"),
        ("", {**PLAN, "comment": ""}, 422, "say it in words"),
        (f"/{row['id']}/done", {"comment": ""}, 409, "is planned and cannot become checking"),
        (f"/{row['id']}/done", {"unchecked": True}, 422, "why the host need not be checked"),
        ("/nothing/done", {}, 404, "there is no maintenance 'nothing'"),
    ]
    for path, body, status, words in cases:
        answer = client.post(f"/v1/maintenances{path}", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert portal.program(ADA).post("/v1/maintenances", json={**PLAN, "host": "gpu-2"}).status_code == 403


def test_the_page_shows_it_and_hostile_words_stay_words(portal: HealthPortal) -> None:
    assert "Maintenance of hosts" not in portal.browser(ROOT).client.get("/health").text
    planned(portal, comment=NASTY.replace("\n", " "))
    page = portal.browser(ROOT).client.get("/health").text
    assert "Maintenance of hosts" in page
    assert "<script>alert" not in page
    assert "Nothing new is booked there in its time." in page
    assert 'aria-label="Begin… maintenance of gpu-3"' in page


def test_a_silent_host_is_in_maintenance_and_no_alarm(tmp_path: Path) -> None:
    portal = health_portal(tmp_path, replace(ROOMY, anonymous_details=True))
    fine(portal)
    portal.clock.forward(hours=1)
    row = planned(portal)
    assert metrics(portal)["gpuyard_gpus_not_heard_from"] == 8
    portal.program(ROOT).post(f"/v1/maintenances/{row['id']}/start", json={})
    values = metrics(portal)
    assert values["gpuyard_gpus_not_heard_from"] == 7
    assert values["gpuyard_gpus_in_maintenance"] == 1
    assert values["gpuyard_host_maintenance"] == 1
    rows = portal.program(EVE).get("/v1/health", params={"host": "gpu-3"}).json()["gpus"]
    assert not any(gpu["silent"] for gpu in rows)


def metrics(portal: HealthPortal) -> dict[str, float]:
    """The sum of each."""
    text = portal.program(ROOT).get("/metrics").text
    return {
        family.name: sum(sample.value for sample in family.samples) for family in text_string_to_metric_families(text)
    }


# The command line

Run = Callable[..., str]
SEEN: list[CloudObservation] = []
"""What was seen of the cloud last; none: nothing."""
STORES: list[MaintenanceStore] = []
"""Of the portal that the commands speak to."""
WEB, WEB2 = "5e2a0000-0000-4000-8000-000000000001", "5e2a0000-0000-4000-8000-000000000002"


def residents(**names: str) -> CloudObservation:
    """Servers on gpu-3, by name; no GPU is anybody's."""
    servers = tuple(Server(id, name, "ACTIVE", "gpu-3", "physics", "ada", "m1") for name, id in names.items())
    now = datetime.now(UTC)
    return CloudObservation(
        Snapshot(now, {}, frozenset(), {}, frozenset(), {}, {}, residents={"gpu-3": servers}), frozenset()
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`gpuyard host maintenance` as root: what it prints, or the words of its error."""
    clock = RealClock()
    ledger: Ledger = open_ledger(tmp_path, None, clock)
    SEEN.clear()
    service = HealthService(HealthStore(ledger.database), ledger, SiteHealth.model_validate({}), clock)
    maintenance = MaintenanceService(service, ledger, site_gpus(), lambda: next(iter(SEEN), None), NoCloud())
    STORES[:] = [service.maintenances]
    with served(ledger, (ROOT,), health=HealthServices(service, maintenance)) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, (ROOT,))))
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.delenv("GPUYARD_URL", raising=False)

        def run(*words: str) -> str:
            result = CliRunner().invoke(app, ["host", "maintenance", *words, "--os-cloud", "root"])
            if isinstance(result.exception, GpuyardError):
                return result.stdout + str(result.exception)
            assert result.exception is None, result.output
            return result.stdout

        yield run
    ledger.close()


def test_servers_that_may_go_down_are_named(run: Run) -> None:
    run("plan", "gpu-3", "--end", "+2h", "--comment", "BIOS 2.1")
    assert "it is not known at the moment which servers are on gpu-3" in run("allow", "gpu-3", "web")
    SEEN[:] = [residents()]
    assert "no server is on gpu-3" in run("allow", "gpu-3", "--all")
    SEEN[:] = [residents(web=WEB, web2=WEB2)]
    assert "name the servers that may go down, or say --all" in run("allow", "gpu-3")
    assert "no server is called mail; there are web (5e2a" in run("allow", "gpu-3", "mail")
    assert run("allow", "gpu-3", "web") == "Host gpu-3: the maintenance is draining. Still used by web2.\n"
    assert json.loads(run("list", "-f", "json"))[0]["Used by"] == (
        "server web of ada (physics), which may go down; server web2 of ada (physics)"
    )
    assert run("allow", "gpu-3", "--all") == "Host gpu-3: the maintenance is draining.\n"
    SEEN[:] = [residents(web=WEB, **{"web ": WEB2})]
    SEEN[0] = replace(SEEN[0], snapshot=replace(SEEN[0].snapshot, services={"gpu-3": silent_service("gpu-3")}))
    assert "it is not known" in run("allow", "gpu-3", WEB2)
    emptied(*STORES)
    run("done", "gpu-3")
    SEEN[:] = [residents(web=WEB)]
    assert "is checking: no work is to begin there" in run("allow", "gpu-3", "web")


def test_a_host_that_is_worked_on_is_not_returned_and_says_why(run: Run) -> None:
    loaded: Any = SimpleNamespace(site=SimpleNamespace(health=object()))
    assert _maintained(loaded, "gpu-3", ROOT.user, "", blind=False) == []
    run("plan", "gpu-3", "--end", "+2h", "--comment", "BIOS 2.1")
    assert _maintained(loaded, "gpu-3", ROOT.user, "", blind=False) == [
        "its maintenance is draining (BIOS 2.1): gpuyard host maintenance cancel gpu-3"
    ]


@pytest.mark.parametrize("ids", [[], ["web"], ["*"], [WEB.upper()], [WEB + "\n"], [WEB] * 1001, "all", [None]])
def test_servers_are_named_by_their_ids(portal: HealthPortal, ids: object) -> None:
    row, client = planned(portal), portal.program(ROOT)
    answer = client.post(f"/v1/maintenances/{row['id']}/allow", json={"servers": ids})
    assert answer.status_code == 422, answer.text
    fine = client.post(f"/v1/maintenances/{row['id']}/allow", json={"servers": [WEB]})
    assert fine.status_code == 200
    assert portal.program(ADA).post(f"/v1/maintenances/{row['id']}/allow", json={"servers": [WEB]}).status_code == 403


def test_the_commands(run: Run) -> None:
    made = json.loads(
        run("plan", "gpu-2", "gpu-3", "--start", "+1h", "--end", "+2h", "--comment", "BIOS 2.1", "-f", "json")
    )
    assert [(row["Host"], row["State"], row["Comment"]) for row in made] == [
        ("gpu-2", "planned", "BIOS 2.1"), ("gpu-3", "planned", "BIOS 2.1")
    ]  # fmt: skip
    assert run("start", "gpu-3") == "Host gpu-3: the maintenance is draining.\n"
    assert run("extend", "gpu-3", "--end", "+5h").startswith("Host gpu-3: the maintenance is draining.")
    assert "gpuyard host maintenance cancel gpu-3" in run("done", "gpu-3", "--comment", "2.1 is on")
    emptied(*STORES)
    done = run("done", "gpu-3", "--comment", "2.1 is on")
    assert done.startswith(
        "Host gpu-3: the maintenance is checking. Not given back yet: what OpenStack has is not known"
    )
    assert (
        "gpu-3 has not been heard from since the work was done"
        in json.loads(run("show", "gpu-3", "-f", "json"))["problems"]
    )
    assert "--unchecked needs --comment" in run("done", "gpu-3", "--unchecked")
    assert run("done", "gpu-3", "--unchecked", "--comment", "no watch").startswith(
        "Host gpu-3: the maintenance is back."
    )
    assert "cannot become" in run("done", "gpu-2") or "planned" in run("done", "gpu-2")
    assert run("cancel", "gpu-2") == "Host gpu-2: the maintenance is cancelled.\n"
    assert json.loads(run("list", "-f", "json")) == []
    assert {row["State"] for row in json.loads(run("list", "--past", "-f", "json"))} == {"back", "cancelled"}
    assert "host gpu-2 has no open maintenance" in run("cancel", "gpu-2")
    assert "was never maintained" in run("show", "gpu-1")
    partly = run("plan", "gpu-2", "gpu-9", "--start", "+1h", "--end", "+2h", "--comment", "x")
    assert "| gpu-2 | planned" in partly, "what was done before a refusal is said"
    assert "there is no host 'gpu-9'" in partly
    assert "is not after --start" in run("plan", "gpu-1", "--start", "+2h", "--end", "now", "--comment", "x")
