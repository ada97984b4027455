"""Jobs of a stand-in GitHub on servers of the real Nova, kept by `gpuyard serve`, played by guests that know only their
user data: by scale set and by webhook, from the push to the deleted server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import pytest
from ruamel.yaml import YAML

from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.apply import SiteApplier
from gpuyard.cloud.observe.objects import read_objects
from gpuyard.cloud.servers import NovaServers, open_runners_project
from gpuyard.lab.clients import ADMIN_CLOUD
from gpuyard.lab.github.__main__ import play
from gpuyard.lab.github.faults import Faults
from gpuyard.lab.github.records import COMPLETED, ForgeJob, JobOrder
from gpuyard.lab.github.server import ForgeServer
from gpuyard.lab.plan import EXAMPLE_SITE
from gpuyard.ledger.store import Store
from gpuyard.model.booking import BookingKind
from gpuyard.runners.records import Cause, JobState, RunnerState
from gpuyard.runners.store import RunnerStore
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard.store.engine import Database
from tests.integration.conftest import RunningLab
from tests.integration.test_serve import free_port, ready
from tests.support.booked_sites import copy_recordings
from tests.support.runner_projects import PROJECT, runners_cloud
from tests.support.simulated_runners import CIRUN, TOKEN

pytestmark = pytest.mark.lab
SECRET = "secret-of-the-hook"  # noqa: S105
SET = "gpuyard-v100"
PATIENCE = 90.0


@dataclass
class Yard:
    """One test's: a GitHub, a site with runners, and the process that serves it."""

    lab: RunningLab
    github: ForgeServer
    site: Path
    clouds: Path
    database: str
    port: int
    servers: NovaServers
    log: IO[str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    beside: tuple[RunnerStore, Store] | None = None

    def serve(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.clouds), "GPUYARD_DATABASE": self.database}
        command = [
            sys.executable, "-m", "gpuyard.cli.main", "serve", "--os-cloud", ADMIN_CLOUD, "--port", str(self.port),
            "--site", str(self.site),
        ]  # fmt: skip
        process = subprocess.Popen(command, env=environment, stderr=self.log, stdout=self.log)
        self.processes.append(process)
        return process

    def kill(self) -> None:
        """kill -9, and another one begins."""
        self.processes[-1].kill()
        self.processes[-1].wait()
        self.serve()

    def push(self, *labels: str, seconds: float = 1.0) -> list[int]:
        with self.github.standin.forge.lock:
            orders = [JobOrder((label,), seconds, name=f"job {n}") for n, label in enumerate(labels)]
            return list(self.github.standin.forge.push("demo/science", orders).jobs)

    def job(self, id: int) -> ForgeJob:
        return self.github.standin.forge.jobs[id]

    def until(self, true: Callable[[], object], seconds: float = PATIENCE) -> None:
        end = monotonic() + seconds
        while not true():
            assert monotonic() < end, self.report()
            sleep(0.5)

    @contextmanager
    def opened(self) -> Iterator[tuple[RunnerStore, Store]]:
        """The database, beside the process. Opened once: whoever opens it looks for migrations, and keeps the process
        from writing meanwhile."""
        if self.beside is None:
            database = Database(self.database)
            self.beside = RunnerStore(database), Store(database)
        yield self.beside

    def left_over(self) -> list[str]:
        forge = self.github.standin.forge
        with self.opened() as (runners, ledger), forge.lock:
            leases = [one for pool in ledger.pools() for one in _leases(ledger, pool)]
            return [
                *(f"server {one.name} {one.status} {one.fault}" for one in self.servers.ours()),
                *(f"registration {one.name}" for one in forge.runners.values()),
                *(f"runner {one.name} {one.state.value} {one.reason}" for one in runners.runners()),
                *(f"job {one.id} {one.state.value} {one.reason}" for one in runners.jobs()),
                *leases,
            ]

    def at_rest(self) -> bool:
        over = all(job.status == COMPLETED for job in self.github.standin.forge.jobs.values())
        return over and not self.left_over()

    def report(self) -> str:
        self.log.flush()
        text = Path(self.log.name).read_text()[-6000:]
        with self.opened() as (runners, _):
            events = [
                f"{event.at:%H:%M:%S} {event.runner} {event.text}"
                for runner in [*runners.runners(), *runners.runners(over=True, limit=10)]
                for event in runners.events(runner=runner.name)
            ]
        return "\n".join([*self.left_over(), *events[-60:], text])


