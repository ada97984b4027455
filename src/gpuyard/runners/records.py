"""Records of GitHub jobs and of the runners that serve them. Plain data; times are UTC.

A job is not a server. Which runner a job runs on is GitHub's choice, recorded in the job's `runner`; a runner's
`for_job` is only why it was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. Only forwards: what GitHub says late or twice changes nothing."""

    HELD = "held"
    """GitHub itself holds it back (an environment's approval): there is nothing to start yet."""
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """GitHub says so; how is in `conclusion`, which is `cancelled` for one that never ran."""
    REFUSED = "refused"
    """A policy says no; `reason` says which."""
    FAILED = "failed"
    """No runner could be had for it, or GitHub does not know it any more; `reason` says why."""


class RunnerState(StrEnum):
    """The life of a runner, in this order. transitions.py has the ways between them."""

    REQUESTED = "requested"
    """Written down, with its lease in the ledger; nobody has been asked for anything yet."""
    CREATING = "creating"
    """It has a registration at GitHub, and Nova was, or is about to be, asked for its server."""
    REGISTERING = "registering"
    """The server is ACTIVE: it boots, checks its GPU and connects to GitHub."""
    IDLE = "idle"
    """GitHub has it online; it has no job."""
    BUSY = "busy"
    DELETING = "deleting"
    """It counts as having its GPU until Nova has deleted the server."""
    GONE = "gone"
    """Nothing is left of it: no server, no registration, no lease."""
    FAILED = "failed"
    """As gone, and it was of no use to anybody; `cause` says why."""


OVER = frozenset({RunnerState.GONE, RunnerState.FAILED})
"""States in which a runner has nothing any more."""
DONE = frozenset({JobState.COMPLETED, JobState.REFUSED, JobState.FAILED})
"""States from which a job goes nowhere."""


class Cause(StrEnum):
    """Why a runner ended. For programs and metrics; the words are in its `reason`."""

    FINISHED = "finished"
    """Its job is over."""
    NOT_NEEDED = "not-needed"
    """Its job went elsewhere or was cancelled, or it was idle for too long."""
    TIME_LIMIT = "time-limit"
    BOOKING = "booking"
    """It made way for a booking."""
    REFUSED = "refused"
    """It was given a job that a policy does not allow."""
    GPU_CHECK = "gpu-check"
    """Its GPU did not pass the check before the first job."""
    GPU_KEPT_BACK = "gpu-kept-back"
    """Its GPU went bad before it had a job: nobody new is to start there."""
    NO_CAPACITY = "no-capacity"
    """Nova had no valid host, or a quota was full."""
    SERVER_ERROR = "server-error"
    """The server went into ERROR, or was deleted by somebody else."""
    BOOT_TIMEOUT = "boot-timeout"
    """The server was not ACTIVE in time."""
    REGISTRATION_TIMEOUT = "registration-timeout"
    """The server was ACTIVE, and GitHub never had the runner online."""
    GITHUB_ERROR = "github-error"
    """GitHub would not register it or has lost its registration, or its runner did not start."""
    NOT_OURS = "not-ours"
    """Somebody took gpuyard's tags off its server, which was then left alone, with its GPU."""
    LOST = "lost"
    """Its server stopped in the middle of its job."""


class Trust(StrEnum):
    """Whether a job's code is its repository's own or comes from a fork."""

    REPOSITORY = "repository"
    """The job's code is the repository's own: a push, a schedule, a pull request of one of its branches."""
    FORK = "fork"
    """A pull request from a fork: its author chose the code."""


@dataclass(frozen=True)
class ServerChoice:
    """One way to serve a job: a flavor with an image. Tried in order."""

    pool: str
    """`site.runner_rules.CPU` for a flavor without GPUs."""
    flavor: str
    image: str
    gpus: int = 1
    """0 for a flavor without GPUs: no lease of the ledger is taken for its server."""
    same_group: bool = False
    """The flavor's GPUs are one whole IOMMU group."""


@dataclass(frozen=True)
class ServerSpec:
    """The server that a job may have: what its repository asked for, cut down to what the site and the policies
    allow."""

    kind: str
    """Name of the runner in the configuration: the scale set's, or the one in `.cirun.yml`."""
    choices: tuple[ServerChoice, ...]
    longest: timedelta
    """The server is deleted when its job has run so long."""
    priority: int = 0
    """The highest first."""
    preemptible: bool = False
    """Whether a booking may end the job: its repository or the site has said so."""


