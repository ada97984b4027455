"""Which runners to make, which to delete, and which jobs wait for what: from jobs, runners and the room there is.

Pure. What is wanted follows from the ids of jobs and never from counting events, so that a plan made twice does
nothing the second time. A runner whose life has come to its end, by its job, its time or a fault, is ended by
progress.py. docs/adr/0024 says in which order jobs go and what backfill may do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from gpuyard.ledger.policy import spell
from gpuyard.runners.fair_share import HOUR, Turn, in_turn
from gpuyard.runners.placing import TEARDOWN, PlanRoom, lease_length, uses
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, Wanted
from gpuyard.runners.resolve import IdleRunners
from gpuyard.runners.serving import match
from gpuyard.runners.view import (
    ChangeLease,
    CreateRunner,
    DeleteRunner,
    FailJob,
    QueuePlace,
    RunnerPlan,
    RunnerView,
    SetDemand,
    Step,
)
from gpuyard.store.times import moment, seconds

SPARE = timedelta(minutes=2)
"""A runner that nobody needs is deleted when it was so for this long: GitHub may be about to give it a job."""
UNTOLD = timedelta(minutes=1)
"""Jobs that GitHub has assigned to a scale set, and does not tell of, get runners after this time."""
PRESUMED = timedelta(minutes=5)
"""So long a busy runner is taken to have the job that it was made for, while GitHub has not said which it has."""
OVERDUE = timedelta(hours=12)
"""Who has waited so long goes before whoever has used less: GitHub gives a job up after 24 hours."""
MOST_TRIES = 5
"""A job is given up when so many of its runners failed."""
S = RunnerState
WAITING = frozenset({S.REQUESTED, S.CREATING, S.REGISTERING, S.IDLE})
"""States in which a runner has no job, and may get one."""
COMING = {
    S.REQUESTED: "its server is being made",
    S.CREATING: "its server is being made",
    S.REGISTERING: "its server boots",
    S.IDLE: "its runner is ready",
    S.BUSY: "its runner has taken it",
}


def retry_after(tries: int) -> timedelta:
    """How long to wait after so many failures, for `Job.not_before`: 30 s, 1, 2, 4 ... minutes, at most 15."""
    return min(timedelta(seconds=30 * 2 ** min(max(tries, 1) - 1, 10)), timedelta(minutes=15))


def plan(view: RunnerView, now: datetime) -> RunnerPlan:
    """What to do now. The same for the same view in whatever order its parts are."""
    return _Planning(view, now).plan()


class _Planning:
    """One plan in the making: its methods in the order in which `plan` calls them."""

    def __init__(self, view: RunnerView, now: datetime) -> None:
        self.view = view
        self.now = now
        self.steps: list[Step] = []
        self.since: dict[str, datetime] = {}
        self.kept: dict[str, Runner] = {}
        """Runners that are to wait for jobs."""
        self.numbers: dict[str, int] = defaultdict(int)
        """Pool -> jobs that wait for it."""
        self.ending: set[str] = set()
        """Runners that this plan deletes."""
        self.runners = sorted(view.runners, key=lambda one: (one.created, one.name))
        self.jobs = {job.id: job for job in sorted(view.jobs, key=lambda one: one.id)}
        told = {job.runner: job for job in self.jobs.values() if job.runner}
        found = ((one.name, self.jobs.get(one.job) or told.get(one.name)) for one in self.runners)
        self.job_of = {name: job for name, job in found if job is not None}
        """Runner -> the job that GitHub has given it."""
        self.presumed = {one.for_job: one for one in self.runners if one.for_job and self._is_presumed(one)}
        """Job -> the busy runner that probably has it."""
        self.able = [one for one in self.runners if self._may_get_job(one)]

    def plan(self) -> RunnerPlan:
        queued = {job.id: job for job in self.jobs.values() if job.state is JobState.QUEUED and job.wanted}
        unknown = {job.id: job for one in self._sets() for job in self._untold(one)}
        placing = self._placing()
        order = self._order({**queued, **unknown}, placing)
        served = self._served(order)
        places = [self._place(job, job.wanted, served, placing) for job in order if job.wanted]
        self._idle(served, placing)
        self._leases(served)
        return RunnerPlan(
            tuple(sorted(self.steps, key=lambda step: not isinstance(step, DeleteRunner))),
            tuple(self._queue(places)),
            {one.name: self._capacity(one, placing) for one in self._sets()},
            self.since,
        )

    # Who has what

    def _is_presumed(self, runner: Runner) -> bool:
        began = runner.busy or runner.changed
        return runner.state is S.BUSY and runner.name not in self.job_of and self.now - began < PRESUMED

    def _may_get_job(self, runner: Runner) -> bool:
        """One whose lease is gone makes way for a booking, whatever it looks like."""
        leased = not runner.lease or runner.lease in self.view.leases
        return runner.state in WAITING and runner.name not in self.job_of and leased

    def _sets(self) -> list[SetDemand]:
        return sorted(self.view.sets, key=lambda one: (one.name, one.scope))

    def _untold(self, demand: SetDemand) -> Iterator[Job]:
        """Jobs that GitHub has assigned to a scale set, and of which nothing else is known: as many as there must be,
        and not more than the GPUs that there are."""
        live = (JobState.QUEUED, JobState.RUNNING)
        known = sum(job.scale_set == demand.name and job.state in live for job in self.jobs.values())
        mine = [one for one in self.runners if one.scale_set == demand.name and one.name not in self.job_of]
        strangers = sum(one.state is S.BUSY and one.for_job not in self.presumed for one in mine)
        if any(one.state is S.IDLE and self.now - (one.online or one.changed) >= PRESUMED for one in mine):
            return  # GitHub would have given it one of these long ago: its number is wrong
        lanes = sum(len(self.view.rooms[pool].lanes) for pool in _pools(demand.wanted) if pool in self.view.rooms)
        key = f"set {demand.name}"
        for number in range(min(demand.assigned - demand.turned_down - known - strangers, lanes)):
            first = self.since[key] = self.view.since.get(key, self.now)
            yield Job(
                id=f"{key}: {number}",
                repository=self._registration(demand.scope),
                labels=(demand.name,),
                state=JobState.QUEUED,
                queued=first,
                scope=demand.scope,
                scale_set=demand.name,
                wanted=demand.wanted,
                not_before=first + UNTOLD,
            )

    def _registration(self, scope: str) -> str:
        """The repository that is enrolled by itself; empty for an organisation."""
        return next((one.repository or "" for one in self.view.site.enrolments if one.name == scope), "")

    def _placing(self) -> PlanRoom:
        placing = PlanRoom(self.view, seconds(self.now))
        for runner in self.runners:
            if runner.state is S.DELETING and not runner.lease:
                continue  # its server is gone; only GitHub still has it
            lease = self.view.leases.get(runner.lease)
            placing.count(runner, self._repository(runner), seconds(lease.ask.end if lease else self.now + TEARDOWN))
        return placing

    def _repository(self, runner: Runner) -> str:
        job = self.job_of.get(runner.name)
        return job.repository if job else runner.for_repository

    # Whose turn it is, and who is served already

    def _order(self, queued: dict[str, Job], placing: PlanRoom) -> list[Job]:
        """In the order of their turns; those that have failed too often come last."""
        used: dict[str, float] = defaultdict(float, {name.lower(): hours for name, hours in self.view.used.items()})
        late = (self.now - OVERDUE).timestamp()
        turns = [
            self._turn(job.id, job.repository, job.scale_set, job.wanted, job.queued, placing, waits=True)
            for job in queued.values()
            if job.wanted and job.tries < MOST_TRIES
        ]
        for runner in self.runners:
            has, whose = self.job_of.get(runner.name), self._repository(runner)
            if runner.state is S.DELETING and runner.busy is not None:
                used[whose.lower()] += runner.choice.gpus * ((self.now - runner.created) / HOUR)
                continue
            stands_itself = (has.id if has else runner.for_job if runner.for_job in self.presumed else "") in queued
            if (runner.state is S.BUSY or has is not None) and not stands_itself:
                id, since = (has.id, has.queued) if has else (runner.name, runner.created)
                turns.append(self._turn(id, whose, runner.scale_set, runner.wanted, since, placing, waits=False))
        given_up = sorted(job.id for job in queued.values() if job.tries >= MOST_TRIES)
        return [queued[id] for id in (*in_turn(turns, used, late), *given_up)]

    def _turn(
        self, id: str, whose: str, scale_set: str, wanted: Wanted, queued: datetime, placing: PlanRoom, *, waits: bool
    ) -> Turn:
        pool, gpus = (wanted.choices[0].pool, wanted.choices[0].gpus) if wanted.choices else ("", 0)
        share = placing.rules(whose, scale_set).share
        hours = gpus * (wanted.longest / HOUR)
        return Turn(-wanted.priority, queued.timestamp(), id, whose.lower(), pool, share, hours, waits)

    def _served(self, order: Sequence[Job]) -> dict[str, Runner]:
        """Job -> the runner that it has, or will get."""
        by_name = {one.name: one for one in self.runners}
        served = {
            job.id: runner
            for job in order
            if (runner := by_name.get(job.runner) or self.presumed.get(job.id)) is not None
        }
        return match([job for job in order if job.id not in served], self.able) | served

    # What becomes of each queued job

    def _place(self, job: Job, wanted: Wanted, served: dict[str, Runner], placing: PlanRoom) -> QueuePlace:
        runner = served.get(job.id)
        if runner is not None:
            reason = COMING.get(runner.state, "its runner is being deleted")
            return QueuePlace(job.id, runner.choice.pool, 0, reason, runner.created)
        first = wanted.choices[0].pool if wanted.choices else ""
        if job.tries >= MOST_TRIES:
            cause = f": {job.reason}" if job.reason else ""
            self.steps.append(FailJob(job.id, f"{job.tries} runners that were made for it failed{cause}"))
            return QueuePlace(job.id, first, 0, "it is given up")
        stopped = self._stopped(job.scope)
        if stopped:
            return self._waits(job, first, stopped)
        not_before = job.not_before if job.not_before and job.not_before > self.now else None
        place = placing.place(wanted, job.repository, job.scale_set, seconds(not_before) if not_before else 0)
        pool = place.choice.pool if place.choice else first
        start = None if place.start is None else moment(place.start)
        if not_before:
            cause = f" ({job.reason})" if job.reason else ""
            return self._waits(job, pool, f"its last runner failed{cause}; next try {spell(not_before)}", start)
        if place.choice is None or place.reason:
            return self._waits(job, pool, place.reason, start)
        known = job.id in self.jobs
        self.steps.append(
            CreateRunner(
                scope=job.scope,
                repository=self._registration(job.scope) if job.scale_set else job.repository,
                labels=job.labels,
                wanted=wanted,
                choice=place.choice,
                end=self._lease_end(wanted),
                yields=wanted.preemptible,
                reason=f"for a job of {job.repository}" if known else f"GitHub has jobs for set {job.scale_set}",
                for_job=job.id if known else "",
                for_repository=job.repository if known else "",
                scale_set=job.scale_set,
            )
        )
        return QueuePlace(job.id, pool, 0, "a runner is being made for it", self.now)

    def _stopped(self, scope: str) -> str:
        return self.view.stopped.get("", "") or self.view.stopped.get(scope, "")

    def _waits(self, job: Job, pool: str, reason: str, start: datetime | None = None) -> QueuePlace:
        """The next place of a pool's queue; jobs that nobody has told of have none."""
        if job.id in self.jobs:
            self.numbers[pool] += 1
        return QueuePlace(job.id, pool, self.numbers[pool], reason, start)

    def _queue(self, places: Iterable[QueuePlace]) -> Iterator[QueuePlace]:
        """Those with a runner first, then the others in order, then those of which it is not known what they want."""
        told = [place for place in places if place.job in self.jobs]
        yield from (place for place in told if not place.position)
        yield from (place for place in told if place.position)
        unread = [job for job in self.jobs.values() if job.state is JobState.QUEUED and job.wanted is None]
        for job in sorted(unread, key=lambda one: (one.queued, one.id)):
            yield self._waits(job, "", job.reason or "its configuration has not been read yet")

    # Runners that have no job, and serve none

    def _idle(self, served: dict[str, Runner], placing: PlanRoom) -> None:
        """Keep those that are to wait for jobs, delete others once they were spare for long enough, make new ones."""
        serving = {runner.name for runner in served.values()}
        spare = {runner.name: runner for runner in self.able if runner.name not in serving}
        wishes = sorted(self.view.idle, key=lambda one: (one.scope, one.repository, one.scale_set, one.wanted.kind))
        having = [[one for one in spare.values() if _is_of(one, wish)] for wish in wishes]
        for wish, some in zip(wishes, having, strict=True):
            for one in sorted(some, key=lambda one: one.state is not S.IDLE)[: wish.count]:
                self.kept[one.name] = one
        self._give_way([one for one in spare.values() if one.name not in self.kept], placing)
        self._delete([one for one in spare.values() if one.name not in self.kept])
        for wish, some in zip(wishes, having, strict=True):
            staying = sum(one.name not in self.ending for one in some)
            self._make_idle(wish, wish.count - staying, placing)

    def _give_way(self, going: Sequence[Runner], placing: PlanRoom) -> None:
        """Keep fewer where jobs wait for GPUs, in a pool or under a limit, that no spare runner is about to leave."""
        going = [*going, *(one for one in self.runners if one.state is S.DELETING)]
        for name, gpus in placing.waiting.items():
            missing = gpus - sum(one.choice.gpus for one in going if name in uses(one, self._repository(one)))
            for one in reversed([one for one in self.kept.values() if name in uses(one, self._repository(one))]):
                if missing > 0:
                    missing -= one.choice.gpus
                    going.append(one)
                    del self.kept[one.name]

    def _delete(self, spare: Iterable[Runner]) -> None:
        for runner in spare:
            first = self.since[runner.name] = self.view.since.get(runner.name, self.now)
            if self.now - first >= SPARE:
                self.ending.add(runner.name)
                reason = "its job was cancelled, or has another runner" if runner.for_job else "no job needs it"
                self.steps.append(DeleteRunner(runner.name, Cause.NOT_NEEDED, reason))

    def _make_idle(self, wish: IdleRunners, count: int, placing: PlanRoom) -> None:
        if self._stopped(wish.scope) or (wish.not_before is not None and self.now < wish.not_before):
            return
        for _ in range(count):
            choice = placing.fits_now(wish.wanted, wish.repository, wish.scale_set)
            if choice is None:
                return
            self.steps.append(
                CreateRunner(
                    scope=wish.scope,
                    repository=wish.repository or self._registration(wish.scope),
                    labels=wish.labels,
                    wanted=wish.wanted,
                    choice=choice,
                    end=self._lease_end(wish.wanted),
                    yields=True,
                    reason="to wait for jobs",
                    for_repository=wish.repository,
                    scale_set=wish.scale_set,
                )
            )

    # Leases, and what scale sets may have

    def _lease_end(self, wanted: Wanted) -> datetime:
        return self.now.replace(microsecond=0) + lease_length(self.view.site, wanted, self.view.boots)

    def _leases(self, served: dict[str, Runner]) -> None:
        """A runner that may get a job always has time for it; a booking may end the lease of one that serves none."""
        serving = {runner.name for runner in served.values()}
        for runner in self.runners:
            lease = self.view.leases.get(runner.lease)
            if lease is None:
                continue
            end, yields = lease.ask.end, runner.wanted.preemptible
            if runner.state is S.DELETING or runner.name in self.ending:
                yields = lease.yields
                if not self.now + TEARDOWN / 2 <= end <= self.now + 2 * TEARDOWN:
                    end = self.now.replace(microsecond=0) + TEARDOWN
            elif runner.state is S.BUSY:
                end = runner.until.replace(microsecond=0) + TEARDOWN if runner.until else end
            elif runner.name not in self.job_of:
                needed = runner.name in serving or runner.name in self.kept
                yields = yields or runner.name not in serving
                if needed and end < self.now + runner.wanted.longest + TEARDOWN:
                    end = self._lease_end(runner.wanted)
            if (end, yields) != (lease.ask.end, lease.yields):
                self.steps.append(ChangeLease(runner.name, lease.id, end, yields))

    def _capacity(self, demand: SetDemand, placing: PlanRoom) -> int:
        gone = [one.name for one in self.runners if one.state is S.DELETING or one.name in self.ending]
        having = sum(one.scale_set == demand.name and one.name not in gone for one in self.runners)
        making = sum(isinstance(step, CreateRunner) and step.scale_set == demand.name for step in self.steps)
        more = 0 if self._stopped(demand.scope) else placing.many_now(demand.wanted, demand.name)
        return having + making + more + demand.turned_down  # GitHub counts those against it


def _is_of(runner: Runner, wish: IdleRunners) -> bool:
    if wish.scale_set or runner.scale_set:
        return (runner.scope, runner.scale_set) == (wish.scope, wish.scale_set)
    mine = (runner.scope, runner.repository.lower(), frozenset(label.lower() for label in runner.labels))
    return mine == (wish.scope, wish.repository.lower(), frozenset(label.lower() for label in wish.labels))


def _pools(wanted: Wanted) -> set[str]:
    return {choice.pool for choice in wanted.choices}
