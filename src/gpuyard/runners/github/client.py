"""The calls to GitHub's REST API that runners need, of one enrolment. Safe to use from several threads.

Every method raises GitHubError. Arguments named `repository` are ``owner/name``; of runners, empty is
the organisation.
"""

from __future__ import annotations

from datetime import datetime

from gpuyard.runners.github.answers import (
    CallCount,
    Hook,
    HookAttempt,
    JitRunner,
    PullRequest,
    RegisteredRunner,
    RegistrationToken,
    Repository,
    RepositoryFile,
    WorkflowRun,
)
from gpuyard.runners.jobs import JobUpdate
from gpuyard.site.runner_rules import Enrolment


class GitHubClient:
    """`enrolment` says where and with which credentials."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment

    def repositories(self) -> list[Repository]:
        """Those that are enrolled and that the app or token can see; archived ones are left out."""
        raise NotImplementedError

    def jit(self, name: str, labels: tuple[str, ...], repository: str = "") -> JitRunner:
        """Registers a runner, in the enrolment's runner group when it is the organisation's. The name must be fresh:
        CONFLICT when it is taken. When the answer is lost (RETRY), the registration may be there all the same: look
        for the name, delete it, and take another name."""
        raise NotImplementedError

    def runners(self, repository: str = "") -> list[RegisteredRunner]:
        raise NotImplementedError

    def runner_named(self, name: str, repository: str = "") -> RegisteredRunner | None:
        raise NotImplementedError

    def runner(self, id: int, repository: str = "") -> RegisteredRunner | None:
        raise NotImplementedError

    def delete_runner(self, id: int, repository: str = "") -> bool:
        """False when it was gone already. CONFLICT while it has a job."""
        raise NotImplementedError

    def registration_token(self) -> RegistrationToken:
        """For a scale set's client."""
        raise NotImplementedError

    def file(self, repository: str, path: str, etag: str = "") -> RepositoryFile:
        """A file of the default branch. `etag` is of the answer before."""
        raise NotImplementedError

    def job(self, repository: str, id: int) -> JobUpdate | None:
        """A workflow job as it is now; None when GitHub has it no more."""
        raise NotImplementedError

    def waiting_jobs(self, repository: str) -> list[JobUpdate]:
        """All jobs that are not over, of runs that are not over: 2 calls, and 1 for each such run."""
        raise NotImplementedError

    def run(self, repository: str, id: int) -> WorkflowRun:
        raise NotImplementedError

    def cancel_run(self, repository: str, id: int) -> None:
        """CONFLICT when it is over."""
        raise NotImplementedError

    def pull_request(self, repository: str, number: int) -> PullRequest:
        raise NotImplementedError

    def pull_requests_of(self, repository: str, owner: str, branch: str) -> list[PullRequest]:
        """Those whose code is the branch of a repository of `owner`, newest first."""
        raise NotImplementedError

    def role(self, repository: str, user: str) -> str:
        """``admin``, ``maintain``, ``write``, ``triage``, ``read``, an organisation's own word, or ``none``."""
        raise NotImplementedError

    def in_team(self, team: str, user: str) -> bool:
        """Whether a user is an active member of one of the organisation's teams, named by its slug."""
        raise NotImplementedError

    def hooks(self) -> list[Hook]:
        """Webhooks that send us jobs: the app's own, or those of the organisation or repository."""
        raise NotImplementedError

    def deliveries(self, hook: Hook, since: datetime) -> list[HookAttempt]:
        """Newest first."""
        raise NotImplementedError

    def redeliver(self, hook: Hook, delivery: int) -> None:
        """Has GitHub deliver it again, with the same GUID."""
        raise NotImplementedError

    def set_status(self, repository: str, sha: str, state: str, description: str, context: str, url: str = "") -> None:
        """`state`: ``pending``, ``success``, ``failure`` or ``error``; `description`: at most 140 characters."""
        raise NotImplementedError

    def usage(self) -> CallCount:
        raise NotImplementedError

    def close(self) -> None:
        """Ends connections, and calls that are under way."""
        raise NotImplementedError
