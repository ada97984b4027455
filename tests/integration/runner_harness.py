"""A yard of runners on the lab: a GitHub that may misbehave, a site with runners, the guests' players, and the process
that serves it all, which may be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from ruamel.yaml import YAML

from gpuyard.bookings.store import Store
from gpuyard.database.engine import Database
from gpuyard.model.booking import BookingKind
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.servers import open_servers_project
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.runners.store import RunnerStore
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import ForgeJob, JobOrder
from gpuyard_lab.github.server import ForgeServer
from gpuyard_lab.guests import LOOK_S, Guests
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.integration.conftest import RunningLab
from tests.integration.test_serve import free_port
from tests.support.booked_sites import copy_recordings
from tests.support.runner_projects import PROJECT, by_way_of
from tests.support.runner_storm import unfinished
from tests.support.simulated_runners import CIRUN, TOKEN

SECRET = "secret-of-the-hook"  # noqa: S105
SET = "gpuyard-v100"
PATIENCE = 90.0
GPUYARD = ("-m", "gpuyard.cli.main")


@dataclass(frozen=True)
class YardSite:
    """What differs between inventories."""

    repositories: Sequence[str] = ("demo/science",)
    cirun: str = CIRUN
    """Their `.cirun.yml`."""
    rules: Mapping[str, Any] = field(
        default_factory=lambda: {"longest": "1 h", "sets": {SET: {"flavors": ["gpu_tiny"], "images": ["tiny"]}}}
    )
    """More of `runners:` in the site file."""
    faults: Faults = field(default_factory=Faults)
    settings: ForgeSettings | None = None
    boot: timedelta = timedelta(seconds=2)
    """Of guests."""
    program: Sequence[str] = GPUYARD
    """Arguments of Python's that run gpuyard."""
    nova: str = ""
    """Where runners' calls to Nova go in place of Nova itself."""


class ProjectServers:
    """Every server of the runners' project, whatever gpuyard calls its own."""

    def __init__(self, api: CloudApi) -> None:
        self._door = api

    def there(self) -> list[Mapping[str, Any]]:
        """Nova's rows of those that are not deleted."""
        rows = self._door.pages("compute", "/servers/detail", "servers", deleted=False)
        return [row for row in rows if row["status"] != "DELETED"]

    def delete(self) -> None:
        """All of them."""
        for row in self.there():
            with suppress(CloudError):
                self._door.request("DELETE", "compute", f"/servers/{row['id']}")


@dataclass
class RunnerHarness:
    """One test's: a GitHub, a site with runners, and the process that serves it."""

    lab: RunningLab
    github: ForgeServer
    site: Path
    clouds: Path
    database: str
    port: int
    servers: ProjectServers
    project: str
    log: IO[str]
    program: Sequence[str] = GPUYARD
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    beside: tuple[RunnerStore, Store] | None = None

    def serve(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.clouds), "GPUYARD_DATABASE": self.database}
        command = [
            sys.executable, *self.program, "serve", "--os-cloud", ADMIN_CLOUD, "--port", str(self.port),
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

    def push(self, *labels: str, seconds: float = 1.0, repository: str = "demo/science") -> list[int]:
        with self.github.standin.forge.lock:
            orders = [JobOrder((label,), seconds, name=f"job {n}") for n, label in enumerate(labels)]
            return list(self.github.standin.forge.push(repository, orders).jobs)

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
            leases = [lease for pool in ledger.pools() for lease in _leases(ledger, pool)]
            return [
                *(f"server {row['name']} {row['status']} {row.get('fault', '')}" for row in self.servers.there()),
                *(f"registration {runner.name}" for runner in forge.runners.values()),
                *(f"runner {runner.name} {runner.state.value} {runner.reason}" for runner in runners.runners()),
                *(f"job {job.id} {job.state.value} {job.reason}" for job in runners.jobs()),
                *leases,
            ]

    def at_rest(self) -> bool:
        """Nothing waits, runs, or is left over."""
        with self.opened() as (runners, _):
            return not unfinished(self.github.standin.forge, runners) and not self.left_over()

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
        return [f"lease {lease.id} of {lease.server}" for lease in look.leases() if lease.kind is BookingKind.RUNNER]


@contextmanager
def guests(folder: Path, faults: Faults, boot: timedelta) -> Iterator[None]:
    """Play the servers of a lab."""
    ended, played = threading.Event(), Guests(folder, faults, boot)

    def play() -> None:
        while not ended.wait(LOOK_S):
            if folder.exists():
                played.step(datetime.now(UTC))

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def open_yard(
    lab: RunningLab, operator: CloudApi, folder: Path, clouds: Path, database: str, about: YardSite
) -> Iterator[RunnerHarness]:
    """``clouds``: a clouds.yaml with the cloud ``runners``, to which OS_CLIENT_CONFIG_FILE points."""
    github = ForgeServer(faults=about.faults, settings=about.settings)
    with guests(lab.lab.guests, about.faults, about.boot), github, (folder / "serve.log").open("w") as log:
        forge = github.standin.forge
        forge.personal_tokens[TOKEN] = "yard"
        for name in about.repositories:
            forge.add_repository(name).files[".cirun.yml"] = about.cirun
        site = site_file(folder, github.url, about.rules)
        compiled = load_site(site).compiled
        observed = read_objects(operator, compiled)
        SiteApplier(operator, observed).apply(plan_site(compiled, observed), lambda step: None)
        api, project = open_servers_project(operator, PROJECT, "runners")
        servers = ProjectServers(api)
        delete_limits(operator)
        port = free_port()
        forge.add_hook("demo", f"http://127.0.0.1:{port}/v1/github/webhook", SECRET)
        served = clouds if not about.nova else by_way_of(clouds, about.nova)
        made = RunnerHarness(lab, github, site, served, database, port, servers, project, log, about.program)
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
            servers.delete()
            made.until(lambda: not servers.there())
            delete_limits(operator, project)
            delete_variants(operator, compiled)


def delete_variants(operator: CloudApi, compiled: CompiledSite) -> None:
    """Flavors that sites without runners do not have."""
    variants = {flavor.name for flavor in compiled.flavors if flavor.variant_of}
    for row in operator.pages("compute", "/flavors", "flavors", is_public="None"):
        if row["name"] in variants:
            operator.request("DELETE", "compute", f"/flavors/{row['id']}")


def delete_limits(operator: CloudApi, project: str | None = None) -> None:
    """Those of bookings, which belong to a database that is gone, and those of a project."""
    for row in operator.get("identity", "/limits")["limits"]:
        if row["description"].endswith(": bookings") or (project and row["project_id"] == project):
            operator.request("DELETE", "identity", f"/limits/{row['id']}")


def site_file(folder: Path, github: str, rules: Mapping[str, Any]) -> Path:
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
        **rules,
    }
    copy_recordings(folder)
    path = folder / "site.yaml"
    path.write_text(json.dumps(document))
    return path
