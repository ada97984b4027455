"""Control loop of runners: observes jobs, runners, leases and the cloud, plans, and has the plan carried out.

A run observes everything again. Calls to Nova or GitHub that take time are made beside it by a worker pool; a runner
that a worker is busy with is left alone. Records are read before leases, so that a runner without a lease is one that
made way for a booking. State that must survive a kill is in the store, written before the call that it speaks of.
docs/adr/0025 has the order of these intents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpuyard.bookings.controllers.group_holds import GroupHolds
from gpuyard.bookings.errors import NoBookingError, RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.runner_leases import PoolCapacity
from gpuyard.health.controllers.gpus_kept_from_jobs import HoldCheck
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.model.booking import Booking
from gpuyard.model.errors import GpuyardError
from gpuyard.openstack.guarded_servers import GuardedServers
from gpuyard.runners.console import GpuVerdict
from gpuyard.runners.controllers.failed_gpu_checks import Quarantine
from gpuyard.runners.controllers.github_permissions import PermissionCheck
from gpuyard.runners.controllers.idle_since import SpareTimes
from gpuyard.runners.controllers.job_repository import LATELY, JobRepository
from gpuyard.runners.controllers.live_records import LiveReader
from gpuyard.runners.controllers.pauses import Pauses
from gpuyard.runners.controllers.registrar import Registrar, set_number
from gpuyard.runners.controllers.runner_executor import LATE, RunnerExecutor, Tools
from gpuyard.runners.controllers.runner_observer import RunnerObserver
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.cpu_lane import cpu_room
from gpuyard.runners.fair_share import decayed
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.idle import idle_runners
from gpuyard.runners.overview import EnrolmentStatus, RunnerOverview, RunnerOverviewCache
from gpuyard.runners.placing import TEARDOWN
from gpuyard.runners.planner import plan, retry_after
from gpuyard.runners.progress import OFF, RunnerObservation, progress
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerEvent, RunnerState, ServerChoice
from gpuyard.runners.resolve import Configuration, IdleRunners
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.view import (
    ChangeLease,
    CreateRunner,
    DeleteRunner,
    FailJob,
    RunnerPlan,
    RunnerView,
    Step,
)
from gpuyard.runtime.leader_roles import RUNNERS
from gpuyard.runtime.problems import RunProblems
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.runtime.worker_pool import WorkerPool
from gpuyard.site.runner_rules import CPU

LOG = logging.getLogger(__name__)
A_JOB = "a job changed"
"""Reason of a wake-up."""
GENTLE = frozenset({Cause.NOT_NEEDED, Cause.BOOKING, Cause.REGISTRATION_TIMEOUT})
"""Causes for which a runner goes only if GitHub has not given it a job by then."""
NO_JOB_YET = frozenset({RunnerState.CREATING, RunnerState.REGISTERING, RunnerState.IDLE})
"""States in which a runner has a server, or will have one, and no job."""
HISTORY = timedelta(days=60)
"""Older use does not count in fair shares."""
GIVEN_UP = timedelta(hours=24)
"""GitHub gives up a job that has waited for so long."""
ASKED = timedelta(seconds=15)
"""GitHub is asked about one runner no more often."""
REST = timedelta(seconds=2)
"""Pause between two attempts to remove a runner that is to go."""
PRIVATE = "a private repository"


class RunnersError(GpuyardError):
    """A run of the loop left something undone; the message says what."""


@dataclass(frozen=True)
class RunnerPorts:
    """The stores and clients that the runners' controller talks to."""

    store: RunnerStore
    ledger: Ledger
    servers: GuardedServers
    clients: Mapping[str, GitHubClient]
    """Clients by the names of enrolments; so are the next."""
    sets: Mapping[str, ScaleSetClient]
    health: HealthService | None = None
    """The health service of a site that watches its GPUs."""
    holds: HoldCheck | None = None
    """The hold check of such a site."""
    in_slots: Callable[[str], bool] = lambda pool: False
    """Whether Placement knows which GPUs of a pool are alone in their groups: `SlotKinds.known`."""
    groups: GroupHolds | None = None
    """The holds of groups, on a site whose groups can be held for runners."""


