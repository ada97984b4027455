"""Servers that people start in their own names, on real services: the rules of the cloud, and the way of a person from
the login to ssh, by the pages alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import pytest
from fastapi.testclient import TestClient

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.personal import KeystonePersonalClouds, OpenStackPersonalCloud, PersonalCloud
from tests.contract.people import Bench as PersonBench
from tests.contract.personal_cloud import RULES, Bench
from tests.integration.test_portal_bookings import Visitors, app_for, bench, visitors  # noqa: F401 - fixtures
from tests.support.portals import Browser

pytestmark = pytest.mark.lab
PATIENCE = 60.0
FLAVOR = "own-small"


@dataclass
class Made:
    """What a test has made with the operator's credentials, and takes away again."""

    operator: CloudApi
    paths: list[tuple[str, str]]

    def make(self, service: str, path: str, key: str, values: dict[str, object]) -> str:
        row = self.operator.request("POST", service, path, {key: values})[key]
        self.paths.append((service, f"{path}/{row['id']}"))
        return str(row["id"])

    def clear(self) -> None:
        for service, path in reversed(self.paths):
            with suppress(CloudError):
                self.operator.request("DELETE", service, path)


@pytest.fixture
def person(operator: CloudApi, bench: PersonBench) -> Iterator[PersonBench]:  # noqa: F811
    """A member of a project with a network, and a flavor for all."""
    made = Made(operator, [])
    made.make("compute", "/flavors", "flavor", {"name": FLAVOR, "vcpus": 1, "ram": 256, "disk": 1})
    network = made.make(
        "network", "/networks", "network", {"name": f"lan-{bench.user}", "project_id": bench.project_id}
    )
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.9.0.0/24", "project_id": bench.project_id}
    made.make("network", "/subnets", "subnet", subnet)
    yield bench
    remains = operator.get("compute", "/servers/detail", all_tenants=True, project_id=bench.project_id)["servers"]
    for row in remains:
        operator.request("DELETE", "compute", f"/servers/{row['id']}")
    wait_for(lambda: not operator.get("compute", "/servers", all_tenants=True, project_id=bench.project_id)["servers"])
    made.clear()


def wait_for(condition: Callable[[], object]) -> None:
    until = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < until
        sleep(0.2)


def wait(cloud: PersonalCloud, id: str, status: str) -> None:
    def is_there() -> bool:
        server = cloud.server(id)
        return (server is None and not status) or (server is not None and (server.status, server.task) == (status, ""))

    wait_for(is_there)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_cloud_keeps_the_rules(operator: CloudApi, person: PersonBench, rule: Callable[[Bench], None]) -> None:
    token = person.people.log_in(person.user, person.password, person.domain).token
    rule(Bench(KeystonePersonalClouds(operator), token, person.project_id, FLAVOR, wait))


def test_from_the_login_to_ssh_by_the_pages_alone(operator: CloudApi, person: PersonBench, tmp_path: Path) -> None:
    app = app_for(person.people, tmp_path, clouds=KeystonePersonalClouds(operator))
    browser = Browser(TestClient(app, raise_server_exceptions=False, follow_redirects=False))
    browser.log_in(person.user, person.password)
    form = browser.client.get("/launch", params={"flavor": FLAVOR}).text
    fields = dict(re.findall(r'name="(form|flavor|name)" value="([^"]+)"', form))
    chosen = re.findall(r'<option value="([^"]*)" selected', form.partition('action="launch"')[2])
    choices = dict(zip(("image", "network", "key"), chosen, strict=True))
    answer = browser.client.post("/launch", data=fields | choices)
    assert answer.status_code == 200, answer.text
    assert "BEGIN OPENSSH PRIVATE KEY" in answer.text
    (address,) = set(re.findall(r'href="(server\?id=[^"]+)"', answer.text))
    wait_for(lambda: "ssh -i" in browser.client.get(f"/{address}").text)
    page = browser.client.get(f"/{address}").text
    assert re.search(r"ssh -i ~/\.ssh/gpuyard-\S+ \w+@10\.9\.0\.\d+", page)
    id = address.rpartition("=")[2]
    (row,) = operator.get("compute", "/servers/detail", all_tenants=True, project_id=person.project_id)["servers"]
    assert (row["id"], row["user_id"]) == (id, person.user_id), "it is the person's, not the portal's"
    assert "lets ssh in" in page
    assert browser.client.post("/server", data={"id": id, "action": "admit-ssh"}).status_code == 303
    assert "lets ssh in" not in browser.client.get(f"/{address}").text
    assert browser.client.get("/console", params={"id": id}).status_code in (400, 409, 501), "the lab has no consoles"
    assert browser.client.post("/server", data={"id": id, "action": "delete"}).status_code == 303
    wait_for(lambda: browser.client.get(f"/{address}").status_code == 404)


def test_who_logs_out_leaves_no_token_behind(operator: CloudApi, person: PersonBench, tmp_path: Path) -> None:
    tokens: list[str] = []

    class Noting(KeystonePersonalClouds):
        def open(self, token: str, project_id: str) -> OpenStackPersonalCloud:
            tokens.append(token)
            return super().open(token, project_id)

    app = app_for(person.people, tmp_path, clouds=Noting(operator))
    browser = Browser(TestClient(app, raise_server_exceptions=False, follow_redirects=False))
    browser.log_in(person.user, person.password)
    assert browser.client.get("/launch", params={"flavor": FLAVOR}).status_code == 200
    keystone = KeystonePeople(operator)
    assert keystone.token(tokens[0]) is not None
    assert browser.client.post("/logout").status_code == 303
    assert keystone.token(tokens[0]) is None
