"""The command lines of bookings with a real Keystone: who one is, and where its catalogue says that the portal is."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.model.booking import Rules
from gpuyard.model.booking_life import OPEN
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.people import KeystonePeople
from gpuyard_lab.catalog import REGION
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from tests.integration.conftest import RunningLab
from tests.support.ledgers import ROOT, open_ledger
from tests.support.served import RealClock, served

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PROGRAMS = Path(sys.executable).parent
TIMES = ("--start", "+1h", "--end", "+4h")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path_factory.mktemp("ledger"), Rules(most_active=100), RealClock())
    yield ledger
    ledger.close()


@pytest.fixture(scope="module")
def portal(ledger: Ledger, operator: CloudApi) -> Iterator[str]:
    with served(ledger, KeystonePeople(operator)) as url:
        yield url


@pytest.fixture
def catalogued(portal: str, operator: CloudApi) -> Iterator[str]:
    """The portal, with an entry in the catalogue."""
    service = {"type": "gpu", "name": "gpuyard"}
    id = operator.request("POST", "identity", "/services", {"service": service})["service"]["id"]
    try:
        endpoint = {"service_id": id, "interface": "public", "region_id": REGION, "url": portal}
        operator.request("POST", "identity", "/endpoints", {"endpoint": endpoint})
        yield portal
    finally:
        operator.request("DELETE", "identity", f"/services/{id}")


@pytest.fixture(autouse=True)
def nothing_is_booked(ledger: Ledger) -> Iterator[None]:
    yield
    for booking in ledger.find(Query(states=OPEN)):
        ledger.cancel(booking.id, ROOT)


def run(lab: RunningLab, cloud: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "GPUYARD_"))}
    clean |= {"OS_CLIENT_CONFIG_FILE": str(lab.status.clouds_file), "OS_CLOUD": cloud, "TZ": "Europe/Rome"}
    program = str(PROGRAMS / command[0])
    clean |= {"PYTHONWARNINGS": "ignore", **environment}
    return subprocess.run([program, *command[1:]], env=clean, capture_output=True, text=True, timeout=120)


def data(lab: RunningLab, cloud: str, *command: str) -> Any:
    done = run(lab, cloud, *command, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_gpuyard_finds_the_portal_and_knows_who_asks(lab: RunningLab, catalogued: str) -> None:
    made = data(lab, DEMO_CLOUD, "gpuyard", "booking", "create", "--pool", "t4", *TIMES, "--comment", "thesis")
    assert (made["user"], made["project"], made["state"]) == ("demo", "demo", "confirmed")
    assert data(lab, ADMIN_CLOUD, "gpuyard", "booking", "list", "--user", "demo")[0]["ID"] == made["id"]
    assert data(lab, ADMIN_CLOUD, "gpuyard", "booking", "list", "--mine") == []
    forbidden = run(lab, DEMO_CLOUD, "gpuyard", "booking", "audit")
    assert (forbidden.returncode, "admin" in forbidden.stderr) == (3, True)
    assert data(lab, ADMIN_CLOUD, "gpuyard", "booking", "audit")[0]["Target"] == made["id"]
    for_demo = ("gpuyard", "booking", "create", "--pool", "t4", *TIMES, "--project", "demo")
    assert data(lab, ADMIN_CLOUD, *for_demo)["project"] == "demo"
    full = run(lab, DEMO_CLOUD, "gpuyard", "booking", "create", "--pool", "t4", *TIMES)
    assert full.returncode == 3
    assert full.stderr.startswith("gpuyard: This cannot be booked.\n  - no GPU of pool t4 is free")


def test_openstack_has_the_commands(lab: RunningLab, catalogued: str) -> None:
    words = ("openstack", "gpu", "booking", "create", "--pool", "t4", *TIMES)
    made = data(lab, DEMO_CLOUD, *words, "--gpus", "2")
    assert (made["user"], made["gpus"]) == ("demo", 2)
    assert data(lab, ADMIN_CLOUD, "openstack", "gpu", "booking", "list", "--sort-column", "ID")[0]["ID"] == made["id"]
    refused = run(lab, ADMIN_CLOUD, *words)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert "no GPU of pool t4 is free throughout that time" in refused.stderr
    command = re.search(r"^    (openstack gpu booking create .*)$", refused.stderr, re.MULTILINE)
    assert command
    assert data(lab, ADMIN_CLOUD, *shlex.split(command.group(1)))["state"] == "confirmed"
    assert {row["Pool"] for row in data(lab, DEMO_CLOUD, "openstack", "gpu", "list")} == {"t4", "v100"}
    help_ = run(lab, DEMO_CLOUD, "openstack", "gpu", "booking", "extend", "--help")
    assert "usage: openstack gpu booking extend" in help_.stdout


def test_without_an_entry_in_the_catalogue_the_address_must_be_said(lab: RunningLab, portal: str) -> None:
    for program in ("gpuyard", "openstack gpu"):
        result = run(lab, DEMO_CLOUD, *program.split(), "booking", "list")
        assert result.returncode != 0
        assert "the catalogue has no service of type gpu; name the portal" in result.stderr
    assert data(lab, DEMO_CLOUD, "gpuyard", "booking", "list", "--url", portal) == []
    listed = run(lab, DEMO_CLOUD, "openstack", "gpu", "booking", "list", GPUYARD_URL=portal)
    assert listed.returncode == 0, listed.stderr
    lost = run(lab, DEMO_CLOUD, "openstack", "gpu", "booking", "list", GPUYARD_URL="http://127.0.0.1:9")
    assert "the portal at http://127.0.0.1:9 does not answer" in lost.stderr


def test_clouds_yaml_can_say_where_it_is(lab: RunningLab, portal: str, tmp_path: Path) -> None:
    clouds = changed_clouds(lab, tmp_path, gpu_endpoint_override=portal)
    for program in ("gpuyard", "openstack gpu"):
        done = run(lab, DEMO_CLOUD, *program.split(), "booking", "list", OS_CLIENT_CONFIG_FILE=str(clouds))
        assert done.returncode == 0, done.stderr


def test_a_wrong_password_is_said_in_one_line(lab: RunningLab, portal: str, tmp_path: Path) -> None:
    clouds = changed_clouds(lab, tmp_path)
    text = YAML(typ="safe").load(clouds)
    text["clouds"][DEMO_CLOUD]["auth"]["password"] = "wrong"  # noqa: S105
    YAML().dump(text, clouds)
    result = run(lab, DEMO_CLOUD, "gpuyard", "booking", "list", "--url", portal, OS_CLIENT_CONFIG_FILE=str(clouds))
    assert result.returncode == 1
    assert "Keystone does not accept the credentials" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_token_that_was_revoked(lab: RunningLab, portal: str, tmp_path: Path) -> None:
    connection = lab.connect(DEMO_CLOUD)
    token = connection.auth_token
    clouds = tmp_path / "token.yaml"
    auth = {"endpoint": portal, "token": token}
    YAML().dump({"clouds": {"revoked": {"auth_type": "admin_token", "auth": auth}}}, clouds)
    command = ("gpuyard", "booking", "list", "--url", portal)
    assert lab.admin.identity.delete("/auth/tokens", headers={"X-Subject-Token": token}).status_code == 204
    refused = run(lab, "revoked", *command, OS_CLIENT_CONFIG_FILE=str(clouds))
    assert refused.returncode == 1
    assert "does not accept the token" in refused.stderr
    assert str(token) not in refused.stderr


def changed_clouds(lab: RunningLab, folder: Path, **values: str) -> Path:
    """The lab's clouds.yaml with more for the demo user."""
    document = YAML(typ="safe").load(lab.status.clouds_file)
    document["clouds"][DEMO_CLOUD] |= values
    path = folder / "clouds.yaml"
    YAML().dump(document, path)
    return path
