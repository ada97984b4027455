"""The stand-in's state, and the life of jobs and runners in it.

A job is held, queued, offered to a runner or assigned to a scale set, runs and is completed. A runner gets any job that
it could run, not the one it was made for. Listeners are called at each change; webhooks and messages of scale sets
follow from that. `tick` does what time alone brings about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID, uuid5

from gpuyard.runners.permissions import documented
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.records import (
    COMPLETED,
    DEFAULT_GROUP,
    IN_PROGRESS,
    QUEUED,
    WAITING,
    ForgeAccount,
    ForgeGroup,
    ForgeHook,
    ForgeJob,
    ForgePull,
    ForgeRepository,
    ForgeRun,
    ForgeRunner,
    ForgeSet,
    HookSending,
    JobOrder,
    JobTry,
    QueuedMessage,
)

NAMESPACE = UUID("5f0c4be2-8f5e-4d9a-9c92-0a6d6f0f7a11")


@dataclass(frozen=True)
class ForgeSettings:
    """The stand-in's behaviour when nothing goes wrong. The defaults are GitHub's, where they are known."""

    poll_s: float = 50.0
    """Seconds that a long poll waits for something to say. 0 for a simulated clock: it answers at once."""
    pickup: timedelta = timedelta(seconds=60)
    """A job that its runner has not taken in this time is queued again."""
    assignment: timedelta = timedelta(minutes=5)
    """A job that no runner of its scale set has begun in this time is taken back, and given again later: so far apart
    are the assignments that GitHub's support found in its logs (actions/actions-runner-controller#4602)."""
    reassignments: int = 3
    lost: timedelta = timedelta(minutes=10)
    """A runner that is not heard of for so long has lost its job."""
    offline: timedelta = timedelta(minutes=2)
    """An idle runner that has not asked for a job for so long is shown as offline."""
    session_idle: timedelta = timedelta(seconds=120)
    """A session of a scale set that does not poll ends after this time."""
    queue_limit: timedelta = timedelta(hours=24)
    unused: timedelta = timedelta(days=1)
    """An ephemeral registration that never connected is removed."""
    token: timedelta = timedelta(hours=1)
    """Life of installation tokens and of the tokens of the Actions service."""
    requests_an_hour: int = 5000
    deliveries_kept: timedelta = timedelta(days=3)
    """Older ones are neither listed nor sent again."""
    filtered_runs: int = 1000
    """Most runs in a list that was filtered."""
    runners_in_group: int = 10_000
    offers: bool = True
    """A scale set hears of jobs and acquires them; False: they are assigned to it at once, within its capacity."""
    foreign: timedelta = timedelta(seconds=30)
    """Time that a job takes on somebody else's runner."""
    first_id: int = 1000
    """The first id of jobs, runs, runners and all else. A later one, when clients remember ids of an earlier
    process."""


@dataclass
class ForgeApp:
    """A GitHub App."""

    id: int
    public_key: str
    """PEM."""
    slug: str = "gpuyard"


