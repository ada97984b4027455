"""Records of the stand-in. They are all in memory, and change in place under the one lock of ``forge.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

DEFAULT_GROUP = 1
WAITING, QUEUED, IN_PROGRESS, COMPLETED = "waiting", "queued", "in_progress", "completed"


@dataclass
class ForgeGroup:
    """A runner group of an organisation."""

    id: int
    name: str
    repositories: frozenset[str] | None = None
    """Full names of those that may use it; None: all."""


@dataclass
class ForgeAccount:
    """An organisation, or a user who owns repositories."""

    id: int
    login: str
    organization: bool
    installation: int = 0
    """Id of the app's installation; 0 where it is not installed."""
    members: dict[str, str] = field(default_factory=dict)
    """Login -> ``member`` or ``admin``."""
    teams: dict[str, set[str]] = field(default_factory=dict)
    """Slug -> logins."""
    groups: dict[int, ForgeGroup] = field(default_factory=dict)


@dataclass
class ForgePull:
    """A pull request."""

    number: int
    author: str
    association: str
    head_repository: str
    head_branch: str
    head_sha: str


@dataclass
class ForgeRepository:
    id: int
    owner: str
    name: str
    private: bool = False
    pushed: datetime | None = None
    """When somebody last pushed to it."""
    default_branch: str = "main"
    files: dict[str, str] = field(default_factory=dict)
    """Files of the default branch: path -> text."""
    permissions: dict[str, str] = field(default_factory=dict)
    """Login -> ``read``, ``triage``, ``write``, ``maintain`` or ``admin``."""
    pulls: dict[int, ForgePull] = field(default_factory=dict)
    statuses: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Commit -> what was set, the newest last."""
    checks: dict[int, dict[str, object]] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class JobOrder:
    """A job to be run, as somebody's workflow describes it."""

    labels: tuple[str, ...]
    seconds: float = 1.0
    """Seconds that its runner works on it."""
    result: str = "success"
    """Its conclusion when nothing goes wrong: ``success`` or ``failure``."""
    name: str = "build"
    approval: timedelta | None = None
    """Held back (``waiting``) for so long before it is queued."""


@dataclass
class ForgeRun:
    """A run of a workflow."""

    id: int
    repository: str
    event: str
    actor: str
    head_branch: str
    head_sha: str
    head_repository: str
    created: datetime
    workflow: str = "CI"
    attempt: int = 1
    pull: int = 0
    triggering_actor: str = ""
    """Login of the person who started the latest attempt; empty: the actor."""
    jobs: list[int] = field(default_factory=list)


@dataclass
class JobTry:
    """One try of a runner at a job. More than one means that it ran more than once."""

    runner: str
    started: datetime
    ended: datetime | None = None
    result: str = ""


@dataclass
class ForgeJob:
    id: int
    run: int
    attempt: int
    order: JobOrder
    repository: str
    status: str
    created: datetime
    conclusion: str = ""
    queued: datetime | None = None
    started: datetime | None = None
    completed: datetime | None = None
    runner: int = 0
    """Registration that it was offered to, or runs on."""
    runner_name: str = ""
    group: int = 0
    offered: datetime | None = None
    """Since when a runner has it that has not said yet that it runs."""
    cancelled: bool = False
    """Somebody has cancelled it; its runner does not know yet."""
    cancel_at: datetime | None = None
    release_at: datetime | None = None
    """When its approval comes."""
    foreign_until: datetime | None = None
    """It runs on a runner that nobody here has registered, until then."""
    tries: list[JobTry] = field(default_factory=list)
    # Of a scale set:
    scale_set: int = 0
    request: int = 0
    """``runnerRequestId``; another one at every assignment."""
    available: datetime | None = None
    """Since when the scale set knows that it could have it."""
    assigned: datetime | None = None
    """Since when it is the scale set's."""
    assignments: int = 0
    assigned_until: datetime | None = None
    """It is taken back then unless a runner has begun."""
    not_before: datetime | None = None
    """After an assignment that came to nothing: when it is given again."""


@dataclass
class ForgeRunner:
    """A registration of a runner."""

    id: int
    name: str
    owner: str
    repository: str
    """Full name; empty where it is the organisation's."""
    labels: tuple[str, ...]
    group: int
    secret: str
    created: datetime
    scale_set: int = 0
    session: str = ""
    """Session of a runner that is connected."""
    connected: datetime | None = None
    heard: datetime | None = None
    """When it last said something."""
    silent: bool = False
    """It was not heard of for too long."""
    job: int = 0

    @property
    def online(self) -> bool:
        return bool(self.session) and not self.silent


@dataclass
class QueuedMessage:
    """A message in the queue of a scale set."""

    id: int
    events: list[dict[str, object]]
    acknowledged: bool = False


@dataclass
class ForgeSet:
    """A runner scale set."""

    id: int
    name: str
    owner: str
    repository: str
    group: int
    labels: tuple[str, ...]
    created: datetime
    session: str = ""
    session_owner: str = ""
    token: str = ""
    token_until: datetime | None = None
    polled: datetime | None = None
    capacity: int = 0
    """The capacity that the last poll announced."""
    messages: list[QueuedMessage] = field(default_factory=list)
    pending: list[dict[str, object]] = field(default_factory=list)
    """Events that are in no message yet."""


@dataclass
class ForgeHook:
    """A webhook of a repository, an organisation or the app."""

    id: int
    scope: str
    """``app``, ``owner`` or ``owner/name``."""
    url: str
    secret: str


@dataclass
class HookSending:
    """One delivery of an event to a hook."""

    id: int
    hook: int
    guid: str
    event: str
    action: str
    body: bytes
    due: datetime
    redelivery: bool = False
    lost: bool = False
    """It never arrives; GitHub lists it with status code 0."""
    sent: datetime | None = None
    status_code: int = 0
    """0: nobody answered."""
    repository_id: int = 0
    installation_id: int = 0
