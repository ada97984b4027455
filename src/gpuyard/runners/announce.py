"""Sets commit statuses that tell people where in the queue a waiting job is, why it waits, and until when.

A status is of the queue, not of the job, which GitHub shows itself; so it is done, and green, once the job runs. It is
pending while a job waits, an error when gpuyard refused or gave up the job. The announcer limits itself, since GitHub's
calls are needed for runners: a job gets its first status after a minute of waiting, a pending one changes at most every
5 minutes, an enrolment sets at most 20 in one run, and none while less than 30 % of the hour's calls remain.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from gpuyard.runners import fields
from gpuyard.runners.github.client import DESCRIPTION, GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import Job, JobState
from gpuyard.runners.view import QueuePlace

LOG = logging.getLogger(__name__)
PATIENCE = timedelta(minutes=1)
"""A job that waits no longer than this gets no status."""
EVERY = timedelta(minutes=5)
"""Between two statuses of one job that waits. GitHub keeps 1,000 statuses of a commit, and a job may wait for a day."""
RECENT = timedelta(hours=1)
"""A job that was refused longer ago gets no status any more."""
AT_ONCE = 20
"""Statuses of one enrolment in one run: GitHub allows 80 calls a minute that create content."""
RESERVE = 0.3
"""Share of an hour's calls that is kept for more important ones."""
SILENCE = timedelta(hours=1)
"""Time for which nothing is tried for an enrolment whose app or token may not set statuses."""
STEP = 300
"""Seconds to which estimates are rounded up, so that they do not change with every run."""
KEPT = 2 * RECENT
"""Time for which the last status of a job is remembered after the job stopped waiting."""
MOST_REMEMBERED = 1000
UNKNOWN_COMMIT = 422
"""HTTP status when GitHub does not know the commit (any more): it is not tried again."""
PENDING, SUCCESS, ERROR = "pending", "success", "error"


@dataclass(frozen=True)
class Announcement:
    """The last commit status that was set for a job; it may be out of date."""

    repository: str
    sha: str
    context: str
    state: str
    text: str
    at: datetime


def announcement(
    job: Job, place: QueuePlace | None, previous: Announcement | None, now: datetime
) -> Announcement | None:
    """Return the status to set for a job now; None when there is nothing new. `job.head_sha` must be known."""
    desired = _words(job, place, previous, now)
    if desired is None or not job.head_sha:
        return None
    state, text = desired
    if previous and (previous.state, previous.text) == desired:
        return None
    if previous and previous.state == state == PENDING and now - previous.at < EVERY:
        return None
    if previous:
        return replace(previous, state=state, text=text, at=now)
    name = " / ".join(part for part in (job.workflow, job.name or ", ".join(job.labels)) if part)
    return Announcement(job.repository, job.head_sha, f"gpuyard: {name}"[:100], state, text, now)


def _words(job: Job, place: QueuePlace | None, previous: Announcement | None, now: datetime) -> tuple[str, str] | None:
    """State and text."""
    if job.state in (JobState.REFUSED, JobState.FAILED):
        recent = previous is not None or now - (job.changed or job.queued) < RECENT
        return (ERROR, _cut(job.reason or "gpuyard will not run it")) if recent else None
    if job.state is JobState.QUEUED:
        if place is None or (previous is None and now - job.queued < PATIENCE):
            return None
        return PENDING, _cut(_waits(place))
    if previous is None or job.state is JobState.HELD:
        return None
    if job.state is JobState.COMPLETED and not job.runner:
        return SUCCESS, "It left the queue before it ran"
    waited = (job.started or job.changed or job.queued) - job.queued
    return SUCCESS, f"It waited {max(1, round(waited / timedelta(minutes=1)))} min"


