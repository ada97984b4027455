"""Plans which runners to make and delete, and why each job waits, from jobs, runners and the capacity there is. Pure.

The desired runners follow from the ids of jobs and never from counting events, so that a plan made twice does nothing
the second time. Jobs are put in the order of turns (fair_share.py) and matched with the runners there are (serving.py).
Each job that is left over is placed in that order (placing.py): it gets a runner now, or keeps the capacity that it
will have first. Then runners that have lost their lease are deleted, and those that no job needs. A runner whose life
has come to its end, by its job, its time or a fault, is ended by progress.py. docs/adr/0024 says in which order jobs go
and what backfill may do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from gpuyard.bookings.policy import spell
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.database.times import moment, seconds
from gpuyard.model.backoff import backoff
from gpuyard.runners.cpu_lane import has_server
from gpuyard.runners.fair_share import HOUR, QueueEntry, account, in_order
from gpuyard.runners.placing import TEARDOWN, PlanCapacity, lease_length, uses, weight
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, ServerSpec
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

SPARE = timedelta(minutes=2)
"""A runner that no job needs is deleted after this time: a job for it may come. Where a job waits for its GPU it is
deleted at once."""
UNTOLD = timedelta(minutes=1)
"""Jobs that GitHub has assigned to a scale set without reporting them get runners after this time."""
INVITED = timedelta(minutes=2)
"""GitHub assigns a job within seconds of being told that a set can have it. When it has assigned none for this long,
its number of waiting jobs is taken to be wrong, until DISBELIEVED."""
DISBELIEVED = timedelta(minutes=30)
"""GitHub's number of waiting jobs is believed again this long after it was told that the set can have one (INVITED)."""
PRESUMED = timedelta(minutes=5)
"""For so long a busy runner is assumed to have the job that it was made for, while GitHub has not said which it has."""
OVERDUE = timedelta(hours=12)
"""A job that has waited this long goes before those of repositories that used less: GitHub gives a job up after 24
hours."""
MOST_TRIES = 5
"""A job is given up when so many of its runners failed."""
WAITING = frozenset({RunnerState.REQUESTED, RunnerState.CREATING, RunnerState.REGISTERING, RunnerState.IDLE})
"""States in which a runner has no job, and may get one."""
COMING = {
    RunnerState.REQUESTED: "its server is being made",
    RunnerState.CREATING: "its server is being made",
    RunnerState.REGISTERING: "its server boots",
    RunnerState.IDLE: "its runner is ready",
    RunnerState.BUSY: "its runner has taken it",
}


def retry_after(tries: int) -> timedelta:
    """Return how long to wait after so many failures, for `Job.not_before`: 30 s, 1, 2, 4 ... minutes, at most 15."""
    return backoff(timedelta(seconds=30), tries, timedelta(minutes=15))


