"""The quickstart's last step: a GitHub job that runs on a GPU of the lab that `make up` starts. The same lab is scraped
by a real Prometheus, which must have an answer to everything that the dashboard and the alerts ask for."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.request import Request, urlopen

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from gpuyard.bookings.controllers.group_holds import open_group_holds
from gpuyard.bookings.controllers.site_ledger import open_ledger
from gpuyard.cli.main import app
from gpuyard.client.client import Client
from gpuyard.client.portal import open_session
from gpuyard.model.world import AGENT_WORD
from gpuyard.openstack.api import connect
from gpuyard.openstack.servers import NovaServers, ServerWish, open_servers_project
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.controllers.slot_kinds import open_slot_kinds
from gpuyard.runners.records import ServerChoice
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard_lab import control, processes
from gpuyard_lab.catalog import GITHUB
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.http import answers
from gpuyard_lab.jobs import REPOSITORY, push_job
from gpuyard_lab.plan import IMAGE
from gpuyard_lab.portal import PORTAL, look
from gpuyard_lab.settings import LabSettings, remembered
from tests.support.ports import free_port_base
from tests.support.prometheus import MISSING, Prometheus, prometheus, queries, rules

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PAIR = ServerChoice("v100", "gpu_pair", IMAGE, 2, same_group=True)


def lab(state: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["lab", words[0], "--state", str(state), *words[1:]])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab with the example site, as `make up` starts it."""
    folder = tmp_path_factory.mktemp("quickstart")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = lab(folder, "up", "--port-base", str(free_port_base()), "--port", str(port))
    assert up.exit_code == 0, up.output
    assert "gpuyard lab job" in up.stdout
    yield folder
    control.down(LabSettings(folder))


@pytest.mark.parametrize("label", ["gpuyard-v100", "cirun-gpu"])
def test_a_job_runs_on_a_gpu(state: Path, label: str) -> None:
    done = lab(state, "job", "--label", label, "--seconds", "3")
    assert done.exit_code == 0, done.output
    match = re.search(r"queued\n.* in_progress on Tesla V100 .* gpu-server/(0000:\S{7}).*\n.* success\n", done.stdout)
    assert match is not None, done.stdout
    assert match[1] in {gpu.address for gpu in compiled(state).gpus if gpu.marked_lone}, "groups stay whole"


def compiled(state: Path) -> CompiledSite:
    running = remembered(state)
    assert running is not None
    assert running.site_file is not None
    return load_site(running.site_file).compiled


def test_pairs_have_their_groups_though_singles_are_asked_for_first(state: Path) -> None:
    """All of them fit. Nova 34 takes the first allocation candidate of a host (nova/scheduler/manager.py): for any V100
    that may be the leader of a group, and in this lab it is, so both pairs end in ERROR; for a lone one it never is."""
    running = remembered(state)
    assert running is not None
    operator = connect(ADMIN_CLOUD, running.clouds_file)
    assert open_slot_kinds(compiled(state), operator).known("v100"), "nova-compute has reported the traits"
    api, _ = open_servers_project(operator, "ci")
    servers = NovaServers(api, "race", "none", identity="race")

    def play(*flavors: str) -> list[str]:
        statuses = [status for _, status in boot(servers, "race", *flavors)]
        delete_all(servers)
        return statuses

    assert play("gpu_tiny-lone", "gpu_tiny-lone", "gpu_pair-a", "gpu_pair-b") == ["ACTIVE"] * 4
    assert play("gpu_tiny-set-a", "gpu_pair-b", "gpu_tiny-lone", "gpu_tiny-lone") == ["ACTIVE"] * 4


