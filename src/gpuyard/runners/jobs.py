"""Turns GitHub's reports of a job, from a webhook, a poll or a scale set, into the `Job`. Pure.

States only go forward. Of every fact the greater value stays, and an empty one is the least: so the same facts make the
same job, in whatever order and however often they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuyard.runners import fields
from gpuyard.runners.records import Job, JobState

ORDER = (JobState.HELD, JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED)
"""States that GitHub knows. The others are ours, and GitHub cannot undo them."""
ACTIONS = {"completed": JobState.COMPLETED, "in_progress": JobState.RUNNING, "waiting": JobState.HELD}
"""Actions of a webhook that say more than the status that comes with them, which may be an older one."""
STATUSES = {
    "queued": JobState.QUEUED,
    "in_progress": JobState.RUNNING,
    "completed": JobState.COMPLETED,
    "waiting": JobState.HELD,
    "requested": JobState.HELD,
    "pending": JobState.HELD,
}
UNKNOWN = "unknown"
"""The conclusion of a job that is over when GitHub has not said how it ended."""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class JobUpdate:
    """One message's report of one job. Fields that are empty or None are unknown."""

    id: str
    repository: str
    """``owner/name``."""
    scope: str
    state: JobState
    """HELD, QUEUED, RUNNING or COMPLETED."""
    labels: tuple[str, ...] = ()
    scale_set: str = ""
    queued: datetime | None = None
    run_id: int = 0
    run_attempt: int = 0
    workflow: str = ""
    name: str = ""
    event: str = ""
    actor: str = ""
    head_branch: str = ""
    head_sha: str = ""
    html_url: str = ""
    runner: str = ""
    """Name of the runner that runs it, or ran it."""
    conclusion: str = ""
    started: datetime | None = None
    completed: datetime | None = None
    private: bool | None = None
    """Whether the repository is private. That is no fact of the job: RunnerStore keeps it."""


def merge(job: Job | None, update: JobUpdate, now: datetime) -> Job:
    """Return the job after an update; the very same object when the update brings nothing new, and when it is of
    another repository.

    A job that gpuyard refused or gave up stays so, but its runner is recorded all the same.
    """
    if job is None:
        job = Job(update.id, update.repository, (), update.state, now, update.scope, run_attempt=1, changed=now)
    elif job.id != update.id or job.repository.lower() != update.repository.lower():
        return job
    state = max(job.state, update.state, key=ORDER.index) if job.state in ORDER else job.state
    started, runner = max((job.started, job.runner), _runner(update), key=_latest)
    over = update.state is JobState.COMPLETED
    new = replace(
        job,
        state=state,
        queued=min(job.queued, update.queued or job.queued),
        started=started,
        runner=runner,
        completed=_later(job.completed, update.completed if over else None),
        conclusion=max(job.conclusion, update.conclusion if over else "", key=_told),
        labels=max(job.labels, update.labels),
        scale_set=max(job.scale_set, update.scale_set),
        run_id=max(job.run_id, update.run_id),
        run_attempt=max(job.run_attempt, update.run_attempt),
        workflow=max(job.workflow, update.workflow),
        name=max(job.name, update.name),
        event=max(job.event, update.event),
        actor=max(job.actor, update.actor),
        head_branch=max(job.head_branch, update.head_branch),
        head_sha=max(job.head_sha, update.head_sha),
        html_url=max(job.html_url, update.html_url),
    )
    if new == job:
        return job
    moved = state is not job.state
    return replace(new, changed=now, reason="" if moved else job.reason)


def _runner(update: JobUpdate) -> tuple[datetime | None, str]:
    """Since when who runs it. Before it runs GitHub names the time when it was queued; of a job that was cancelled in
    the queue, too, and no runner."""
    if update.state is JobState.RUNNING or (update.state is JobState.COMPLETED and update.runner):
        return update.started, update.runner
    return None, ""


def _latest(assignment: tuple[datetime | None, str]) -> tuple[bool, datetime, str]:
    """A job that its runner did not take within a minute gets another one: the later is the truth."""
    started, runner = assignment
    return bool(runner), started or NEVER, runner


def _told(conclusion: str) -> tuple[bool, str]:
    return conclusion not in ("", UNKNOWN), conclusion


def _later(first: datetime | None, second: datetime | None) -> datetime | None:
    return max(first or NEVER, second or NEVER) if first or second else None


def state_of(action: str, status: str) -> JobState | None:
    """Return the state that GitHub's words mean; None when they are unknown. `action` is empty for an answer to a
    question, which only has a status."""
    return ACTIONS.get(action) or STATUSES.get(status)


def workflow_job(job: Mapping[str, Any], repository: str, scope: str, host: str, action: str = "") -> JobUpdate | None:
    """Read a workflow job, as REST and webhooks have it; None when it has no number or no state that is known here."""
    state = state_of(action, fields.text(job, "status", 40))
    id = fields.whole(job, "id")
    if state is None or not id:
        return None
    return JobUpdate(
        id=f"{host}/{id}",
        repository=repository,
        scope=scope,
        state=state,
        labels=fields.texts(job, "labels"),
        queued=fields.moment(job, "created_at"),
        run_id=fields.whole(job, "run_id"),
        run_attempt=fields.whole(job, "run_attempt"),
        workflow=fields.text(job, "workflow_name", 256),
        name=fields.text(job, "name", 256),
        head_branch=fields.text(job, "head_branch", 256),
        head_sha=fields.text(job, "head_sha", 64),
        html_url=fields.text(job, "html_url", 500),
        runner=fields.text(job, "runner_name", 256),
        conclusion=fields.text(job, "conclusion", 40),
        started=fields.moment(job, "started_at"),
        completed=fields.moment(job, "completed_at"),
    )
