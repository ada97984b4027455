"""The real ports of a deployment: hosts over ssh, Kolla's folder and program, OpenStack, and gpuyard's own commands."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from gpuyard.deployment.folder import DeployFolder
from gpuyard.deployment.hosts import DeployHosts
from gpuyard.deployment.kolla.ansible_output import Redactor, secrets_in
from gpuyard.deployment.kolla.deploy import Wish, all_steps
from gpuyard.deployment.kolla.run import run_program
from gpuyard.deployment.service import DeployService
from gpuyard.deployment.state import DeploymentState, OpenStackState
from gpuyard.deployment.tasks import Part
from gpuyard.images.glance import GlanceShelf
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.provisioning.access.limit_reader import let_nova_read_limits, nova_reads_limits
from gpuyard.provisioning.read import read_objects
from gpuyard.runtime.config_files import Change, read_text, write
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
from gpuyard.site.schema import Site

KOLLA_STAGES = ("install-deps", "bootstrap-servers", "prechecks", "deploy", "post-deploy")
CLOUD = "kolla-admin-internal"
"""The administrator in the clouds.yaml that Kolla writes, at the internal endpoints. `kolla-admin` has the public ones,
and a gateway does not pass on an administrator's requests."""
COMMAND = ("-m", "gpuyard.cli.main")


class DeployInterrupted(GpuyardError):
    """Raised when somebody interrupted a program that ran."""

    exit_code = 130


