"""What GitHub says of a job, from a webhook, a poll or a scale set, and how it becomes the `Job`. Pure.

States only go forward, whatever comes twice, late or in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuyard.runners.records import Job, JobState


@dataclass(frozen=True)
class JobUpdate:
    """What one message says of one job. What is empty or None was not said."""

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
    conclusion: str = ""
    started: datetime | None = None
    completed: datetime | None = None


def merge(job: Job | None, update: JobUpdate, now: datetime) -> Job:
    """The job after an update; the very same object when it says nothing new."""
    raise NotImplementedError
