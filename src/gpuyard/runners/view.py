"""Input and output of the planner of runners. Plain data.

Whoever makes a view reads the runners first and the leases last: a runner without its lease is one that made way for a
booking. Read the other way round, a runner whose lease was taken in between would look like one and be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from gpuyard.bookings.ledger.runner_leases import PoolCapacity
from gpuyard.model.booking import Booking
from gpuyard.runners.records import Cause, Job, Runner, ServerChoice, ServerSpec
from gpuyard.runners.resolve import IdleRunners
from gpuyard.site.runner_rules import SiteRunners

ServerSize = tuple[str, int, bool]
"""The size by which Nova looks for a host: pool, number of GPUs, and whether they are a whole group."""


def size_of(choice: ServerChoice) -> ServerSize:
    return choice.pool, choice.gpus, choice.same_group


@dataclass(frozen=True)
class SetDemand:
    """GitHub's figures for one runner scale set, and the servers that its runners get."""

    name: str
    """Its label."""
    scope: str
    """Name of the enrolment."""
    spec: ServerSpec
    """The servers of its runners."""
    assigned: int = 0
    """Jobs that GitHub has assigned to it, running ones included: ``totalAssignedJobs``."""
    turned_down: int = 0
    """How many of these gpuyard has refused or given up: GitHub counts them until they are over there."""
    waiting: int = 0
    """Jobs that wait at GitHub until the set announces that it can have them: ``totalAvailableJobs``."""


@dataclass(frozen=True)
class RunnerView:
    """Everything that a plan follows from, except the time."""

    site: SiteRunners
    jobs: Sequence[Job]
    """All that are not over; and of those that are over, those that a live runner has as `job` or `for_job`, or that
    name a live runner."""
    runners: Sequence[Runner]
    """All that are not over."""
    leases: Mapping[str, Booking]
    """Id -> lease, of all that are active."""
    rooms: Mapping[str, PoolCapacity]
    """Pool -> its capacity now and later: `Leases.rooms`."""
    used: Mapping[str, float] = field(default_factory=dict)
    """Repository -> GPU-hours that it has used, of runners that are over: `fair_share.decayed`."""
    idle: Sequence[IdleRunners] = ()
    """Runners that should wait for jobs now."""
    sets: Sequence[SetDemand] = ()
    """All scale sets that we listen to."""
    boots: Mapping[str, timedelta] = field(default_factory=dict)
    """Flavor -> how long its server may take to be ACTIVE, where that is not the site's `boot`."""
    crowded: Mapping[ServerSize, str] = field(default_factory=dict)
    """Sizes of servers for which Nova had no room a moment ago, each with why: none of these is started now."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Enrolment -> why no runner can be made for it at the moment, as in ``GitHub answers no requests since 12:10``;
    under "" what holds for all of them."""
    since: Mapping[str, datetime] = field(default_factory=dict)
    """`RunnerPlan.since` of the plan before this one; empty for the first one of a process."""


@dataclass(frozen=True)
class CreateRunner:
    """Take a lease until `end`, store the runner, and make it."""

    scope: str
    repository: str
    """Where to register it, ``owner/name``; empty for the organisation."""
    labels: tuple[str, ...]
    spec: ServerSpec
    choice: ServerChoice
    end: datetime
    """End of its lease: after time to boot, its job's longest time, and time to be deleted."""
    yields: bool
    """Whether a booking may end its lease."""
    reason: str
    for_job: str = ""
    """The job that it is made for; empty for one that waits for any job, or serves one that GitHub has not reported."""
    for_repository: str = ""
    scale_set: str = ""


@dataclass(frozen=True)
class DeleteRunner:
    runner: str
    cause: Cause
    reason: str


@dataclass(frozen=True)
class ChangeLease:
    """Give the runner's lease this end and this `yields`. When the ledger refuses, a booking is in the way: a runner
    that waits for a job is then to be deleted with Cause.BOOKING; one that has a job keeps the lease it has, and its
    time limit comes forward to the end of that less `planner.TEARDOWN`."""

    runner: str
    lease: str
    end: datetime
    yields: bool


@dataclass(frozen=True)
class FailJob:
    """Mark the job FAILED: no runner could be had for it."""

    job: str
    reason: str


Step = CreateRunner | DeleteRunner | ChangeLease | FailJob


class QueuePlace(NamedTuple):
    """The place of a queued job in its pool's queue."""

    job: str
    pool: str
    """The pool whose queue it is in: that of the choice it will probably have. Empty when that is not known."""
    position: int
    """1 is the next of the pool; 0 for one that has a runner already, or gets one by this plan."""
    reason: str
    start: datetime | None = None
    """Estimate of when a runner is made for it, if nothing else is asked for in the meantime and every job takes
    its longest time: mostly it is sooner. For one that has a runner: when that was made. None when it cannot be
    estimated."""


@dataclass(frozen=True)
class RunnerPlan:
    steps: tuple[Step, ...] = ()
    """Deletions first, creations in the order of the queue."""
    queue: tuple[QueuePlace, ...] = ()
    """All queued jobs: those with a runner first, then in the order of their turns."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Scale set -> jobs that GitHub may assign to it, those that it has assigned included."""
    since: Mapping[str, datetime] = field(default_factory=dict)
    """When each condition was first observed: handed to the next plan, so that nothing is deleted on a single
    observation."""