def _leases(store: Store, pool: str) -> list[str]:
    with store.look(pool) as look:
        return [f"lease {one.id} of {one.server}" for one in look.leases() if one.kind is BookingKind.RUNNER]


@pytest.fixture
def guests(lab: RunningLab) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=play, args=(lab.lab.guests, Faults(), ended))
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture
def yard(
    lab: RunningLab, operator: CloudApi, guests: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Yard]:
    clouds = runners_cloud(lab.status.clouds_file, operator, tmp_path)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    with ForgeServer() as github, (tmp_path / "serve.log").open("w") as log:
        forge = github.standin.forge
        forge.personal_tokens[TOKEN] = "yard"
        forge.add_repository("demo/science").files[".cirun.yml"] = CIRUN
        site = site_file(tmp_path, github.url)
        compiled = load_site(site).compiled
        seen = read_objects(operator, compiled)
        SiteApplier(operator, seen).apply(plan_site(compiled, seen), lambda step: None)
        door, _ = open_runners_project(operator, PROJECT, "runners")
        servers = NovaServers(door, compiled.site.site, "none")
        delete_limits(operator)
        port = free_port()
        forge.add_hook("demo", f"http://127.0.0.1:{port}/v1/github/webhook", SECRET)
        made = Yard(lab, github, site, clouds, f"sqlite:///{tmp_path / 'yard.db'}", port, servers, log)
        try:
            yield made
        finally:
            for process in made.processes:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
            if made.beside is not None:
                made.beside[1].close()
            for one in servers.ours():
                servers.delete(one.id)
            made.until(lambda: not servers.ours())
            delete_limits(operator, door.project)


def delete_limits(operator: CloudApi, project: str | None = None) -> None:
    """Those of bookings, which belong to a database that is gone, and those of a project."""
    for row in operator.get("identity", "/limits")["limits"]:
        if row["description"].endswith(": bookings") or (project and row["project_id"] == project):
            operator.request("DELETE", "identity", f"/limits/{row['id']}")


def site_file(folder: Path, github: str) -> Path:
    """The example site with runners for the organisation ``demo`` of a stand-in."""
    document: dict[str, Any] = YAML(typ="safe").load(EXAMPLE_SITE)
    for name, text in (("token", TOKEN), ("secrets", SECRET)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    enrolment = {
        "organization": "demo",
        "url": github,
        "token_file": str(folder / "token"),
        "webhook_secrets_file": str(folder / "secrets"),
    }
    document["runners"] = {
        "project": PROJECT,
        "cloud": "runners",
        "network": "none",
        "enrolments": [enrolment],
        "longest": "1 h",
        "sets": {SET: {"flavors": ["gpu_tiny"], "images": ["tiny"]}},
    }
    copy_recordings(folder)
    path = folder / "site.yaml"
    path.write_text(json.dumps(document))
    return path


def test_jobs_by_scale_set_and_by_webhook_run_on_servers_that_are_deleted(yard: Yard) -> None:
    process = yard.serve()
    yard.until(lambda: ready(yard.port) and yard.github.standin.forge.sets)
    assert process.poll() is None
    by_set, by_hook, other = yard.push(SET, "cirun-gpu", "ubuntu-latest")
    mine = [by_set, by_hook]
    yard.until(lambda: all(yard.job(id).status == COMPLETED for id in mine))
    yard.until(lambda: not yard.left_over())
    assert [yard.job(id).conclusion for id in mine] == ["success", "success"]
    assert yard.job(other).status != COMPLETED
    with yard.opened() as (runners, _):
        gone = runners.runners(over=True)
        assert {one.state for one in gone} == {RunnerState.GONE}
        assert {one.cause for one in gone} == {Cause.FINISHED}
        assert {one.name for one in gone} == {yard.job(id).tries[0].runner for id in mine}
        assert all("Running job" in runners.log(one.name) for one in gone)
        assert {one.state for one in runners.latest_jobs()} == {JobState.COMPLETED}
