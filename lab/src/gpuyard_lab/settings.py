"""Settings of a lab: its folder, what was asked of it, and what it remembers from one start to the next."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gpuyard_lab.catalog import ADDRESS, DEFAULT_PORT_BASE, GITHUB_OFFSET, api
from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.files import write_json
from gpuyard_lab.releases.catalogue import OWN, lab_release
from gpuyard_lab.releases.plan import environment_of, python_in

STATE_VARIABLE = "GPUYARD_LAB_STATE"
PORT_BASE_VARIABLE = "GPUYARD_LAB_PORT_BASE"
DATABASE_VARIABLE = "GPUYARD_LAB_DATABASE"
RELEASE_VARIABLE = "GPUYARD_LAB_RELEASE"
RELEASE_CACHE_VARIABLE = "GPUYARD_LAB_RELEASE_CACHE"

EXAMPLE = "example"
"""Value in place of a path: the site that comes with gpuyard, wherever it is installed."""
LOWEST_PORT, HIGHEST_PORT = 1024, 65535


@dataclass(frozen=True)
class LabSettings:
    """The settings that a person asked for. None: as remembered, or the default."""

    state: Path
    port_base: int | None = None
    database: str | None = None
    """SQLAlchemy URL of a server with ``{name}`` where the database's name goes; ``""`` for the embedded one."""
    site: Path | None = None
    """The site file whose hosts the lab is to have."""
    fresh: bool = False
    """Throw away what the lab has and start over; settings are kept."""
    release: str | None = None
    """The release of OpenStack that it is to run."""
    release_cache: Path | None = None
    """The folder in which releases other than the lab's own are installed."""

    @classmethod
    def of(
        cls,
        state: Path | None = None,
        port_base: int | None = None,
        database: str | None = None,
        site: Path | None = None,
        fresh: bool = False,
        release: str | None = None,
        release_cache: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> LabSettings:
        """Return settings from arguments and, where they are missing, from the environment."""
        if state is None:
            state = Path(environment[STATE_VARIABLE]) if environment.get(STATE_VARIABLE) else default_state(environment)
        if port_base is None and environment.get(PORT_BASE_VARIABLE):
            port_base = _port_base(environment[PORT_BASE_VARIABLE])
        if database is None:
            database = environment.get(DATABASE_VARIABLE) or None
        if port_base is not None:
            port_base = _port_base(str(port_base))
        release = release or environment.get(RELEASE_VARIABLE) or None
        if release_cache is None and environment.get(RELEASE_CACHE_VARIABLE):
            release_cache = Path(environment[RELEASE_CACHE_VARIABLE])
        release_cache = _folder(release_cache) if release_cache else None
        return cls(_folder(state), port_base, database, site.resolve() if site else None, fresh, release, release_cache)


def default_state(environment: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/gpuyard/lab``, where XDG_STATE_HOME is ``~/.local/state`` unless it is set."""
    home = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return Path(home) / "gpuyard" / "lab"


def default_release_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$XDG_CACHE_HOME/gpuyard/releases``, where XDG_CACHE_HOME is ``~/.cache`` unless it is set."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(home) / "gpuyard" / "releases"


def _folder(path: Path) -> Path:
    return path.expanduser().resolve()


def _port_base(text: str) -> int:
    highest = HIGHEST_PORT - GITHUB_OFFSET
    if not text.isdecimal() or not LOWEST_PORT <= int(text) <= highest:
        raise LabSettingsError(
            f"{text!r} is no port base: write a number from {LOWEST_PORT} to {highest}; "
            f"the lab uses it and the {GITHUB_OFFSET} ports after it"
        )
    return int(text)


@dataclass(frozen=True)
class Lab:
    """A lab with everything decided, as it is remembered in ``lab.json`` in its folder."""

    state: Path
    port_base: int = DEFAULT_PORT_BASE
    database: str = ""
    """The URL of a server, as in LabSettings; empty for the embedded one."""
    site: str = EXAMPLE
    """Path of the site file; or EXAMPLE; or empty for hosts that a program handed in."""
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    """Random id that tells the labs of one machine apart."""
    complete: bool = False
    """Whether a start has ever come to its end. Remains of an unfinished first start are thrown away by the next
    one."""
    own_databases: tuple[str, ...] = ()
    """Databases on a server that is not ours which this lab made, and so may drop."""
    release: str = OWN
    """The release of OpenStack that it runs."""
    release_cache: str = ""
    """The folder in which that release is installed, when it is not the lab's own; empty for the default."""

    @property
    def site_file(self) -> Path | None:
        """The file that describes its hosts; None where a program handed them in."""
        if self.site == EXAMPLE:
            return self.state / "site.yaml"
        return Path(self.site) if self.site else None

    @property
    def portal_database(self) -> str:
        """URL of its portal's database: bookings, jobs, health, history."""
        return f"sqlite:///{self.state / 'bookings.db'}"

    @property
    def releases(self) -> Path:
        """The folder in which releases other than the lab's own are installed."""
        return Path(self.release_cache) if self.release_cache else default_release_cache()

    @property
    def python(self) -> Path:
        """The Python that runs its services: the one that runs this, or that of another release."""
        if self.release == OWN:
            return Path(sys.executable)
        return python_in(environment_of(self.releases, lab_release(self.release)))

    @property
    def code(self) -> Path:
        """The folder from which the Python of another release imports this package, with nothing else in it."""
        return self.run / "code"

    @property
    def etc(self) -> Path:
        """Folder of the configuration files, with a folder per service."""
        return self.state / "etc"

    @property
    def log(self) -> Path:
        """Folder of the logs, a file per process."""
        return self.state / "log"

    @property
    def run(self) -> Path:
        """Folder of the files by which processes signal each other while they start; empty at every start."""
        return self.state / "run"

    @property
    def databases_ready(self) -> Path:
        """File that exists when the databases do, so that services may make their schemas."""
        return self.run / "databases"

    @property
    def identity_ready(self) -> Path:
        """File that exists when Keystone knows the services, so that they may talk to each other: the id of Nova's
        endpoint."""
        return self.run / "identity"

    @property
    def hosts_ready(self) -> Path:
        """File that is written when all of Nova's services run. JSON: host -> names of the GPU providers to be expected
        of it."""
        return self.run / "hosts.json"

    @property
    def hosts_wanted_off(self) -> Path:
        """File of the hosts whose nova-compute is to be off: names, as JSON."""
        return self.run / "off-wanted.json"

    @property
    def hosts_off(self) -> Path:
        """File of the hosts whose nova-compute is off: names, as JSON."""
        return self.run / "off.json"

    @property
    def started(self) -> Path:
        """File that exists when a start has come to its end: without it, what runs is what an interrupted start has
        left."""
        return self.run / "started"

    @property
    def data(self) -> Path:
        """Folder of the services' data outside their databases: images, keys."""
        return self.state / "data"

    @property
    def guests(self) -> Path:
        """Folder with a folder for each server that has user data: the files between its hypervisor and itself
        (guests.py)."""
        return self.data / "guests"

    @property
    def hosts(self) -> Path:
        """Folder with the file tree of each host (host_trees.py), where the site follows the health of its GPUs."""
        return self.data / "hosts"

    @property
    def postgresql(self) -> Path:
        """The embedded PostgreSQL's files."""
        return self.state / "postgresql"

    @property
    def plan_file(self) -> Path:
        """File of the last start's hosts, for a next one that names none."""
        return self.state / "plan.json"

    @property
    def secrets_file(self) -> Path:
        return self.state / "secrets.json"

    @property
    def clouds_file(self) -> Path:
        """``clouds.yaml`` for clients: OS_CLIENT_CONFIG_FILE."""
        return self.state / "clouds.yaml"

    @property
    def lock_file(self) -> Path:
        return self.state / "lock"

    def log_of(self, process: str) -> Path:
        return self.log / f"{process}.log"

    def port(self, name: str) -> int:
        """Return the TCP port of an API."""
        return self.port_base + api(name).offset

    def url(self, name: str) -> str:
        """Return an API's address without a path."""
        return f"http://{ADDRESS}:{self.port(name)}"

    @property
    def github_port(self) -> int:
        """The port of the GitHub beside the lab, where its site has runners that ask there."""
        return self.port_base + GITHUB_OFFSET

    @property
    def github_url(self) -> str:
        return f"http://{ADDRESS}:{self.github_port}"

    @property
    def github_token(self) -> Path:
        """File of the token with which gpuyard logs in at that GitHub."""
        return self.state / "github-token"

    @property
    def github_secret(self) -> Path:
        """File of the secret with which that GitHub signs webhooks."""
        return self.state / "github-secret"

    def endpoint(self, name: str) -> str:
        """Return an API's address as Keystone's catalogue has it."""
        return self.url(name) + api(name).endpoint

    @property
    def embedded(self) -> bool:
        return not self.database

    def database_url(self, name: str) -> str:
        """Return the SQLAlchemy URL of one database."""
        # The embedded server listens on an abstract socket: no file, so no limit on the length of the state folder's
        # path. Who may connect is decided by the kernel's word on who the peer is (see postgres.py).
        template = self.database or f"postgresql+psycopg2://postgres@/{{name}}?host=@gpuyard-lab-{self.id}"
        return template.replace("{name}", name)

    def save(self) -> None:
        """Write ``lab.json``; it may hold a database password and is private."""
        values = asdict(self)
        del values["state"]
        write_json(self.state / "lab.json", values)


def remembered(state: Path) -> Lab | None:
    """Return the lab in a folder; None when there is none. Raises LabSettingsError when another version wrote it."""
    file = state / "lab.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return Lab(state=state, **{**values, "own_databases": tuple(values["own_databases"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LabSettingsError(f"{file} was not written by this version of gpuyard; start over with --fresh") from None


def resolve(settings: LabSettings) -> tuple[Lab, Lab | None]:
    """Return the lab to start (as asked for, else as remembered, else by default), and the remembered one."""
    try:
        before = remembered(settings.state)
    except LabSettingsError:
        if not settings.fresh:
            raise
        before = None
    lab = before or Lab(settings.state)
    if settings.port_base is not None:
        lab = replace(lab, port_base=settings.port_base)
    if settings.database is not None:
        lab = replace(lab, database=settings.database)
    if settings.release is not None:
        lab = replace(lab, release=settings.release)
    if settings.release_cache is not None:
        lab = replace(lab, release_cache=str(settings.release_cache))
    if settings.site is not None:
        lab = replace(lab, site=str(settings.site))
    return lab, before
