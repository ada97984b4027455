"""Turns jobs and runners into the rows, words and numbers of their pages. Pure; templates decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias, TypeVar
from urllib.parse import quote

from gpuyard.inventory.web.presenter import Since, clock_time, duration, lasted, since
from gpuyard.model.text import printable
from gpuyard.runners.overview import RunnerOverview
from gpuyard.runners.records import DONE, OVER, Job, JobState, Runner, RunnerEvent, RunnerState
from gpuyard.runners.view import QueuePlace
from gpuyard.runners.web.private_repositories import RunnerVisibility
from gpuyard.runners.web.runner_figures import USES, WAITS, Figures
from gpuyard.runners.web.runners_api import places_of, troubles, web_address

HISTORY = 50
"""Jobs that are over, on the page."""
MOST_ROWS = 200
"""Of each list on the page; the API has all."""
COLOURS = {
    JobState.HELD: "lost", JobState.QUEUED: "held", JobState.RUNNING: "claimed",
    JobState.COMPLETED: "free", JobState.REFUSED: "blocked", JobState.FAILED: "blocked",
    RunnerState.REQUESTED: "held", RunnerState.CREATING: "held", RunnerState.REGISTERING: "held",
    RunnerState.IDLE: "free", RunnerState.BUSY: "claimed", RunnerState.DELETING: "lost",
    RunnerState.GONE: "lost", RunnerState.FAILED: "blocked",
}  # fmt: skip
"""State of a job or a runner -> the state of a GPU on the map that has its colour."""
NEITHER = frozenset({"cancelled", "skipped", "neutral", "stale"})
"""Conclusions that are no success and no failure."""


@dataclass(frozen=True)
class JobCard:
    href: str
    """Empty when the viewer may not know the job."""
    title: str
    """Of the job; when it has no name its number."""
    repository: str
    labels: str
    state: str
    """The state, or how it ended."""
    colour: str
    reason: str
    position: str
    """``3`` in the queue, empty for one that has a runner."""
    start: Since | None
    """When it starts at the latest."""
    queued: Since
    waited: str
    """From the queue to its runner."""
    ran: str
    """``ran 28 min``, ``runs for 1 h``; empty for one that has not begun."""
    runner: str
    pool: str


@dataclass(frozen=True)
class RunnerCard:
    name: str
    state: str
    colour: str
    repository: str
    job: str
    """Address of its job's page; empty when it has none."""
    what: str
    """``2 of v100, gpu.v100x2``."""
    created: Since
    until: Since | None
    hosts: str
    reason: str


Sought: TypeAlias = Callable[[JobCard | RunnerCard], bool]
One = TypeVar("One", Job, Runner)
Line = TypeVar("Line", JobCard, RunnerCard)


@dataclass(frozen=True)
class Count:
    name: str
    value: str
    words: str


@dataclass(frozen=True)
class Bar:
    name: str
    value: str
    percent: int
    """Of the longest one."""


@dataclass(frozen=True)
class RunnersPage:
    seen: Since | None
    """When the queue was planned; None before the first time."""
    counts: Sequence[Count]
    queue: Sequence[JobCard]
    queue_more: int
    """Jobs that are not on the page."""
    running: Sequence[JobCard]
    running_more: int
    runners: Sequence[RunnerCard]
    runners_more: int
    """Runners without a job that are not on the page."""
    history: Sequence[JobCard]
    failures: Sequence[Bar]
    gpu_hours: Sequence[Bar]
    troubles: Sequence[str]


@dataclass(frozen=True)
class TimelineLine:
    iso: str
    time: str
    runner: str
    text: str


@dataclass(frozen=True)
class JobPage:
    job: JobCard
    facts: Sequence[tuple[str, str]]
    url: str
    """At GitHub; empty when it is not known."""
    runners: Sequence[RunnerCard]
    timeline: Sequence[TimelineLine]
    log: str
    log_of: str
    """Name of the runner; empty when the viewer may not see logs."""


