"""Keeps track of which repositories are private: webhooks say so with each job, and otherwise GitHub is asked.

Only pages and metrics that show jobs to strangers need it (`RunnerStore.public_repositories`), and comments of leases:
where it cannot be learned the repository counts as private, and its job goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.store import RunnerStore

LOG = logging.getLogger(__name__)
FRESH = timedelta(hours=1)
"""A report of GitHub's is not asked for, nor written down, again so soon."""
STALE = timedelta(hours=6)
"""After this time GitHub is asked again, though there are no jobs: a repository may have become private."""
MOST = 5_000
"""Repositories of which it is remembered that they are known."""


class RepositoryVisibility:
    """The repositories of all enrolments. Safe to use from several threads."""

    def __init__(self, clients: Mapping[str, GitHubClient], store: RunnerStore, now: Callable[[], datetime]) -> None:
        """`clients` by the names of enrolments."""
        self._clients, self._store, self._now = clients, store, now
        self._told: dict[tuple[str, str], tuple[bool, datetime]] = {}
        self._lock = threading.Lock()

    def heard(self, scope: str, repository: str, private: bool | None) -> None:
        """Note that a job of a repository was reported; `private` is None when that did not come with it: then GitHub
        is asked."""
        with self._lock:
            before, at = self._told.get((scope, repository.lower()), (None, self._now()))
        fresh = before is not None and timedelta(0) <= self._now() - at < FRESH
        if private is None and not fresh:
            self.ask(scope, repository)
        elif private is not None and not (fresh and private == before):
            self._write(scope, repository, private)

    def ask(self, scope: str, repository: str) -> None:
        """Ask GitHub now. A repository that the app or token may not see counts as private."""
        client = self._clients.get(scope)
        if client is None:
            return
        try:
            answer = client.repository(repository)
        except GitHubError as error:
            LOG.info("%s: whether it is private is not known: %s", repository, error)
            return
        self._write(scope, repository, answer is None or answer.private)

    def stale(self, scope: str, most: int) -> list[str]:
        """Return repositories of an enrolment to ask about again, at most so many."""
        return self._store.seen_before(self._now() - STALE, scope, most) if most > 0 else []

    def _write(self, scope: str, repository: str, private: bool) -> None:
        now = self._now()
        self._store.put_visibility(scope, repository, private, now)
        with self._lock:
            if len(self._told) >= MOST:
                self._told.clear()
            self._told[scope, repository.lower()] = private, now
