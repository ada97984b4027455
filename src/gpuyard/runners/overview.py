"""The latest overview of jobs and runners, published by the loop that plans and read by pages, API and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.records import Job, Runner, ScaleSetState
from gpuyard.runners.view import QueuePlace


@dataclass(frozen=True)
class EnrolmentStatus:
    """The state of the connection to GitHub of one enrolment."""

    name: str
    """`Enrolment.name`."""
    calls: CallCount = field(default_factory=CallCount)
    error: str = ""
    """Why nothing can be asked of GitHub at the moment, or what its app lacks, in words for admins; empty when all is
    well."""


@dataclass(frozen=True)
class RunnerOverview:
    """Jobs and runners at one moment, and what the last plan says of those that wait."""

    taken_at: datetime
    jobs: tuple[Job, ...] = ()
    """All that are not over."""
    runners: tuple[Runner, ...] = ()
    """All that are not over."""
    queue: tuple[QueuePlace, ...] = ()
    """`RunnerPlan.queue`."""
    sets: tuple[ScaleSetState, ...] = ()
    enrolments: tuple[EnrolmentStatus, ...] = ()


class RunnerOverviewCache:
    """The latest overview. One writer, any number of readers."""

    def __init__(self) -> None:
        self._board: RunnerOverview | None = None

    def latest(self) -> RunnerOverview | None:
        """Return the latest overview; None until there was a plan."""
        return self._board

    def publish(self, board: RunnerOverview) -> None:
        self._board = board
