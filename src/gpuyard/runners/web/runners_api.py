"""The API of runners: the queue, jobs and runners as their pages show them.

People who are logged in see all of the site's, or as much as the site shows people of others' jobs; trouble with a
connection to GitHub is for admins. On a site whose runners are public everybody sees the queue, jobs and runners, but
no logs, hosts, or what happened to servers, and of private repositories what the site allows (private_repositories.py).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.runners.overview import RunnerOverview
from gpuyard.runners.records import DONE, Cause, Job, JobState, Runner, RunnerEvent, RunnerState
from gpuyard.runners.view import QueuePlace
from gpuyard.runners.web.private_repositories import RunnerVisibility, runner_visibility
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.web.api_requests import Maybe
from gpuyard.web.documents import Moment
from gpuyard.web.people import find_visitor
from gpuyard.web.problems import Refusal, documented, no_data_yet
from gpuyard.web.settings import OthersShown

MOST_ROWS = 500
JobId = Annotated[str, Path(max_length=300, examples=["github.com/123456"])]
Repository = Annotated[str, Query(max_length=201, description="Only of this one, `owner/name`; empty: of all.")]


class PlaceDocument(BaseModel, title="Place"):
    """Where a job waits."""

    pool: str = Field(description="Whose queue it is in; empty when that is not known.")
    position: int = Field(description="1 is next; 0 for one that has a runner already.")
    reason: str = Field(description="Why it waits.")
    start: datetime | None = Field(description="When it starts at the latest, as far as can be said.")


class JobRow(BaseModel, title="Job"):
    """A job of a workflow."""

    id: str = Field(description="Empty for a job of a private repository that is not shown to whoever asks.")
    repository: str
    name: str
    workflow: str
    labels: list[str]
    state: JobState
    reason: str = Field(description="Why it is in this state; empty when the state says it all.")
    conclusion: str = Field(description="GitHub's word, of one that is over.")
    event: str = Field(description="What started the run; empty when it is not known.")
    actor: str
    branch: str
    url: str = Field(description="At GitHub; empty when it is not known.")
    run_id: int
    run_attempt: int
    queued: datetime
    started: datetime | None
    completed: datetime | None
    runner: str = Field(description="Name of the runner that GitHub gave it to.")
    tries: int = Field(description="Runners that were made for it and failed.")
    place: PlaceDocument | None = Field(description="Null when it does not wait.")


class RunnerRow(BaseModel, title="Runner"):
    """A runner: a server for one job."""

    name: str
    state: RunnerState
    repository: str = Field(description="Whose job it has, or was made for; empty for one that waits for any.")
    job: str = Field(description="Id of its job.")
    labels: list[str]
    pool: str
    flavor: str
    gpus: int
    hosts: list[str] = Field(description="`host/address` of its GPUs; empty for strangers.")
    created: datetime
    online: datetime | None
    busy: datetime | None = Field(description="Since when it has its job.")
    until: datetime | None = Field(description="The time limit of its job.")
    ended: datetime | None
    cause: Cause | None = Field(description="Why it ends, or ended.")
    reason: str = Field(description="The same in words; empty for strangers.")


class EventRow(BaseModel, title="RunnerEvent"):
    at: datetime
    runner: str
    text: str


class JobDocument(JobRow, title="JobWithHistory"):
    runners: list[RunnerRow] = Field(description="That were made for it or that it was given to.")
    events: list[EventRow] = Field(description="What happened to it and to its runners, by time.")


class QueueDocument(BaseModel, title="Queue"):
    taken_at: datetime = Field(description="When it was planned.")
    jobs: list[JobRow] = Field(description="Those with a runner first, then in the order of their turns.")
    more: int = Field(description="Jobs behind these: ask for them with 'skip'.")


class JobList(BaseModel):
    jobs: list[JobRow] = Field(description="The newest first.")


class SetRow(BaseModel, title="ScaleSet"):
    name: str
    enrolment: str
    assigned: int = Field(description="Jobs that GitHub has given it.")
    waiting: int = Field(description="Jobs that wait at GitHub until it has room for them.")
    seen: datetime | None = Field(description="When GitHub last answered.")
    error: str = Field(description="For admins.")


class RunnerList(BaseModel):
    taken_at: datetime | None = Field(description="When they were looked at; null before the first time.")
    runners: list[RunnerRow] = Field(
        description="Those that are not over, by creation; then ended ones when asked for."
    )
    sets: list[SetRow]
    errors: list[str] = Field(description="What is wrong with GitHub, for admins.")


class JobFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    state: list[JobState] = Field([], description="Only these states; can be repeated.")
    repository: str = Field("", max_length=201, description="Only of this one, `owner/name`.")
    before: Annotated[Moment | None, Maybe] = Field(
        None, description="Only those that were queued before: to go on after a page."
    )
    limit: int = Field(100, ge=1, le=MOST_ROWS)


class QueueFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(MOST_ROWS, ge=1, le=MOST_ROWS)
    skip: int = Field(0, ge=0, le=1_000_000, description="Leave out so many from the beginning.")


class RunnerFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ended: int = Field(0, ge=0, le=MOST_ROWS, description="So many of those that have ended, too.")


def install(app: FastAPI, runners: RunnerSources, now: Callable[[], datetime], others: OthersShown) -> None:
    def visibility_for(request: Request) -> RunnerVisibility:
        return runner_visibility(runners, now(), find_visitor(request), others)

    @app.get("/v1/queue", tags=["runners"], responses=documented(401, 422, 503))
    def queue(request: Request, filters: Annotated[QueueFilter, Query()]) -> QueueDocument:
        """Jobs that wait, in the order of their turns: position, reason, and when they start at the latest."""
        return _queue_document(runners, visibility_for(request), filters)

    @app.get("/v1/jobs", tags=["runners"], responses=documented(401, 422))
    def list_jobs(request: Request, filters: Annotated[JobFilter, Query()]) -> JobList:
        """Jobs, also those that are over."""
        visibility = visibility_for(request)
        if not visibility.sees(filters.repository):
            return JobList(jobs=[])
        states = frozenset(filters.state) or frozenset(JobState)

        def read(limit: int, before: datetime | None) -> list[Job]:
            return runners.store.latest_jobs(states, filters.repository, limit, before)

        places = places_of(runners.overview.latest())
        jobs = visibility.latest(read, filters.limit, filters.before)
        return JobList(jobs=[job_row(job, places.get(job.id)) for job in jobs])

    @app.get(
        "/v1/jobs/{id:path}/log", tags=["runners"], responses=documented(401, 404), response_class=PlainTextResponse
    )
    def job_log(request: Request, id: JobId) -> Response:
        """The end of the log of the runner that the job was last given to, as the server sent it: anything may be in
        it. For those who are logged in."""
        if find_visitor(request) is None:
            raise Refusal(401, "unauthorized", "Logs are for those who are logged in.")
        job = require_job(runners, id, visibility_for(request))
        name = last_runner(job, runners.store.runners_of(id))
        return PlainTextResponse(runners.store.log(name) if name else "")

    @app.get("/v1/jobs/{id:path}", tags=["runners"], responses=documented(401, 404))
    def get_job(request: Request, id: JobId) -> JobDocument:
        """A job, its runners, and what happened to it."""
        return _job_document(runners, visibility_for(request), id)

    @app.get("/v1/runners", tags=["runners"], responses=documented(401, 422))
    def list_runners(request: Request, filters: Annotated[RunnerFilter, Query()]) -> RunnerList:
        """Runners that there are, the scale sets that are listened to, and what is wrong."""
        visitor = find_visitor(request)
        return _runner_list(
            runners, visibility_for(request), filters.ended, visitor is not None and visitor.person.admin
        )


def _queue_document(runners: RunnerSources, visibility: RunnerVisibility, queue_filter: QueueFilter) -> QueueDocument:
    overview = runners.overview.latest()
    if overview is None:
        raise no_data_yet()
    jobs = {job.id: job for job in overview.jobs}
    both = [(jobs[place.job], place) for place in overview.queue if place.job in jobs]
    shown = [
        (job, visibility.place(hidden, place)) for hidden, place in both if (job := visibility.job(hidden)) is not None
    ]
    end = queue_filter.skip + queue_filter.limit
    rows = [job_row(job, place) for job, place in shown[queue_filter.skip : end]]
    return QueueDocument(taken_at=overview.taken_at, jobs=rows, more=max(0, len(shown) - end))


def _job_document(runners: RunnerSources, visibility: RunnerVisibility, id: str) -> JobDocument:
    job, known = require_job(runners, id, visibility), visibility.known
    made = visibility.runners(runners.store.runners_of(id), runners.store.repositories_of)
    place = places_of(runners.overview.latest()).get(id)
    events = [
        EventRow(at=event.at, runner=event.runner, text=event.text) for event in timeline(runners, id, made, known)
    ]
    return JobDocument(
        **job_row(job, place).model_dump(), runners=[runner_row(runner, known) for runner in made], events=events
    )


def _runner_list(runners: RunnerSources, visibility: RunnerVisibility, ended: int, admin: bool) -> RunnerList:
    overview, store = runners.overview.latest(), runners.store
    over = store.runners(over=True, limit=ended) if ended else []
    sets = [
        SetRow(
            name=scale_set.name,
            enrolment=visibility.enrolment(runners.site, scale_set.scope),
            assigned=scale_set.assigned,
            waiting=scale_set.waiting,
            seen=scale_set.seen,
            error=scale_set.error if admin else "",
        )
        for scale_set in store.scale_sets()
    ]
    return RunnerList(
        taken_at=overview.taken_at if overview else None,
        runners=[
            runner_row(runner, visibility.known)
            for runner in visibility.runners([*store.runners(), *over], store.repositories_of)
        ],
        sets=sets,
        errors=troubles(overview) if admin else [],
    )


def job_row(job: Job, place: QueuePlace | None) -> JobRow:
    return JobRow(
        id=job.id,
        repository=job.repository,
        name=job.name,
        workflow=job.workflow,
        labels=list(job.labels),
        state=job.state,
        reason=job.reason,
        conclusion=job.conclusion,
        event=job.event,
        actor=job.actor,
        branch=job.head_branch,
        url=web_address(job.html_url),
        run_id=job.run_id,
        run_attempt=job.run_attempt,
        queued=job.queued,
        started=job.started,
        completed=job.completed,
        runner=job.runner,
        tries=job.tries,
        place=PlaceDocument(pool=place.pool, position=place.position, reason=place.reason, start=place.start)
        if place and job.state not in DONE
        else None,
    )


def runner_row(runner: Runner, known: bool) -> RunnerRow:
    """Return a runner's row. `known`: the viewer is no stranger (private_repositories.py)."""
    return RunnerRow(
        name=runner.name,
        state=runner.state,
        repository=runner.for_repository,
        job=runner.job,
        labels=list(runner.labels),
        pool=runner.choice.pool,
        flavor=runner.choice.flavor,
        gpus=runner.choice.gpus,
        hosts=list(runner.gpus) if known else [],
        created=runner.created,
        online=runner.online,
        busy=runner.busy,
        until=runner.until,
        ended=runner.ended,
        cause=runner.cause,
        reason=runner.reason if known else "",
    )


