"""Starts the GitHub stand-in beside a lab, where the lab's site has runners that ask there, and pushes jobs to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.site.load import LoadedSite
from gpuyard.site.runner_rules import Enrolment
from gpuyard_lab import processes
from gpuyard_lab.catalog import GITHUB
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import write_json
from gpuyard_lab.http import Unreachable, call
from gpuyard_lab.ports import require_free_port
from gpuyard_lab.settings import PORT_BASE_VARIABLE, Lab, remembered
from gpuyard_lab.status import DOWN, SILENT, UP, ServiceStatus, memory_mib

HOOK = "/v1/github/webhook"
"""Path of the portal's webhook."""
LOOK_S = 0.2
REPOSITORY = "demo/science"
CIRUN = """\
runners:
  - name: gpu
    cloud: openstack
    instance_type: gpu_medium
    machine_image: tiny
    labels: [cirun-gpu]
"""
"""`.cirun.yml` of each repository of the stand-in."""


@dataclass(frozen=True)
class JobSeen:
    """The state of a job at the stand-in."""

    status: str
    conclusion: str
    runner: str
    """Name; empty before it runs."""


def start_github(lab: Lab, loaded: LoadedSite, portal_url: str) -> bool:
    """Start the stand-in where the site has runners that ask it. Returns whether it has. One that runs as it should is
    left alone. It comes up beside whatever is done next. Raises LabError and LabSettingsError."""
    enrolments = asking_here(lab, loaded)
    if not enrolments:
        processes.end(lab.state, GITHUB)
        return False
    desired_world = world(enrolments, portal_url)
    running = GITHUB in processes.leaders(processes.find(lab.state))
    if running and _remembered_world(lab) == desired_world:
        return True
    processes.end(lab.state, GITHUB)
    remedy = f"the lab's GitHub needs it: choose others with --port-base or {PORT_BASE_VARIABLE}"
    require_free_port(lab.github_port, GITHUB, remedy)
    write_json(_file(lab), desired_world)
    command = [sys.executable, "-P", "-m", "gpuyard_lab.github", "--port", str(lab.github_port)]
    command += ["--world", str(_file(lab)), "--guests", str(lab.guests)]
    processes.start(lab.state, GITHUB, command, processes.clean_environment(), lab.log_of(GITHUB))
    return True


def asking_here(lab: Lab, loaded: LoadedSite) -> list[Enrolment]:
    runners = loaded.site.runners
    return [enrolment for enrolment in runners.enrolments if enrolment.url == lab.github_url] if runners else []


def world(enrolments: Sequence[Enrolment], portal_url: str) -> dict[str, Any]:
    """Return the content of that GitHub: the tokens and webhooks that the enrolments name, and a repository for
    each."""
    content: dict[str, Any] = {"tokens": {}, "accounts": {}, "repositories": {}, "hooks": []}
    for enrolment in enrolments:
        if enrolment.token_file is None:
            raise LabError(f"enrolment {enrolment.name}: the lab's GitHub knows no apps; name a token_file")
        content["tokens"][_line_of(enrolment.token_file)] = "gpuyard"
        content["accounts"][enrolment.owner] = {"organization": enrolment.organization is not None}
        content["repositories"][enrolment.repository or f"{enrolment.owner}/science"] = {"files": {".cirun.yml": CIRUN}}
        if enrolment.webhook_secrets_file:
            scope = enrolment.organization or enrolment.repository
            secret = _line_of(enrolment.webhook_secrets_file)
            content["hooks"].append({"scope": scope, "url": portal_url + HOOK, "secret": secret})
    return content


def _line_of(path: str) -> str:
    """The first word of a file of secrets."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None
    if not lines:
        raise LabError(f"{path} is empty, and must hold a secret")
    return lines[0]


def _file(lab: Lab) -> Path:
    return lab.state / "github.json"


def _remembered_world(lab: Lab) -> Any:
    try:
        return json.loads(_file(lab).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def look_at_github(state: Path) -> ServiceStatus | None:
    """Return the stand-in's row in the status of a lab; None for a lab that has none."""
    lab = remembered(state)
    if lab is None or not _file(lab).exists():
        return None
    lab_processes = processes.find(state)
    process = processes.leaders(lab_processes).get(GITHUB)
    if process is None:
        return ServiceStatus(GITHUB, lab.github_url, None, None, DOWN)
    try:
        call("GET", f"{lab.github_url}/_fake/journal", timeout_s=5.0)
        answering = UP
    except LabError:
        answering = SILENT
    return ServiceStatus(GITHUB, lab.github_url, process.pid, memory_mib(GITHUB, lab_processes), answering)


def push_job(lab: Lab, repository: str, label: str, seconds: float) -> int:
    """Start a run with one job, and return the job's id. Raises LabError."""
    body = {"repository": repository, "jobs": [{"labels": [label], "seconds": seconds, "name": "train"}]}
    try:
        rows = call("GET", f"{lab.github_url}/_fake/state").body["repositories"]
        repositories = [f"{row['owner']}/{row['name']}" for row in rows]
        if repository.lower() not in map(str.lower, repositories):  # as GitHub reads names
            raise LabError(f"the lab's GitHub has no repository {repository!r}; it has {', '.join(repositories)}")
        answer = call("POST", f"{lab.github_url}/_fake/jobs", body).body
    except Unreachable:
        raise LabError(f"no GitHub runs beside the lab in {lab.state}; start it with 'gpuyard lab up'") from None
    return int(answer["jobs"][0])


def job_seen(lab: Lab, id: int) -> JobSeen:
    job = call("GET", f"{lab.github_url}/_fake/jobs/{id}").body["json"]
    return JobSeen(job["status"], job["conclusion"] or "", job["runner_name"] or "")


def follow(lab: Lab, id: int, patience_s: float) -> Iterator[JobSeen]:
    """Yield each change of a job, until it is over. Raises LabError when it does not end within `patience_s`
    seconds."""
    last, deadline = None, time.monotonic() + patience_s
    while last is None or last.status != "completed":
        job = job_seen(lab, id)
        if time.monotonic() > deadline:
            raise LabError(
                f"job {id} is still {job.status} after {patience_s:.0f} s; why is on the portal's page of runners, in "
                f"the answer of 'gpuyard runner why' with its label, or in {lab.log_of('portal')}"
            )
        if job != last:
            yield job
        last = job
        time.sleep(LOOK_S)