def plan(view: RunnerView, now: datetime) -> RunnerPlan:
    """Return what to do now. The same view gives the same plan, in whatever order its parts are."""
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
        self.unassigned: set[str] = set()
        """Entries of the queue for jobs that wait at GitHub until a set has room (`_unassigned`)."""
        self.invited: dict[str, int] = defaultdict(int)
        """Scale set -> how many of these have room now."""
        self.unserved: dict[str, int] = defaultdict(int)
        """Scale set -> jobs that GitHub has assigned to it, and that have no room now."""
        self.ending: set[str] = set()
        """Runners that this plan deletes."""
        self.runners = sorted(view.runners, key=lambda runner: (runner.created, runner.name))
        self.jobs = {job.id: job for job in sorted(view.jobs, key=lambda job: job.id)}
        jobs_by_runner = {job.runner: job for job in self.jobs.values() if job.runner}
        pairs = ((runner.name, self.jobs.get(runner.job) or jobs_by_runner.get(runner.name)) for runner in self.runners)
        self.job_of = {name: job for name, job in pairs if job is not None}
        """Runner -> the job that GitHub has given it."""
        self.presumed = {
            runner.for_job: runner for runner in self.runners if runner.for_job and self._is_presumed(runner)
        }
        """Job -> the busy runner that probably has it."""
        self.able = [runner for runner in self.runners if self._may_get_job(runner)]

    def plan(self) -> RunnerPlan:
        queued = {job.id: job for job in self.jobs.values() if job.state is JobState.QUEUED and job.spec}
        unknown = {job.id: job for scale_set in self._sets() for job in self._untold(scale_set)}
        unassigned = {job.id: job for scale_set in self._sets() for job in self._unassigned(scale_set)}
        self.unassigned.update(unassigned)
        placing = self._placing()
        order = self._order({**queued, **unknown, **unassigned}, placing)
        served = self._served(order)
        places = [self._place(job, job.spec, served, placing) for job in order if job.spec]
        self._make_way()
        self._idle(served, placing)
        self._leases(served)
        self._note_invitations()
        return RunnerPlan(
            tuple(sorted(self.steps, key=lambda step: not isinstance(step, DeleteRunner))),
            tuple(self._queue(places)),
            {scale_set.name: self._capacity(scale_set, placing) for scale_set in self._sets()},
            self.since,
        )

    # Who has what

    def _is_presumed(self, runner: Runner) -> bool:
        began = runner.busy or runner.changed
        return runner.state is RunnerState.BUSY and runner.name not in self.job_of and self.now - began < PRESUMED

    def _may_get_job(self, runner: Runner) -> bool:
        """Return whether GitHub may give it a job, and there is time for one; `_make_way` deletes those without a
        lease."""
        leased = not runner.lease or runner.lease in self.view.leases
        return runner.state in WAITING and runner.name not in self.job_of and leased

    def _sets(self) -> list[SetDemand]:
        return sorted(self.view.sets, key=lambda demand: (demand.name, demand.scope))

    def _untold(self, demand: SetDemand) -> Iterator[Job]:
        """Yield jobs that GitHub has assigned to a scale set without reporting anything else: as many as there must be,
        and not more than the GPUs that there are."""
        live = (JobState.QUEUED, JobState.RUNNING)
        reported = sum(job.scale_set == demand.name and job.state in live for job in self.jobs.values())
        mine = [runner for runner in self.runners if runner.scale_set == demand.name and runner.name not in self.job_of]
        strangers = sum(runner.state is RunnerState.BUSY and runner.for_job not in self.presumed for runner in mine)
        if self._is_disproved(demand):
            return
        key = f"set {demand.name}"
        many = min(demand.assigned - demand.turned_down - reported - strangers, self._lanes(demand.spec))
        for number in range(many):
            first = self.since[key] = self.view.since.get(key, self.now)
            yield Job(
                id=f"{key}: {number}",
                repository=self._registration(demand.scope),
                labels=(demand.name,),
                state=JobState.QUEUED,
                queued=first,
                scope=demand.scope,
                scale_set=demand.name,
                spec=demand.spec,
                not_before=first + UNTOLD,
            )

    def _is_disproved(self, demand: SetDemand) -> bool:
        """Return whether a runner of the set waits for a job for so long that GitHub would have given it one long ago,
        if there were any."""
        return any(
            runner.state is RunnerState.IDLE
            and runner.scale_set == demand.name
            and runner.name not in self.job_of
            and self.now - (runner.online or runner.changed) >= PRESUMED
            for runner in self.runners
        )

    def _lanes(self, spec: ServerSpec) -> int:
        return sum(len(self.view.rooms[pool].lanes) for pool in _pools(spec) if pool in self.view.rooms)

    def _unassigned(self, demand: SetDemand) -> Iterator[Job]:
        """Yield jobs that wait at GitHub for a scale set, as entries of the queue.

        GitHub assigns a set no job beyond the capacity that it announces, and reports nothing of the others but their
        number. Were the capacity what is free when all other jobs have been placed, these would get nothing while
        anybody waits. So each has its place in the queue and its room like other jobs; when it has room now,
        `_capacity` invites GitHub to assign it, and only then we learn whose it is. Until then it counts as the
        repository's whose job the set got last, and is no older than that job: GitHub assigns the oldest first.
        """
        if (
            not demand.waiting
            or self._stopped(demand.scope)
            or self._is_disproved(demand)
            or self._is_unanswered(demand)
        ):
            return
        live = (JobState.QUEUED, JobState.RUNNING)
        of_set = [job for job in self.jobs.values() if job.scale_set == demand.name and job.state in live]
        last = max(of_set, key=lambda job: (job.queued, job.id), default=None)
        key = f"set {demand.name}: waiting at GitHub"
        first = self.view.since.get(key, self.now)
        if last is not None:
            first = max(first, min(last.queued, self.now))
        self.since[key] = first
        for number in range(min(demand.waiting, self._lanes(demand.spec))):
            yield Job(
                id=f"{key}: {number:06}",
                repository=last.repository if last else self._registration(demand.scope),
                labels=(demand.name,),
                state=JobState.QUEUED,
                queued=first,
                scope=demand.scope,
                scale_set=demand.name,
                spec=demand.spec,
            )

    def _is_unanswered(self, demand: SetDemand) -> bool:
        """Return whether GitHub was told for INVITED that the set can have a job more, and has assigned none."""
        key = _invitation(demand)
        first = self.view.since.get(key)
        if first is None or not INVITED <= self.now - first < DISBELIEVED:
            return False
        self.since[key] = first
        return True

    def _note_invitations(self) -> None:
        for demand in self._sets():
            if self.invited[demand.name]:
                key = _invitation(demand)
                first = self.view.since.get(key, self.now)
                self.since[key] = first if self.now - first < INVITED else self.now

    def _registration(self, scope: str) -> str:
        """The repository that is enrolled by itself; empty for an organisation."""
        return next(
            (enrolment.repository or "" for enrolment in self.view.site.enrolments if enrolment.name == scope), ""
        )

    def _placing(self) -> PlanCapacity:
        placing = PlanCapacity(self.view, seconds(self.now))
        for runner in self.runners:
            if (
                runner.state is RunnerState.DELETING
                and not runner.lease
                and (runner.choice.gpus or not has_server(runner))
            ):
                continue  # its server is gone; only GitHub still has it
            lease = self.view.leases.get(runner.lease)
            placing.count(runner, self._repository(runner), seconds(lease.ask.end if lease else self.now + TEARDOWN))
        return placing

    def _repository(self, runner: Runner) -> str:
        job = self.job_of.get(runner.name)
        return job.repository if job else runner.for_repository

    # Whose turn it is, and who is served already

    def _order(self, queued: dict[str, Job], placing: PlanCapacity) -> list[Job]:
        """Return the jobs in the order of their turns; those that have failed too often come last."""
        used: dict[str, float] = defaultdict(float, {name.lower(): hours for name, hours in self.view.used.items()})
        late = (self.now - OVERDUE).timestamp()
        entries = [
            self._entry(job.id, job.repository, job.scale_set, job.spec, job.queued, placing, waits=True)
            for job in queued.values()
            if job.spec and job.tries < MOST_TRIES
        ]
        for runner in self.runners:
            has, whose = self.job_of.get(runner.name), self._repository(runner)
            if runner.state is RunnerState.DELETING and runner.busy is not None:
                hours = weight(runner.choice) * ((self.now - runner.created) / HOUR)
                used[account(whose, runner.choice.gpus)] += hours
                continue
            stands_itself = (has.id if has else runner.for_job if runner.for_job in self.presumed else "") in queued
            if (runner.state is RunnerState.BUSY or has is not None) and not stands_itself:
                id, since = (has.id, has.queued) if has else (runner.name, runner.created)
                entries.append(self._entry(id, whose, runner.scale_set, runner.spec, since, placing, waits=False))
        given_up = sorted(job.id for job in queued.values() if job.tries >= MOST_TRIES)
        return [queued[id] for id in (*in_order(entries, used, late), *given_up)]

    def _entry(
        self,
        id: str,
        whose: str,
        scale_set: str,
        spec: ServerSpec,
        queued: datetime,
        placing: PlanCapacity,
        *,
        waits: bool,
    ) -> QueueEntry:
        first = spec.choices[0] if spec.choices else None
        share = placing.rules(whose, scale_set).share
        hours = (weight(first) if first else 0) * (spec.longest / HOUR)
        whose, pool = account(whose, first.gpus if first else 1), first.pool if first else ""
        return QueueEntry(-spec.priority, queued.timestamp(), id, whose, pool, share, hours, waits)

    def _served(self, order: Sequence[Job]) -> dict[str, Runner]:
        """Job -> the runner that it has, or will get."""
        by_name = {runner.name: runner for runner in self.runners}
        served = {
            job.id: runner
            for job in order
            if (runner := by_name.get(job.runner) or self.presumed.get(job.id)) is not None
        }
        return match([job for job in order if job.id not in served], self.able) | served

    # What becomes of each queued job

    def _place(self, job: Job, spec: ServerSpec, served: dict[str, Runner], placing: PlanCapacity) -> QueuePlace:
        runner = served.get(job.id)
        if runner is not None:
            reason = COMING.get(runner.state, "its runner is being deleted")
            return QueuePlace(job.id, runner.choice.pool, 0, reason, runner.created)
        first = spec.choices[0].pool if spec.choices else ""
        if job.tries >= MOST_TRIES:
            cause = f": {job.reason}" if job.reason else ""
            self.steps.append(FailJob(job.id, f"{job.tries} runners that were made for it failed{cause}"))
            return QueuePlace(job.id, first, 0, "it is given up")
        stopped = self._stopped(job.scope)
        if stopped:
            return self._waits(job, first, stopped)
        not_before = job.not_before if job.not_before and job.not_before > self.now else None
        place = placing.place(spec, job.repository, job.scale_set, seconds(not_before) if not_before else 0)
        pool = place.choice.pool if place.choice else first
        start = None if place.start is None else moment(place.start)
        if not_before:
            cause = f" ({job.reason})" if job.reason else ""
            return self._waits(job, pool, f"its last runner failed{cause}; next try {spell(not_before)}", start)
        if place.choice is None or place.reason:
            return self._waits(job, pool, place.reason, start)
        if job.id in self.unassigned:
            self.invited[job.scale_set] += 1
            return QueuePlace(job.id, pool, 0, "GitHub is told that there is room for it")
        is_reported = job.id in self.jobs
        self.steps.append(
            CreateRunner(
                scope=job.scope,
                repository=self._registration(job.scope) if job.scale_set else job.repository,
                labels=job.labels,
                spec=spec,
                choice=place.choice,
                end=self._lease_end(spec),
                yields=spec.preemptible,
                reason=f"for a job of {job.repository}" if is_reported else f"GitHub has jobs for set {job.scale_set}",
                for_job=job.id if is_reported else "",
                for_repository=job.repository if is_reported else "",
                scale_set=job.scale_set,
            )
        )
        return QueuePlace(job.id, pool, 0, "a runner is being made for it", self.now)

    def _stopped(self, scope: str) -> str:
        return self.view.stopped.get("", "") or self.view.stopped.get(scope, "")

    def _waits(self, job: Job, pool: str, reason: str, start: datetime | None = None) -> QueuePlace:
        """Return the next place of a pool's queue; jobs that GitHub has not reported have none."""
        if job.id in self.jobs:
            self.numbers[pool] += 1
        if job.scale_set and job.id not in self.unassigned:
            self.unserved[job.scale_set] += 1
        return QueuePlace(job.id, pool, self.numbers[pool], reason, start)

    def _queue(self, places: Iterable[QueuePlace]) -> Iterator[QueuePlace]:
        """Yield the places with a runner first, then the others in order, then those of jobs whose request is not
        known."""
        reported = [place for place in places if place.job in self.jobs]
        yield from (place for place in reported if not place.position)
        yield from (place for place in reported if place.position)
        unread = [job for job in self.jobs.values() if job.state is JobState.QUEUED and job.spec is None]
        for job in sorted(unread, key=lambda job: (job.queued, job.id)):
            yield self._waits(job, "", job.reason or "its configuration has not been read yet")

    # Runners that have lost their GPU, and those that have no job and serve none

    def _make_way(self) -> None:
        """Delete every runner whose lease has ended, whatever it does: its GPU is somebody else's, who waits for it."""
        for runner in self.runners:
            if runner.lease and runner.lease not in self.view.leases and runner.state is not RunnerState.DELETING:
                self.ending.add(runner.name)
                self.steps.append(DeleteRunner(runner.name, Cause.BOOKING, MADE_WAY))

    def _idle(self, served: dict[str, Runner], placing: PlanCapacity) -> None:
        """Keep those that are to wait for jobs, delete others once they were spare for long enough, make new ones."""
        serving = {runner.name for runner in served.values()}
        spare = {runner.name: runner for runner in self.able if runner.name not in serving}
        wishes = sorted(self.view.idle, key=lambda wish: (wish.scope, wish.repository, wish.scale_set, wish.spec.kind))
        having = [[runner for runner in spare.values() if _is_of(runner, wish)] for wish in wishes]
        for wish, some in zip(wishes, having, strict=True):
            for runner in sorted(some, key=lambda runner: runner.state is not RunnerState.IDLE)[: wish.count]:
                self.kept[runner.name] = runner
        at_once = self._give_way([runner for runner in spare.values() if runner.name not in self.kept], placing)
        self._delete([runner for runner in spare.values() if runner.name not in self.kept], at_once)
        for wish, some in zip(wishes, having, strict=True):
            staying = sum(runner.name not in self.ending for runner in some)
            self._make_idle(wish, wish.count - staying, placing)

    def _give_way(self, spare: Sequence[Runner], placing: PlanCapacity) -> set[str]:
        """Names of the spare runners that go at once, since jobs wait for GPUs that they have, in a pool or under a
        limit: no more than are waited for, first those that are not online, and those that were to be kept last. Of
        these only such as are online: what has just been made for a wish is not deleted by the next plan."""
        going = [runner for runner in self.runners if runner.state is RunnerState.DELETING]
        at_once = set()
        order = [*sorted(spare, key=lambda runner: runner.state is RunnerState.IDLE), *reversed(self.kept.values())]
        for name, gpus in placing.waiting.items():
            missing = gpus - sum(
                weight(runner.choice) for runner in going if name in uses(runner, self._repository(runner))
            )
            for runner in order:
                if missing > 0 and runner not in going and name in uses(runner, self._repository(runner)):
                    missing -= weight(runner.choice)
                    going.append(runner)
                    if runner.name not in self.kept or runner.state is RunnerState.IDLE:
                        at_once.add(runner.name)
                    self.kept.pop(runner.name, None)
        return at_once

    def _delete(self, spare: Iterable[Runner], at_once: Collection[str]) -> None:
        for runner in spare:
            first = self.since[runner.name] = self.view.since.get(runner.name, self.now)
            if self.now - first >= SPARE or runner.name in at_once:
                self.ending.add(runner.name)
                reason = "its job was cancelled, or has another runner" if runner.for_job else "no job needs it"
                self.steps.append(DeleteRunner(runner.name, Cause.NOT_NEEDED, reason))

    def _make_idle(self, wish: IdleRunners, count: int, placing: PlanCapacity) -> None:
        if self._stopped(wish.scope) or (wish.not_before is not None and self.now < wish.not_before):
            return
        for _ in range(count):
            choice = placing.fits_now(wish.spec, wish.repository, wish.scale_set)
            if choice is None:
                return
            self.steps.append(
                CreateRunner(
                    scope=wish.scope,
                    repository=wish.repository or self._registration(wish.scope),
                    labels=wish.labels,
                    spec=wish.spec,
                    choice=choice,
                    end=self._lease_end(wish.spec),
                    yields=True,
                    reason="to wait for jobs",
                    for_repository=wish.repository,
                    scale_set=wish.scale_set,
                )
            )

    # Leases, and what scale sets may have

    def _lease_end(self, spec: ServerSpec) -> datetime:
        return self.now.replace(microsecond=0) + lease_length(self.view.site, spec, self.view.boots)

    def _leases(self, served: dict[str, Runner]) -> None:
        """Change leases: a runner that may get a job always has time for it; a booking may end the lease of one that
        serves none."""
        serving = {runner.name for runner in served.values()}
        for runner in self.runners:
            lease = self.view.leases.get(runner.lease)
            if lease is None:
                continue
            end, yields = lease.ask.end, runner.spec.preemptible
            if runner.state is RunnerState.DELETING or runner.name in self.ending:
                yields = lease.yields
                if not self.now + TEARDOWN / 2 <= end <= self.now + 2 * TEARDOWN:
                    end = self.now.replace(microsecond=0) + TEARDOWN
            elif runner.state is RunnerState.BUSY:
                end = runner.until.replace(microsecond=0) + TEARDOWN if runner.until else end
            elif runner.name not in self.job_of:
                needed = runner.name in serving or runner.name in self.kept
                yields = yields or runner.name not in serving
                if needed and end < self.now + runner.spec.longest + TEARDOWN:
                    end = self._lease_end(runner.spec)
            if (end, yields) != (lease.ask.end, lease.yields):
                self.steps.append(ChangeLease(runner.name, lease.id, end, yields))

    def _capacity(self, demand: SetDemand, placing: PlanCapacity) -> int:
        """Return the capacity to announce to GitHub for a set: a job for each runner, what has been assigned already,
        what is next in the queue now (`_unassigned`), and what would have room besides, so that a job which comes next
        is assigned at once."""
        gone = [
            runner.name for runner in self.runners if runner.state is RunnerState.DELETING or runner.name in self.ending
        ]
        having = sum(runner.scale_set == demand.name and runner.name not in gone for runner in self.runners)
        making = sum(isinstance(step, CreateRunner) and step.scale_set == demand.name for step in self.steps)
        more = 0 if self._stopped(demand.scope) else placing.many_now(demand.spec, demand.name)
        assigned = self.unserved[demand.name] + demand.turned_down  # GitHub counts those against it
        return having + making + assigned + self.invited[demand.name] + more


def _is_of(runner: Runner, wish: IdleRunners) -> bool:
    if wish.scale_set or runner.scale_set:
        return (runner.scope, runner.scale_set) == (wish.scope, wish.scale_set)
    mine = (runner.scope, runner.repository.lower(), frozenset(label.lower() for label in runner.labels))
    return mine == (wish.scope, wish.repository.lower(), frozenset(label.lower() for label in wish.labels))


def _invitation(demand: SetDemand) -> str:
    """Key of `RunnerPlan.since`: another one as soon as GitHub has assigned a job."""
    return f"set {demand.name}: invited beyond {demand.assigned}"


def _pools(spec: ServerSpec) -> set[str]:
    return {choice.pool for choice in spec.choices}
