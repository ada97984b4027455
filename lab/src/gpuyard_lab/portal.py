"""Applies a lab's site to its OpenStack services, and serves the portal beside them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from gpuyard.model.errors import BlockedError
from gpuyard.openstack.api import connect
from gpuyard.provisioning.apply import apply_plan
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site
from gpuyard_lab import processes
from gpuyard_lab.catalog import ADDRESS
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.credentials import ADMIN
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import write_json
from gpuyard_lab.http import answers
from gpuyard_lab.identity import ensure_portal, ensure_projects, log_in
from gpuyard_lab.images import ensure_image
from gpuyard_lab.ports import require_free_port
from gpuyard_lab.readiness import wait_for
from gpuyard_lab.settings import Lab, LabSettings, remembered
from gpuyard_lab.status import DOWN, SILENT, UP, ServiceStatus, memory_mib

PORTAL = "portal"
DEFAULT_PORT = 8080


def apply_site(lab: Lab, loaded: LoadedSite) -> int:
    """Make the lab's flavors and limits those of its site, after making the projects and images that it names; returns
    how many steps that took. Raises BlockedError when the site cannot be applied."""
    site = loaded.site
    private = [pool.projects for pool in site.pools.values()]
    private += [flavor.projects for flavor in site.flavors.values() if not flavor.foreign]
    named = {*site.projects, *(project for projects in private for project in projects or ())}
    runners = {site.runners.project} if site.runners else set()
    acceptance = site.health.acceptance if site.health else None
    accepts = {acceptance.project} if acceptance and acceptance.project else set()
    token = log_in(lab)
    # Some are gpuyard's alone: the user is no member there.
    ensure_projects(lab, token, sorted(named - runners - accepts))
    ensure_projects(lab, token, sorted(runners), ADMIN)
    ensure_projects(lab, token, sorted(accepts), ADMIN, ("member", "reader", "admin"))
    for name, image in site.images.items():
        ensure_image(lab, token, name, image)
    api = connect(ADMIN_CLOUD, lab.clouds_file)
    observed = read_objects(api, loaded.compiled)
    plan = plan_site(loaded.compiled, observed)
    if plan.refusals:
        foreign = "made by gpuyard for site" in plan.refused
        hint = "\nthis lab has served another site: begin anew with --fresh, or in another folder with --state"
        raise BlockedError(plan.refused + (hint if foreign else ""))
    apply_plan(api, loaded.compiled, observed, plan, lambda step: None)
    return len(plan.steps)


def last_port(state: Path) -> int:
    """Return the port that the portal had the last time, or its default."""
    return int(_served(state).rpartition(":")[2] or DEFAULT_PORT)


def require_port(settings: LabSettings, port: int) -> None:
    """Raise LabSettingsError, before anything is started, when the portal's port is in use by somebody else."""
    if _running(settings.state) is None or _served(settings.state) != url_of(port):
        require_free_port(port, "the portal", "choose another with --port or GPUYARD_PORT")


def serve(lab: Lab, loaded: LoadedSite, port: int) -> str:
    """Start the portal as one more process of the lab; one that serves this site at this port already is left alone.
    Returns its address."""
    url = url_of(port)
    if loaded.site.booking is not None:
        ensure_portal(lab, log_in(lab), url)
    record = {"url": url, "site": hashlib.sha256(repr(loaded.compiled).encode()).hexdigest()}
    if _running(lab.state) is not None and _record(lab.state) == record and answers(f"{url}/readyz"):
        return url
    processes.end(lab.state, PORTAL)
    command = [sys.executable, "-P", "-m", "gpuyard.cli.main", "serve", "--site", str(loaded.path.resolve())]
    command += ["--os-cloud", ADMIN_CLOUD, "--port", str(port), "--database", lab.portal_database]
    environment = {**processes.clean_environment(), "OS_CLIENT_CONFIG_FILE": str(lab.clouds_file)}
    started = processes.start(lab.state, PORTAL, command, environment, lab.log_of(PORTAL))
    try:
        wait_for("the portal", lambda: answers(f"{url}/readyz"), [started])
    except BaseException:
        processes.end(lab.state, PORTAL)
        raise
    write_json(_file(lab.state), record)
    return url


def look(state: Path) -> ServiceStatus | None:
    """Return the portal's row in the status of a lab; None for a lab that was started without one."""
    if remembered(state) is None or not (url := _served(state)):
        return None
    process = _running(state)
    if process is None:
        return ServiceStatus(PORTAL, url, None, None, DOWN)
    memory = memory_mib(PORTAL, processes.find(state))
    return ServiceStatus(PORTAL, url, process.pid, memory, UP if answers(f"{url}/readyz") else SILENT)


def url_of(port: int) -> str:
    return f"http://{ADDRESS}:{port}"


def _running(state: Path) -> processes.LabProcess | None:
    return processes.leaders(processes.find(state)).get(PORTAL)


def _file(state: Path) -> Path:
    return state / "portal.json"


def _record(state: Path) -> dict[str, str]:
    """Return what the last portal served, and its address; empty when there was none."""
    try:
        record: dict[str, str] = json.loads(_file(state).read_text(encoding="utf-8"))
        return record
    except FileNotFoundError:
        return {}
    except ValueError:
        raise LabError(f"{_file(state)} is damaged; delete it") from None


def _served(state: Path) -> str:
    return _record(state).get("url", "")
