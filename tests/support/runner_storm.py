"""What must be so after a storm, simulated or on the lab: every job ran once, or it is said why it did not."""

from __future__ import annotations

from gpuyard.runners.records import Job, JobState
from gpuyard.runners.store import RunnerStore
from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import COMPLETED, ForgeJob

PREFIX = "gpuyard-"
"""Names of our runners begin so."""


def our_job(forge: Forge, store: RunnerStore, job: ForgeJob) -> Job | None:
    """What we have written of a job. One of a scale set goes by the number of its latest assignment."""
    host, owner = forge.url.partition("://")[2], job.repository.partition("/")[0]
    number = f"set/{owner}/{job.scale_set}/{job.request}" if job.scale_set else job.id
    return store.job(f"{host}/{number}")


def given_up(ours: Job | None) -> bool:
    """Whether we have said that it gets no runner, and why."""
    return ours is not None and ours.state in (JobState.FAILED, JobState.REFUSED) and bool(ours.reason)


def unfinished(forge: Forge, store: RunnerStore) -> list[ForgeJob]:
    """Jobs that are not over at GitHub, but for those that we have given up."""
    with forge.lock:
        jobs = [job for job in forge.jobs.values() if job.status != COMPLETED]
    return [job for job in jobs if not given_up(our_job(forge, store, job))]


def wronged(forge: Forge, store: RunnerStore) -> list[str]:
    """Jobs that did not run exactly once on a runner of ours, and were neither cancelled, nor taken by somebody else's
    runner, nor given up with a reason; those that broke off without their runner's saying why."""
    problems = []
    for job in forge.jobs.values():
        ours, tries = (
            our_job(forge, store, job),
            [attempt for attempt in job.tries if attempt.runner.startswith(PREFIX)],
        )
        if len(tries) > 1:
            problems.append(f"job {job.id} ran {len(tries)} times: {job}, {ours}")
        if not job.tries and job.conclusion != "cancelled" and not given_up(ours):
            problems.append(f"job {job.id} never ran, and nobody said why: {job}, {ours}")
        for attempt in tries:
            runner = store.runner(attempt.runner)
            if runner is None or runner.cause is None or not runner.reason:
                problems.append(f"runner {attempt.runner} of job {job.id} has ended, and nobody said why: {runner}")
    return problems
