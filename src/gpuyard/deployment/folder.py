"""Kolla's configuration folder: reads its state for a deployment, and writes inventory, variables and passwords."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.comments import TaggedScalar
from ruamel.yaml.error import YAMLError

from gpuyard.deployment.kolla.deploy import wrong_release
from gpuyard.deployment.kolla.folder import read_folder, variable_files
from gpuyard.deployment.kolla.operator_inventory import read_inventory
from gpuyard.deployment.kolla.render import Rendering, compute_group, plan_kolla
from gpuyard.deployment.kolla.run import environment, find_program, version
from gpuyard.deployment.kolla.site_inventory import GLOBALS, INVENTORY, VARIABLES, bridges_hypervisors, plan_machines
from gpuyard.deployment.kolla.variables import Variable, read_variables
from gpuyard.deployment.programs import said_by
from gpuyard.deployment.state import KollaState
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.runtime.config_files import Change, read_text, write
from gpuyard.site.compile import CompiledSite
from gpuyard.site.schema import Site

PASSWORDS, CREDENTIALS = "passwords.yml", "clouds.yaml"
BLANK = ("docker_registry_password",)
"""Passwords that kolla-genpwd leaves empty."""
PRIVATE = 0o640
"""The widest mode that a file of passwords may have, as kolla-genpwd makes it."""
VAULT = "$ANSIBLE_VAULT;"
"""Beginning of a file that ansible-vault has encrypted as a whole."""
SHOWN = 3
"""Most missing passwords that a message names."""
SHARE = Path("share/kolla-ansible")
COLLECTION = Path("ansible_collections/openstack/kolla")
REQUIREMENTS = ("requirements.yml", "requirements-core.yml")
"""Files of requirements that install-deps has Ansible install: the collection's branch of this release, and bounds of
others' versions (kolla_ansible/ansible.py, install_galaxy_collections)."""
MARKER = ".gpuyard-requirements"
"""File in the collection's folder with the digest of the requirements it was installed by. ansible-galaxy removes the
folder first when it installs, so the file does not outlive the collection it is about. The collection itself is
1.0.0 on all branches."""
SECONDS = 120.0