class RunnerController:
    """Keeps the runners of one site. One run at a time; of several processes on one database only the leader does
    it."""

    def __init__(
        self,
        site: RunnerSite,
        ports: RunnerPorts,
        workers: Callable[[Callable[[], None]], WorkerPool],
        now: Callable[[], datetime],
        configurations: Callable[[], Mapping[tuple[str, str], Configuration]] = dict,
    ) -> None:
        """`workers` makes one that calls its argument after each piece of work. `configurations`: repositories'
        configurations when they were last read, by enrolment and ``owner/name``."""
        self.site, self.ports, self._now = site, ports, now
        self.wake = WakeSignal()
        """Sent when another run of the loop has something to do; A_JOB is the reason that concerns the intake, too."""
        self.planned_anew = WakeSignal()
        """Sent after each plan, when what scale sets can have may have changed."""
        self.overview = RunnerOverviewCache()
        self.book = JobRepository(ports.store, now, lambda: self.wake(A_JOB))
        self.live = LiveReader(ports.store, now)
        self.set_ids: dict[tuple[str, str], int] = {}
        """(enrolment, name) -> GitHub's number of a scale set, as its listener has it since this process began."""
        registrar = Registrar(ports.clients, ports.sets, partial(set_number, ports.store, self.set_ids))
        self.observer = RunnerObserver(ports.servers, registrar, ports.clients, now)
        self.workers = workers(lambda: self.wake("some work is done"))
        self._leases = ports.ledger.leases
        self._quarantine = Quarantine(ports.ledger, now, ports.health)
        self._pauses = Pauses(now)
        self.executor = RunnerExecutor(
            Tools(
                store=ports.store, leases=self._leases, servers=ports.servers, registrar=registrar,
                flavors=self._flavors, rules=self._guest_rules, find=self.observer.server_of,
                looked=self.observer.looked_at_nova,
                broken=self._quarantine.hold, now=now, failed=self._job_goes_on, limited=self._github_limited,
                registered=self._pauses.github_worked, blocked=self._blocked, **_checks_of(ports),
            )
        )  # fmt: skip
        self._spare = SpareTimes(ports.store)
        self._asked: dict[str, datetime] = {}
        self._removed: dict[str, datetime] = {}
        """Runners that are to go -> when it was last looked at what is left of them."""
        self._twice: dict[str, int] = {}
        """Key of a server that belongs to no runner -> number of the list in which it was first seen so."""
        self._odd: set[str] = set()
        """Errors that nobody has thought of, of the last run."""
        self._out_of_use: Mapping[str, str] = {}
        """GPUs on which nothing new is to start, each with why, as of this run."""
        self._lock = threading.Lock()
        self.permissions = PermissionCheck(site.runners, ports.clients)
        self.plan = RunnerPlan()
        self.planned = False
        """Whether there was a plan: before, nobody knows what scale sets can have."""
        self.waits = ""
        """Why this process does not keep the runners, when it does not."""
        self._configurations = configurations
        self._last_jobs: dict[tuple[str, str], datetime] | None = None
        """(repository in lower case, kind) -> when a runner of the kind last got a job; under "" anybody's."""

    @property
    def is_leader(self) -> bool:
        return self.ports.ledger.upkeep.leadership.is_leader(RUNNERS)

    def try_to_lead(self) -> bool:
        return self.ports.ledger.upkeep.leadership.try_to_lead(RUNNERS)

    def run(self) -> None:
        """Observe, plan and act once. Raises what went wrong, after the rest was done."""
        with self._lock:
            if not self.try_to_lead():
                self.waits = "another process on this database leads runners"
                self.live.forget()
                self._spare.forget()
                self.plan = replace(self.plan, since={})
                return
            self.waits = ""
            if self.observer.nova is None:  # before anything is decided
                self.observer.look_at_nova()
            problems = RunProblems(self._odd)
            now = self._now()
            # In this order: a worker that ends meanwhile has written what is read next, and leases come last, so that
            # a runner without one is one that made way.
            busy = self.workers.busy()
            read = self.live.records()
            mine = {id for runner in read.runners for id in (runner.job, runner.for_job) if id}
            over = self.book.over(mine - {job.id for job in read.jobs}, {runner.name for runner in read.runners})
            jobs = [*read.jobs, *over]
            leases = {lease.id: lease for lease in self._leases.current()}
            self._out_of_use = self.ports.holds.out_of_use() if self.ports.holds else {}
            runners = self._advanced(read.runners, jobs, leases, busy, now, problems)
            view = self._view(runners, jobs, leases)
            # As of now: the ledger says what is free from the moment at which it was asked, and reading took its time.
            self.plan = plan(view, self._now())
            self._spare.keep(self.plan.since, {runner.name for runner in runners})
            self.planned = True
            self.planned_anew("a plan")
            by_name = {runner.name: runner for runner in runners}
            for step in self.plan.steps:
                self._require_leadership()
                with problems.apart(str(step)[:200]):
                    self._act(step, by_name, busy, now)
            for runner in runners:
                if runner.state is RunnerState.DELETING and runner.name not in busy and self._is_due(runner.name, now):
                    self.workers.start(runner.name, partial(self._remove, runner.name))
            with problems.apart("what belongs to nothing"):
                self._sweep(runners, leases)
            names = {runner.name for runner in runners}
            self._removed = {name: at for name, at in self._removed.items() if name in names}
            self._asked = {name: at for name, at in self._asked.items() if name in names}
            self._publish(now)
            self._odd = problems.odd
            if problems.texts:
                raise RunnersError("; ".join(problems.texts))

    def _require_leadership(self) -> None:
        """Raise RunnersError when this process is not the leader any more: after a pause in the middle of a run another
        process may be at work on its plan."""
        if not self.is_leader:
            raise RunnersError("this process no longer leads runners; the rest of this run is left out")

    def _is_due(self, name: str, now: datetime) -> bool:
        """Return whether to ask again what is left of a runner, and note that it is asked: the end of each attempt
        wakes this loop, which would ask on."""
        last = self._removed.get(name)
        if last is not None and timedelta(0) <= now - last < REST:
            return False
        self._removed[name] = now
        return True

    # What is seen

    def _advanced(
        self, runners: Sequence[Runner], jobs: Sequence[Job], leases: Mapping[str, Booking], busy: frozenset[str],
        now: datetime, problems: RunProblems,
    ) -> list[Runner]:  # fmt: skip
        """Each runner as far as it has come, written down."""
        jobs_by_runner: dict[str, Job] = {}
        for job in sorted(jobs, key=lambda job: (job.started or job.queued, job.id)):
            if job.runner:
                jobs_by_runner[job.runner] = job  # of several the one that began last
        advanced = []
        for runner in runners:
            after = runner
            if runner.name not in busy:
                with problems.apart(f"runner {runner.name}"):
                    after = self._advance(runner, jobs_by_runner.get(runner.name), leases.get(runner.lease), now)
            advanced.append(after)
        return advanced

    def _advance(self, runner: Runner, job: Job | None, lease: Booking | None, now: datetime) -> Runner:
        observation = self.observer.of(runner, job)
        if runner.state is RunnerState.REQUESTED or self._never_asked_for(runner, observation):
            self.executor.interrupted(runner)
            return self._stored(runner)
        after = progress(self._with_gpus(runner, lease), observation, self.site.patience(runner), now)
        if after.state is not RunnerState.DELETING and self._hangs_on_github(after, observation, now):
            self.workers.start(runner.name, partial(self._ask, runner))
        if after.state in NO_JOB_YET and (bad := next((gpu for gpu in after.gpus if gpu in self._out_of_use), "")):
            self._let_go(after, Cause.GPU_KEPT_BACK, f"its GPU {bad} is {self._out_of_use[bad]}", now)
            return runner
        if after == runner:
            return runner
        if after.state is RunnerState.DELETING and after.cause in GENTLE and runner.state is not RunnerState.BUSY:
            self._let_go(runner, after.cause or Cause.NOT_NEEDED, after.reason, now)
            return runner
        self._pool_news(after)
        self.executor.write(after, _told(runner, after))
        return after

    def _never_asked_for(self, runner: Runner, observation: RunnerObservation) -> bool:
        """Return whether a process before this one was about to ask Nova for the runner, and did not."""
        look = self.observer.nova
        alone = runner.state is RunnerState.CREATING and not runner.server_id and observation.server is None
        return alone and look is not None and look.at - runner.changed >= LATE

    def _with_gpus(self, runner: Runner, lease: Booking | None) -> Runner:
        if runner.gpus or lease is None or lease.claimed is None:
            return runner
        lanes = {lane.id: lane for lane in self.ports.ledger.lanes(lease.ask.pool)}
        # A server without its whole group has the leader: peers are another class (docs/adr/0002).
        most = None if runner.choice.same_group else 1
        mine = [lanes[id] for id in lease.lanes if id in lanes]
        gpus = (f"{lane.host}/{address}" for lane in mine for address in lane.addresses[:most])
        return replace(runner, gpus=tuple(gpus))

    def _hangs_on_github(self, runner: Runner, observation: RunnerObservation, now: datetime) -> bool:
        """Return whether the next decision about a runner depends on an answer of GitHub's about it alone."""
        console, server = observation.console, observation.server
        wrong = console is not None and (console.gpu is GpuVerdict.FAILED or bool(console.failed))
        off = server is not None and server.status in OFF
        if (
            observation.registered is not None
            or not (wrong or off)
            or now - self._asked.get(runner.name, now - ASKED) < ASKED
        ):
            return False
        self._asked[runner.name] = now
        return True

    def _ask(self, runner: Runner) -> None:
        self.observer.ask_github(runner)

    def _stored(self, runner: Runner) -> Runner:
        return self.ports.store.runner(runner.name) or runner

    def _pool_news(self, runner: Runner) -> None:
        """A server that became ACTIVE says that there is room for its size; a runner that came online, that its kind
        works."""
        if runner.active is not None:
            if runner.online is not None:
                self._pauses.idle_worked(runner)
            self._note_job(runner)
            self._pauses.has_room(runner.choice)

    # What is planned

    def _view(self, runners: Sequence[Runner], jobs: Sequence[Job], leases: Mapping[str, Booking]) -> RunnerView:
        site, now = self.site.runners, self._now()
        used = self.ports.store.used(now - HISTORY)
        return RunnerView(
            site=site,
            jobs=jobs,
            runners=runners,
            leases=leases,
            rooms=self._rooms(runners, now),
            crowded=self._pauses.crowded(),
            used=decayed(used, now, site.half_life),
            idle=self._idle(now),
            boots=self.site.boots,
            sets=self.site.demands(self.ports.store.scale_sets(), self.ports.store.turned_down(now - GIVEN_UP)),
            stopped=self._stopped(),
            since={**self.plan.since, **self._spare.known()},
        )

    def _idle(self, now: datetime) -> list[IdleRunners]:
        wished = idle_runners(self.site.compiled.site, self._configurations(), self._last_job, now)
        kinds = {(wish.scope, wish.repository, wish.scale_set, wish.spec.kind): wish for wish in wished}
        pauses = self._pauses.idle_until(kinds)
        return [replace(wish, not_before=pauses.get(kind)) for kind, wish in kinds.items()]

    def _last_job(self, repository: str, kind: str) -> datetime | None:
        if self._last_jobs is None:
            self._last_jobs = {}
            for runner in reversed(self.ports.store.runners(over=True, limit=LATELY)):
                self._note_job(runner)
        return self._last_jobs.get((repository.lower(), kind))

    def _note_job(self, runner: Runner) -> None:
        if runner.busy is not None and self._last_jobs is not None:
            for where in {"", runner.for_repository.lower(), runner.repository.lower()}:
                self._last_jobs[where, runner.spec.kind] = runner.busy

    def _rooms(self, runners: Sequence[Runner], now: datetime) -> Mapping[str, PoolCapacity]:
        capacities = dict(self._leases.rooms())
        if self.site.runners.cpu_runners:
            capacities[CPU] = cpu_room(self.site.runners, runners, self.site.boots, now)
        return capacities

    def _stopped(self) -> dict[str, str]:
        stopped = self._pauses.stopped()
        return {**stopped, "": trouble} if (trouble := self.ports.servers.trouble) else stopped

    # What is done

    def _act(self, step: Step, runners: Mapping[str, Runner], busy: frozenset[str], now: datetime) -> None:
        if isinstance(step, CreateRunner):
            self._create(step, now)
        elif isinstance(step, FailJob):
            self.book.change(step.job, lambda job: replace(job, state=JobState.FAILED, reason=step.reason), step.reason)
        elif step.runner in busy or step.runner not in runners:
            return
        elif isinstance(step, DeleteRunner):
            self._end(runners[step.runner], step.cause, step.reason, now)
        else:
            self._change_lease(step, runners[step.runner], now)

    def _create(self, step: CreateRunner, now: datetime) -> None:
        """Take the lease (none without GPUs), store the runner, and have a worker make it. A lease without its runner
        is ended by the next run; a runner that no living process makes is ended, too."""
        name = self.site.new_name(step.choice.pool)
        whose = self._shown(step.for_repository or step.repository, now) or step.scope
        try:
            lease = self._lease(step, name, whose) if step.choice.gpus else ""
        except RefusedError as refused:  # the ledger knows better than the plan: the next one is made with that
            LOG.info("no runner for %s: %s", whose, refused)
            return
        runner = Runner(
            name=name, state=RunnerState.REQUESTED, scope=step.scope, repository=step.repository, labels=step.labels,
            spec=step.spec, choice=step.choice, created=now, changed=now, for_repository=step.for_repository,
            for_job=step.for_job, scale_set=step.scale_set, lease=lease,
        )  # fmt: skip
        self.ports.store.add_runner(runner, RunnerEvent(now, name, step.for_job, f"runner {name}: {step.reason}"))
        self.workers.start(name, partial(self.executor.make, runner))

    def _lease(self, step: CreateRunner, name: str, whose: str) -> str:
        """Id of the lease that is taken for a runner. Raises RefusedError."""
        choice, site = step.choice, self.site
        return self._leases.take(
            choice.pool, choice.gpus, choice.same_group, step.end, name, site.project_id, site.runners.project,
            f"runner {name} of {whose}", yields=step.yields,
        ).id  # fmt: skip

    def _shown(self, repository: str, now: datetime) -> str:
        """A repository for the comment of a lease, which the map, the calendar and feeds show."""
        all_shown = not repository or self.site.runners.private_repositories == "names"
        return repository if all_shown or repository.lower() in self.ports.store.public_repositories(now) else PRIVATE

    def _let_go(self, runner: Runner, cause: Cause, reason: str, now: datetime) -> None:
        """Let a runner go, but not at every run: while GitHub does not answer, each attempt ends at once and wakes this
        loop."""
        if self._is_due(runner.name, now):
            self.workers.start(runner.name, partial(self.executor.let_go, runner, cause, reason))

    def _end(self, runner: Runner, cause: Cause, reason: str, now: datetime) -> None:
        if runner.state is RunnerState.DELETING:
            return
        if cause in GENTLE and runner.state is not RunnerState.BUSY:
            self._let_go(runner, cause, reason, now)
        else:
            self.executor.end(runner, cause, reason)
            self.workers.start(runner.name, partial(self._remove, runner.name))

    def _remove(self, name: str) -> None:
        runner = self.ports.store.runner(name)
        if runner is not None and runner.state is RunnerState.DELETING:
            self.executor.remove(runner)

    def _change_lease(self, step: ChangeLease, runner: Runner, now: datetime) -> None:
        try:
            self._leases.extend(step.lease, step.end, yields=step.yields)
        except (RefusedError, NoBookingError) as refused:
            if runner.state is not RunnerState.BUSY:
                self._end(runner, Cause.BOOKING, f"its GPU is booked: {refused}", now)
                return
            lease = self.ports.ledger.get(step.lease)
            until = lease.ask.end - TEARDOWN
            if runner.until is None or until < runner.until:
                self.executor.write(
                    replace(runner, until=until), f"its GPU is booked: its job may run until {until:%H:%M}"
                )

    # What goes wrong

    def _job_goes_on(self, runner: Runner) -> None:
        """A runner has failed: when the next one may be made for its job, or to wait for one, and whether it counts.

        Where Nova had no room, the job waits as long as its size of server is paused, and where GitHub or Nova is out
        of order until that is over: it has no pause of its own besides.
        """
        full = runner.cause is Cause.NO_CAPACITY
        if full:
            self._pauses.no_room(runner.choice, runner.reason)
        if not runner.for_job:
            self._pauses.idle_failed(runner)
            return
        counts = not full and not self._stopped()

        def again(job: Job) -> Job:
            if job.state is not JobState.QUEUED:
                return job
            tries = job.tries + counts
            after = self._now() + retry_after(tries) if counts else job.not_before
            return replace(job, tries=tries, not_before=after, reason=f"runner {runner.name} failed: {runner.reason}")

        self.book.change(runner.for_job, again)

    def _github_limited(self, scope: str, error: GitHubError) -> None:
        # A conflict is a name that GitHub has already ("Already exists"): the next runner has another one.
        if error.kind in (
            GitHubTrouble.LIMITED, GitHubTrouble.UNAUTHORIZED, GitHubTrouble.RETRY, GitHubTrouble.CONFLICT,
        ):  # fmt: skip
            self._pauses.github_failed(scope, str(error), error.retry_at)

    def _blocked(self, choice: ServerChoice) -> str:
        return self._leases.blocked(choice.pool) if choice.gpus else ""

    def _guest_rules(self, runner: Runner) -> str:
        job = self.ports.store.job(runner.for_job) if runner.for_job else None
        granted = job is not None and job.spec is not None
        return self.site.guest_rules(runner, job.run_id if job is not None and granted else 0)

    def _flavors(self, runner: Runner) -> list[str]:
        if not runner.choice.gpus:
            return self.site.nova_flavors(runner.choice, [], in_slots=False)
        lease = self.ports.ledger.get(runner.lease)
        lanes = {lane.id: lane for lane in self.ports.ledger.lanes(lease.ask.pool)}
        mine = [lanes[id] for id in lease.lanes if id in lanes]
        return self.site.nova_flavors(runner.choice, mine, in_slots=self.ports.in_slots(runner.choice.pool))

    # What belongs to nothing

    def _sweep(self, runners: Sequence[Runner], leases: Mapping[str, Booking]) -> None:
        """End leases, and delete servers and registrations, that are ours and belong to no runner: seen twice, for a
        list may be older than what we wrote."""
        look = self.observer.nova
        if look is None:
            return
        mine = {runner.name: runner for runner in runners}
        names = {server.name for server in look.servers.values()}
        for lease in leases.values():
            if lease.server not in mine and lease.server not in names:
                self._leases.end(lease.id, "it belongs to no runner")
        strange = {
            f"server {server.id}": partial(self.ports.servers.delete, server.id)
            for server in look.servers.values()
            if not self._belongs(server.id, mine.get(server.name))
        }
        self._twice = {key: self._twice.get(key, look.number) for key in strange}
        for key, first in self._twice.items():
            if first < look.number and self.workers.start(key, strange[key]):
                LOG.warning("%s is a runner's and belongs to none: it is deleted", key)

    @staticmethod
    def _belongs(server_id: str, runner: Runner | None) -> bool:
        return runner is not None and runner.server_id in ("", server_id)

    # What others are shown

    def _publish(self, now: datetime) -> None:
        trouble = self._pauses.stopped()
        enrolments = tuple(
            EnrolmentStatus(name, client.usage(), trouble.get(name) or self.permissions.problems(name))
            for name, client in self.ports.clients.items()
        )
        live, sets = self.live.records(), tuple(self.ports.store.scale_sets())
        self.overview.publish(RunnerOverview(now, live.jobs, live.runners, self.plan.queue, sets, enrolments))

    # What is looked at beside it

    def look_at_nova(self) -> None:
        """Observe the servers; for a loop of its own."""
        if not self.is_leader:
            return
        changed = self.observer.look_at_nova()
        runners = self.live.records().runners
        doubtful = [
            runner
            for runner in runners
            if runner.state is not RunnerState.DELETING and self.observer.is_missing(runner)
        ]
        self.observer.forget(runners)
        if changed:
            self.wake("servers changed")
        _ask_of_each("server", doubtful, self.observer.confirm_gone)

    def look_at_consoles(self) -> None:
        """Read the consoles of runners that start; for a loop of its own."""
        if not self.is_leader:
            return
        speaking = [runner for runner in self.live.records().runners if self.observer.wants_console(runner)]

        def look(runner: Runner) -> None:
            if self.observer.look_at_console(runner):
                self.wake("a runner said something")

        _ask_of_each("console", speaking, look)