def test_a_group_that_a_runner_has_leased_is_nobodys_until_nova_is_asked(state: Path, tmp_path: Path) -> None:
    """By Placement's and Nova's own word: plain flavors get all other GPUs of the pool, and then the pair its group."""
    running = remembered(state)
    assert running is not None
    operator, site = connect(ADMIN_CLOUD, running.clouds_file), compiled(state)
    api, project = open_servers_project(operator, "ci")
    servers = NovaServers(api, "race", "none", identity="race")
    with closing(open_ledger(site, f"sqlite:///{tmp_path / 'ledger.db'}", lambda: datetime.now(UTC))) as ledger:
        groups = open_group_holds(site, ledger, operator)
        end = datetime.now(UTC) + timedelta(hours=1)
        lease = ledger.leases.take("v100", 2, True, end, "race-pair", project, "ci", "", yields=False)
        groups.place(lease.id)
        try:
            people = boot(servers, "person", *["gpu_tiny"] * 4)
            assert sorted(status for _, status in people) == ["ACTIVE"] * 3 + ["ERROR"], "two are held"
            assert groups.lift(lease.id) == ""
            (lane,) = (lane for lane in ledger.lanes("v100") if lane.id in lease.lanes)
            (flavor,) = RunnerSite(site, project).nova_flavors(PAIR, [lane], in_slots=True)[:1]
            ((_, status),) = boot(servers, "race-pair", flavor)
            assert status == "ACTIVE"
        finally:
            groups.lift(lease.id)
            delete_all(servers)


def boot(servers: NovaServers, name: str, *flavors: str) -> list[tuple[str, str]]:
    """Ids of servers that are asked for one after the other, and what became of them."""
    made = [
        servers.create(ServerWish(f"{name}-{n}", flavor, IMAGE, "#cloud-config\n")) for n, flavor in enumerate(flavors)
    ]
    wait_for(lambda: all(server.status != "BUILD" for server in servers.ours()))
    statuses = {server.id: server.status for server in servers.ours()}
    return [(id, statuses[id]) for id in made]


def delete_all(servers: NovaServers) -> None:
    for server in servers.ours():
        servers.delete(server.id)
    wait_for(lambda: servers.ours() == [])


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.5)


# What is shipped for Prometheus.

NO_DATA = {
    "Scrubs: 95 % are done in": "no pool of the lab has one_time_use, so nothing is scrubbed",
    "Not what it should be: {{host}}/{{address}} {{state}}": "no GPU of the lab is lost or blocked",
    "How the GPUs were used: {{use}}": "no day of the lab is over",
}
"""Panels of the dashboard that have no data here, and why."""

NO_SERIES = {"gpuyard_host_maintenance_end_timestamp_seconds": "no host of the lab is maintained"}
"""What alerts ask for and is not there, and why."""


@contextmanager
def open_portal(state: Path, folder: Path) -> Iterator[str]:
    """The lab's portal, with a site file that names hosts, has a channel for messages and asks guests of demo for their
    GPUs; at the same address, so that hosts find it."""
    served, lab_now = look(state), remembered(state)
    assert served is not None
    assert lab_now is not None
    site = YAML(typ="safe").load((state / "site.yaml").read_text())
    site["booking"] |= {
        "anonymous_details": True,
        "mail": {"host": "127.0.0.1", "port": 9, "sender": "gpus@example.org"},
    }
    site["health"] |= {"agent": {"projects": ["demo"], "period": 5}}
    (folder / "site.yaml").write_text(json.dumps(site))  # which is YAML, too
    command = [sys.executable, "-m", "gpuyard.cli.main", "serve", "--site", str(folder / "site.yaml")]
    command += ["--os-cloud", ADMIN_CLOUD, "--port", served.url.rpartition(":")[2], "--url", served.url]
    command += ["--database", f"sqlite:///{state / 'bookings.db'}", "--log-format", "json"]
    environment = {**processes.clean_environment(), "OS_CLIENT_CONFIG_FILE": str(lab_now.clouds_file)}
    processes.end(state, PORTAL)
    with (folder / "log").open("wb") as log, Popen(command, env=environment, stderr=log) as process:
        try:
            until(lambda: answers(f"{served.url}/readyz"))
            yield served.url
        finally:
            process.terminate()
            process.wait(20)


def until(condition: Callable[[], bool], why: Callable[[], str] = lambda: "it did not happen") -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.3)


def empty(metrics: Prometheus) -> set[str]:
    """Panels that have no data now."""
    return {name for name, query in queries() if not metrics.has_data(query)}


