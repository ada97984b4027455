"""What is asked of GitHub before a job may have a runner: its repository's files, who started it, and from where.

Asked as little as possible: files are believed for FRESH and asked for by ETag then, which costs nothing when nothing
has changed; what concerns a run is asked once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from gpuyard.runners.facts import FactsUnavailableError, PersonFacts, TextFile
from gpuyard.runners.github.answers import RepositoryFile
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import Job, JobState, Trust
from gpuyard.runners.resolve import Configuration, RepositoryFiles, Resolution, Ruling, read, resolve
from gpuyard.site.schema import Site

FRESH = timedelta(minutes=1)
"""A change of a repository's files takes effect within this time."""
KNOWN = timedelta(minutes=5)
"""The same of people's roles and teams."""
MOST = 5_000
"""Files, and answers about people, that are kept."""
OWN, SHARED, ACCESS = ".cirun.yml", ".cirun.global.yml", ".access.yml"
PULL_REQUESTS = ("pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment")
T = TypeVar("T")


@dataclass(frozen=True)
class _Kept:
    at: datetime
    value: Any


class Answers:
    """Answers that are believed for a while; the oldest go when there are too many. Thread-safe."""

    def __init__(self, now: Callable[[], datetime], most: int = MOST) -> None:
        self._now, self._most = now, most
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, fresh: timedelta, ask: Callable[[Any], T]) -> T:
        """The answer; `ask` is given the one before, or None, and may raise: then nothing is kept."""
        with self._lock:
            kept = self._kept.get(key)
        now = self._now()
        if kept is not None and timedelta(0) <= now - kept.at < fresh:
            value: T = kept.value
            return value
        value = ask(kept.value if kept else None)
        with self._lock:
            self._kept[key] = _Kept(now, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value


class Repositories:
    """Of all enrolments. Safe to use from several threads."""

    def __init__(self, site: Site, clients: Mapping[str, GitHubClient], now: Callable[[], datetime]) -> None:
        """`clients` by the names of enrolments."""
        self._site = site
        self._clients = clients
        self._files, self._runs, self._people = Answers(now), Answers(now), Answers(now)
        self._read: Answers = Answers(now)
        self._known: dict[tuple[str, str], Configuration] = {}
        self._lock = threading.Lock()

    def settle(self, job: Job) -> tuple[Ruling, Job]:
        """What a job may have, and the job with it, or with the reason why it has nothing (yet). Raises GitHubError
        when GitHub must be asked and does not answer."""
        client = self._clients[job.scope]
        configuration = self._files_of(client, job.repository)
        facts = self.people(job.scope)
        if configuration.access is not None and not job.actor:
            job = self._told(client, job)
        answer = resolve(job, self._site, configuration, facts)
        if answer.ruling is Ruling.UNKNOWN and job.trust is None:
            job = self._told(client, job)
            answer = resolve(job, self._site, configuration, facts)
        return answer.ruling, with_answer(job, answer)

    def cancelled(self, job: Job) -> str:
        """Cancel the run of a refused job of a scale set, which would wait at GitHub for a day; what came of it, in
        words. Empty for other jobs, of which a status at their commit tells."""
        client = self._clients[job.scope]
        if not job.scale_set or not job.run_id:
            return ""
        if not client.enrolment.cancel_refused:
            return "its run is left to itself at GitHub, as the site file says"
        try:
            client.cancel_run(job.repository, job.run_id)
        except GitHubError as error:
            if error.kind in (GitHubTrouble.CONFLICT, GitHubTrouble.MISSING):
                return "its run is over at GitHub"
            return f"its run goes on at GitHub, where it could not be cancelled: {error}"
        return "its run was cancelled at GitHub"

    def configuration(self, scope: str, repository: str) -> Configuration:
        """What a repository's files say. Raises GitHubError."""
        return self._files_of(self._clients[scope], repository)

    def people(self, scope: str) -> PersonFacts:
        """What GitHub says of people, through an enrolment."""
        return _People(self._clients[scope], self._people, self._text)

    def known(self) -> dict[tuple[str, str], Configuration]:
        """(enrolment, ``owner/name``) -> what its files said when they were last read; in order."""
        with self._lock:
            return dict(sorted(self._known.items()))

    def _files_of(self, client: GitHubClient, repository: str) -> Configuration:
        if not client.enrolment.cirun:
            return Configuration()
        shared = f"{client.enrolment.owner}/.cirun"
        texts = tuple(
            self._text(client, where, path) for where, path in ((repository, OWN), (shared, SHARED), (shared, ACCESS))
        )
        key = (client.enrolment.name, repository.lower())

        def understood(before: tuple[object, Configuration] | None) -> tuple[object, Configuration]:
            return before if before and before[0] == texts else (texts, read(RepositoryFiles(*texts)))

        found = self._read.get(key, timedelta(0), understood)[1]
        with self._lock:
            self._known.pop((client.enrolment.name, repository), None)
            self._known[client.enrolment.name, repository] = found
            while len(self._known) > MOST:  # the one that was read the longest ago
                del self._known[next(iter(self._known))]
        return found

    def _text(self, client: GitHubClient, repository: str, path: str, ref: str = "") -> str | None:
        def ask(before: RepositoryFile | None) -> RepositoryFile:
            answer = client.file(repository, path, before.etag if before else "", ref)
            return before if answer.same and before else answer

        return self._files.get((client.enrolment.name, repository.lower(), path, ref), FRESH, ask).text

    def _told(self, client: GitHubClient, job: Job) -> Job:
        """With what GitHub says of its run."""
        if not job.run_id:
            return job
        key = (client.enrolment.name, job.repository.lower(), job.run_id, job.run_attempt)
        run = self._runs.get(key, KNOWN, lambda _: client.run(job.repository, job.run_id))
        fork = run.head_repository.lower() != job.repository.lower()
        told = replace(
            job, event=job.event or run.event, actor=run.actor, trust=Trust.FORK if fork else Trust.REPOSITORY
        )
        if not fork and told.event not in PULL_REQUESTS:
            return told
        return replace(told, association=self._association(client, told, run.head_repository, run.pull_requests))

    def _association(self, client: GitHubClient, job: Job, head: str, numbers: tuple[int, ...]) -> str:
        """Of the author of the pull request; ``NONE`` when it cannot be told which one it is."""
        if numbers:
            return client.pull_request(job.repository, numbers[0]).association
        owner = head.partition("/")[0]
        if not owner or not job.head_branch:
            return "NONE"
        found = client.pull_requests_of(job.repository, owner, job.head_branch)
        mine = [one for one in found if one.head_sha == job.head_sha] or found
        return mine[0].association if mine else "NONE"


class _People:
    """`PersonFacts` of one enrolment."""

    def __init__(
        self, client: GitHubClient, memory: Answers, text: Callable[[GitHubClient, str, str, str], str | None]
    ) -> None:
        self._client, self._memory, self._text = client, memory, text

    def role(self, repository: str, user: str) -> str:
        found = self._asked(("role", repository.lower(), user.lower()), lambda: self._client.role(repository, user))
        return "" if found == "none" else found

    def in_team(self, organization: str, team: str, user: str) -> bool:
        if organization.lower() != self._client.enrolment.owner.lower():
            return False
        return self._asked(("team", team, user.lower()), lambda: self._client.in_team(team, user))

    def text(self, file: TextFile) -> str | None:
        where, path, ref = file.repository, file.path, file.ref
        return self._asked(("text", where.lower(), path, ref), lambda: self._text(self._client, where, path, ref))

    def _asked(self, key: tuple[str, ...], ask: Callable[[], T]) -> T:
        def answer(_: object) -> T:
            try:
                return ask()
            except GitHubError as error:
                if error.kind is GitHubTrouble.MISSING:
                    raise FactsUnavailableError(f"{error}; may the app or token see it?") from None
                raise FactsUnavailableError(str(error)) from None

        return self._memory.get((self._client.enrolment.name, *key), KNOWN, answer)


def with_answer(job: Job, answer: Resolution) -> Job:
    """The job with what was decided about it."""
    if answer.ruling is Ruling.GRANTED:
        return replace(job, wanted=answer.wanted, reason="; ".join(answer.notices))
    if answer.ruling is Ruling.REFUSED:
        return replace(job, state=JobState.REFUSED, wanted=None, reason=answer.reason)
    return replace(job, reason=answer.reason)
