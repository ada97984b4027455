"""A cloud and a GitHub in memory that do what a plan of runners says: lanes with the ledger's own timetable and
admission, runners that boot, and jobs that GitHub gives to any of them that may have it.

It raises as soon as a GPU would be given twice, or a job run twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuyard.bookings.admission import PoolLanes, find_place
from gpuyard.bookings.ledger.runner_leases import LaneCapacity, PoolCapacity, _gaps
from gpuyard.bookings.timetable import Timetable
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.runners.placing import TEARDOWN
from gpuyard.runners.planner import plan
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, ServerChoice, ServerSpec
from gpuyard.runners.serving import serves
from gpuyard.runners.transitions import become
from gpuyard.runners.view import ChangeLease, CreateRunner, DeleteRunner, FailJob, RunnerPlan, RunnerView
from gpuyard.site.runner_rules import SiteRunners

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
"""A Monday."""
SCOPE = "acme"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
V100 = ServerChoice("v100", "v100.1", "ubuntu")


def site_runners(**values: Any) -> SiteRunners:
    enrolment = {"organization": SCOPE, "token_file": "/token"}
    return SiteRunners.model_validate({"project": "runners", "enrolments": [enrolment], **values})


def wanted(*choices: ServerChoice, longest: timedelta = HOUR, kind: str = "gpu", **values: Any) -> ServerSpec:
    return ServerSpec(kind, choices or (V100,), longest, **values)


def job(number: int | str, repository: str = "acme/a", queued: datetime = NOON, **values: Any) -> Job:
    given = {"labels": ("gpu",), "state": JobState.QUEUED, "scope": SCOPE, "spec": wanted()}
    return Job(id=f"github.com/{number}", repository=repository, queued=queued, **{**given, **values})


def runner(name: str, state: RunnerState = RunnerState.IDLE, created: datetime = NOON, **values: Any) -> Runner:
    """With a lease of its own name."""
    given = {
        "scope": SCOPE,
        "repository": "acme/a",
        "labels": ("gpu",),
        "spec": wanted(),
        "choice": V100,
        "changed": created,
        "for_repository": "acme/a",
        "lease": f"lease of {name}",
    }
    return Runner(name=name, state=state, created=created, **{**given, **values})


def lease(runner: Runner, end: datetime, lanes: tuple[int, ...] = (), *, yields: bool = False) -> Booking:
    return Booking(
        id=runner.lease,
        kind=BookingKind.RUNNER,
        ask=Ask(runner.choice.pool, runner.created, end, runner.choice.gpus, runner.choice.same_group),
        state=BookingState.ACTIVE,
        user_id="",
        user="gpuyard",
        project_id="p",
        project="runners",
        created=runner.created,
        changed=runner.created,
        lanes=lanes,
        server=runner.name,
        yields=yields,
    )


def lanes_of(pool: str, hosts: Sequence[Sequence[int]], first: int = 1) -> list[Lane]:
    """`hosts`: of each the sizes of its lanes."""
    lanes: list[Lane] = []
    for number, sizes in enumerate(hosts):
        for place, size in enumerate(sizes):
            addresses = tuple(f"0000:{place:02x}:{function:02x}.0" for function in range(size))
            lanes.append(Lane(first + len(lanes), pool, f"{pool}-{number}", addresses))
    return lanes


class RunnerWorld:
    """All of it. Time passes only in `tick`."""

    def __init__(self, site: SiteRunners, lanes: Sequence[Lane], now: datetime = NOON, hold: timedelta = 5 * MINUTE):
        self.site = site
        self.now = now
        self.hold = hold
        self.lanes = {pool: [lane for lane in lanes if lane.pool == pool] for pool in {lane.pool for lane in lanes}}
        self.tables = {pool: Timetable() for pool in self.lanes}
        self.bookings: list[tuple[str, int, datetime, datetime]] = []
        self.jobs: dict[str, Job] = {}
        self.lengths: dict[str, timedelta] = {}
        self.runners: dict[str, Runner] = {}
        self.leases: dict[str, Booking] = {}
        self.ran: Counter[str] = Counter()
        self.since: Mapping[str, datetime] = {}
        self.refused: list[CreateRunner | ChangeLease] = []
        self.had: dict[str, tuple[int, ...]] = {}
        """Runner -> its lanes."""
        self.extra: dict[str, Any] = {}
        """More of each view."""
        self._number = 0

    def book(self, pool: str, lane: int, start: datetime, end: datetime) -> bool:
        """A person's booking; False when the lane is not free then."""
        if not self.tables[pool].is_free(lane, seconds(start), seconds(end)):
            return False
        self.tables[pool].add(lane, seconds(start), seconds(end))
        self.bookings.append((pool, lane, start, end))
        return True

    def end_booking(self, pool: str, lane: int, start: datetime, end: datetime) -> None:
        """Its owner needs it no more: the rest of its time is free from now on."""
        self.tables[pool].remove(lane, seconds(start), seconds(end))
        self.tables[pool].add(lane, seconds(start), seconds(self.now))
        self.bookings[self.bookings.index((pool, lane, start, end))] = (pool, lane, start, self.now)

    def queue(self, job: Job, length: timedelta = 10 * MINUTE) -> None:
        self.jobs[job.id] = job
        self.lengths[job.id] = length

    def rooms(self) -> dict[str, PoolCapacity]:
        hold = int(self.hold.total_seconds())
        return {
            pool: PoolCapacity(
                pool,
                tuple(
                    LaneCapacity(
                        lane.size, tuple(_gaps(self.tables[pool], lane.id, seconds(self.now), hold)), lane.host
                    )
                    for lane in lanes
                ),
            )
            for pool, lanes in self.lanes.items()
        }

    def view(self) -> RunnerView:
        live = [
            runner for runner in self.runners.values() if runner.state not in (RunnerState.GONE, RunnerState.FAILED)
        ]
        named = {runner.job for runner in live} | {runner.for_job for runner in live}
        over = (JobState.COMPLETED, JobState.FAILED)
        jobs = [job for job in self.jobs.values() if job.state not in over or job.id in named]
        return RunnerView(self.site, jobs, live, dict(self.leases), self.rooms(), since=self.since, **self.extra)

    def plan(self) -> RunnerPlan:
        """Make a plan and do what it says."""
        runner_plan = plan(self.view(), self.now)
        self.since = runner_plan.since
        for step in runner_plan.steps:
            match step:
                case CreateRunner():
                    self._create(step)
                case DeleteRunner():
                    self.delete(step.runner, step.cause)
                case ChangeLease():
                    self._change(step)
                case FailJob():
                    self.jobs[step.job] = replace(self.jobs[step.job], state=JobState.FAILED, reason=step.reason)
        return runner_plan

    def _create(self, step: CreateRunner) -> None:
        choice = step.choice
        several = choice.gpus > 1 and not choice.same_group
        ask = Ask(choice.pool, self.now, step.end + self.hold, choice.gpus, choice.same_group, several)
        placed = find_place(ask, PoolLanes(self.lanes[choice.pool], self.tables[choice.pool]))
        if placed is None:
            self.refused.append(step)
            return
        self._number += 1
        name = f"r{self._number:05}"
        new = Runner(
            name=name,
            state=RunnerState.REQUESTED,
            scope=step.scope,
            repository=step.repository,
            labels=step.labels,
            spec=step.spec,
            choice=choice,
            created=self.now,
            changed=self.now,
            for_repository=step.for_repository,
            for_job=step.for_job,
            scale_set=step.scale_set,
            lease=f"lease of {name}",
        )
        self.runners[name] = new
        self.leases[new.lease] = lease(new, step.end, placed[0], yields=step.yields)
        self.had[name] = placed[0]
        for lane in placed[0]:
            self.tables[choice.pool].add(lane, seconds(self.now), seconds(step.end))

    def _change(self, step: ChangeLease) -> None:
        old = self.leases[step.lease]
        table, begin = self.tables[old.ask.pool], seconds(old.ask.start)
        for lane in old.lanes:
            table.remove(lane, begin, seconds(old.ask.end))
        able = step.end <= old.ask.end or all(
            table.is_free(lane, begin, seconds(step.end + self.hold)) for lane in old.lanes
        )
        end = step.end if able else old.ask.end
        for lane in old.lanes:
            table.add(lane, begin, seconds(end))
        self.leases[step.lease] = replace(
            old, ask=replace(old.ask, end=end), yields=step.yields if able else old.yields
        )
        runner = self.runners[step.runner]
        if able:
            return
        self.refused.append(step)
        if runner.state is RunnerState.BUSY:
            self.runners[step.runner] = replace(runner, until=end - TEARDOWN)
        elif runner.state is not RunnerState.DELETING:
            self.delete(step.runner, Cause.BOOKING)

    def release(self, name: str) -> None:
        """Its lease is over: its lanes are free from now on."""
        old = self.leases.pop(self.runners[name].lease)
        for lane in old.lanes:
            table, begin, now = self.tables[old.ask.pool], seconds(old.ask.start), seconds(self.now)
            table.remove(lane, begin, seconds(old.ask.end))
            if now > begin:
                table.add(lane, begin, now)

    def delete(self, name: str, cause: Cause) -> None:
        self.runners[name] = become(self.runners[name], RunnerState.DELETING, self.now, cause)

    def gone(self, name: str) -> None:
        self.release(name)
        self.runners[name] = become(self.runners[name], RunnerState.GONE, self.now)

    def online(self, name: str) -> None:
        runner = replace(self.runners[name], state=RunnerState.CREATING)
        self.runners[name] = become(runner, RunnerState.IDLE, self.now)

    def give(self, job: Job, name: str) -> None:
        """GitHub gives a job to a runner."""
        self.ran[job.id] += 1
        assert self.ran[job.id] == 1, f"{job.id} runs twice"
        self.jobs[job.id] = replace(job, state=JobState.RUNNING, runner=name, started=self.now)
        self.runners[name] = replace(become(self.runners[name], RunnerState.BUSY, self.now), job=job.id)

    def finish(self, name: str) -> None:
        runner = self.runners[name]
        done = self.jobs[runner.job]
        self.jobs[runner.job] = replace(done, state=JobState.COMPLETED, completed=self.now)
        self.delete(name, Cause.FINISHED)

    def tick(self, to: datetime, boots: timedelta, deletes: timedelta, pick: Callable[[Sequence[Job]], Job]) -> None:
        """Time passes, and everything that is due by then happens then."""
        self.now = to
        for name, runner in list(self.runners.items()):
            if (
                runner.state in (RunnerState.REQUESTED, RunnerState.CREATING, RunnerState.REGISTERING)
                and to >= runner.created + boots
            ):
                self.online(name)
            elif runner.state is RunnerState.BUSY and runner.busy is not None and runner.until is not None:
                if to >= min(runner.busy + self.lengths[runner.job], runner.until):
                    self.finish(name)
            elif runner.state is RunnerState.DELETING and to >= runner.changed + deletes:
                self.gone(name)
        for name, runner in list(self.runners.items()):
            if runner.state is RunnerState.IDLE:
                able = [j for j in self.jobs.values() if j.state is JobState.QUEUED and serves(runner, j)]
                if able:
                    self.give(pick(able), name)

    def lanes_taken(self, pool: str) -> int:
        return sum(
            not self.tables[pool].is_free(lane.id, seconds(self.now), seconds(self.now) + 1)
            for lane in self.lanes[pool]
        )


def last_moment(world: RunnerWorld) -> datetime:
    return max((moment(seconds(end)) for *_, end in world.bookings), default=world.now)
