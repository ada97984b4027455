"""Starts a lab step by step, in the order of dependencies; services that can load at the same time do.

Service processes start first, since their imports take the longest, and wait for marker files: for the databases before
they make their schemas, for the accounts before they talk to each other. Meanwhile the databases are made, then
Keystone's accounts and catalogue, the image, and last the hosts. A failure anywhere ends all processes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpuyard.model.text import counted
from gpuyard.site.schema import Image
from gpuyard_lab import processes
from gpuyard_lab.catalog import PROCESSES
from gpuyard_lab.clients import write_client_files
from gpuyard_lab.config import write_config
from gpuyard_lab.databases import NAMES, DatabaseServer
from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.example import write_example
from gpuyard_lab.files import private_folder, write_private
from gpuyard_lab.http import Unreachable
from gpuyard_lab.identity import ensure_identity, log_in
from gpuyard_lab.images import ensure_image
from gpuyard_lab.networks import ensure_network
from gpuyard_lab.plan import IMAGE, LabPlan
from gpuyard_lab.ports import require_free
from gpuyard_lab.postgres import start_postgresql
from gpuyard_lab.readiness import healthy, hosts_ready, remove_other_hosts, require_alive, wait_for
from gpuyard_lab.releases.catalogue import OWN
from gpuyard_lab.releases.code import with_code, write_code
from gpuyard_lab.settings import Lab
from gpuyard_lab.status import Phase

Report = Callable[[Phase], None]

KEPT_SETTINGS = ("port_base", "database", "site", "release", "release_cache")
"""Settings that survive when a lab starts over."""
KEEP_LOGS_BELOW = 10 * 1024 * 1024


class Start:
    """One start of a lab. ``run`` does it all; the phases that it went through are in ``phases``."""

    def __init__(self, lab: Lab, plan: LabPlan, before: Lab | None, report: Report) -> None:
        self.lab = lab
        self._before = before
        self.plan = plan
        self.phases: tuple[Phase, ...] = ()
        self._report = report
        self._began = time.monotonic()
        self._started: list[processes.Started] = []
        self._environment = processes.clean_environment()

    def run(self, fresh: bool) -> None:
        """Bring the lab up, from whatever an earlier start has left; on any failure nothing is left running."""
        if processes.end_all(self.lab.state):
            self._done("ended what was running")
        require_free(self.lab)
        try:
            if fresh:
                self._forget_everything()
            self._bring_up()
        except BaseException:
            processes.end_all(self.lab.state)
            raise

    def _bring_up(self) -> None:
        self._write_files()
        self._start_services()
        try:
            self._start_databases()
            token = self._wait_for_identity()
            self._wait_for_images(token)
            self._wait_for("neutron")
            self._wait_for_hosts(token)
        except Unreachable:
            require_alive(self._started)  # that it died says more than that it does not answer
            raise
        self.lab = replace(self.lab, complete=True)
        self.lab.save()
        self.lab.started.touch()

    def _done(self, name: str) -> None:
        now = round(time.monotonic() - self._began, 2)
        before = self.phases[-1].at_s if self.phases else 0.0
        phase = Phase(name, now, round(now - before, 2))
        self.phases = (*self.phases, phase)
        self._report(phase)

    def _forget_everything(self) -> None:
        if self._before and not self._before.embedded and self._before.own_databases:
            server = DatabaseServer(self._before)
            server.wait(lambda: None)
            server.drop(self._before.own_databases)
        had_something = False
        for entry in self.lab.state.iterdir():
            if entry != self.lab.lock_file:
                had_something = True
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        settings = {name: getattr(self.lab, name) for name in KEPT_SETTINGS}
        self.lab = Lab(self.lab.state, **settings)
        if had_something:
            self._done("threw away what was there")

    def _write_files(self) -> None:
        lab = self.lab
        lab.save()
        write_example(lab)
        shutil.rmtree(lab.run, ignore_errors=True)
        for folder in (lab.run, lab.log, lab.data):
            private_folder(folder)
        for log in lab.log.iterdir():
            if log.stat().st_size > KEEP_LOGS_BELOW:
                log.replace(log.with_suffix(".log.old"))
        self.plan.save(lab.plan_file)
        write_config(lab, self.plan)
        write_client_files(lab)
        self._done("files written")

    def _start_services(self) -> None:
        environment = self._environment
        if self.lab.release != OWN:
            environment = with_code(environment, write_code(self.lab.code))
        for name in PROCESSES:
            # -P: the folder that 'lab up' was called from is no place to import modules from.
            command = [str(self.lab.python), "-P", "-m", "gpuyard_lab.services", name, str(self.lab.state)]
            log = self.lab.log_of(name)
            self._started.append(processes.start(self.lab.state, name, command, environment, log))

    def _start_databases(self) -> None:
        lab = self.lab
        if lab.embedded:
            self._started.append(start_postgresql(lab, self._environment))
        server = DatabaseServer(lab)
        server.wait(lambda: require_alive(self._started))
        databases = tuple(server.real_name(name) for name in NAMES)
        existing = server.existing()
        if foreign := sorted(existing - set(lab.own_databases)):
            raise LabSettingsError(
                f"the database server at {server.url!r} has {', '.join(foreign)} already, and this lab did not make "
                "them; drop them, or put something else around {name} in the database URL"
            )
        if missing := [name for name in databases if name not in existing]:
            # Remembered before they are made: a lab may only ever drop what it has made itself.
            self.lab = replace(lab, own_databases=databases)
            self.lab.save()
            server.create(missing)
        lab.databases_ready.touch()
        self._done("databases")

    def _wait_for(self, *names: str) -> None:
        for name in names:
            wait_for(f"{name} answers", partial(healthy, self.lab, name), self._started)
        self._done(", ".join(names))

    def _wait_for_identity(self) -> str:
        self._wait_for("keystone", "placement")
        token = log_in(self.lab)
        write_private(self.lab.identity_ready, ensure_identity(self.lab, token))
        self._done("accounts, catalogue and limits")
        return token

    def _wait_for_images(self, token: str) -> None:
        self._wait_for("glance")
        ensure_image(self.lab, token, IMAGE, Image.model_validate(self.plan.image))
        self._done("image")

    def _wait_for_hosts(self, token: str) -> None:
        self._wait_for("nova")
        wait_for("Nova and Placement have every host and GPU", partial(hosts_ready, self.lab, token), self._started)
        # Neutron's first requests may be refused while another one has its policies read.
        wait_for("Neutron makes a network", partial(ensure_network, self.lab, token), self._started)
        remove_other_hosts(self.lab, token, [host.name for host in self.plan.hosts])
        self._done(counted(len(self.plan.hosts), "host"))
