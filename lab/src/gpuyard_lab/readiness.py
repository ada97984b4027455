"""Checks whether a lab is up: every API answers, every host's nova-compute is up, and Placement has every GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpuyard_lab.catalog import api
from gpuyard_lab.errors import LabError
from gpuyard_lab.http import answers, call
from gpuyard_lab.processes import Started
from gpuyard_lab.settings import Lab

PATIENCE_S = 120.0
"""Seconds for one step of a start. On a machine that is busy otherwise, imports alone can take a minute."""
TAIL_LINES = 25
COMPUTE_VERSION = {"OpenStack-API-Version": "compute 2.96"}
PLACEMENT_VERSION = {"OpenStack-API-Version": "placement 1.39"}


def require_alive(started: Sequence[Started]) -> None:
    """Raise LabError with the end of its log when a process has ended."""
    for process in started:
        status = process.ended()
        if status is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise LabError(f"{process.name} {how} while the lab was starting\n{tail(process.log)}")


def wait_for(what: str, check: Callable[[], bool], started: Sequence[Started], timeout_s: float = PATIENCE_S) -> None:
    """Return when the check holds. Raises LabError when a process has ended or the time is over."""
    deadline = time.monotonic() + timeout_s
    while not check():
        require_alive(started)
        if time.monotonic() > deadline:
            logs = "\n".join(tail(process.log, 5) for process in started)
            raise LabError(f"{what}: not after {timeout_s:.0f} s\n{logs}")
        time.sleep(0.1)


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, under its name."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"{log}: {error.strerror}"
    return "\n".join([f"--- the end of {log}", *text[-lines:]])


def healthy(lab: Lab, name: str) -> bool:
    """Return whether an API answers."""
    return answers(lab.url(name) + api(name).health)


def computes(lab: Lab, token: str) -> dict[str, bool]:
    """Return the host of each nova-compute, and whether it is up."""
    answer = call("GET", f"{lab.endpoint('nova')}/os-services?binary=nova-compute", token=token)
    return {service["host"]: service["state"] == "up" for service in answer.body["services"]}


def remove_other_hosts(lab: Lab, token: str, hosts: Sequence[str]) -> None:
    """Delete hosts that the lab had once and has no more from Nova. Nova keeps one that still has servers: it stays,
    down."""
    services = f"{lab.endpoint('nova')}/os-services"
    answer = call("GET", f"{services}?binary=nova-compute", token=token, headers=COMPUTE_VERSION)
    for service in answer.body["services"]:
        if service["host"] not in hosts:
            with suppress(LabError):
                call("DELETE", f"{services}/{service['id']}", token=token, headers=COMPUTE_VERSION)


def providers(lab: Lab, token: str) -> set[str]:
    """Return the names of all resource providers."""
    answer = call("GET", f"{lab.url('placement')}/resource_providers", token=token, headers=PLACEMENT_VERSION)
    return {provider["name"] for provider in answer.body["resource_providers"]}


def expected_hosts(lab: Lab) -> dict[str, list[str]]:
    """Return host -> names of its providers; empty while Nova's services are not all there."""
    try:
        hosts: dict[str, list[str]] = json.loads(lab.hosts_ready.read_text())
    except FileNotFoundError:
        return {}
    return hosts


def hosts_ready(lab: Lab, token: str) -> bool:
    """Return whether Nova and Placement agree that every host of the lab is there with all its GPUs."""
    expected = expected_hosts(lab)
    if not expected:
        return False
    up = computes(lab, token)
    provider_names = providers(lab, token)
    return all(up.get(host) and provider_names.issuperset(names) for host, names in expected.items())