def web_address(url: str) -> str:
    """Return a link that leads to a page and runs nothing; else empty."""
    return url if url.startswith(("https://", "http://")) else ""


def require_job(runners: RunnerSources, id: str, visibility: RunnerVisibility) -> Job:
    """Return a job. Raises Refusal 404, also for a job of a repository that the viewer may not know."""
    job = runners.store.job(id)
    if job is None or not visibility.sees(job.repository):
        raise Refusal(404, "not_found", f"There is no job {id!r}, or it was longer ago than jobs are kept.")
    return job


def places_of(board: RunnerOverview | None) -> dict[str, QueuePlace]:
    return {place.job: place for place in board.queue} if board else {}


def last_runner(job: Job, made: list[Runner]) -> str:
    """Return the runner of ours that the job was given to, or else the last one that was made for it; empty when there
    is none."""
    names = [runner.name for runner in made]
    return job.runner if job.runner in names else (names[-1] if names else "")


def timeline(runners: RunnerSources, id: str, made: list[Runner], known: bool) -> list[RunnerEvent]:
    """Return the events of a job, and for a `known` viewer those of its runners while they were for it."""
    if known:
        return runners.store.timeline(id, [runner.name for runner in made])
    return [line for line in runners.store.events(job=id) if not line.runner]


def troubles(board: RunnerOverview | None) -> list[str]:
    """Return what is wrong with GitHub, in words for admins."""
    if board is None:
        return []
    sets = [
        f"scale set {scale_set.name} of {scale_set.scope}: {scale_set.error}"
        for scale_set in board.sets
        if scale_set.error
    ]
    return [f"{enrolment.name}: {enrolment.error}" for enrolment in board.enrolments if enrolment.error] + sets
