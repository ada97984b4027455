"""A portal of a site with runners, for tests and measurements."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from uuid import uuid4

from gpuyard.dashboard.sources import Sources
from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.overview import EnrolmentStatus, RunnerOverview, RunnerOverviewCache
from gpuyard.runners.records import (
    Cause,
    Job,
    JobState,
    Runner,
    RunnerEvent,
    RunnerState,
    ScaleSetState,
    ServerChoice,
    ServerSpec,
    Trust,
)
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.view import QueuePlace
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.server.app import create_app
from gpuyard.site.runner_rules import SiteRunners
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.store import HistoryStore
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import HOUR, NOON, Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal

SECRET, OLD_SECRET = "correct horse", "battery staple"
HOOK = "/v1/github/webhook"
MINUTE = timedelta(minutes=1)


@dataclass
class RunnerPortal(BookingPortal):
    runners: RunnerStore
    overview: RunnerOverviewCache


def site_runners(
    folder: Path, public: bool = False, organizations: Sequence[str] = ("acme",), **rules: object
) -> SiteRunners:
    """Organisations whose webhooks have SECRET, or still OLD_SECRET."""
    secrets = folder / "webhook-secrets"
    secrets.write_text(f"# new one first\n{SECRET}\n{OLD_SECRET}\n")
    enrolments = [
        {"organization": name, "token_file": "/nowhere", "webhook_secrets_file": str(secrets)} for name in organizations
    ]
    stated = {"project": "gpuyard-runners", "enrolments": enrolments, "public": public, **rules}
    return SiteRunners.model_validate(stated)


def runner_portal(
    folder: Path,
    *,
    url: str = "",
    public: bool = False,
    organizations: Sequence[str] = ("acme",),
    settings: PortalSettings = ROOMY,
    wake: Callable[[], None] = lambda: None,
    **rules: object,
) -> RunnerPortal:
    """Its database is in the folder, or at the URL. `rules`: more of the site's `runners`."""
    clock = Clock()
    ledger = open_ledger(url or folder, None, clock)
    store, runners, overview = PortalStore(ledger.database), RunnerStore(ledger.database), RunnerOverviewCache()
    who = people()
    sources = RunnerSources(site_runners(folder, public, organizations, **rules), runners, overview, wake)
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=GPUS,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=settings,
            runners=sources,
            history=History(HistoryStore(ledger.database), "UTC"),
        ),
        ["testserver", "127.0.0.1"],
    )
    return RunnerPortal(app, ledger, store, who, clock, runners, overview)


def signed(body: bytes, secret: str = SECRET, event: str = "workflow_job", guid: str = "") -> dict[str, str]:
    """Headers of a webhook as GitHub sends it."""
    return {
        "Content-Type": "application/json",
        "X-GitHub-Delivery": guid or str(uuid4()),
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}",
    }