class Forge:
    """The state of a GitHub. Whoever reads or changes it holds ``lock``; ``changed`` wakes those who wait in a long
    poll."""

    def __init__(
        self,
        now: Callable[[], datetime],
        faults: Faults | None = None,
        settings: ForgeSettings | None = None,
        url: str = "http://github.test",
        runner_url: str = "",
    ) -> None:
        """``url`` is the address for clients; ``runner_url`` that for runners, when it differs."""
        self.now = now
        self.faults = faults or Faults()
        self.settings = settings or ForgeSettings()
        self.url = url
        self.runner_url = runner_url or url
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.app: ForgeApp | None = None
        self.permissions = documented()
        """Permissions of the app where it is installed, and of all personal tokens: name -> access."""
        self.repository_runners = True
        """Whether runners may be registered at repositories; an organisation can forbid it."""
        self.personal_tokens: dict[str, str] = {}
        """Token -> login of its owner."""
        self.accounts: dict[str, ForgeAccount] = {}
        """By login in lower case, as all that is found by name."""
        self.repositories: dict[str, ForgeRepository] = {}
        self.runs: dict[int, ForgeRun] = {}
        self.jobs: dict[int, ForgeJob] = {}
        self.unfinished: dict[int, ForgeJob] = {}
        """Jobs that are not completed, the oldest first."""
        self.runners: dict[int, ForgeRunner] = {}
        self.sets: dict[int, ForgeSet] = {}
        self.hooks: dict[int, ForgeHook] = {}
        self.sendings: dict[int, HookSending] = {}
        self.unsent: dict[int, HookSending] = {}
        self.used_names: set[str] = set()
        """Names of all runners that there ever were."""
        self.listeners: list[Callable[[ForgeJob, str], None]] = []
        """Called with a job and what happened to it: ``queued``, ``waiting``, ``in_progress``, ``completed``."""
        self._ids: dict[str, Iterator[int]] = {}

    def wake(self) -> None:
        """Wake those who wait in a long poll."""
        with self.lock:
            self.changed.notify_all()

    # -- ids

    def next_id(self, kind: str) -> int:
        return next(self._ids.setdefault(kind, count(self.settings.first_id)))

    def guid(self, kind: str) -> str:
        """Return a UUID that is the same in every run with this seed."""
        return str(uuid5(NAMESPACE, f"{self.faults.seed}/{kind}/{self.next_id(kind)}"))

    # -- who and what there is

    def add_account(self, login: str, *, organization: bool = True, installed: bool = True) -> ForgeAccount:
        account = ForgeAccount(self.next_id("account"), login, organization)
        if installed:
            account.installation = self.next_id("installation")
        account.groups[DEFAULT_GROUP] = ForgeGroup(DEFAULT_GROUP, "Default")
        self.accounts[login.lower()] = account
        return account

    def add_repository(self, full_name: str, *, private: bool = False, **files: str) -> ForgeRepository:
        """Add the repository ``owner/name``; its owner is made when it is not there."""
        owner, _, name = full_name.partition("/")
        account = self.accounts.get(owner.lower()) or self.add_account(owner)
        repository = ForgeRepository(self.next_id("repository"), account.login, name, private, files=dict(files))
        self.repositories[full_name.lower()] = repository
        return repository

    def add_hook(self, scope: str, url: str, secret: str) -> ForgeHook:
        """Add a webhook of ``app``, of an ``owner`` or of a repository ``owner/name``."""
        hook = ForgeHook(self.next_id("hook"), scope, url, secret)
        self.hooks[hook.id] = hook
        return hook

    # -- jobs

    def push(
        self,
        full_name: str,
        orders: Sequence[JobOrder],
        *,
        event: str = "push",
        actor: str = "octocat",
        branch: str = "",
        head_repository: str = "",
        association: str = "MEMBER",
        workflow: str = "CI",
    ) -> ForgeRun:
        """Start a run with these jobs. For an event ``pull_request`` a pull request is made; ``head_repository`` is the
        repository of its branch, when it is a fork. Raises KeyError for a repository that there is not."""
        now = self.now()
        repository = self.repositories[full_name.lower()]
        sha = f"{uuid5(NAMESPACE, self.guid('commit')).hex}{'0' * 8}"
        head = head_repository or repository.full_name
        run = ForgeRun(
            self.next_id("run"), repository.full_name, event, actor, branch or repository.default_branch, sha, head,
            now, workflow,
        )  # fmt: skip
        if event.startswith("pull_request"):
            run.pull = len(repository.pulls) + 1
            repository.pulls[run.pull] = ForgePull(run.pull, actor, association, head, run.head_branch, sha)
        self.runs[run.id] = run
        if event == "push":
            repository.pushed = now
        for order in orders:
            self._add_job(run, order)
        self.wake()
        return run

    def ref(self, run: ForgeRun) -> str:
        """Return the ref whose workflow file a run follows: for a pull request its merge commit, in which the target's
        own file does not count."""
        if run.pull and run.event != "pull_request_target":
            return f"refs/pull/{run.pull}/merge"
        if run.pull:
            return f"refs/heads/{self.repositories[run.repository.lower()].default_branch}"
        return f"refs/heads/{run.head_branch}"

    def rerun(self, run: ForgeRun, failed_only: bool = False, actor: str = "") -> None:
        """Run the jobs of a run again, as new jobs of another attempt, which `actor` starts."""
        before = [self.jobs[id] for id in run.jobs if self.jobs[id].attempt == run.attempt]
        run.attempt += 1
        run.triggering_actor = actor or run.triggering_actor or run.actor
        for job in before:
            if not failed_only or job.conclusion != "success":
                self._add_job(run, job.order)
            else:  # GitHub sends what was completed before once more
                self.tell(job, "completed")
        self.wake()

    def _add_job(self, run: ForgeRun, order: JobOrder) -> None:
        now = self.now()
        job = ForgeJob(self.next_id("job"), run.id, run.attempt, order, run.repository, QUEUED, now)
        subject = f"job {job.id}"
        approval = order.approval
        if approval is None and self.faults.strikes("job_waiting", subject, now):
            approval = timedelta(seconds=self.faults.waiting_s * self.faults.draw("waiting for", subject))
        if self.faults.strikes("job_cancelled", subject, now):
            job.cancel_at = now + timedelta(seconds=self.faults.cancel_s * self.faults.draw("cancelled after", subject))
        run.jobs.append(job.id)
        self.jobs[job.id] = self.unfinished[job.id] = job
        if approval is not None:
            job.status, job.release_at = WAITING, now + approval
            self.tell(job, "waiting")
        else:
            self._queue(job)

    def _queue(self, job: ForgeJob) -> None:
        now = self.now()
        job.status, job.queued, job.release_at = QUEUED, now, None
        self.tell(job, "queued")
        if self.faults.strikes("job_stolen", f"job {job.id}", now):
            job.foreign_until = now + self.settings.foreign
            self.begin(job, None)
        self.wake()

    def begin(self, job: ForgeJob, runner: ForgeRunner | None) -> None:
        """Start a job on a runner; None for somebody else's runner."""
        now = self.now()
        job.status, job.started, job.offered = IN_PROGRESS, now, None
        job.runner = runner.id if runner else self.next_id("runner")
        job.runner_name = runner.name if runner else f"somebody-elses-{job.runner}"
        job.group = runner.group if runner else DEFAULT_GROUP
        job.tries.append(JobTry(job.runner_name, now))
        if runner:
            runner.job = job.id
        self.tell(job, "in_progress")
        self.wake()

    def complete(self, job: ForgeJob, conclusion: str) -> None:
        """End a job, however: ``success``, ``failure`` or ``cancelled``. Its runner, ephemeral, is gone."""
        if job.status == COMPLETED:
            return
        now = self.now()
        job.status, job.conclusion, job.completed = COMPLETED, conclusion, now
        if job.tries and job.tries[-1].ended is None:
            job.tries[-1].ended, job.tries[-1].result = now, conclusion
        runner = self.runners.get(job.runner)
        if runner and job.started:
            self.remove_runner(runner)
        elif runner:  # it was offered, and the runner never began
            runner.job = 0
        self.unfinished.pop(job.id, None)
        self.tell(job, "completed")
        self.wake()

    def cancel(self, job: ForgeJob) -> None:
        """Cancel a job as a person does: at once in the queue, by a message to its runner while it runs."""
        if job.status == IN_PROGRESS and job.foreign_until is None:
            job.cancelled = True
            self.wake()
        elif job.status != COMPLETED:
            self.complete(job, "cancelled")

    def tell(self, job: ForgeJob, action: str) -> None:
        for listener in self.listeners:
            listener(job, action)

    # -- runners

    def register(self, runner: ForgeRunner) -> None:
        self.runners[runner.id] = runner
        self.used_names.add(runner.name)
        self.wake()

    def remove_runner(self, runner: ForgeRunner) -> None:
        """End a runner's registration; if it has a job that it has not begun, that is queued again."""
        self.runners.pop(runner.id, None)
        job = self.jobs.get(runner.job)
        if job and job.status == QUEUED:
            job.runner, job.offered = 0, None
        self.wake()

    def may_use(self, runner: ForgeRunner | ForgeSet, repository: str) -> bool:
        """Return whether jobs of a repository may go to a runner, or to a scale set."""
        if runner.repository:
            return runner.repository.lower() == repository.lower()
        if runner.owner.lower() != repository.partition("/")[0].lower():
            return False
        group = self.accounts[runner.owner.lower()].groups.get(runner.group)
        return group is not None and (group.repositories is None or repository in group.repositories)

    def set_of(self, job: ForgeJob) -> ForgeSet | None:
        """Return the scale set that a job's labels name."""
        job_labels = {label.lower() for label in job.order.labels}
        for scale_set in self.sets.values():
            if job_labels <= {label.lower() for label in scale_set.labels} and self.may_use(scale_set, job.repository):
                return scale_set
        return None

    def job_for(self, runner: ForgeRunner) -> ForgeJob | None:
        """Return the job that a runner gets now: any that it could run."""
        now = self.now()
        labels = {label.lower() for label in runner.labels}
        fitting = []
        for job in self.unfinished.values():
            if job.status != QUEUED or job.offered:
                continue
            if runner.scale_set:
                fits = job.scale_set == runner.scale_set and job.assigned is not None
            else:
                fits = {label.lower() for label in job.order.labels} <= labels and self.may_use(runner, job.repository)
                fits = fits and self.set_of(job) is None
            if fits:
                fitting.append(job)
                if not self.faults.rates.job_shuffled:
                    break
        if not fitting:
            return None
        job = fitting[0]
        if len(fitting) > 1 and self.faults.strikes("job_shuffled", f"runner {runner.name}", now):
            job = fitting[int(self.faults.draw("shuffled to", runner.name) * len(fitting))]
        job.runner, job.runner_name, job.offered = runner.id, "", now
        runner.job = job.id
        return job

    # -- time

    def tick(self) -> None:
        """Do what happens by itself. Call it now and then; all of it depends on the clock alone."""
        now, settings = self.now(), self.settings
        for job in list(self.unfinished.values()):
            if job.cancel_at and job.cancel_at <= now:
                job.cancel_at = None
                self.cancel(job)
            if job.status == WAITING and job.release_at and job.release_at <= now:
                self._queue(job)
            if job.status == QUEUED and job.queued and now - job.queued >= settings.queue_limit:
                self.complete(job, "cancelled")
            if job.status == QUEUED and job.offered and now - job.offered >= settings.pickup:
                self._not_picked_up(job)
            if job.status == IN_PROGRESS and job.foreign_until and job.foreign_until <= now:
                self.complete(job, job.order.result)
        for runner in list(self.runners.values()):
            self._age(runner)

    def _not_picked_up(self, job: ForgeJob) -> None:
        """Its runner has not said that it runs: to the queue again, and the runner is believed to be gone."""
        runner = self.runners.get(job.runner)
        job.runner, job.offered = 0, None
        if runner:
            runner.job = 0
        self.wake()

    def _age(self, runner: ForgeRunner) -> None:
        now, settings = self.now(), self.settings
        job = self.jobs.get(runner.job)
        if runner.connected is None:
            if now - runner.created >= settings.unused:
                self.remove_runner(runner)
            return
        silent = now - (runner.heard or runner.connected)
        if job and job.status == IN_PROGRESS and silent >= settings.lost:
            self.complete(job, "failure")
        elif not job and silent >= settings.offline:
            runner.silent = True

    def add_message(self, scale_set: ForgeSet, *events: dict[str, object]) -> None:
        """Add events for the listener of a scale set, which come with its next message."""
        scale_set.pending.extend(events)
        self.wake()

    def make_message(self, scale_set: ForgeSet, most: int) -> QueuedMessage | None:
        """Make a message of what is pending, of at most `most` events; None when nothing is."""
        if not scale_set.pending:
            return None
        message = QueuedMessage(self.next_id("message"), scale_set.pending[:most])
        del scale_set.pending[:most]
        scale_set.messages.append(message)
        return message
