"""Types of GitHub's answers: repositories, runs, runners, webhooks, scale sets. Plain data; client.py and messages.py
fill them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Repository:
    name: str
    """``owner/name``."""
    default_branch: str = "main"
    private: bool = False
    archived: bool = False
    pushed: datetime | None = None
    """When somebody last pushed to it."""


@dataclass(frozen=True)
class JitRunner:
    """A registration made for one runner."""

    id: int
    name: str
    encoded: str = field(repr=False)
    """The argument of ``run.sh --jitconfig``. Whoever has it can be this runner, once."""


@dataclass(frozen=True)
class RegisteredRunner:
    """A runner as GitHub has it."""

    id: int
    name: str
    online: bool = False
    busy: bool = False
    labels: tuple[str, ...] = ()
    scale_set: int = 0
    """Id of its scale set; 0 when it has none, or when GitHub was not asked."""


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository."""

    text: str | None
    """None when there is no such file, and when it is the `same` as before."""
    etag: str = ""
    same: bool = False
    """It has not changed since the ETag that was asked with. Such a question does not count against the limit."""


@dataclass(frozen=True)
class WorkflowRun:
    """The facts of a run that a `workflow_job` does not have."""

    id: int
    attempt: int
    event: str
    actor: str
    """Login of the person who started this attempt."""
    status: str
    head_repository: str
    """``owner/name`` where the code is from; empty when that repository is gone."""
    head_branch: str
    head_sha: str


@dataclass(frozen=True)
class PullRequest:
    number: int
    author: str
    association: str
    """GitHub's word for its author: ``OWNER``, ``MEMBER``, ``COLLABORATOR``, ``CONTRIBUTOR``, ``NONE`` ..."""
    head_repository: str
    """Empty when the fork is gone."""
    head_sha: str
    fork: bool = True
    """Whether its code is another repository's; true where that is not known."""


@dataclass(frozen=True)
class Hook:
    """A webhook that may have lost deliveries."""

    path: str
    """API path of its deliveries: ``/app/hook/deliveries``, ``/orgs/o/hooks/1/deliveries``."""
    url: str = ""
    """The address it delivers to; empty for an app's."""


@dataclass(frozen=True)
class HookAttempt:
    """One try of GitHub's to deliver a webhook."""

    id: int
    guid: str
    """The same in all tries: `HookDelivery.id`."""
    event: str
    delivered: datetime
    ok: bool
    """Its receiver answered 2xx."""
    redelivery: bool = False
    action: str = ""
    """The action of a workflow job: ``queued``, ``in_progress`` ..."""


@dataclass(frozen=True)
class HookAttempts:
    """One page of what a webhook has sent, the newest first."""

    attempts: tuple[HookAttempt, ...]
    cursor: str = ""
    """The start of the next page; empty after the last one."""


@dataclass(frozen=True)
class RepositoryPage:
    """One page of an enrolment's repositories, without archived ones and those that are not enrolled."""

    repositories: tuple[Repository, ...]
    more: bool = False
    """Whether there are further pages."""
    oldest_push: datetime | None = None
    """The oldest push of the whole page, with those that are left out."""


@dataclass(frozen=True)
class RegistrationToken:
    token: str = field(repr=False)
    expires: datetime


@dataclass(frozen=True)
class Statistics:
    """GitHub's figures for a scale set. How many servers it needs follows from `assigned` alone."""

    available: int = 0
    acquired: int = 0
    assigned: int = 0
    """Jobs that GitHub has given the set, those that run included."""
    running: int = 0
    registered: int = 0
    busy: int = 0
    idle: int = 0


@dataclass(frozen=True)
class RunnerSet:
    """A scale set as GitHub has it."""

    id: int
    name: str
    group: int
    labels: tuple[str, ...] = ()
    statistics: Statistics = Statistics()


@dataclass(frozen=True)
class CallCount:
    """Calls of one enrolment since the process began, and what GitHub last said of its limit."""

    calls: int = 0
    unchanged: int = 0
    """Of these, answered 304: they do not count against the limit."""
    failed: int = 0
    limited: int = 0
    """How many of the failed calls GitHub refused for coming too often."""
    limit: int | None = None
    """Calls an hour; None until GitHub has said so."""
    remaining: int | None = None
    reset: datetime | None = None