def job_hook(number: int = 1, repository: str = "acme/solver", padding: int = 0) -> bytes:
    """The body of a `workflow_job`; GitHub's are some 30 KB, most of it addresses about the repository."""
    numbers = Random(number)
    addresses = [
        f"https://api.github.com/repos/{repository}/{numbers.randbytes(12).hex()}" for _ in range(padding // 70)
    ]
    job = {"id": number, "run_id": 7, "labels": ["gpu"], "status": "queued", "name": "test"}
    payload = {"action": "queued", "workflow_job": job, "repository": {"full_name": repository}, "padding": addresses}
    return json.dumps(payload).encode()


# What a busy site looks like, in the hands of people who try their luck.

EVIL = "<script>alert('no')</script><img src=x onerror=alert(1)>"
LOG = (
    f"Running job: test\n\x1b[31m{EVIL}\x1b[0m\n\u202egnp.exe\n"
    + "x" * 500
    + "\nJob test completed with result: Failed\n"
)
CHOICE = ServerChoice("v100", "gpu.v100", "ubuntu-24.04-cuda")
WANTED = ServerSpec("gpuyard-v100", (CHOICE,), timedelta(hours=6))
WAITING = Job(
    "github.com/101", "acme/solver", ("gpuyard-v100",), JobState.QUEUED, NOON - 20 * MINUTE, "acme", "gpuyard-v100",
    7, 1, "CI", "test (cuda 12, py3.12)", "push", "ada", Trust.REPOSITORY, "", "main", "0" * 40,
    "https://github.com/acme/solver/actions/runs/7/job/101", WANTED,
)  # fmt: skip
RUNNING = replace(
    WAITING, id="github.com/set/7/102", state=JobState.RUNNING, name="train", queued=NOON - 95 * MINUTE,
    started=NOON - 93 * MINUTE, runner="gpuyard-v100-c3k8x2m9",
)  # fmt: skip
NASTY_JOB = replace(
    WAITING, id="github.com/103", repository="acme/x", name=EVIL, workflow="\u202eevil", labels=(EVIL, "a" * 250),
    html_url="javascript:alert(1)", actor=EVIL, head_branch=EVIL, queued=NOON - 5 * MINUTE,
)  # fmt: skip
OVER = [
    replace(
        WAITING, id=f"github.com/{number}", state=JobState.COMPLETED, conclusion=conclusion, name=f"test {number}",
        queued=NOON - number * MINUTE, started=NOON - (number - 2) * MINUTE, completed=NOON - (number - 30) * MINUTE,
        runner=f"gpuyard-v100-{number}",
    )
    for number, conclusion in ((200, "success"), (220, "failure"), (240, "cancelled"))
]  # fmt: skip
REFUSED = replace(
    WAITING, id="github.com/104", state=JobState.REFUSED, name="from a fork", trust=Trust.FORK, queued=NOON - HOUR,
    reason="pull requests from forks get no runner here: acme/solver has 'forks: never'",
)  # fmt: skip
BUSY = Runner(
    RUNNING.runner, RunnerState.BUSY, "acme", "", ("gpuyard-v100",), WANTED, CHOICE, NOON - 95 * MINUTE,
    NOON - 93 * MINUTE, "acme/solver", RUNNING.id, RUNNING.id, "gpuyard-v100", busy=NOON - 93 * MINUTE,
    until=NOON + 267 * MINUTE, gpus=("gpu-1/0000:a3:00.0",),
)  # fmt: skip
IDLE = replace(
    BUSY, name="gpuyard-v100-w4rm", state=RunnerState.IDLE, for_repository="", for_job="", job="", busy=None,
    until=None, created=NOON - 12 * MINUTE, gpus=("gpu-1/0000:c3:00.0",),
)  # fmt: skip
COMING = replace(
    IDLE, name="gpuyard-v100-b00t", state=RunnerState.CREATING, created=NOON - MINUTE, for_job=WAITING.id,
    for_repository="acme/solver", gpus=(),
)  # fmt: skip
ENDED = [
    replace(
        BUSY, name=name, state=RunnerState.FAILED if cause is Cause.GPU_CHECK else RunnerState.GONE, cause=cause,
        reason=reason, ended=NOON - 3 * HOUR, created=NOON - 5 * HOUR, for_job=job, job=job,
    )
    for name, cause, reason, job in (
        ("gpuyard-v100-200", Cause.FINISHED, "", "github.com/200"),
        ("gpuyard-v100-bad", Cause.GPU_CHECK, f"nvidia-smi: {EVIL}", RUNNING.id),
    )
]  # fmt: skip
BOARD = RunnerOverview(
    NOON,
    (WAITING, RUNNING, NASTY_JOB),
    (BUSY, IDLE, COMING),
    (
        QueuePlace(WAITING.id, "v100", 0, "its runner gpuyard-v100-b00t boots"),
        QueuePlace(NASTY_JOB.id, "v100", 1, "all 6 GPUs of v100 are taken", NOON + 267 * MINUTE),
    ),
    (ScaleSetState("acme", "gpuyard-v100", 7, 12, 2, NOON, "GitHub: 503", 3),),
    (EnrolmentStatus("acme", CallCount(120, 80, 3, 1, 5000, 4880)),),
)


def fill(portal: RunnerPortal) -> None:
    """The database, and the board that the loop would publish."""
    runners = portal.runners
    for name in ("acme/solver", "acme/x"):
        runners.put_visibility("acme", name, False, NOON)
    runners.put([WAITING, RUNNING, NASTY_JOB, REFUSED, *OVER], [BUSY, IDLE, COMING, *ENDED])
    runners.put(
        events=[
            RunnerEvent(RUNNING.queued, "", RUNNING.id, "queued at GitHub"),
            RunnerEvent(NOON - 94 * MINUTE, BUSY.name, RUNNING.id, f"server made on {EVIL}"),
            RunnerEvent(NOON - 93 * MINUTE, BUSY.name, "", "online at GitHub"),
            RunnerEvent(NOON - 93 * MINUTE, BUSY.name, RUNNING.id, "GitHub gave it the job"),
        ]
    )
    runners.put_log(BUSY.name, LOG, NOON)
    for state in BOARD.sets:
        runners.put_message(state)
    portal.overview.publish(BOARD)
