"""A portal of a site with runners, for tests and measurements."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from gpuyard.portal.app import create_app
from gpuyard.portal.settings import PortalSettings
from gpuyard.portal.sources import RunnerSources
from gpuyard.portal.store import PortalStore
from gpuyard.runners.board import RunnerYard
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import SiteRunners
from tests.support.ledgers import Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal
from tests.support.yards import GPUS, driver, filled

SECRET, OLD_SECRET = "correct horse", "battery staple"
HOOK = "/v1/github/webhook"


@dataclass
class RunnerPortal(BookingPortal):
    runners: RunnerStore
    yard: RunnerYard


def site_runners(folder: Path, public: bool = False, organizations: Sequence[str] = ("acme",)) -> SiteRunners:
    """Organisations whose webhooks have SECRET, or still OLD_SECRET."""
    secrets = folder / "webhook-secrets"
    secrets.write_text(f"# new one first\n{SECRET}\n{OLD_SECRET}\n")
    enrolments = [
        {"organization": name, "token_file": "/nowhere", "webhook_secrets_file": str(secrets)} for name in organizations
    ]
    return SiteRunners.model_validate({"project": "gpuyard-runners", "enrolments": enrolments, "public": public})


def runner_portal(
    folder: Path,
    *,
    url: str = "",
    public: bool = False,
    organizations: Sequence[str] = ("acme",),
    settings: PortalSettings = ROOMY,
    kept: Callable[[], None] = lambda: None,
) -> RunnerPortal:
    """Its database is in the folder, or at the URL."""
    clock = Clock()
    ledger = open_ledger(url or folder, None, clock)
    store, runners, yard = PortalStore(ledger.database), RunnerStore(ledger.database), RunnerYard()
    who = people()
    sources = RunnerSources(site_runners(folder, public, organizations), runners, yard, kept)
    app = create_app(
        filled(), driver(), "test-site", GPUS, ["testserver", "127.0.0.1"], clock,
        ledger=ledger, store=store, people=who, settings=settings, runners=sources,
    )  # fmt: skip
    return RunnerPortal(app, ledger, store, who, clock, runners, yard)


def signed(body: bytes, secret: str = SECRET, event: str = "workflow_job", guid: str = "") -> dict[str, str]:
    """Headers of a webhook as GitHub sends it."""
    return {
        "Content-Type": "application/json",
        "X-GitHub-Delivery": guid or str(uuid4()),
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}",
    }


def job_hook(number: int = 1, repository: str = "acme/solver", padding: int = 0) -> bytes:
    """The body of a `workflow_job`; GitHub's are some 30 KB, most of it about the repository."""
    job = {"id": number, "run_id": 7, "labels": ["gpu"], "status": "queued", "name": "test"}
    told = {"action": "queued", "workflow_job": job, "repository": {"full_name": repository}, "padding": "x" * padding}
    return json.dumps(told).encode()
