"""Parses what the service of scale sets sends: sessions, messages, jobs. Unknown fields and kinds are left out.
Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpuyard.runners import fields
from gpuyard.runners.github.answers import RegisteredRunner, RunnerSet, Statistics
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.jobs import JobUpdate
from gpuyard.runners.records import JobState

JOB_MESSAGES = "RunnerScaleSetJobMessages"
MOST_NOTICES = 1000
"""Notices that are read of a message. GitHub sends 50 at most."""
CONCLUSIONS = {"succeeded": "success", "failed": "failure", "canceled": "cancelled"}
"""Results of scale sets -> the conclusion that REST and webhooks have for the same."""
BRANCH = "refs/heads/"


class NoticeKind(StrEnum):
    """The kinds of notice about a job in a message."""

    AVAILABLE = "JobAvailable"
    """Somebody must acquire it."""
    ASSIGNED = "JobAssigned"
    """The job is ours: it waits for a runner of the set."""
    STARTED = "JobStarted"
    COMPLETED = "JobCompleted"


STATES = {
    NoticeKind.ASSIGNED: JobState.QUEUED,
    NoticeKind.STARTED: JobState.RUNNING,
    NoticeKind.COMPLETED: JobState.COMPLETED,
}


@dataclass(frozen=True)
class JobNotice:
    """One part of a message, about one job."""

    kind: NoticeKind
    request: int
    """GitHub's ``runnerRequestId``."""
    repository: str
    workflow_ref: str = ""
    """``owner/name/.github/workflows/file.yml@refs/heads/main``."""
    name: str = ""
    run_id: int = 0
    event: str = ""
    labels: tuple[str, ...] = ()
    runner: str = ""
    result: str = ""
    """The result of a finished job: ``succeeded``, ``failed``, ``canceled`` ..."""
    queued: datetime | None = None
    assigned: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None


@dataclass(frozen=True)
class SetMessage:
    id: int
    statistics: Statistics
    notices: tuple[JobNotice, ...] = ()

    @property
    def available(self) -> tuple[int, ...]:
        """The requests that are to be acquired."""
        return tuple(notice.request for notice in self.notices if notice.kind is NoticeKind.AVAILABLE)


@dataclass(frozen=True)
class SessionFacts:
    id: str
    queue_url: str = field(repr=False)
    queue_token: str = field(repr=False)
    statistics: Statistics


def job_updates(
    message: SetMessage, runner_set: RunnerSet, scope: str, url: str = "https://github.com"
) -> list[JobUpdate]:
    """Return a message's updates of jobs. Jobs that are only available give none: another set may get them. One that no
    runner took in time is over (``canceled``), and comes again as another request. `url`: of GitHub."""
    host = url.partition("://")[2]
    place = f"{host}/set/{scope.removeprefix(host + '/')}/{runner_set.id}"  # its numbers are of one organisation
    return [
        JobUpdate(
            id=f"{place}/{notice.request}",
            repository=notice.repository,
            scope=scope,
            state=STATES[notice.kind],
            labels=(runner_set.name,),
            scale_set=runner_set.name,
            queued=notice.queued,
            run_id=notice.run_id,
            workflow=notice.workflow_ref.partition("@")[0].rpartition("/")[2],
            name=notice.name,
            event=notice.event,
            head_branch=notice.workflow_ref.partition("@" + BRANCH)[2],
            html_url=f"{url}/{notice.repository}/actions/runs/{notice.run_id}" if notice.run_id else "",
            runner=notice.runner,
            conclusion=CONCLUSIONS.get(notice.result.lower(), notice.result.lower()),
            started=notice.started,
            completed=notice.finished,
        )
        for notice in message.notices
        if notice.kind in STATES
    ]


