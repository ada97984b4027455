"""The services of a lab: their ports, their entries in Keystone's catalogue, and which process serves them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from gpuyard.model.errors import HOW_TO_INSTALL_LAB
from gpuyard_lab.errors import LabError

REGION = "RegionOne"
ADDRESS = "127.0.0.1"
DEFAULT_PORT_BASE = 15000
POSTGRESQL = "postgresql"
GITHUB = "github"
GITHUB_OFFSET = 5
"""Offset of the port of the GitHub beside the lab from the lab's port base."""


@dataclass(frozen=True)
class Api:
    """One OpenStack API."""

    name: str
    offset: int
    """Offset of its port from the lab's port base."""
    type: str
    """Its type in Keystone's catalogue."""
    endpoint: str
    """Path of its endpoint."""
    health: str
    """Path that answers without a token as soon as the service is loaded."""


APIS = (
    Api("keystone", 0, "identity", "/v3", "/v3"),
    Api("placement", 1, "placement", "", "/"),
    Api("glance", 2, "image", "", "/healthcheck"),
    Api("neutron", 3, "network", "", "/healthcheck"),
    Api("nova", 4, "compute", "/v2.1", "/"),
)

# Keystone, Glance, Neutron and Nova each fill the one global configuration object of oslo.config with options of the
# same names, so they cannot share a process. Placement keeps its own object and is small: it moves in with Keystone.
PROCESSES: dict[str, tuple[str, ...]] = {
    "nova": ("nova",),  # the slowest to start comes first
    "keystone": ("keystone", "placement"),
    "neutron": ("neutron",),
    "glance": ("glance",),
}


def api(name: str) -> Api:
    """Return the API of a name. Raises KeyError when there is none."""
    for candidate in APIS:
        if candidate.name == name:
            return candidate
    raise KeyError(name)


def process_of(api_name: str) -> str:
    """Return the name of the process that serves an API."""
    return next(process for process, names in PROCESSES.items() if api_name in names)


def require_installed() -> None:
    """Raise LabError unless the services and PostgreSQL are installed, as they are when pip installed the lab."""
    modules = ("nova", "keystone", "glance", "neutron", "placement", "waitress", "psycopg2")
    if missing := [module for module in modules if find_spec(module) is None]:
        raise LabError(f"the lab needs {', '.join(missing)}; install it: {HOW_TO_INSTALL_LAB}")