@dataclass(frozen=True)
class Job:
    """One job of a workflow run. A job that is run again is another one."""

    id: str
    """Ours, from GitHub's: ``github.com/123456`` for a workflow job, ``github.com/set/acme/7/123456`` for a request
    of an enrolment's scale set: GitHub counts both in each organisation."""
    repository: str
    """``owner/name``."""
    labels: tuple[str, ...]
    """As in ``runs-on``; of a scale set its name."""
    state: JobState
    queued: datetime
    """When GitHub queued it."""
    scope: str
    """Name of the enrolment (`Enrolment.name`) that it came through."""
    scale_set: str = ""
    """Name of the scale set whose runners serve it; empty for a job that came by webhook."""
    run_id: int = 0
    run_attempt: int = 1
    workflow: str = ""
    name: str = ""
    """Its name in the workflow."""
    event: str = ""
    """What started the run: ``push``, ``pull_request``; empty when that is not known yet."""
    actor: str = ""
    """Login of whoever started the run."""
    trust: Trust | None = None
    """None when it is not known yet."""
    association: str = ""
    """Of the author of a pull request, GitHub's ``author_association``: ``MEMBER``, ``CONTRIBUTOR`` ..."""
    head_branch: str = ""
    head_sha: str = ""
    html_url: str = ""
    spec: ServerSpec | None = None
    """None until it has been looked up, and for one that is refused."""
    runner: str = ""
    """Name of the runner that GitHub gave it to, ours or not."""
    conclusion: str = ""
    """GitHub's word, of one that is over: ``success``, ``failure``, ``cancelled`` ..."""
    reason: str = ""
    """Why it is where it is, in words."""
    tries: int = 0
    """Runners that were made for it and failed."""
    not_before: datetime | None = None
    """After a failure: when the next runner may be made for it."""
    started: datetime | None = None
    completed: datetime | None = None
    changed: datetime | None = None
    """When gpuyard last learned something new of it."""


@dataclass(frozen=True)
class Runner:
    """A registration at GitHub with one server: fresh for every try, and used for one job at most."""

    name: str
    """Of the registration and of the server, never used twice: ``gpuyard-v100-c3k8x2m9``."""
    state: RunnerState
    scope: str
    """Name of the enrolment that it is registered with."""
    repository: str
    """Where it is registered, ``owner/name``; empty when it is the organisation."""
    labels: tuple[str, ...]
    """All of its labels: no default ones are added."""
    spec: ServerSpec
    choice: ServerChoice
    created: datetime
    changed: datetime
    for_repository: str = ""
    """The repository whose job it was made for: fair shares count it there until it has another one."""
    for_job: str = ""
    """The job that it was made for; empty for one that waits for a job (a warm one)."""
    job: str = ""
    """The job that GitHub has given it."""
    scale_set: str = ""
    lease: str = ""
    """Id of its lease in the ledger; empty for one without GPUs, and once its server is gone."""
    server_id: str = ""
    github_id: int = 0
    """GitHub's id of the registration."""
    active: datetime | None = None
    """Since when its server is ACTIVE."""
    online: datetime | None = None
    """Since when GitHub has it online."""
    busy: datetime | None = None
    """When its job began."""
    ended: datetime | None = None
    """When its server was seen to be gone."""
    until: datetime | None = None
    """The time limit of its job."""
    cause: Cause | None = None
    """Why it is to end, or ended."""
    reason: str = ""
    """The cause in words."""
    gpus: tuple[str, ...] = ()
    """``host/address`` of its GPUs, once they are known."""


@dataclass(frozen=True)
class RunnerEvent:
    """A line of a runner's or a job's timeline."""

    at: datetime
    runner: str
    """Empty for what only concerns the job."""
    job: str
    text: str


@dataclass(frozen=True)
class HookDelivery:
    """A webhook as GitHub delivered it, kept before it is answered."""

    id: str
    """GitHub's GUID; a redelivery has the same."""
    scope: str
    """Name of the enrolment whose secret signed it."""
    event: str
    received: datetime
    body: bytes
    tries: int = 0


@dataclass(frozen=True)
class ScaleSetState:
    """The state of a scale set's listener that must outlive the process."""

    scope: str
    name: str
    id: int = 0
    """GitHub's number of the set; 0 until it has been made."""
    last_message: int = 0
    """Number of the last message that was stored."""
    assigned: int = 0
    """GitHub's ``totalAssignedJobs``, as of the last message or the last question."""
    seen: datetime | None = None
    """When GitHub last answered a poll."""
    error: str = ""
    waiting: int = 0
    """GitHub's ``totalAvailableJobs``, as of when `assigned` is: jobs for the set that GitHub has not assigned, since
    the set has not announced that it could have them."""


@dataclass(frozen=True)
class GpuUse:
    """GPUs that one runner had, for fair shares and GPU-hours."""

    repository: str
    """``owner/name`` of its job, or of the one it was made for; empty for a warm one that has had none."""
    pool: str
    gpus: int
    start: datetime
    """When it got them: its creation."""
    end: datetime | None = None
    """When its server was gone; None while it is not."""
    kind: str = ""
    """`ServerSpec.kind` of the runner."""
    busy: datetime | None = None
    """When its job began; None for one that never had one."""

    def gpu_hours(self, since: datetime, now: datetime) -> float:
        """Return the GPU-hours of this use that lie in [since, now)."""
        begin, end = max(self.start, since), min(self.end or now, now)
        return self.gpus * max(end - begin, timedelta()) / timedelta(hours=1)
