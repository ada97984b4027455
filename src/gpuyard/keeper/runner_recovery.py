"""What GitHub has lost on its way to us is looked for: webhooks that failed, jobs that nobody told of, ends that did
not come. Within a part of the rate limit, so that runners come first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.keeper.job_book import JobBook
from gpuyard.keeper.repositories import Answers, Repositories
from gpuyard.keeper.repository_visibility import RepositoryVisibility
from gpuyard.keeper.runner_intake import JobIntake
from gpuyard.runners.github.answers import HookAttempt, Repository
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.jobs import UNKNOWN, JobUpdate
from gpuyard.runners.records import Job, JobState
from gpuyard.runners.store import RunnerStore

LOG = logging.getLogger(__name__)
PART = 0.2
"""Of the calls that GitHub allows in an hour."""
ASSUMED = 5_000
"""Calls an hour, until GitHub has said how many."""
LISTED = timedelta(minutes=30)
"""How long the list of repositories is believed."""
BACK = timedelta(hours=6)
"""How far back the first look for failed webhooks goes."""
OVERLAP = timedelta(minutes=10)
"""Looks for failed webhooks overlap by so much: a delivery may fail long after it began."""
TRIES = 3
"""Most times that one webhook is asked for again."""
SILENT = timedelta(minutes=10)
"""A job of which nothing was heard for so long is asked for, and again after the same time."""
SOON = timedelta(minutes=1)
"""The same of one that runs on a runner that is no more."""


class Recovery:
    """Of one site. One run at a time, and in one process."""

    def __init__(
        self,
        clients: Mapping[str, GitHubClient],
        store: RunnerStore,
        book: JobBook,
        intake: JobIntake,
        repositories: Repositories,
        hooked: Callable[[str], bool],
        now: Callable[[], datetime],
        period: timedelta,
        visibility: RepositoryVisibility,
    ) -> None:
        """`hooked`: whether jobs of an enrolment come by webhook. `period`: between two runs."""
        self._clients, self._store, self._book = clients, store, book
        self._intake, self._repositories, self._hooked = intake, repositories, hooked
        self._now, self._period, self._visibility = now, period, visibility
        self._lists = Answers(now)
        self._again: dict[str, int] = {}
        """Webhook -> how often it was asked for again."""
        self._asked: dict[str, datetime] = {}
        self._missing: set[str] = set()
        """Jobs that GitHub did not know when last asked."""
        self._next: dict[str, int] = {}
        """Enrolment -> place in its list of repositories."""

    def run(self) -> None:
        """Raises GitHubError, after all enrolments were looked at."""
        problems: list[GitHubError] = []
        for scope, client in self._clients.items():
            left = self._budget(client)
            for look in (self._truth, self._redeliver, self._poll, self._see):
                try:
                    left = look(scope, client, left)
                except GitHubError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def _budget(self, client: GitHubClient) -> int:
        """Calls that this run may make."""
        usage = client.usage()
        if usage.remaining is not None and usage.limit and usage.remaining < usage.limit * PART:
            return 0
        return max(1, int((usage.limit or ASSUMED) * PART * (self._period / timedelta(hours=1))))

    # Jobs that we know

    def _truth(self, scope: str, client: GitHubClient, left: int) -> int:
        live = {runner.name for runner in self._store.runners()}
        now = self._now()
        known = self._store.jobs()
        self._missing &= {job.id for job in known}
        jobs = [job for job in known if job.scope == scope and self._is_silent(job, live, now)]
        problem: GitHubError | None = None
        for job in jobs:
            if left <= 0:
                break
            left -= 2 if job.scale_set else 1
            self._asked[job.id] = now
            try:
                self._ask(client, job)
            except GitHubError as error:
                self._asked[job.id] = now - SILENT + SOON
                problem = problem or error
                if error.kind is GitHubTrouble.LIMITED:
                    break
        self._asked = {id: at for id, at in self._asked.items() if now - at < SILENT}
        if problem is not None:
            raise problem
        return left

    def _is_silent(self, job: Job, live: set[str], now: datetime) -> bool:
        last = max(job.changed or job.queued, self._asked.get(job.id, job.queued))
        alone = job.state is JobState.RUNNING and job.runner not in live
        return now - last >= (SOON if alone else SILENT) and (alone or job.runner not in live)

    def _ask(self, client: GitHubClient, job: Job) -> None:
        if job.scale_set:
            self._ask_of_run(client, job)
            return
        told = client.job(job.repository, int(job.id.rpartition("/")[2]))
        if told is not None:
            self._missing.discard(job.id)
            self._book.update([replace(told, id=job.id)])
        elif self._missed_before(job):
            reason = "GitHub does not know it any more"
            self._book.change(job.id, lambda one: replace(one, state=JobState.FAILED, reason=reason), reason)

    def _ask_of_run(self, client: GitHubClient, job: Job) -> None:
        """Nothing else tells of a job of a scale set; and a run is not over as long as any of its jobs waits."""
        if not job.run_id:
            return
        try:
            told = None if client.run(job.repository, job.run_id).status != "completed" else UNKNOWN
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            told = UNKNOWN if self._missed_before(job) else None
        else:
            told = told or _conclusion(job, client.jobs_of(job.repository, job.run_id))
        if told is not None:
            self._book.update([JobUpdate(job.id, job.repository, job.scope, JobState.COMPLETED, conclusion=told)])

    def _missed_before(self, job: Job) -> bool:
        """Whether GitHub does not know it for the second time: one 404 may be a mistake, so it is asked again soon."""
        if job.id in self._missing:
            return True
        self._missing.add(job.id)
        self._asked[job.id] = self._now() - SILENT + SOON
        return False

    # Webhooks that failed

    def _redeliver(self, scope: str, client: GitHubClient, left: int) -> int:
        if not self._hooked(scope) or left <= 1:
            return left
        key, now = f"redelivered/{scope}", self._now()
        said = self._store.value(key)
        since = max(datetime.fromisoformat(said) - OVERLAP if said else now - BACK, now - timedelta(days=3))
        for hook in client.hooks():
            left -= 2
            for attempt in _failed(client.deliveries(hook, since)):
                if left <= 0:
                    return left
                if self._again.get(attempt.guid, 0) < TRIES:
                    self._again[attempt.guid] = self._again.get(attempt.guid, 0) + 1
                    LOG.info("%s: webhook %s of %s failed; asking for it again", scope, attempt.guid, attempt.delivered)
                    client.redeliver(hook, attempt.id)
                    left -= 1
        self._store.set_value(key, now.isoformat())
        if len(self._again) > 10_000:
            self._again.clear()
        return left

    # Jobs that nobody told of

    def _poll(self, scope: str, client: GitHubClient, left: int) -> int:
        """Some repositories at each run, one after the other."""
        if not client.enrolment.cirun:
            return left
        names: Sequence[Repository] = self._lists.get(("repositories", scope), LISTED, lambda _: client.repositories())
        for _ in names:
            if left < 3:
                break
            place = self._next.get(scope, 0) % len(names)
            self._next[scope] = place + 1
            files = self._repositories.configuration(scope, names[place].name)
            left -= 1
            if files.own.runners or files.shared.runners:
                found = client.waiting_jobs(names[place].name)
                left -= 2 + len(found)
                self._intake.found(found)
            if self._next[scope] >= len(names):
                break
        return left

    # Repositories that may have become private

    def _see(self, scope: str, client: GitHubClient, left: int) -> int:
        for name in self._visibility.stale(scope, left):
            self._visibility.ask(scope, name)
            left -= 1
        return left


def _conclusion(job: Job, of_run: Sequence[JobUpdate]) -> str | None:
    """How a job of a scale set has ended, by the jobs of its run; None while it may not have. It has another number
    there: it is the one that its runner had, and before it has a runner any that could have one of its scale set."""
    if job.runner:
        mine = [one for one in of_run if one.runner == job.runner]
    else:
        mine = [one for one in of_run if job.scale_set.lower() in {label.lower() for label in one.labels}]
    if not mine or any(one.state is not JobState.COMPLETED for one in mine):
        return None
    return mine[0].conclusion if len(mine) == 1 else UNKNOWN


def _failed(attempts: Sequence[HookAttempt]) -> list[HookAttempt]:
    """The latest try of each webhook of jobs that none of its tries has brought."""
    brought = {one.guid for one in attempts if one.ok}
    latest: dict[str, HookAttempt] = {}
    for one in attempts:  # the newest first
        if one.event == "workflow_job" and one.guid not in brought:
            latest.setdefault(one.guid, one)
    return [*latest.values()]