def _waits(place: QueuePlace) -> str:
    if not place.position:
        return f"A server is being made: {place.reason}" if place.reason else "A server is being made"
    where = f"Place {place.position}" + (f" for {place.pool}" if place.pool else "")
    until = ""
    if place.start is not None:
        seconds = -(-int(place.start.timestamp()) // STEP) * STEP
        until = f", by {datetime.fromtimestamp(seconds, UTC):%d %b %H:%M} UTC"
    return f"{where}{until}: {place.reason}" if place.reason else where + until


def _cut(text: str) -> str:
    return text if len(text) <= DESCRIPTION else text[: DESCRIPTION - 1] + "…"


class Announcer:
    """Sets the statuses. Call `run` now and then, in one thread; `load` and `save` keep what was set, as text."""

    def __init__(
        self,
        clients: Mapping[str, GitHubClient],
        load: Callable[[], str],
        save: Callable[[str], None],
        now: Callable[[], datetime],
        link: Callable[[Job], str] = lambda job: "",
    ) -> None:
        """`link` returns the address of a page about a job; empty where there is no such page."""
        self._clients, self._save, self._now, self._link = clients, save, now, link
        self._said = read_said(load())
        self._silent: dict[str, datetime] = {}
        """Enrolment -> until when nothing is set, since its app or token may not."""
        self._shas: dict[tuple[str, int], str] = {}

    def run(self, jobs: Iterable[Job], places: Iterable[QueuePlace], job: Callable[[str], Job | None]) -> int:
        """Set the statuses that are due; returns how many were set or tried. `jobs`: all that are not over, and those
        that were refused lately. `job` finds one by its id."""
        now, by_job = self._now(), {place.job: place for place in places}
        before = self._said
        self._said = {
            id: announcement
            for id, announcement in before.items()
            if announcement.state == PENDING or now - announcement.at < KEPT
        }
        looked = {job.id: job for job in jobs}
        looked |= {id: announced_job for id in self._said.keys() - looked.keys() if (announced_job := job(id))}
        self._said = {id: announcement for id, announcement in self._said.items() if id in looked}
        done, left = 0, dict.fromkeys(self._clients, AT_ONCE)
        for candidate in sorted(looked.values(), key=lambda candidate: candidate.queued):
            if left.get(candidate.scope, 0) > 0 and self._say(candidate, by_job.get(candidate.id), now):
                left[candidate.scope] -= 1
                done += 1
        if self._said != before:
            self._save(write_said(self._said))
        return done

    def _say(self, job: Job, place: QueuePlace | None, now: datetime) -> bool:
        """Set the status of a job, if it is due. Returns whether that was done, or tried."""
        client, previous = self._clients[job.scope], self._said.get(job.id)
        if not self._may(client, job.scope, now) or announcement(_with_sha(job), place, previous, now) is None:
            return False
        try:
            sha = previous.sha if previous else job.head_sha or self._sha(client, job)
            new = announcement(replace(job, head_sha=sha), place, previous, now)
            if new is not None:
                client.set_status(new.repository, new.sha, new.state, new.text, new.context, self._link(job))
        except GitHubError as error:
            if error.status != UNKNOWN_COMMIT:
                self._failed(job, error, now)
                return True
        if new is not None and (previous or len(self._said) < MOST_REMEMBERED):
            self._said = self._said | {job.id: new}
        return True

    def _may(self, client: GitHubClient, scope: str, now: datetime) -> bool:
        usage = client.usage()
        spent = usage.remaining is not None and usage.limit and usage.remaining < usage.limit * RESERVE
        return not spent and now >= self._silent.get(scope, now)

    def _failed(self, job: Job, error: GitHubError, now: datetime) -> None:
        if error.kind in (GitHubTrouble.REFUSED, GitHubTrouble.MISSING, GitHubTrouble.UNAUTHORIZED):
            LOG.info("%s: no word at commits for an hour: %s", job.scope, error)
            self._silent[job.scope] = now + SILENCE
        else:
            self._silent[job.scope] = error.retry_at or now + EVERY

    def _sha(self, client: GitHubClient, job: Job) -> str:
        """Return the commit of a job from its run: scale sets report the run only."""
        key = (job.repository, job.run_id)
        if job.run_id and key not in self._shas:
            if len(self._shas) >= MOST_REMEMBERED:
                self._shas.clear()
            self._shas[key] = client.run(job.repository, job.run_id).head_sha
        return self._shas.get(key, "")


def _with_sha(job: Job) -> Job:
    """Return the job as if its commit were known, to see whether there is anything to say."""
    return job if job.head_sha or not job.run_id else replace(job, head_sha="?")


def job_link(portal: str, job: Job) -> str:
    """Return the address of a job's page in a portal; empty where the portal has no address that others know."""
    return f"{portal.rstrip('/')}/job?{urlencode({'id': job.id})}" if portal else ""


def write_said(announcements: Mapping[str, Announcement]) -> str:
    return json.dumps(
        {
            id: [
                announcement.repository,
                announcement.sha,
                announcement.context,
                announcement.state,
                announcement.text,
                announcement.at.isoformat(),
            ]
            for id, announcement in announcements.items()
        },
        separators=(",", ":"),
    )


def read_said(text: str) -> dict[str, Announcement]:
    """Read what `write_said` has written; empty when the text is anything else."""
    try:
        data = fields.row(json.loads(text or "{}"))
        return {
            id: Announcement(str(a), str(b), str(c), str(d), str(e), datetime.fromisoformat(at))
            for id, (a, b, c, d, e, at) in data.items()
        }
    except (ValueError, TypeError, RecursionError):
        return {}
