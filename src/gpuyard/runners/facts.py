"""Interface for what policies need to know about people and only GitHub can answer: roles, teams, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuyard.model.errors import GpuyardError


class FactsUnavailableError(GpuyardError):
    """GitHub could not be asked now; the message says for what and why. The question is to be tried again."""


@dataclass(frozen=True)
class TextFile:
    """A file in a repository of the same GitHub."""

    repository: str
    """``owner/name``."""
    ref: str
    """A branch, a tag or a commit."""
    path: str


class PersonFacts(Protocol):
    """Answers about people. Called only where the decision depends on the answer; every method raises
    FactsUnavailableError, and logins are compared without regard to case."""

    def role(self, repository: str, user: str) -> str:
        """Return GitHub's ``role_name`` of a user in ``owner/name``: ``admin``, ``maintain``, ``write``, ``triage``,
        ``read``, or an organisation's own; empty for somebody without any."""
        ...

    def in_team(self, organization: str, team: str, user: str) -> bool:
        """Return whether the user is an active member of the team with this slug, or of one below it. False for a team
        that does not exist."""
        ...

    def text(self, file: TextFile) -> str | None:
        """Return a file's text; None when there is no such file."""
        ...
