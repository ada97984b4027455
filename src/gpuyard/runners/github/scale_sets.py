"""Runner scale sets: jobs by long poll, without an inbound port. The protocol is that of github.com/actions/scaleset.

Every method raises GitHubError.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuyard.runners.github.answers import JitRunner, RegisteredRunner, RunnerSet, Statistics
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.jobs import JobUpdate


class NoticeKind(StrEnum):
    """What a message may say of a job."""

    AVAILABLE = "JobAvailable"
    """Somebody must acquire it."""
    ASSIGNED = "JobAssigned"
    """It is ours: it waits for a runner of the set."""
    STARTED = "JobStarted"
    COMPLETED = "JobCompleted"


@dataclass(frozen=True)
class JobNotice:
    """A part of a message: of one job."""

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
    """Of one that is over: ``succeeded``, ``failed``, ``canceled`` ..."""
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
        """Requests that are to be acquired."""
        return tuple(one.request for one in self.notices if one.kind is NoticeKind.AVAILABLE)


def job_updates(message: SetMessage, runner_set: RunnerSet, scope: str, host: str = "github.com") -> list[JobUpdate]:
    """What a message says of jobs. Such that are only available say nothing: another set may get them."""
    raise NotImplementedError


class ScaleSetClient:
    """Scale sets of one enrolment."""

    def __init__(self, github: GitHubClient) -> None:
        self._github = github

    def ensure(self, name: str, group: str, labels: tuple[str, ...] = ()) -> RunnerSet:
        """The scale set of a name in a runner group (by name), made or with its labels mended where that is needed.
        Without `labels` its label is its name."""
        raise NotImplementedError

    def set_of(self, id: int) -> RunnerSet:
        """A scale set with its statistics now."""
        raise NotImplementedError

    def delete(self, id: int) -> None:
        """Nothing when it is gone already."""
        raise NotImplementedError

    def open(self, id: int, owner: str) -> SetSession:
        """A session, of which a scale set has one at a time: CONFLICT while another one is open. `owner` names us."""
        raise NotImplementedError

    def jit(self, id: int, name: str) -> JitRunner:
        """Registers a runner of a scale set; as `GitHubClient.jit`."""
        raise NotImplementedError

    def runner_named(self, name: str) -> RegisteredRunner | None:
        """`online` and `busy` are not told here."""
        raise NotImplementedError

    def delete_runner(self, id: int) -> bool:
        """False when it was gone already. CONFLICT while it has a job."""
        raise NotImplementedError


class SetSession:
    """What one listens with to one scale set. One thread polls; another may `stop` it."""

    statistics: Statistics
    """As of when it was opened or refreshed."""

    def poll(self, last_message: int, capacity: int) -> SetMessage | None:
        """The next message after one; None when there was none in about 50 s. `capacity`: runners that may be had now.
        Raises PollEndedError after `stop`."""
        raise NotImplementedError

    def acknowledge(self, message: int) -> None:
        """GitHub forgets it; do so only when what it means is written down."""
        raise NotImplementedError

    def acquire(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        """Takes jobs that are available; those that we got."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends a poll that is under way, from another thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the session at GitHub, so that another one may be opened at once."""
        raise NotImplementedError
