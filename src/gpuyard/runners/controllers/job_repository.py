"""Changes jobs: reads one, merges it with what is new, and writes it, one change at a time. The only place that does
so.

Webhooks, scale sets, polls and the loop of runners all report the same jobs, each in a thread of its own; without the
lock one would write back what another has just changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from gpuyard.runners.jobs import JobUpdate, merge
from gpuyard.runners.records import DONE, Job, JobState, RunnerEvent, ScaleSetState
from gpuyard.runners.store import RunnerStore

LATELY = 1000
"""Jobs that are over, the latest, which the first call after a start checks for live runners that they concern."""
WORDS = {
    JobState.HELD: "GitHub holds it back",
    JobState.QUEUED: "queued",
    JobState.RUNNING: "runs",
    JobState.COMPLETED: "over",
    JobState.REFUSED: "refused",
    JobState.FAILED: "given up",
}
"""Words of each state, for timelines."""


class JobRepository:
    """The jobs of one store. Safe to use from several threads; of several processes the leader alone changes jobs
    (database/leader_election.py)."""

    def __init__(
        self, store: RunnerStore, now: Callable[[], datetime], changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called after each change: it wakes the planner."""
        self._store = store
        self._now = now
        self._changed = changed
        self._lock = threading.Lock()
        self._over: dict[str, Job] | None = None

    def update(self, updates: Iterable[JobUpdate], initial_jobs: Mapping[str, Job] | None = None) -> list[Job]:
        """Merge what GitHub reports. Returns the jobs that it was news for. `initial_jobs`: the job to begin with, by
        id, where it is not stored yet."""
        with self._lock:
            jobs = self._merged(updates, initial_jobs or {})
            if jobs:
                self._store.put(jobs=jobs, events=[self._told(job) for job in jobs])
                self._note(jobs)
        if jobs:
            self._changed()
        return jobs

    def deliver(self, id: str, scope: str, update: JobUpdate, initial_job: Job | None) -> str:
        """Merge a webhook's update, and mark the webhook as done in the same transaction. Returns the outcome in a
        word."""
        with self._lock:
            jobs = self._merged([update], {initial_job.id: initial_job} if initial_job else {})
            outcome = jobs[0].state.value if jobs else "nothing new"
            self._store.delivery_done(id, scope, outcome, jobs, [self._told(job) for job in jobs])
            self._note(jobs)
        if jobs:
            self._changed()
        return outcome

    def message(self, state: ScaleSetState, updates: Iterable[JobUpdate]) -> list[Job]:
        """Merge a scale set message's updates, and store how far its listener has come in the same transaction."""
        with self._lock:
            jobs = self._merged(updates, {})
            self._store.put_message(state, jobs, [self._told(job) for job in jobs])
            self._note(jobs)
        self._changed()
        return jobs

    def change(self, id: str, change: Callable[[Job], Job], text: str = "") -> Job | None:
        """Replace a job; `text` is for its timeline. Returns None when there is no such job, or it is over by now."""
        with self._lock:
            old = self._store.job(id)
            if old is None or old.state in DONE:
                return None
            new = change(old)
            if new == old:
                return old
            new = replace(new, changed=self._now())
            events = [RunnerEvent(self._now(), "", id, text)] if text else []
            if not self._store.put_job(new, *events):
                return None
            self._note([new])
        self._changed()
        return new

    def over(self, ids: Collection[str], names: Collection[str]) -> list[Job]:
        """Return jobs that are over and concern live runners: those with these ids, and those that name one of these
        runners."""
        with self._lock:
            if self._over is None:
                self._over = {job.id: job for job in self._store.latest_jobs(DONE, limit=LATELY)}
            for id in ids:
                if id not in self._over and (job := self._store.job(id)) is not None and job.state in DONE:
                    self._over[id] = job
            jobs_by_id = {id: job for id, job in self._over.items() if id in ids or job.runner in names}
            self._over = jobs_by_id  # what concerns nobody any more is forgotten
            return [*jobs_by_id.values()]

    def _note(self, jobs: Iterable[Job]) -> None:
        if self._over is not None:
            self._over |= {job.id: job for job in jobs if job.state in DONE}

    def _merged(self, updates: Iterable[JobUpdate], initial_jobs: Mapping[str, Job]) -> list[Job]:
        now = self._now()
        new: dict[str, Job] = {}
        for update in updates:
            stored = new.get(update.id) or self._store.job(update.id)
            merged = merge(stored or initial_jobs.get(update.id), update, now)
            if merged is not stored:
                new[merged.id] = merged
        return [*new.values()]

    def _told(self, job: Job) -> RunnerEvent:
        words = WORDS[job.state]
        if job.state is JobState.RUNNING and job.runner:
            words = f"runs on {job.runner}"
        elif job.state is JobState.COMPLETED and job.conclusion:
            words = f"over: {job.conclusion}"
        elif job.reason:
            words = f"{words}: {job.reason}"
        return RunnerEvent(self._now(), job.runner if job.state is not JobState.QUEUED else "", job.id, words)
