"""What a policy may want to know of people, and only GitHub can say. Who asks GitHub implements `PersonFacts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuyard.model.errors import GpuyardError


class FactsUnavailableError(GpuyardError):
    """GitHub could not be asked now; the message says what it was and why. It is to be tried again."""


@dataclass(frozen=True)
class TextFile:
    """A file in a repository of the same GitHub."""

    repository: str
    """``owner/name``."""
    ref: str
    """A branch, a tag or a commit."""
    path: str


class PersonFacts(Protocol):
    """Asked only for what the decision hangs on. All raise FactsUnavailableError; logins without regard to case."""

    def role(self, repository: str, user: str) -> str:
        """GitHub's ``role_name`` of a user in ``owner/name``: ``admin``, ``maintain``, ``write``, ``triage``, ``read``,
        or an organisation's own; empty for somebody without any."""
        ...

    def in_team(self, organization: str, team: str, user: str) -> bool:
        """Whether the user is an active member of the team with this slug, or of one below it. False for a team that
        does not exist."""
        ...

    def text(self, file: TextFile) -> str | None:
        """A file's text; None when there is no such file."""
        ...