def read_message(body: bytes) -> SetMessage:
    """Parse a message. Raises GitHubError when it cannot be read, so that it is not acknowledged. Notices of a kind or
    form that is not known here are left out: their effect is in the statistics."""
    document = _document(body)
    number = fields.whole(document, "messageId")
    if not number:
        raise GitHubError("a message of a scale set has no number")
    inner, notices = document.get("body"), ()
    if fields.text(document, "messageType", 100) == JOB_MESSAGES and isinstance(inner, str) and inner:
        try:
            rows = fields.rows(fields.document(inner.encode()), most=MOST_NOTICES)
        except ValueError:
            raise GitHubError(f"message {number} of a scale set cannot be read") from None
        return SetMessage(number, statistics(document), tuple(notice for notice in map(_notice, rows) if notice))
    return SetMessage(number, statistics(document), notices)


def _notice(row: Mapping[str, Any]) -> JobNotice | None:
    kind, request = row.get("messageType"), fields.whole(row, "runnerRequestId")
    repository = fields.text(row, "repositoryName", 200)
    if "/" not in repository:
        repository = f"{fields.text(row, 'ownerName', 200)}/{repository}"
    repository = fields.repository({"name": repository}, "name")
    if kind not in set(NoticeKind) or not request or not repository:
        return None
    return JobNotice(
        kind=NoticeKind(kind),
        request=request,
        repository=repository,
        workflow_ref=fields.text(row, "jobWorkflowRef", 500),
        name=fields.text(row, "jobDisplayName", 256),
        run_id=fields.whole(row, "workflowRunId"),
        event=fields.text(row, "eventName", 64),
        labels=fields.texts(row, "requestLabels"),
        runner=fields.text(row, "runnerName", 256),
        result=fields.text(row, "result", 40),
        queued=fields.moment(row, "queueTime"),
        assigned=fields.moment(row, "scaleSetAssignTime"),
        started=fields.moment(row, "runnerAssignTime"),
        finished=fields.moment(row, "finishTime"),
    )


def read_session(body: bytes) -> SessionFacts:
    """Parse the answer to a new or renewed session. Raises GitHubError."""
    document = _document(body)
    session = SessionFacts(
        fields.text(document, "sessionId", 100),
        fields.text(document, "messageQueueUrl", 4000),
        fields.text(document, "messageQueueAccessToken", 16_000),
        statistics(document),
    )
    if not (session.id and session.queue_url and session.queue_token):
        raise GitHubError("GitHub opened a session of a scale set and did not say where its messages are")
    return session


def statistics(data: Mapping[str, Any]) -> Statistics:
    counts = fields.row(data, "statistics")
    return Statistics(
        available=fields.whole(counts, "totalAvailableJobs"),
        acquired=fields.whole(counts, "totalAcquiredJobs"),
        assigned=fields.whole(counts, "totalAssignedJobs"),
        running=fields.whole(counts, "totalRunningJobs"),
        registered=fields.whole(counts, "totalRegisteredRunners"),
        busy=fields.whole(counts, "totalBusyRunners"),
        idle=fields.whole(counts, "totalIdleRunners"),
    )


def runner_set(row: Mapping[str, Any]) -> RunnerSet:
    """Parse a scale set. Raises GitHubError."""
    id, name = fields.whole(row, "id"), fields.text(row, "name", 256)
    if not id or not name:
        raise GitHubError("GitHub described a scale set without number or name")
    return RunnerSet(id, name, fields.whole(row, "runnerGroupId"), fields.texts(row, "labels"), statistics(row))


def runner_of_set(row: Mapping[str, Any]) -> RegisteredRunner:
    return RegisteredRunner(
        fields.whole(row, "id"), fields.text(row, "name", 256), scale_set=fields.whole(row, "runnerScaleSetId")
    )


def expiry(token: str) -> datetime | None:
    """Return when a JWT ends, as it says itself; None when it does not. The signature is not checked."""
    middle = token.split(".", 2)[1:2]
    try:
        claims = fields.row(fields.document(base64.urlsafe_b64decode(middle[0] + "===" if middle else "")))
        return datetime.fromtimestamp(fields.whole(claims, "exp"), UTC) if "exp" in claims else None
    except (ValueError, binascii.Error, OverflowError, OSError):
        return None


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        return fields.row(fields.document(body))
    except ValueError:
        raise GitHubError("the service of scale sets answered with what is no JSON") from None
