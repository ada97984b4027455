"""Kolla's folder as a deployment sees it, and what it writes there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gpuyard.deploy.programs import said_by
from gpuyard.deploy.sight import KollaSight
from gpuyard.kolla.deploy import wrong_release
from gpuyard.kolla.files import Change, read_text, write
from gpuyard.kolla.folder import read_folder, variable_files
from gpuyard.kolla.inventory import read_inventory
from gpuyard.kolla.machines import GLOBALS, INVENTORY, VARIABLES, plan_machines
from gpuyard.kolla.render import Rendering, compute_group, plan_kolla
from gpuyard.kolla.run import environment, find_program, version
from gpuyard.kolla.variables import read_variables
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.site.compile import CompiledSite
from gpuyard.site.schema import Site

PASSWORDS, CREDENTIALS = "passwords.yml", "clouds.yaml"
BLANK = ("docker_registry_password",)
"""Passwords that kolla-genpwd leaves empty."""
SHARE = Path("share/kolla-ansible")
COLLECTION = "openstack.kolla"
SECONDS = 120.0


@dataclass
class DeployFolder:
    """Kolla's configuration folder and its programs."""

    path: Path
    kolla_ansible: str
    """Name or path of the program."""
    _programs: dict[str, str] = field(default_factory=dict, repr=False)
    """What was found out of programs, which do not change meanwhile."""

    @property
    def inventory(self) -> Path:
        return self.path / INVENTORY

    @property
    def credentials(self) -> Path:
        return self.path / CREDENTIALS

    @property
    def program(self) -> Path:
        """Raises UsageError when there is none."""
        return find_program(self.kolla_ansible)

    def look(self, site: Site, compiled: CompiledSite | None) -> KollaSight:
        """`compiled`: None while recordings are missing."""
        try:
            program = self.program
            if "version" not in self._programs:
                self._programs["version"] = version(program)
            if wrong := wrong_release(self._programs["version"], site.release):
                return KollaSight(problem=wrong)
            machines = self.machines(site)
            rendering = self.rendering(compiled) if compiled is not None and not machines.changes else None
            return KollaSight(
                machines=tuple(f"{change.sign} {change.path}" for change in machines.changes),
                machine_refusals=machines.refusals,
                passwords=passwords_made(read_text(self.path / PASSWORDS)),
                rendered=None if rendering is None else tuple(f"{one.sign} {one.path}" for one in rendering.changes),
                render_refusals=() if rendering is None else rendering.refusals,
                collection=self._has_collection(program),
                credentials=self.credentials.is_file(),
                digest=self._digest(),
            )
        except GpuyardError as error:
            return KollaSight(problem=str(error))

    def machines(self, site: Site) -> Rendering:
        """What must change for inventory and variables. Raises GpuyardError."""
        example = read_text(self._share / "ansible/inventory/multinode")
        if example is None:
            raise GpuyardError(f"{self._share} has no ansible/inventory/multinode; install kolla-ansible again")
        files = {name: read_text(self.path / name) for name in (INVENTORY, VARIABLES, GLOBALS)}
        own = str(self.path / VARIABLES)
        said = read_variables((name, text) for name, text in variable_files(self.path) if name != own)
        return plan_machines(site, self.path, example, files, said)

    def rendering(self, compiled: CompiledSite) -> Rendering:
        """As 'gpuyard site render --kolla -i INVENTORY'. Raises GpuyardError."""
        folder = read_folder(self.path)
        beside = self.program.parent / "ansible-inventory"
        known = read_inventory([self.inventory], compute_group(folder), beside if beside.exists() else None)
        return plan_kolla(compiled, folder, known)

    def write(self, changes: Sequence[Change]) -> None:
        """Raises GpuyardError."""
        for change in changes:
            write(change)

    def make_passwords(self) -> None:
        """Those that are missing, by kolla-genpwd, which empties its file first: so on a copy. Raises GpuyardError."""
        target, fresh = self.path / PASSWORDS, self.path / f".{PASSWORDS}.gpuyard"
        example = self._share / "etc_examples/kolla" / PASSWORDS
        generate = self.program.parent / "kolla-genpwd"
        try:
            fresh.unlink(missing_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write((target if target.exists() else example).read_bytes())
            self._run([str(generate), "-p", str(fresh)])
            os.chmod(fresh, 0o600)
            if target.exists():
                shutil.copystat(target, fresh)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(target)
        except OSError as error:
            raise GpuyardError(f"{error.filename or target}: {error.strerror}") from None

    @property
    def _share(self) -> Path:
        return self.program.parent.parent / SHARE

    def _has_collection(self, program: Path) -> bool:
        if self._programs.get("collection") != COLLECTION:
            galaxy = program.parent / "ansible-galaxy"
            found = self._run([str(galaxy), "collection", "list", COLLECTION], fails=True) if galaxy.exists() else ""
            self._programs["collection"] = COLLECTION if COLLECTION in found.split() else ""
        return bool(self._programs["collection"])

    def _run(self, words: Sequence[str], fails: bool = False) -> str:
        """What it printed. Raises GpuyardError, unless it `fails` as well as it may."""
        variables = environment(self.program, os.environ)
        return said_by(words, variables, SECONDS, "install kolla-ansible again", fails=fails)

    def _digest(self) -> str:
        found = hashlib.sha256()
        for name in (INVENTORY, VARIABLES, GLOBALS):
            found.update(f"{name}\n{read_text(self.path / name) or ''}\n".encode())
        return found.hexdigest()[:16]


def passwords_made(text: str | None) -> bool:
    """Whether passwords.yml has none that kolla-genpwd would make. One that is encrypted as a whole has been made."""
    if text is None:
        return False
    if text.startswith("$ANSIBLE_VAULT"):
        return True
    try:
        found = YAML(typ="rt", pure=True).load(text)  # which takes Ansible's own tags: !vault
    except YAMLError as error:
        raise UsageError(f"{PASSWORDS} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict):
        return False
    return all(_made(value) for name, value in found.items() if name not in BLANK)


def _made(value: object) -> bool:
    return any(part is not None for part in value.values()) if isinstance(value, dict) else value is not None
