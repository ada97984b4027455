"""Hides jobs of private repositories from strangers: all of them, or all but the fact that there are jobs. Hidden here
alone.

A stranger has not logged in, or has no part in the project of the runners on a site that hides others from people
(`booking: others`). Everybody else sees all. A repository counts as private until GitHub has said that it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuyard.runners.records import Job, Runner
from gpuyard.runners.view import QueuePlace
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.site.runner_rules import PrivateShown, SiteRunners
from gpuyard.web.people import Visitor
from gpuyard.web.settings import OthersShown
from gpuyard.web.visibility import hides

HIDDEN_JOB = "a job of a private repository"
HIDDEN_REPOSITORY = "private repositories"
MOST_LOOKS = 10
"""Times that jobs are read for one answer, where most of them are left out."""
Read = Callable[[int, datetime | None], list[Job]]


@dataclass(frozen=True)
class RunnerVisibility:
    """The jobs and runners that somebody may see."""

    known: bool
    """Whether the viewer is no stranger."""
    private: PrivateShown = "jobs"
    public: frozenset[str] = field(default_factory=frozenset)
    """Repositories, in lower case."""

    def sees(self, repository: str) -> bool:
        """Return whether the viewer may know a repository (``owner/name``); empty is none, and is shown."""
        return not repository or self.known or self.private == "names" or repository.lower() in self.public

    def job(self, job: Job) -> Job | None:
        """Return a job as the viewer sees it; None when it is hidden. A job whose names are hidden has the id ""."""
        if self.sees(job.repository):
            return job
        if self.private == "nothing":
            return None
        return replace(
            job, id="", repository="", labels=(), scope="", scale_set="", run_id=0, run_attempt=1, workflow="",
            name=HIDDEN_JOB, event="", actor="", association="", head_branch="", head_sha="", html_url="", reason="",
        )  # fmt: skip

    def jobs(self, jobs: Iterable[Job]) -> list[Job]:
        return [shown for job in jobs if (shown := self.job(job)) is not None]

    def place(self, job: Job, place: QueuePlace) -> QueuePlace:
        """Return a place in the queue without the job's id and reason, unless the viewer may know its repository: a
        reason says what went wrong with the job."""
        return place if self.sees(job.repository) else place._replace(job="", reason="")

    def latest(self, read: Read, limit: int, before: datetime | None) -> list[Job]:
        """Return the newest jobs that the viewer sees. `read` gives so many from a moment back."""
        jobs: list[Job] = []
        for _ in range(MOST_LOOKS):
            some = read(limit, before)
            jobs += self.jobs(some)
            if len(jobs) >= limit or len(some) < limit:
                break
            before = some[-1].queued
        return jobs[:limit]

    def runners(
        self, runners: Sequence[Runner], repositories_of: Callable[[Collection[str]], dict[str, str]]
    ) -> list[Runner]:
        """Return runners, without names where the viewer may not know the job's repository. `repositories_of`: of ids
        of jobs."""
        if self.known or self.private == "names":
            return [*runners]
        whose = repositories_of({id for runner in runners for id in (runner.job, runner.for_job) if id})
        return [runner if self._sees_runner(runner, whose) else _nobodys(runner) for runner in runners]

    def _sees_runner(self, runner: Runner, whose: dict[str, str]) -> bool:
        names = (runner.repository, runner.for_repository)
        jobs = [whose.get(id) for id in (runner.job, runner.for_job) if id]
        return all(map(self.sees, names)) and all(job is not None and self.sees(job) for job in jobs)

    def hours(self, hours: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
        """Return repository and GPU-hours; those that the viewer may not know are summed up at the end."""
        shown = [(name, amount) for name, amount in hours if self.sees(name)]
        rest = sum(amount for name, amount in hours if not self.sees(name))
        return [*shown, (HIDDEN_REPOSITORY, rest)] if rest and self.private == "jobs" else shown

    def enrolment(self, site: SiteRunners, name: str) -> str:
        """Return the name of an enrolment; empty when that is a repository that the viewer may not know."""
        own = next((enrolment.repository for enrolment in site.enrolments if enrolment.name == name), None)
        return name if self.sees(own or "") else ""


def runner_visibility(
    runners: RunnerSources, now: datetime, who: Visitor | None, others: OthersShown
) -> RunnerVisibility:
    """Return the visibility for `who`, None for somebody who has not logged in. Raises StoreError."""
    private = runners.site.private_repositories
    member = who is not None and any(project.project == runners.site.project for project in who.projects)
    known = who is not None and (member or not hides(others, who))
    all_of_it = known or private == "names"
    return RunnerVisibility(known, private, frozenset() if all_of_it else runners.store.public_repositories(now))


def _nobodys(runner: Runner) -> Runner:
    return replace(runner, repository="", for_repository="", for_job="", job="", labels=(), scope="", scale_set="")