@dataclass
class SitePorts:
    """The ports for one site file."""

    site_file: Path
    site: Site
    limit: tuple[str, ...]
    """Hosts; empty: all."""
    hosts: DeployHosts
    folder: DeployFolder
    cloud: str | None
    """A cloud of the clouds.yaml that openstacksdk finds; None: the one that Kolla writes."""
    logs: Path
    ssh_config: Path | None
    service: DeployService
    now: Callable[[], datetime]
    on_task: Callable[[str], None] = lambda task: None
    held: tuple[int, ...] = ()
    """Descriptors that programs inherit: the journal's lock, so that a run after a kill does not meet one that is
    still at work."""
    loaded: LoadedSite | None = field(default=None, init=False)
    """The site as of the last look; None while a recording is missing."""

    @property
    def names(self) -> tuple[str, ...]:
        assert self.site.deploy is not None
        return tuple(name for name in self.site.deploy.hosts if not self.limit or name in self.limit)

    def look(self, before: DeploymentState, parts: frozenset[Part]) -> DeploymentState:
        state = self._look_at_site(before)
        if Part.HOSTS in parts:
            recorded = self.loaded.inventories if self.loaded else {}
            state = replace(state, hosts={**state.hosts, **self.hosts.look(self.names, recorded, self._gpus())})
        if Part.KOLLA in parts:
            state = replace(state, kolla=self.folder.look(self.site, self.loaded.compiled if self.loaded else None))
        if Part.CLOUD in parts:
            state = replace(state, cloud=self._look_at_cloud())
        if Part.SERVICE in parts:
            ready = self.loaded is not None and self.site.deploy is not None and self.site.deploy.portal
            # Without credentials it could not serve: that comes first.
            ready = ready and (self.cloud is not None or self.folder.credentials.is_file())
            state = replace(state, service=self.service.look() if ready else None)
        return state

    def _look_at_site(self, before: DeploymentState) -> DeploymentState:
        """Recordings that are there, and what the site compiles to once all are."""
        recorded = frozenset(name for name in self.site.hosts if self._recording(name).is_file())
        self.loaded, problem = None, ""
        if recorded == frozenset(self.site.hosts):
            try:
                self.loaded = load_site(self.site_file)
            except UsageError as error:
                problem = str(error)
        return replace(before, recorded=recorded, site_problem=problem)

    def _recording(self, name: str) -> Path:
        return self.site_file.parent / self.site.hosts[name].recording

    def _gpus(self) -> dict[str, tuple[str, ...]] | None:
        """Host -> addresses of its GPUs that the site's pools have."""
        if self.loaded is None:
            return None
        gpus = self.loaded.compiled.gpus
        return {host: tuple(gpu.address for gpu in gpus if gpu.host == host and gpu.pool) for host in self.site.hosts}

    def _look_at_cloud(self) -> OpenStackState | None:
        """None: there is nothing yet to log in with, or nothing to compare it with."""
        if self.loaded is None or (self.cloud is None and not self.folder.credentials.is_file()):
            return None
        try:
            api = self._connect()
            compiled = self.loaded.compiled
            steps = plan_site(compiled, read_objects(api, compiled))
            built = {build.image for build in GlanceShelf(api).builds() if build.promoted}
            return OpenStackState(
                reads_limits=not self.site.gpu_quotas or nova_reads_limits(api),
                steps=tuple(map(str, steps.steps)),
                refusals=steps.refusals,
                images={name: name in built for name, image in self.site.images.items() if image.build is not None},
            )
        except GpuyardError as error:
            return OpenStackState(problem=str(error))

    def _connect(self) -> CloudApi:
        return connect(self.cloud) if self.cloud else connect(CLOUD, self.folder.credentials)

    def about(self, state: DeploymentState, stage: str, name: str) -> str:
        if stage in ("reboot", "restart"):
            return state.hosts[name].boot_id
        return state.kolla.digest if stage == "deploy" and state.kolla is not None else ""

    def carry_out(self, state: DeploymentState, stage: str, names: Sequence[str]) -> Mapping[str, str]:
        if stage == "look":
            return self.hosts.wait(dict.fromkeys(names, ""))
        if stage == "prepare":
            return self.hosts.prepare(names, self._gpus())
        if stage in ("reboot", "restart"):
            return self.hosts.reboot({name: state.hosts[name].boot_id for name in names})
        if stage == "record":
            for name in names:
                write(Change(self._recording(name), None, self.hosts.recordings[name]))
        elif stage == "machines":
            self.folder.write(self.folder.machines(self.site).changes)
        elif stage == "passwords":
            self.folder.make_passwords()
        elif stage == "render":
            assert self.loaded is not None
            self.folder.write(self.folder.rendering(self.loaded.compiled).changes)
        elif stage in KOLLA_STAGES:
            self._kolla(stage, names if stage == "bootstrap-servers" else self.limit)
            if stage == "install-deps":
                self.folder.keep_requirements()
        elif stage == "limits":
            let_nova_read_limits(self._connect())
        elif stage == "apply":
            self._gpuyard("apply", ["site", "apply", "--yes", *self._of_site, *self._of_cloud])
        elif stage == "serve":
            self.service.start()
        elif stage == "accept":
            self._gpuyard("accept", self.service.accept())
        else:
            return {name: self._image(name) for name in names}
        return {}

    def _kolla(self, stage: str, hosts: Sequence[str]) -> None:
        """On these hosts; empty: all. Raises GpuyardError with Ansible's reasons."""
        wish = Wish(self.folder.path, (self.folder.inventory,), ",".join(hosts), full=True)
        steps = {step.name: step.words for step in all_steps(wish, "")}
        words = steps.get(stage, (stage, "--configdir", str(self.folder.path.absolute())))
        more = {} if self.ssh_config is None else ssh_variables(self.ssh_config)
        redact = Redactor(secrets_in(read_text(self.folder.path / "passwords.yml") or ""))
        self._program(self.folder.program, stage, words, redact, more)

    @property
    def _of_site(self) -> list[str]:
        return ["--site", str(self.site_file)]

    @property
    def _of_cloud(self) -> list[str]:
        return ["--os-cloud", self.cloud or CLOUD]

    def _image(self, name: str) -> str:
        """Build, check, upload, promote; each of which leaves alone what is done already. What went wrong."""
        images = self.logs.parent / "images"
        day = self.now().date().isoformat()
        try:
            output = self._gpuyard(f"{name}-plan", ["image", "build", name, "--plan", "--day", day, *self._of_site])
            build = output.split(":")[0].strip()
            file = images / f"{build}.qcow2"
            self._gpuyard(f"{name}-build", ["image", "build", name, "--day", day, "-o", str(images), *self._of_site])
            self._gpuyard(f"{name}-check", ["image", "check", str(file)])
            self._gpuyard(f"{name}-upload", ["image", "upload", str(file), *self._of_site, *self._of_cloud])
            self._gpuyard(f"{name}-promote", ["image", "promote", build, *self._of_cloud])
        except DeployInterrupted:
            raise
        except GpuyardError as error:
            return str(error)
        return ""

    def _gpuyard(self, name: str, words: Sequence[str]) -> str:
        """One of gpuyard's own commands, as one would type it; its output. Raises GpuyardError."""
        more = {} if self.cloud else {"OS_CLIENT_CONFIG_FILE": str(self.folder.credentials.absolute())}
        log = self._program(Path(sys.executable), name, [*COMMAND, *words], Redactor(), more)
        return read_text(log) or ""

    def _program(
        self, program: Path, name: str, words: Sequence[str], redact: Redactor, variables: Mapping[str, str]
    ) -> Path:
        """Where its output is. Raises GpuyardError with the reasons."""
        log = self.logs / f"{self.now():%Y%m%d-%H%M%S}-{name}.log"
        done = run_program(program, words, log, redact, self.on_task, variables, self.held)
        if done.signals:
            raise DeployInterrupted(f"interrupted; the output is in {log}")
        if done.code:
            reasons = "; ".join(map(str, done.failures)) or f"it ended with {done.code}"
            raise GpuyardError(f"{reasons}; the whole output is in {log}")
        return log


def ssh_variables(configuration: Path) -> dict[str, str]:
    """Return the environment that gives Ansible its own arguments of ssh, and this configuration.

    It keeps connections open by a host's name alone, and with another configuration would reach another machine: so
    each configuration has a folder of its own for them.
    """
    path = configuration.absolute()
    own = hashlib.sha256(f"{path}\n{read_text(path) or ''}".encode()).hexdigest()[:8]
    words = ["-F", str(path), "-C", "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"]
    return {"ANSIBLE_SSH_ARGS": shlex.join(words), "ANSIBLE_SSH_CONTROL_PATH_DIR": f"~/.ansible/cp/{own}"}


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of journals and of the output of programs, unless another one is named."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuyard/deploy"
