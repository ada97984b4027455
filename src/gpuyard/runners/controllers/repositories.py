"""Asks GitHub what must be known before a job may have a runner: its repository's files, who started it, and from
where.

It asks as little as possible. Jobs whose labels are somebody else's cost nothing. Files are believed for FRESH and then
asked for by ETag, which costs nothing when nothing has changed; that a repository has no file is remembered
(`AbsentFiles`). A run is asked about once. When half of the hour's calls are used up, the rest is kept for jobs that
are likely to be ours: those of repositories that had runners before, and those with labels that say so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from gpuyard.runners.cirun.labels import fits, meant_for_cirun
from gpuyard.runners.controllers.absent_files import AbsentFiles
from gpuyard.runners.facts import FactsUnavailableError, PersonFacts, TextFile
from gpuyard.runners.github.answers import RepositoryFile, WorkflowRun
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import Job, JobState, Trust
from gpuyard.runners.resolve import (
    Configuration,
    RepositoryFiles,
    Resolution,
    Ruling,
    not_ours_by_labels,
    read,
    resolve,
)
from gpuyard.site.schema import Site

FRESH = timedelta(minutes=1)
"""A change of a repository's files takes effect within this time."""
KNOWN = timedelta(minutes=5)
"""A change of people's roles and teams takes effect within this time."""
KEPT = 0.5
"""Share of the hour's calls that is kept for jobs that are likely to be ours."""
FAMILIAR = timedelta(minutes=30)
"""Time for which the list of repositories that had jobs of ours is believed."""
MOST = 5_000
"""Files, and answers about people, that are kept."""
OWN, SHARED, ACCESS = ".cirun.yml", ".cirun.global.yml", ".access.yml"
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
        """Return the answer, from memory or by `ask`, which is given the answer before, or None, and may raise: then
        nothing is kept."""
        with self._lock:
            cached = self._kept.get(key)
        now = self._now()
        if cached is not None and timedelta(0) <= now - cached.at < fresh:
            value: T = cached.value
            return value
        value = ask(cached.value if cached else None)
        with self._lock:
            self._kept[key] = _Kept(now, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value


class Repositories:
    """The repositories of all enrolments. Safe to use from several threads."""

    def __init__(
        self,
        site: Site,
        clients: Mapping[str, GitHubClient],
        now: Callable[[], datetime],
        familiar: Callable[[str], Collection[str]] = lambda scope: (),
    ) -> None:
        """`clients` by the names of enrolments. `familiar`: the repositories of an enrolment that had jobs of ours, as
        ``owner/name``."""
        self._site, self._clients, self._now, self._familiar = site, clients, now, familiar
        self._files, self._runs, self._people = Answers(now), Answers(now), Answers(now)
        self._read, self._familiars = Answers(now), Answers(now)
        self._absent = AbsentFiles(now)
        self._together: dict[str, Configuration] = {}
        """Enrolment -> what its organisation's files said when they were last read."""
        self._known: dict[tuple[str, str], Configuration] = {}
        self._without: dict[str, tuple[str, str]] = {}
        """Enrolment -> the one entry of `_known` that has no file of its own."""
        self._lock = threading.Lock()

    def settle(self, job: Job) -> tuple[Ruling, Job]:
        """Decide what a job may have. Returns the job with that, or with the reason why it has nothing (yet).

        GitHub is asked only what the rules need: about the run where its origin or its actor counts, about the pull
        request where its author does. What GitHub does not answer makes the job UNKNOWN, and what it refuses to tell
        WITHHELD; so it is with the repository's files where the job is likely to be ours. Raises GitHubError when they
        cannot be had otherwise, or the last calls are kept for others: nobody knows then whether it is ours."""
        client = self._clients[job.scope]
        if self._site.runners is not None and (reason := not_ours_by_labels(job, self._site.runners, client.enrolment)):
            return Ruling.NOT_OURS, replace(job, reason=reason)
        try:
            configuration = self._files_of(client, job.repository, job)
        except GitHubError as error:
            together = self._together.get(job.scope, Configuration())
            if error.kind is not GitHubTrouble.REFUSED or not self._is_likely_ours(job, together):
                raise
            return Ruling.WITHHELD, replace(job, reason=str(error))
        facts = self.people(job.scope)
        answer = resolve(job, self._site, configuration, facts)
        for ask in (self._with_run, self._with_association):
            if answer.ruling is not Ruling.UNKNOWN:
                break
            try:
                updated = ask(client, job)
            except GitHubError as error:
                withheld = error.kind is GitHubTrouble.REFUSED
                return Ruling.WITHHELD if withheld else Ruling.UNKNOWN, replace(job, reason=str(error))
            if updated != job:
                job = updated
                answer = resolve(job, self._site, configuration, facts)
        return answer.ruling, with_answer(job, answer)

    def cancelled(self, job: Job) -> str:
        """Cancel the run of a refused job; returns what came of it, in words.

        A scale set's job would wait at GitHub for a day. A fork's job would take the next runner that has its labels,
        which was made for somebody else. Empty for other jobs, of which a status at their commit tells."""
        client = self._clients[job.scope]
        if not job.run_id or not (job.scale_set or job.trust is Trust.FORK):
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
        """Return what a repository's files say. Raises GitHubError."""
        return self._files_of(self._clients[scope], repository)

    def people(self, scope: str) -> PersonFacts:
        """Return GitHub's facts about people, through an enrolment."""
        return _People(self._clients[scope], self._people, self._text)

    def known(self) -> dict[tuple[str, str], Configuration]:
        """Return (enrolment, ``owner/name``) -> its configuration when it was last read; in order. Of the repositories
        without a file of their own there is one of each enrolment, which has the organisation's files."""
        with self._lock:
            return dict(sorted(self._known.items()))

    def _files_of(self, client: GitHubClient, repository: str, job: Job | None = None) -> Configuration:
        """`job`: the one that raises the question, if any."""
        if not client.enrolment.cirun:
            return Configuration()
        scope, shared = client.enrolment.name, f"{client.enrolment.owner}/.cirun"
        together = RepositoryFiles(None, *(self._text(client, shared, path) for path in (SHARED, ACCESS)))
        configuration = self._together[scope] = self._understood((scope, ""), together)
        text = self._own_text(client, repository, job, configuration)
        if text is not None:
            own = self._understood((scope, repository.lower()), RepositoryFiles(text)).own
            configuration = replace(configuration, own=own)
        self._remember(scope, repository, configuration, text is not None)
        return configuration

    def _understood(self, key: tuple[str, str], files: RepositoryFiles) -> Configuration:
        """Read once for as long as the texts stay the same."""

        def understand(before: tuple[RepositoryFiles, Configuration] | None) -> tuple[RepositoryFiles, Configuration]:
            return before if before and before[0] == files else (files, read(files))

        return self._read.get(key, timedelta(0), understand)[1]

    def _remember(self, scope: str, repository: str, configuration: Configuration, has_own: bool) -> None:
        with self._lock:
            self._known.pop((scope, repository), None)
            if not has_own:  # thousands of these would push out the few that count
                self._known.pop(self._without.get(scope, (scope, "")), None)
                self._without[scope] = scope, repository
            elif self._without.get(scope) == (scope, repository):
                del self._without[scope]
            self._known[scope, repository] = configuration
            while len(self._known) > MOST:  # the one that was read the longest ago
                del self._known[next(iter(self._known))]

    def _own_text(self, client: GitHubClient, repository: str, job: Job | None, together: Configuration) -> str | None:
        scope, labels = client.enrolment.name, job.labels if job else ()
        if self._absent.is_absent(scope, repository, labels):
            return None
        if job is not None and not self._is_likely_ours(job, together):
            self._keep_back(client, repository)
        text = self._text(client, repository, OWN)
        self._absent.note(scope, repository, labels, text is None)
        return text

    def _is_likely_ours(self, job: Job, together: Configuration) -> bool:
        """Decide by what is known without asking GitHub about the job's repository."""
        if job.scale_set or job.spec or meant_for_cirun(job.labels):
            return True
        if any(runner.ours and fits(job.labels, runner.labels) for runner in together.shared.runners):
            return True
        familiar = self._familiars.get(
            job.scope, FAMILIAR, lambda _: frozenset(map(str.lower, self._familiar(job.scope)))
        )
        return job.repository.lower() in familiar

    def _keep_back(self, client: GitHubClient, repository: str) -> None:
        """Raises GitHubError when what is left of the hour's calls is for jobs that are likely to be ours."""
        usage = client.usage()
        if usage.remaining is None or not usage.limit or usage.remaining >= usage.limit * KEPT:
            return
        if usage.reset is not None and self._now() < usage.reset:
            raise GitHubError(
                f"{repository}: not asked for {OWN}: of GitHub's {usage.limit} calls an hour {usage.remaining} are "
                "left, which are kept for jobs that are likely to be ours",
                GitHubTrouble.LIMITED,
                retry_at=usage.reset,
            )

    def _text(self, client: GitHubClient, repository: str, path: str, ref: str = "") -> str | None:
        def ask(before: RepositoryFile | None) -> RepositoryFile:
            answer = client.file(repository, path, before.etag if before else "", ref)
            return before if answer.same and before else answer

        return self._files.get((client.enrolment.name, repository.lower(), path, ref), FRESH, ask).text

    def _run(self, client: GitHubClient, job: Job) -> WorkflowRun:
        """The run of a job, as GitHub has it now. A scale set does not say which attempt a job belongs to, and somebody
        else may have started the next one: there each job asks for itself."""
        which: Hashable = job.id if job.scale_set else job.run_attempt
        key = (client.enrolment.name, job.repository.lower(), job.run_id, which)
        return self._runs.get(key, KNOWN, lambda _: client.run(job.repository, job.run_id))

    def _with_run(self, client: GitHubClient, job: Job) -> Job:
        """Add who started the job, by which event, and whether its code is a fork's."""
        if not job.run_id or (job.trust is not None and job.actor):
            return job
        run = self._run(client, job)
        fork = run.head_repository.lower() != job.repository.lower()
        trust = Trust.FORK if fork else Trust.REPOSITORY
        return replace(job, event=job.event or run.event, actor=run.actor, trust=trust)

    def _with_association(self, client: GitHubClient, job: Job) -> Job:
        """Add how near the author of a fork's pull request is to the repository; ``NONE`` where no pull request can be
        found.

        The run says which branch of which repository it is of. A scale set's message does not: its ``jobWorkflowRef``
        is ``refs/pull/N/merge``, or whatever the author of a workflow that calls another one has written."""
        if not job.run_id or job.association or job.trust is not Trust.FORK:
            return job
        run = self._run(client, job)
        owner = run.head_repository.partition("/")[0]
        if not owner or not run.head_branch:
            return replace(job, association="NONE")
        opened = client.pull_requests_of(job.repository, owner, run.head_branch)
        mine = [pull_request for pull_request in opened if pull_request.head_sha == run.head_sha] or opened
        return replace(job, association=mine[0].association if mine else "NONE")


class _People:
    """`PersonFacts` of one enrolment."""

    def __init__(
        self, client: GitHubClient, memory: Answers, text: Callable[[GitHubClient, str, str, str], str | None]
    ) -> None:
        self._client, self._memory, self._text = client, memory, text

    def role(self, repository: str, user: str) -> str:
        role = self._asked(("role", repository.lower(), user.lower()), lambda: self._client.role(repository, user))
        return "" if role == "none" else role

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
    """Return the job with what was decided about it."""
    if answer.ruling is Ruling.GRANTED:
        return replace(job, spec=answer.spec, reason="; ".join(answer.notices))
    if answer.ruling is Ruling.REFUSED:
        return replace(job, state=JobState.REFUSED, spec=None, reason=answer.reason)
    return replace(job, reason=answer.reason)