def agent_says(url: str, server: str, code: str) -> None:
    """As the agent in that server would."""

    def post(path: str, body: dict[str, Any], token: str = "") -> bytes:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        with urlopen(Request(f"{url}{path}", json.dumps(body).encode(), headers), timeout=10) as answer:
            content: bytes = answer.read()
            return content

    token = json.loads(post("/v1/agents/enrol", {"server": server, "code": code}))["token"]
    payload = {"v": 1, "boot": "0" * 16, "driver": "580", "seen": 1, "cards": ["GPU-a"]}
    post("/v1/agents/samples", payload | {"samples": [[10, [[40, 25, 61, 250, 0, 0, 0]]]]}, token)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_prometheus_has_an_answer_to_everything_that_is_shipped(state: Path, tmp_path: Path) -> None:
    lab_now = remembered(state)
    assert lab_now is not None
    admin, demo = (connect(cloud, lab_now.clouds_file) for cloud in (ADMIN_CLOUD, DEMO_CLOUD))
    exercise = Exercise(admin, demo, load_site(state / "site.yaml").compiled)
    exercise.clear()
    with open_portal(state, tmp_path) as url, prometheus(tmp_path, url.removeprefix("http://")) as metrics:
        booted = exercise.boot("k40c.2cores")
        assert booted.status == "ACTIVE", booted.fault
        server = f"/servers/{booted.server_id}"

        def word() -> str:
            return str(admin.get("compute", server)["server"]["metadata"].get(AGENT_WORD, ""))

        until(lambda: " " in word())
        agent_says(url, booted.server_id, word().split()[1])
        push_job(lab_now, REPOSITORY, "gpuyard-v100", 1)
        client, now = Client(open_session(DEMO_CLOUD, url, lab_now.clouds_file)), datetime.now(UTC)
        end = now + timedelta(hours=1)
        (made,) = client.create({"pool": "t4", "gpus": 1, "start": now.isoformat(), "end": end.isoformat()})
        until(lambda: metrics.number('gpuyard_admission_seconds_count{outcome="taken"}') == 1)
        until(lambda: metrics.number('sum(increase(gpuyard_runner_ends_total{cause="finished"}[2m]))') > 0)
        until(lambda: empty(metrics) <= NO_DATA.keys(), lambda: f"no data: {empty(metrics) - NO_DATA.keys()}")
        assert empty(metrics) == NO_DATA.keys(), "a reason does not hold any more"
        for rule in rules():
            assert metrics.ask(rule["expr"]) is not None
            for series in re.findall(r"\b(?:gpuyard|github|DCGM)[_:][\w:]+", rule["expr"]):
                assert bool(metrics.ask(series)) == (series not in NO_SERIES), f"{rule['expr']} asks for {series}"
        fired = {alert["metric"]["alertname"] for alert in metrics.ask('ALERTS{alertstate="firing"}')}
        assert fired == set(), "nothing is wrong with the lab"
        log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert {"sync", "bookings"} & {line.get("loop") for line in log}
        (booked,) = [line for line in log if line.get("route") == "/v1/bookings" and line["status"] == 201]
        nova = (state / "log/nova.log").read_text()
        ids = {line["request_id"] for line in log if line.get("loop") == "bookings"}
        assert any(id in nova for id in ids), "Nova's log has the id of what gpuyard has asked"
        assert booked["request_id"] not in ids
        client.act(made["id"], "end")
        exercise.delete([booted.server_id])
    assert lab(state, "up").exit_code == 0


def test_after_a_restart_jobs_run_again(state: Path) -> None:
    assert lab(state, "down").exit_code == 0
    assert lab(state, "up").exit_code == 0
    done = lab(state, "job", "--seconds", "1")
    assert done.exit_code == 0, done.output


def test_a_github_that_died_is_shown_and_healed(state: Path) -> None:
    processes.end(state, GITHUB)
    shown = lab(state, "status", "-f", "json")
    assert shown.exit_code == 3
    assert {row["Name"]: row["State"] for row in json.loads(shown.stdout)}[GITHUB] == "down"
    assert lab(state, "up").exit_code == 0
    running = remembered(state)
    assert running is not None
    assert GITHUB in processes.leaders(processes.find(state))
    assert lab(state, "job", "--seconds", "1").exit_code == 0


def test_without_a_lab_it_is_said_what_to_do(tmp_path: Path) -> None:
    refused = lab(tmp_path, "job")
    assert refused.exit_code != 0
    assert "start it with 'gpuyard lab up'" in str(refused.exception)