def _ask_of_each(what: str, runners: Sequence[Runner], look: Callable[[Runner], None]) -> None:
    """Ask about each runner; one whose server Nova cannot say anything of, since its host is down, keeps nobody from
    the others. Raises RunnersError when all fail."""
    problems = RunProblems()
    for runner in runners:
        with problems.apart(f"{what} of {runner.name}"):
            look(runner)
    if problems.texts and len(problems.texts) == len(runners):
        raise RunnersError("; ".join(problems.texts)[:1000])


def _checks_of(ports: RunnerPorts) -> dict[str, Any]:
    """Tools that a site may have or not."""
    health = {"unheld": ports.holds.unheld, "gpus_of": ports.holds.gpus_of} if ports.holds else {}
    groups = {"hold_group": ports.groups.place, "lift_hold": ports.groups.lift} if ports.groups else {}
    return {**health, **groups}


def _told(before: Runner, after: Runner) -> str:
    if after.state is RunnerState.DELETING:
        return after.reason
    if after.state is not before.state:
        return {
            RunnerState.REGISTERING: "its server is ACTIVE",
            RunnerState.IDLE: "GitHub has it online",
            RunnerState.BUSY: "GitHub has given it a job",
        }.get(after.state, after.state.value)
    if after.server_id != before.server_id:
        return f"its server is {after.server_id}"
    return f"Nova gave it {', '.join(after.gpus)}" if after.gpus != before.gpus else ""
