"""Errors of calls to GitHub: one exception, whose kind tells the caller what to do."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from gpuyard.model.errors import GpuyardError


class GitHubTrouble(StrEnum):
    """Kinds of failure, by what the caller is to do."""

    RETRY = "retry"
    """No answer, half an answer or an error of GitHub's own: ask again later. Of a call that changes something it is
    not known whether it was done: look first."""
    LIMITED = "limited"
    """Asked too often: not before `retry_at`."""
    UNAUTHORIZED = "unauthorized"
    """The app or token is wrong or no longer valid; somebody must mend that."""
    REFUSED = "refused"
    """Understood and refused, for good: a permission that lacks, a body that is wrong."""
    MISSING = "missing"
    """There is no such thing, or this app or token may not see it."""
    CONFLICT = "conflict"
    """The state of things does not allow it: the name is taken, the runner has a job, somebody else has the session."""


class GitHubError(GpuyardError):
    """GitHub did not do what it was asked to; the message says what and why, and holds no secret."""

    def __init__(
        self,
        message: str,
        kind: GitHubTrouble = GitHubTrouble.RETRY,
        *,
        status: int = 0,
        retry_at: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        """Of the HTTP answer; 0 when there was none."""
        self.retry_at = retry_at
        """When to ask again, where GitHub, or a limit of ours, has said so."""


class PollEndedError(GpuyardError):
    """A poll was cancelled because the caller stops or interrupts it."""
