"""Prometheus metrics of runners. A metric that ARC or GARM has with the same meaning has their name, so that dashboards
can be kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.database.errors import StoreError
from gpuyard.model.counts import Durations
from gpuyard.runners.overview import RunnerOverview
from gpuyard.runners.records import DONE, OVER, Cause, JobState, RunnerState
from gpuyard.runners.web.private_repositories import runner_visibility
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.web.metric_tallies import BOUNDS, Tally
from gpuyard.web.settings import OthersShown

OLD = timedelta(minutes=5)
"""An older plan is not reported any more: another portal is the leader, and reports the present one."""


class RunnerCollector(Collector):
    def __init__(
        self,
        runners: RunnerSources,
        webhooks: Mapping[str, int],
        now: Callable[[], datetime],
        details: bool,
        pools: Iterable[str] = (),
    ) -> None:
        """`webhooks`: requests by what became of them. `details`: whether scale sets and enrolments are named; else all
        of them together count under an empty name. `pools` of the site: a series that comes and goes has no rate."""
        self._pools = sorted({*pools})
        self._runners, self._webhooks, self._now, self._details = runners, webhooks, now, details
        self._jobs, self._ends = Tally[tuple[str, float]](now()), Tally[Cause](now())
        self._waits: dict[str, Durations] = {}
        self._causes: Counter[Cause] = Counter()

    def collect(self) -> Iterator[Metric]:
        webhooks = CounterMetricFamily(
            "gpuyard_runner_webhooks", "Requests to the webhook since the start.", labels=["outcome"]
        )
        for outcome, count in sorted(self._webhooks.items()):
            webhooks.add_metric([outcome], count)
        yield webhooks
        board, now = self._runners.overview.latest(), self._now()
        if board is not None:  # until then nothing is known, and a zero would say that nothing waits
            yield GaugeMetricFamily(
                "gpuyard_runner_plan_timestamp_seconds", "When runners were last planned.", board.taken_at.timestamp()
            )
        if board is not None and _is_fresh(board, now):
            yield from _of_states(board, now, self._pools)
            yield from self._of_sets(board)
        try:
            if board is not None:
                yield from self._of_github(board, now)
                for scale_set in board.sets:
                    self._waits.setdefault(self._shown(scale_set.name), Durations(BOUNDS))
            yield from self._of_history()
        except StoreError:  # the other metrics say that something is wrong
            return

    def _of_sets(self, board: RunnerOverview) -> Iterator[Metric]:
        assigned = GaugeMetricFamily("gha_assigned_jobs", "Jobs that GitHub has given a scale set.", labels=["name"])
        waiting = GaugeMetricFamily(
            "gpuyard_runner_set_waiting_jobs", "Jobs that wait at GitHub until a scale set has room for them.",
            labels=["name"],
        )  # fmt: skip
        desired = GaugeMetricFamily(
            "gha_desired_runners", "Runners of a scale set, those on their way too.", labels=["name"]
        )
        idle = GaugeMetricFamily("gha_idle_runners", "Runners of a scale set that wait for a job.", labels=["name"])
        counts: dict[str, list[int]] = {}
        for scale_set in board.sets:
            own = [
                runner
                for runner in board.runners
                if (runner.scale_set, runner.scope) == (scale_set.name, scale_set.scope)
            ]
            row = counts.setdefault(self._shown(scale_set.name), [0, 0, 0, 0])
            row[0] += scale_set.assigned
            row[1] += sum(runner.state is not RunnerState.DELETING for runner in own)
            row[2] += sum(runner.state is RunnerState.IDLE for runner in own)
            row[3] += scale_set.waiting
        for name, row in counts.items():
            for metric, value in zip((assigned, desired, idle, waiting), row, strict=True):
                metric.add_metric([name], value)
        yield from (assigned, desired, idle, waiting)

    def _of_github(self, board: RunnerOverview, now: datetime) -> Iterator[Metric]:
        remaining = GaugeMetricFamily(
            "github_rate_limit_remaining",
            "Calls that GitHub still allows in this hour; the least.",
            labels=["enrolment"],
        )
        limit = GaugeMetricFamily("github_rate_limit", "Calls that GitHub allows in an hour.", labels=["enrolment"])
        calls = CounterMetricFamily(
            "gpuyard_runner_github_calls",
            "Calls to GitHub since the start, by what became of them; unchanged ones cost nothing.",
            labels=["enrolment", "outcome"],
        )
        made: Counter[tuple[str, str]] = Counter()
        left: dict[str, tuple[int, int]] = {}
        visibility = runner_visibility(self._runners, now, None, OthersShown.NAMES)  # nobody logs in to read metrics
        for enrolment in board.enrolments:
            name, counted = self._shown(visibility.enrolment(self._runners.site, enrolment.name)), enrolment.calls
            made[name, "unchanged"] += counted.unchanged
            made[name, "failed"] += counted.failed
            made[name, "good"] += counted.calls - counted.unchanged - counted.failed
            if counted.remaining is not None and counted.limit is not None:
                left[name] = min(left.get(name, (counted.remaining, counted.limit)), (counted.remaining, counted.limit))
        for (name, outcome), count in made.items():
            calls.add_metric([name, outcome], count)
        for name, (rest, most) in left.items() if _is_fresh(board, now) else ():
            remaining.add_metric([name], rest)
            limit.add_metric([name], most)
        yield from (remaining, limit, calls)

    def _of_history(self) -> Iterator[Metric]:
        now, store = self._now(), self._runners.store
        started = [(job.id, job.started, (job.scale_set, job.waited)) for job in store.started(self._jobs.since(now))]
        for name, seconds in self._jobs.new(now, started):
            self._waits.setdefault(self._shown(name), Durations(BOUNDS)).add(seconds)
        ended = [(runner.name, runner.ended, runner.cause) for runner in store.ended(self._ends.since(now))]
        self._causes.update(self._ends.new(now, ended))
        startup = HistogramMetricFamily(
            "gha_job_startup_duration_seconds",
            "From GitHub's queue to a runner, of jobs that began since the start; no name: not of a scale set.",
            labels=["name"],
        )
        for name, waits in sorted(({"": Durations(BOUNDS)} | self._waits).items()):
            startup.add_metric([name], *waits.read())
        yield startup
        ends = CounterMetricFamily(
            "gpuyard_runner_ends", "Runners that ended since the start, by cause.", labels=["cause"]
        )
        for cause in Cause:
            ends.add_metric([cause.value], self._causes[cause])
        yield ends

    def _shown(self, name: str) -> str:
        return name if self._details else ""


def _is_fresh(board: RunnerOverview, now: datetime) -> bool:
    return now - board.taken_at < OLD


def _of_states(board: RunnerOverview, now: datetime, pools: Sequence[str]) -> Iterator[Metric]:
    runners = GaugeMetricFamily("gpuyard_runners", "Runners that are not over, by state.", labels=["pool", "state"])
    counts = Counter((runner.choice.pool, runner.state) for runner in board.runners)
    for pool in sorted({*pools, *(pool for pool, _ in counts)}):
        for state in RunnerState:
            if state not in OVER:
                runners.add_metric([pool, state.value], counts[pool, state])
    yield runners
    jobs = GaugeMetricFamily("gpuyard_runner_jobs", "Jobs that are not over, by state.", labels=["state"])
    by_state = Counter(job.state for job in board.jobs)
    for job_state in JobState:
        if job_state not in DONE:
            jobs.add_metric([job_state.value], by_state[job_state])
    yield jobs
    waiting = {place.job for place in board.queue if place.position}
    ages = [(now - job.queued).total_seconds() for job in board.jobs if job.id in waiting]
    yield GaugeMetricFamily("gpuyard_runner_queue_jobs", "Jobs that have no runner yet.", len(ages))
    yield GaugeMetricFamily(
        "gpuyard_runner_queue_oldest_seconds", "How long the oldest of them has waited.", max(ages, default=0.0)
    )