def runners_page(
    board: RunnerOverview | None, runners: Sequence[Runner], history: Sequence[Job], figures: Figures, now: datetime,
    visibility: RunnerVisibility, admin: bool, sought: Sought | None = None,
) -> RunnersPage:  # fmt: skip
    """Return the page of all runners. `runners` and `history` as the viewer may see them; `admin`: the viewer is one.
    `sought`: whether a line is on the page; None for all."""
    jobs = [job for job in (board.jobs if board else ()) if visibility.job(job) is not None]
    places = places_of(board)
    made = {runner.name: runner for runner in runners}
    order = {job: number for number, job in enumerate(places)}
    queue = sorted(
        (job for job in jobs if job.state in (JobState.QUEUED, JobState.HELD)),
        key=lambda job: (order.get(job.id, len(order)), job.queued, job.id),
    )
    running = [job for job in jobs if job.state is JobState.RUNNING]
    free = [runner for runner in runners if runner.state is not RunnerState.BUSY]
    queued, queue_more = _cut(
        queue, lambda job: _seen_line(job, now, visibility, places.get(job.id), made.get(job.runner)), sought
    )
    run, run_more = _cut(running, lambda job: _seen_line(job, now, visibility, None, made.get(job.runner)), sought)
    waiting, waiting_more = _cut(free, lambda runner: runner_line(runner, now, visibility.known), sought)
    over, _ = _cut(history, lambda job: job_line(job, now), sought)
    return RunnersPage(
        seen=since(board.taken_at, now) if board else None,
        counts=_counts(queue, running, runners, figures),
        queue=queued,
        queue_more=queue_more,
        running=run,
        running_more=run_more,
        runners=waiting,
        runners_more=waiting_more,
        history=over[:HISTORY],
        failures=_bars([(cause.value.replace("-", " "), count) for cause, count in figures.failures.items()], "{:.0f}"),
        gpu_hours=_bars(
            [(name or "waiting for jobs", hours) for name, hours in visibility.hours(figures.gpu_hours)], "{:.1f}"
        ),
        troubles=troubles(board) if admin else [],
    )


def _cut(all_of: Sequence[One], line: Callable[[One], Line], sought: Sought | None) -> tuple[list[Line], int]:
    """Lines on the page, and how many more there are."""
    if sought is None:  # who does not search does not wait for all of them
        return [line(item) for item in all_of[:MOST_ROWS]], max(0, len(all_of) - MOST_ROWS)
    lines = [made for item in all_of if sought(made := line(item))]
    return lines[:MOST_ROWS], max(0, len(lines) - MOST_ROWS)


def _seen_line(
    job: Job, now: datetime, visibility: RunnerVisibility, place: QueuePlace | None, runner: Runner | None
) -> JobCard:
    shown = visibility.job(job)
    assert shown is not None
    return job_line(shown, now, place and visibility.place(job, place), runner)


def _counts(queue: Sequence[Job], running: Sequence[Job], runners: Sequence[Runner], figures: Figures) -> list[Count]:
    idle = sum(runner.state is RunnerState.IDLE for runner in runners)
    coming = sum(
        runner.state in (RunnerState.REQUESTED, RunnerState.CREATING, RunnerState.REGISTERING) for runner in runners
    )
    days = f"last {WAITS.days} days"
    return [
        Count("Waiting", str(len(queue)), "job" if len(queue) == 1 else "jobs"),
        Count("Running", str(len(running)), "job" if len(running) == 1 else "jobs"),
        Count("Runners", str(len(runners)), f"{idle} idle, {coming} on their way"),
        Count("Time to start, p50", _seconds(figures.p50), f"half of the jobs are faster, {days}"),
        Count("Time to start, p95", _seconds(figures.p95), f"19 of 20 jobs are faster, {days}"),
        Count("GPU-hours", f"{figures.all_gpu_hours:.0f}", f"last {USES.days} days"),
    ]


def _bars(values: Sequence[tuple[str, float]], form: str) -> list[Bar]:
    most = max((value for _, value in values), default=0) or 1
    return [Bar(name, form.format(value), max(1, round(100 * value / most))) for name, value in values]


def _seconds(seconds: float | None) -> str:
    return "none yet" if seconds is None else lasted(seconds)


