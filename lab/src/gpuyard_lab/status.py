"""Observes the present status of a lab: its services, hosts, processes and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuyard_lab import processes
from gpuyard_lab.catalog import APIS, POSTGRESQL, process_of
from gpuyard_lab.databases import DatabaseServer
from gpuyard_lab.errors import LabError
from gpuyard_lab.identity import log_in
from gpuyard_lab.processes import LabProcess
from gpuyard_lab.readiness import computes, expected_hosts, healthy
from gpuyard_lab.settings import Lab, remembered

UP, SILENT, DOWN = "up", "does not answer", "down"


@dataclass(frozen=True)
class Phase:
    """A step of a start that has come to its end. Steps overlap: services load while the database starts."""

    name: str
    at_s: float
    """Seconds since the start began."""
    took_s: float
    """Seconds since the phase before it ended."""


@dataclass(frozen=True)
class ServiceStatus:
    """One service: one row of ``gpuyard lab status``."""

    name: str
    url: str
    pid: int | None
    memory_mib: int | None
    """Proportional set size. None when it does not run, or shares the process of a row above."""
    state: str


@dataclass(frozen=True)
class LabStatus:
    """The status of a lab at one moment."""

    state: Path
    clouds_file: Path
    services: tuple[ServiceStatus, ...]
    hosts: dict[str, bool]
    """Host of the lab -> whether its nova-compute is up; empty when Nova cannot be asked."""
    started: bool
    """Whether the last start came to its end."""
    phases: tuple[Phase, ...] = ()
    """The phases of the start that led here; empty when there was nothing to start."""

    @property
    def healthy(self) -> bool:
        """Whether everything is up, on every host."""
        services = all(service.state == UP for service in self.services)
        return self.started and services and bool(self.hosts) and all(self.hosts.values())

    @property
    def memory_mib(self) -> int:
        """Memory of all processes together, in MiB."""
        return sum(service.memory_mib or 0 for service in self.services)


def look(state: Path) -> LabStatus:
    """Return the status of the lab in a folder, also when there is none: then everything is down."""
    lab = remembered(state) or Lab(state)
    lab_processes = processes.find(state)
    services = (*(_api(lab, api.name, lab_processes) for api in APIS), _database(lab, lab_processes))
    answering = all(service.state == UP for service in services)
    hosts = _hosts(lab) if answering else {}
    return LabStatus(state, lab.clouds_file, services, hosts, lab.started.exists())


def _api(lab: Lab, name: str, lab_processes: tuple[LabProcess, ...]) -> ServiceStatus:
    process = process_of(name)
    leader = processes.leaders(lab_processes).get(process)
    if leader is None:
        return ServiceStatus(name, lab.url(name), None, None, DOWN)
    memory = memory_mib(process, lab_processes) if process == name else None
    return ServiceStatus(name, lab.url(name), leader.pid, memory, UP if healthy(lab, name) else SILENT)


def _database(lab: Lab, lab_processes: tuple[LabProcess, ...]) -> ServiceStatus:
    if not lab.embedded:
        server = DatabaseServer(lab)
        return ServiceStatus("database", repr(server.url), None, None, UP if server.answers() else SILENT)
    leader = processes.leaders(lab_processes).get(POSTGRESQL)
    if leader is None:
        return ServiceStatus(POSTGRESQL, "embedded", None, None, DOWN)
    return ServiceStatus(POSTGRESQL, "embedded", leader.pid, memory_mib(POSTGRESQL, lab_processes), UP)


def memory_mib(name: str, lab_processes: tuple[LabProcess, ...]) -> int:
    """Return the proportional set size of the processes of a name together, in MiB."""
    return sum(processes.memory_kib(process.pid) for process in lab_processes if process.name == name) // 1024


def _hosts(lab: Lab) -> dict[str, bool]:
    try:
        up = computes(lab, log_in(lab))
    except LabError:
        return {}
    return {host: up.get(host, False) for host in expected_hosts(lab)}