@dataclass
class DeployFolder:
    """Kolla's configuration folder and its programs."""

    path: Path
    kolla_ansible: str
    """Name or path of the program."""
    _programs: dict[str, str] = field(default_factory=dict, repr=False)
    """Cached facts about programs, which do not change meanwhile."""

    @property
    def inventory(self) -> Path:
        return self.path / INVENTORY

    @property
    def credentials(self) -> Path:
        return self.path / CREDENTIALS

    @property
    def program(self) -> Path:
        """The program's path. Raises UsageError when there is none."""
        return find_program(self.kolla_ansible)

    def look(self, site: Site, compiled: CompiledSite | None) -> KollaState:
        """Return the state of folder and programs. `compiled`: None while recordings are missing."""
        try:
            program = self.program
            if "version" not in self._programs:
                self._programs["version"] = version(program)
            if wrong := wrong_release(self._programs["version"], site.release):
                return KollaState(problem=wrong)
            machines = self.machines(site)
            rendering = self.rendering(compiled) if compiled is not None and not machines.changes else None
            passwords = read_passwords(read_text(self.path / PASSWORDS))
            return KollaState(
                machines=tuple(f"{change.sign} {change.path}" for change in machines.changes),
                machine_refusals=machines.refusals,
                passwords=passwords.made,
                passwords_refusal=passwords.refusal,
                passwords_mode=self._passwords_mode(),
                rendered=None
                if rendering is None
                else tuple(f"{change.sign} {change.path}" for change in rendering.changes),
                render_refusals=() if rendering is None else rendering.refusals,
                collection=self.has_collection(),
                collection_current=self.collection_is_current(),
                credentials=self.credentials.is_file(),
                bridges_hypervisors=bridges_hypervisors(site, self._operators_variables()),
                digest=self._digest(),
            )
        except GpuyardError as error:
            return KollaState(problem=str(error))

    def machines(self, site: Site) -> Rendering:
        """Return the changes of inventory and variables. Raises GpuyardError."""
        example = read_text(self._share / "ansible/inventory/multinode")
        if example is None:
            raise GpuyardError(f"{self._share} has no ansible/inventory/multinode; install kolla-ansible again")
        files = {name: read_text(self.path / name) for name in (INVENTORY, VARIABLES, GLOBALS)}
        return plan_machines(site, self.path, example, files, self._operators_variables())

    def _passwords_mode(self) -> str:
        """Of passwords.yml, where it allows more than PRIVATE does to others than its owner and group."""
        try:
            mode = stat.S_IMODE((self.path / PASSWORDS).stat().st_mode)
        except OSError:
            return ""
        return f"{mode:04o}" if mode & stat.S_IRWXO else ""

    def _operators_variables(self) -> dict[str, Variable]:
        """Raises UsageError."""
        own = str(self.path / VARIABLES)
        return read_variables((name, text) for name, text in variable_files(self.path) if name != own)

    def rendering(self, compiled: CompiledSite) -> Rendering:
        """Plan what 'gpuyard site render --kolla -i INVENTORY' would. Raises GpuyardError."""
        folder = read_folder(self.path)
        beside = self.program.parent / "ansible-inventory"
        kolla_inventory = read_inventory([self.inventory], compute_group(folder), beside if beside.exists() else None)
        return plan_kolla(compiled, folder, kolla_inventory)

    def write(self, changes: Sequence[Change]) -> None:
        """Write the changes. Raises GpuyardError."""
        for change in changes:
            write(change)

    def make_passwords(self) -> None:
        """Generate missing passwords by kolla-genpwd. Where none is missing, the file gets its mode and is not written:
        encrypted values and comments in it stay. Raises GpuyardError."""
        target = self.path / PASSWORDS
        passwords = read_passwords(read_text(target))
        if passwords.refusal:
            raise GpuyardError(f"{target}: {passwords.refusal}")
        try:
            if passwords.made:
                _make_private(target)
            else:
                self._generate_passwords(target)
        except OSError as error:
            raise GpuyardError(f"{error.filename or target}: {error.strerror}") from None

    def _generate_passwords(self, target: Path) -> None:
        """On a copy, since kolla-genpwd empties its file first. Raises GpuyardError, OSError."""
        fresh = self.path / f".{PASSWORDS}.gpuyard"
        example = self._share / "etc_examples/kolla" / PASSWORDS
        generate = self.program.parent / "kolla-genpwd"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write((target if target.exists() else example).read_bytes())
        self._run([str(generate), "-p", str(fresh)])
        os.chmod(fresh, 0o600)
        if target.exists():
            shutil.copystat(target, fresh)
            _make_private(fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(target)

    @property
    def _share(self) -> Path:
        return self.program.parent.parent / SHARE

    def has_collection(self) -> bool:
        """Return whether openstack.kolla is where install-deps puts it. Raises GpuyardError."""
        return self._collection.is_dir()

    def collection_is_current(self) -> bool:
        """Return whether it was installed by what this kolla-ansible requires. Raises GpuyardError."""
        return read_text(self._collection / MARKER) == self._requirements()

    def keep_requirements(self) -> None:
        """Record, after install-deps, by which requirements the collection was installed. Raises GpuyardError."""
        if not self.has_collection():
            raise GpuyardError(
                f"kolla-ansible install-deps ended well, and {self._collection} is not there; look at its output"
            )
        marker = self._collection / MARKER
        write(Change(marker, read_text(marker), self._requirements()))

    def _requirements(self) -> str:
        """The digest of what install-deps would install. Raises GpuyardError."""
        digest = hashlib.sha256()
        for name in REQUIREMENTS:
            text = read_text(self._share / name)
            if text is None:
                raise GpuyardError(f"{self._share} has no {name}; install kolla-ansible again")
            digest.update(f"{name}\n{text}\n".encode())
        return f"{digest.hexdigest()}\n"

    @property
    def _collection(self) -> Path:
        """Where install-deps puts openstack.kolla. Raises GpuyardError."""
        if "collections" not in self._programs:
            program = self.program.parent / "ansible-config"
            self._programs["collections"] = collections_path(self._run([str(program), "dump", "--format", "json"]))
        return Path(self._programs["collections"]) / COLLECTION

    def _run(self, words: Sequence[str]) -> str:
        """What it printed. Raises GpuyardError."""
        return said_by(words, environment(self.program, os.environ), SECONDS, "install kolla-ansible again")

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name in (INVENTORY, VARIABLES, GLOBALS):
            digest.update(f"{name}\n{read_text(self.path / name) or ''}\n".encode())
        return digest.hexdigest()[:16]


def collections_path(settings: str) -> str:
    """Return the folder in which ansible-galaxy installs collections: the first of its paths. `settings`: the output of
    ``ansible-config dump --format json``. Raises GpuyardError."""
    try:
        values = {setting.get("name"): setting.get("value") for setting in json.loads(settings)}
        first = values["COLLECTIONS_PATHS"][0]
        if isinstance(first, str) and first.startswith("/"):
            return first
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        pass
    raise GpuyardError(
        "ansible-config does not say where collections are (COLLECTIONS_PATHS); install kolla-ansible again"
    )


@dataclass(frozen=True)
class Passwords:
    """The state of passwords.yml for kolla-genpwd."""

    made: bool
    """Whether there is none left to generate."""
    refusal: str = ""
    """Why it cannot generate those that are missing, and what to do."""


def read_passwords(text: str | None) -> Passwords:
    """Return the state of passwords.yml; a file that is encrypted as a whole counts as made. Raises UsageError."""
    if text is None:
        return Passwords(made=False)
    if text.startswith(VAULT):
        return Passwords(made=True)
    try:
        document = YAML(typ="rt", pure=True).load(text)  # which takes Ansible's own tags: !vault
    except YAMLError as error:
        raise UsageError(f"{PASSWORDS} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(document, dict):
        return Passwords(made=False)
    missing = [str(name) for name, value in document.items() if name not in BLANK and not _made(value)]
    if missing and any(_tagged(value) for value in document.values()):
        return Passwords(made=False, refusal=_cannot_be_made(missing))
    return Passwords(made=not missing)


def _made(value: object) -> bool:
    return any(part is not None for part in value.values()) if isinstance(value, dict) else value is not None


def _tagged(value: object) -> bool:
    """Return whether it is, or has, one of Ansible's own tags, with which kolla-genpwd ends."""
    if isinstance(value, dict):
        return any(_tagged(part) for part in value.values())
    return isinstance(value, TaggedScalar) and str(value.tag).startswith("!")


def _cannot_be_made(missing: Sequence[str]) -> str:
    others = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return (
        f"{PASSWORDS} has no value for {', '.join(missing[:SHOWN])}{others}, and kolla-genpwd reads no file with "
        "values of ansible-vault (!vault): write them yourself, or let kolla-genpwd make them before you encrypt"
    )


def _make_private(path: Path) -> None:
    """Kolla's example is 0644, and who has copied it did not mean that. Raises OSError."""
    path.chmod(path.stat().st_mode & PRIVATE)
