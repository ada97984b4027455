"""Recovers jobs and webhooks that GitHub lost on their way, within a part of the rate limit, so that runners come
first.

Jobs for which runners wait in vain are asked for by a loop of their own (`Recovery.ask_of_unclaimed`). The rest in this
order, until the calls of a run are spent: jobs that we know and of which nothing was heard for long; webhooks that did
not arrive (`LostDeliveries`); jobs that were never reported (`LostJobs`); repositories that may have become private.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.runners.controllers.call_budget import CallBudget
from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.controllers.lost_deliveries import LostDeliveries
from gpuyard.runners.controllers.lost_jobs import LostJobs
from gpuyard.runners.controllers.repositories import Repositories
from gpuyard.runners.controllers.repository_visibility import RepositoryVisibility
from gpuyard.runners.controllers.runner_intake import JobIntake
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.jobs import UNKNOWN, JobUpdate
from gpuyard.runners.records import Job, JobState, RunnerState
from gpuyard.runners.serving import match
from gpuyard.runners.store import RunnerStore

LOG = logging.getLogger(__name__)
PART = 0.2
"""Share of the calls that GitHub allows in an hour."""
ASSUMED = 5_000
"""Calls an hour, until GitHub has said how many."""
DELIVERIES = 0.75
"""Share of what is left of a run's calls that goes to webhooks that did not arrive. After a long outage they would take
all."""
SILENT = timedelta(minutes=10)
"""A job of which nothing was heard for so long is asked for, and again after the same time."""
SOON = timedelta(minutes=1)
"""Pause for one that runs on a runner that is no more, and for a refused one that may run on one of ours."""
UNCLAIMED = timedelta(minutes=1)
"""GitHub gives a job to a runner that waits for it within seconds. One for which a runner waits so long is asked for,
and again after the same time: it may be over, or another runner's."""
MOST_REFUSED = 200
"""Refused jobs, the latest, that are asked for while it is not known what a runner runs."""
GIVEN_UP = timedelta(hours=24)
"""GitHub gives up a job that has waited for so long."""