def job_line(job: Job, now: datetime, place: QueuePlace | None = None, runner: Runner | None = None) -> JobCard:
    """Return a job's line. `runner`: of ours, that it was given to."""
    over = job.state in DONE
    end = job.completed or (job.changed if over else now)
    ran = _seconds(max(0.0, (end - job.started).total_seconds())) if job.started and end else ""
    return JobCard(
        href=job_href(job.id) if job.id else "",
        title=" / ".join(printable(part) for part in (job.workflow, job.name) if part) or job.id,
        repository=job.repository,
        labels=shorten(", ".join(map(printable, job.labels))),
        state=job.conclusion if job.state is JobState.COMPLETED and job.conclusion else job.state.value,
        colour=_colour(job),
        reason=(place.reason if place and not over else "") or job.reason,
        position=str(place.position) if place and place.position else "",
        start=ahead(place.start, now) if place and place.start else None,
        queued=since(job.queued, now),
        waited=_seconds(max(0.0, (job.started - job.queued).total_seconds())) if job.started else "",
        ran=f"{'ran' if over else 'runs for'} {ran}" if ran else "",
        runner=job.runner,
        pool=place.pool if place else (runner.choice.pool if runner else ""),
    )


def _colour(job: Job) -> str:
    if job.state is JobState.COMPLETED and job.conclusion in NEITHER:
        return "lost"
    if job.state is JobState.COMPLETED and job.conclusion not in ("success", ""):
        return "blocked"
    return COLOURS[job.state]


def runner_line(runner: Runner, now: datetime, known: bool) -> RunnerCard:
    choice = runner.choice
    return RunnerCard(
        name=runner.name,
        state=runner.state.value,
        colour=COLOURS[runner.state],
        repository=runner.for_repository,
        job=job_href(runner.job or runner.for_job) if runner.job or runner.for_job else "",
        what=f"{choice.gpus} of {choice.pool}, {choice.flavor}" if choice.gpus else f"no GPU, {choice.flavor}",
        created=since(runner.created, now),
        until=ahead(runner.until, now) if runner.until and runner.state not in OVER else None,
        hosts=", ".join(runner.gpus) if known else "",
        reason=runner.reason if known else (runner.cause.value.replace("-", " ") if runner.cause else ""),
    )


def job_page(
    job: Job,
    place: QueuePlace | None,
    made: Sequence[Runner],
    events: Iterable[RunnerEvent],
    log: tuple[str, str] | None,
    now: datetime,
) -> JobPage:
    """Return the page of a job. `log`: name of a runner and the end of its log; None for somebody who is not logged
    in."""
    ours: Mapping[str, Runner] = {runner.name: runner for runner in made}
    line, over = job_line(job, now, place, ours.get(job.runner)), job.state in DONE
    facts = {
        "Repository": job.repository,
        "Workflow": job.workflow,
        "Labels": ", ".join(job.labels),
        "Branch": job.head_branch,
        "Started by": " · ".join(part for part in (job.actor, job.event.replace("_", " ")) if part),
        "Queued": line.queued.exact,
        "Waited": line.waited,
        "Ran" if over else "Runs for": line.ran.removeprefix("ran ").removeprefix("runs for "),
        "Runner": job.runner,
        "Pool": line.pool,
        "Place in the queue": line.position,
        "Starts at the latest": f"{line.start.exact} ({line.start.duration})" if line.start else "",
        "Time limit": duration(job.spec.longest.total_seconds()) if job.spec else "",
    }
    return JobPage(
        job=line,
        facts=[(name, printable(value)) for name, value in facts.items() if value],
        url=web_address(job.html_url),
        runners=[runner_line(runner, now, known=log is not None) for runner in made],
        timeline=[
            TimelineLine(since(event.at, now).iso, clock_time(event.at, now), event.runner, event.text)
            for event in events
        ],
        log=log[1] if log else "",
        log_of=log[0] if log else "",
    )


def shorten(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def ahead(moment: datetime, now: datetime) -> Since:
    """Return a moment to come, and in what time that is."""
    left = (moment - now).total_seconds()
    return replace(since(moment, now), duration=f"in {duration(left)}" if left > 0 else "now")


def job_href(id: str) -> str:
    """Return the address of a job's page, relative to the page of runners."""
    return f"job?id={quote(id, safe='')}"
