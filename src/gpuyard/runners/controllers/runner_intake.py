"""Takes in jobs: processes stored webhooks, and decides what jobs may have of which that is not known yet.

A webhook of a job that is somebody else's is dropped before it is stored as a job. A job that GitHub could not be asked
about stays, and is tried again after 15 seconds, twice as long each time. A job that has taken a runner of ours must be
allowed everything that the runner is for, whichever of its labels it asked for; otherwise code that no policy allows
would run there. A refused job's run is cancelled before the refusal is stored, so that a kill in between cancels it
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.logs.request_context import carried
from gpuyard.model.backoff import backoff
from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.controllers.live_records import LiveReader
from gpuyard.runners.controllers.repositories import Repositories
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.jobs import JobUpdate, merge
from gpuyard.runners.records import DONE, HookDelivery, Job, JobState, Runner
from gpuyard.runners.resolve import Ruling
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.webhook import HookRefusedError, job_update

LOG = logging.getLogger(__name__)
MANY = 200
"""Webhooks that are read from the store at once."""
AGAIN = timedelta(seconds=15)
"""Pause after GitHub could not be asked; twice as long each time."""
LONGEST = timedelta(minutes=10)
WITHHELD = 5
"""After this many refusals to answer, in about four minutes, a job is refused: it is a permission that is missing, and
a job that waited for it would wait at GitHub for a day. For a job that is hardly ours the webhook is given up then."""


class JobIntake:
    """The intake of one site. One run at a time, and in one process."""

    def __init__(
        self,
        site: RunnerSite,
        store: RunnerStore,
        book: JobRepository,
        live: LiveReader,
        repositories: Repositories,
        executor: Executor,
        now: Callable[[], datetime],
        heard: Callable[[str, str, bool | None], None] = lambda scope, repository, private: None,
    ) -> None:
        """`executor`: GitHub is asked about several jobs at once. `heard`: told of the enrolment and repository of each
        job that is new, and whether that is private, where that came with the job."""
        self._site, self._store, self._book, self._live = site, store, book, live
        self._repositories, self._executor, self._now, self._heard = repositories, executor, now, heard
        self._again: dict[str, tuple[int, datetime]] = {}
        """Job -> how often GitHub could not be asked about it, and when to try again."""
        self._fits: dict[str, str] = {}
        """Job that runs -> the runner of which it is known that the job may have it."""

    def run(self) -> float | None:
        """Work on everything that is due. Returns in how many seconds another run helps."""
        while deliveries := self._store.deliveries(self._now(), MANY):
            for _ in self._executor.map(carried(self._deliver), deliveries):
                pass
        begun = [job for job in self._live.records().jobs if job.state is not JobState.HELD]
        self._fits = {job.id: job.runner for job in begun if self._fits.get(job.id) == job.runner != ""}
        open_jobs = [job for job in begun if (self._is_to_decide(job) if job.spec is None else self._is_astray(job))]
        now = self._now()
        due = [job for job in open_jobs if self._again.get(job.id, (0, now))[1] <= now]
        for _ in self._executor.map(carried(self._settle), due):
            pass
        self._again = {job.id: self._again[job.id] for job in open_jobs if job.id in self._again}
        waits = [at for _, at in self._again.values()]
        return max(0.1, (min(waits) - self._now()).total_seconds()) if waits else None

    def found(self, updates: list[JobUpdate]) -> int:
        """Take in jobs that GitHub was asked for; those of other people's runners are left alone, as with webhooks.
        Returns how many were new. Raises GitHubError."""
        new = 0
        for update in map(self._of_its_own, updates):
            stored = self._store.job(update.id)
            job = stored or self._new(update)
            if job is not None:
                new += stored is None
                self._book.update([update], {} if stored else {job.id: job})
        return new

    def _deliver(self, delivery: HookDelivery) -> None:
        """Process one webhook to its end. A failed question to GitHub is tried again; nothing in a webhook can end the
        loop."""
        try:
            self._done(delivery, *self._understood(delivery))
        except GitHubError as error:
            if error.kind is GitHubTrouble.REFUSED and delivery.tries + 1 >= WITHHELD:
                LOG.warning("webhook %s: given up: %s", delivery.id, error)
                self._store.delivery_done(delivery.id, delivery.scope, f"given up: {error}"[:200])
                return
            wait = backoff(AGAIN, delivery.tries + 1, LONGEST)
            self._store.delivery_failed(delivery.id, delivery.scope, str(error), error.retry_at or self._now() + wait)
        except Exception as error:  # a mistake of ours: it may concern this one only, and there are others
            LOG.exception("webhook %s", delivery.id)
            text = f"{type(error).__name__}: {error}"
            self._store.delivery_failed(delivery.id, delivery.scope, text, self._now() + LONGEST)

    def _done(self, delivery: HookDelivery, outcome: str, update: JobUpdate | None, initial_job: Job | None) -> None:
        if update is None:
            self._store.delivery_done(delivery.id, delivery.scope, outcome)
        else:
            self._book.deliver(delivery.id, delivery.scope, update, initial_job)

    def _understood(self, delivery: HookDelivery) -> tuple[str, JobUpdate | None, Job | None]:
        """Return the outcome of a webhook, its update, and the job to begin with when it is new."""
        enrolment = self._site.enrolment(delivery.scope)
        if enrolment is None:
            return "no such enrolment", None, None
        try:
            update = job_update(delivery.event, delivery.body, delivery.scope, enrolment.url.partition("://")[2])
        except HookRefusedError as error:
            return f"unreadable: {error}"[:200], None, None
        if update is None:
            return "ignored", None, None
        if not enrolment.includes(update.repository) and self._taken(update) is None:
            return "not enrolled", None, None
        update = self._of_its_own(update)
        job = None
        if self._store.job(update.id) is None and (job := self._new(update)) is None:
            return "not ours", None, None
        # Only of our jobs: whatever is heard of is asked for again every few hours.
        if update.private is not None and enrolment.includes(update.repository):
            self._heard(update.scope, update.repository, update.private)
        return "", update, job

    def _of_its_own(self, update: JobUpdate) -> JobUpdate:
        """Return the update under an id of its own where another enrolment has taken its number. Whoever has the secret
        of one enrolment can name any number as that of its job; such a job is kept with its own enrolment's name."""
        stored = self._store.job(update.id)
        if stored is None or stored.scope == update.scope or stored.repository.lower() == update.repository.lower():
            return update
        host, _, number = update.id.rpartition("/")
        return replace(update, id=f"{host}/{update.scope}/{number}")

    def _new(self, update: JobUpdate) -> Job | None:
        """A new job, with what it may have; None when its labels are others'. Raises GitHubError."""
        job = merge(None, update, self._now())
        ruling, settled = self._settled(job)
        if ruling is Ruling.NOT_OURS:
            return None
        if update.private is None:
            self._heard(job.scope, job.repository, None)
        # What is over, or runs elsewhere, is only written down: nobody decides about it any more.
        # What is refused is refused by `_settle`, which cancels its run first.
        waits = job.state not in DONE and job.state is not JobState.RUNNING
        return settled if ruling is not Ruling.REFUSED and (waits or self._taken(job)) else job

    def _is_astray(self, job: Job) -> bool:
        """Return whether GitHub gave a job that may have one kind of runner to one of another kind: to one with more
        labels, that others may have."""
        if job.state is not JobState.RUNNING or job.scale_set or self._fits.get(job.id) == job.runner:
            return False
        runner = self._taken(job)
        if runner is None or job.spec is None or runner.spec.kind != job.spec.kind:
            return runner is not None
        self._fits[job.id] = job.runner
        return False

    def _is_to_decide(self, job: Job) -> bool:
        return job.state is JobState.QUEUED or self._taken(job) is not None

    def _taken(self, job: Job | JobUpdate) -> Runner | None:
        """The runner of ours that GitHub has given a job that runs, perhaps before we had heard of the job."""
        runner = self._store.runner(job.runner) if job.state is JobState.RUNNING and job.runner else None
        if runner is None or runner.scope != job.scope or (runner.scale_set and not job.scale_set):
            return None  # a job of a scale set is also told of by webhook
        return runner

    def _settled(self, job: Job) -> tuple[Ruling, Job]:
        """Decide what a job may have. One that has a runner of ours needs everything that the runner is for, whichever
        of its labels it asked for: otherwise code that no policy allows would run there. Raises GitHubError."""
        runner = self._taken(job)
        if runner is None:
            return self._repositories.settle(job)
        reason = f"it has taken runner {runner.name}, which is not for its repository"
        enrolment = self._site.enrolment(job.scope)
        if enrolment is not None and enrolment.includes(job.repository):
            ruling, settled = self._repositories.settle(replace(job, labels=runner.labels))
            if ruling is not Ruling.NOT_OURS:
                return ruling, replace(settled, labels=job.labels)
        return Ruling.REFUSED, replace(job, state=JobState.REFUSED, reason=reason)

    def _settle(self, job: Job) -> None:
        astray = job.spec is not None
        enrolment = self._site.enrolment(job.scope)
        if enrolment is not None and enrolment.includes(job.repository):
            self._heard(job.scope, job.repository, None)
        try:
            ruling, settled = self._settled(job)
        except GitHubError as error:
            ruling, settled = Ruling.UNKNOWN, replace(job, reason=str(error))
        except Exception as error:  # a mistake of ours: it may concern this job only, and there are others
            LOG.exception("job %s", job.id)
            reason = f"gpuyard failed ({type(error).__name__}); its log says where"
            ruling, settled = Ruling.UNKNOWN, replace(job, reason=reason)
        if ruling is Ruling.NOT_OURS:
            ruling, settled = Ruling.REFUSED, replace(settled, state=JobState.REFUSED)
        if ruling in (Ruling.UNKNOWN, Ruling.WITHHELD):
            times = self._again.get(job.id, (0, self._now()))[0] + 1
            self._again[job.id] = times, self._now() + backoff(AGAIN, times, LONGEST)
            ruling = Ruling.REFUSED if ruling is Ruling.WITHHELD and times >= WITHHELD else Ruling.UNKNOWN
        reason = settled.reason
        if ruling is Ruling.REFUSED:  # before it is written: after a kill in between it is cancelled again
            reason = "; ".join(filter(None, (reason, self._repositories.cancelled(settled))))

        if ruling is Ruling.GRANTED:
            self._fits[job.id] = job.runner

        def decided(now: Job) -> Job:
            moved = (now.state, now.runner) != (job.state, job.runner)
            if now.state in DONE or not self._is_to_decide(now) or (now.spec is not None and (moved or not astray)):
                return now
            state = JobState.REFUSED if ruling is Ruling.REFUSED else now.state
            return replace(
                now,
                state=state,
                spec=settled.spec if ruling is not Ruling.UNKNOWN else now.spec,
                reason=reason,
                event=settled.event,
                actor=settled.actor,
                trust=settled.trust,
                association=settled.association,
            )

        text = f"refused: {reason}" if ruling is Ruling.REFUSED else ""
        self._book.change(job.id, decided, text)