class Recovery:
    """The recovery of one site. One run at a time, and in one process; `ask_of_unclaimed` beside it, one at a time
    likewise."""

    def __init__(
        self,
        clients: Mapping[str, GitHubClient],
        store: RunnerStore,
        book: JobRepository,
        intake: JobIntake,
        repositories: Repositories,
        hooked: Callable[[str], bool],
        now: Callable[[], datetime],
        period: timedelta,
        visibility: RepositoryVisibility,
    ) -> None:
        """`hooked`: whether jobs of an enrolment come by webhook. `period`: between two runs."""
        self._clients, self._store, self._book = clients, store, book
        self._hooked = hooked
        self._now, self._period, self._visibility = now, period, visibility
        self._deliveries = LostDeliveries(store, now)
        self._jobs = LostJobs(store, intake, repositories, now)
        self._asked: dict[str, datetime] = {}
        self._missing: set[str] = set()
        """Jobs that GitHub did not know when last asked."""
        self._unclaimed: dict[str, datetime] = {}
        """Jobs for which a runner waits -> when they were last asked for."""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all steps for each enrolment. Raises the first error, after all enrolments were looked at."""
        problems: list[Exception] = []
        for scope, client in self._clients.items():
            budget = CallBudget(self._calls(client, self._period))
            for step in (self._truth, self._redeliver, self._jobs.run, self._see):
                try:
                    step(scope, client, budget)
                except Exception as error:  # of one enrolment: there are others
                    if not isinstance(error, GitHubError):
                        LOG.exception("%s", scope)
                    problems.append(error)
        if problems:
            raise problems[0]

    def ask_of_unclaimed(self, period: timedelta) -> None:
        """Ask for jobs that GitHub would have given long ago to the runners that wait for them: a webhook was lost, and
        a GPU waits for nothing. `period`: between two calls of this. Raises GitHubError."""
        now = self._now()
        idle = [
            runner
            for runner in self._store.runners()
            if runner.state is RunnerState.IDLE and not runner.job and now - (runner.online or now) >= UNCLAIMED
        ]
        queued = [job for job in self._store.jobs() if job.state is JobState.QUEUED and not job.runner] if idle else []
        waited_for = match(queued, idle)
        self._unclaimed = {id: at for id, at in self._unclaimed.items() if id in waited_for}
        problem: GitHubError | None = None
        for scope, client in self._clients.items():
            due = [job for job in queued if job.scope == scope and job.id in waited_for]
            due = [job for job in due if now - self._unclaimed.get(job.id, now - UNCLAIMED) >= UNCLAIMED]
            try:
                self._ask_all(client, due, CallBudget(self._calls(client, period)), self._unclaimed, now)
            except GitHubError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _calls(self, client: GitHubClient, period: timedelta) -> int:
        """Calls that a run may make of which there is one in each `period`."""
        usage = client.usage()
        if usage.remaining is not None and usage.limit and usage.remaining < usage.limit * PART:
            return 0
        return max(1, int((usage.limit or ASSUMED) * PART * (period / timedelta(hours=1))))

    # Jobs that we know

    def _truth(self, scope: str, client: GitHubClient, budget: CallBudget) -> None:
        live = {runner.name for runner in self._store.runners()}
        now = self._now()
        stored_jobs = self._store.jobs()
        with self._lock:
            self._missing &= {job.id for job in stored_jobs}
        jobs = [job for job in stored_jobs if job.scope == scope and self._is_silent(job, live, now)]
        jobs += self._refused_that_may_run(scope, now)
        try:
            self._ask_all(client, jobs, budget, self._asked, now - SILENT + SOON)
        finally:
            self._asked = {id: at for id, at in self._asked.items() if now - at < SILENT}

    def _ask_all(
        self,
        client: GitHubClient,
        jobs: Sequence[Job],
        budget: CallBudget,
        asked_at: dict[str, datetime],
        failed: datetime,
    ) -> None:
        """Ask for jobs until the calls are spent, or GitHub allows no more. `asked_at` has when each was asked for, and
        `failed` where that came to nothing. Raises the first GitHubError, after the others."""
        problem: GitHubError | None = None
        for job in jobs:
            if not budget.has():
                break
            budget.spend(2 if job.scale_set else 1)
            asked_at[job.id] = self._now()
            try:
                with self._lock:
                    self._ask(client, job)
            except GitHubError as error:
                asked_at[job.id] = failed
                problem = problem or error
                if error.kind is GitHubTrouble.LIMITED:
                    break
        if problem is not None:
            raise problem

    def _refused_that_may_run(self, scope: str, now: datetime) -> list[Job]:
        """Refused jobs of which one may have taken a runner: GitHub has given that a job, and which is not known. What
        has such a label waits at GitHub, refused or not."""
        runners = [runner for runner in self._store.runners() if runner.scope == scope and not runner.scale_set]
        places = {
            runner.repository.lower() for runner in runners if runner.state is RunnerState.BUSY and not runner.job
        }
        if not places:
            return []
        return [
            job
            for job in self._store.latest_jobs({JobState.REFUSED}, limit=MOST_REFUSED)
            if job.scope == scope and not job.scale_set and job.completed is None and not job.runner
            if "" in places or job.repository.lower() in places
            if now - job.queued < GIVEN_UP and now - self._asked.get(job.id, job.queued) >= SOON
        ]

    def _is_silent(self, job: Job, live: set[str], now: datetime) -> bool:
        last = max(job.changed or job.queued, self._asked.get(job.id, job.queued))
        alone = job.state is JobState.RUNNING and job.runner not in live
        return now - last >= (SOON if alone else SILENT) and (alone or job.runner not in live)

    def _ask(self, client: GitHubClient, job: Job) -> None:
        if job.scale_set:
            self._ask_of_run(client, job)
            return
        update = client.job(job.repository, int(job.id.rpartition("/")[2]))
        if update is not None:
            self._missing.discard(job.id)
            self._book.update([replace(update, id=job.id)])
        elif self._missed_before(job):
            reason = "GitHub does not know it any more"
            self._book.change(job.id, lambda stored: replace(stored, state=JobState.FAILED, reason=reason), reason)

    def _ask_of_run(self, client: GitHubClient, job: Job) -> None:
        """Nothing else tells of a job of a scale set; and a run is not over as long as any of its jobs waits."""
        if not job.run_id:
            return
        try:
            conclusion = None if client.run(job.repository, job.run_id).status != "completed" else UNKNOWN
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            conclusion = UNKNOWN if self._missed_before(job) else None
        else:
            conclusion = conclusion or _conclusion(job, client.jobs_of(job.repository, job.run_id))
        if conclusion is not None:
            self._book.update([JobUpdate(job.id, job.repository, job.scope, JobState.COMPLETED, conclusion=conclusion)])

    def _missed_before(self, job: Job) -> bool:
        """Note that GitHub does not know a job. Returns whether that is the second time: one 404 may be a mistake, so
        the job is asked for again soon."""
        if job.id in self._missing:
            return True
        self._missing.add(job.id)
        self._asked[job.id] = self._now() - SILENT + SOON
        return False

    def _redeliver(self, scope: str, client: GitHubClient, budget: CallBudget) -> None:
        if not self._hooked(scope) or not budget.has(2):
            return
        mine = CallBudget(max(2, int(budget.left * DELIVERIES)))
        before = mine.left
        try:
            self._deliveries.run(scope, client, mine)
        finally:
            budget.spend(before - mine.left)

    # Repositories that may have become private

    def _see(self, scope: str, client: GitHubClient, budget: CallBudget) -> None:
        for name in self._visibility.stale(scope, budget.left):
            budget.spend()
            self._visibility.ask(scope, name)


def _conclusion(job: Job, of_run: Sequence[JobUpdate]) -> str | None:
    """Return the conclusion of a scale set's job, by the jobs of its run; None while it may not be over. It has another
    number there: it is the one that its runner had, and before it has a runner any that could have one of its scale
    set."""
    if job.runner:
        mine = [update for update in of_run if update.runner == job.runner]
    else:
        mine = [update for update in of_run if job.scale_set.lower() in {label.lower() for label in update.labels}]
    if not mine or any(update.state is not JobState.COMPLETED for update in mine):
        return None
    return mine[0].conclusion if len(mine) == 1 else UNKNOWN
