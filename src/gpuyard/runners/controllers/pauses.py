"""Pauses after failures that say nothing against the job: no room at Nova, no service at GitHub, failing idle runners.

A pause is of servers of one size, of an enrolment, or of a kind of runner that waits for jobs. Each begins short, since
most such failures are over within a second (a GPU whose server is being deleted, one broken answer), and doubles with
each failure in a row. They are kept in memory: a new process asks once and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from gpuyard.model.backoff import backoff
from gpuyard.runners.planner import retry_after
from gpuyard.runners.records import Runner, ServerChoice
from gpuyard.runners.view import ServerSize, size_of

FIRST_NO_ROOM, LONGEST_NO_ROOM = timedelta(seconds=2), timedelta(minutes=15)
"""A GPU that Nova still counts is free in seconds, when its server is deleted; a host without RAM may stay so for
hours."""
FIRST_GITHUB, LONGEST_GITHUB = timedelta(seconds=1), timedelta(minutes=1)
"""The first and the longest pause where GitHub itself has not said when to ask again."""

IdleKind = tuple[str, str, str, str]
"""Enrolment, repository, scale set and kind of a runner that waits for jobs."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class _Pause:
    failures: int
    until: datetime
    reason: str
    told: bool = False
    """Whether the service itself has said until when."""


@dataclass
class _GrowingPauses(Generic[Key]):
    """Pauses by what is paused. A failure during a pause is of a call that began before it, and makes it no longer:
    else ten servers that are refused at once would count as ten refusals in a row."""

    pause: Callable[[int], timedelta]
    """Length of a pause by the number of failures in a row."""
    forgotten: timedelta
    """A failure so long after the last pause is the first of a row."""
    entries: dict[Key, _Pause] = field(default_factory=dict)

    def failed(self, key: Key, reason: str, now: datetime, until: datetime | None = None) -> None:
        """`until`: when to go on, where that is known."""
        last = self.entries.get(key)
        if last is not None and now < last.until and until is None:
            return
        in_a_row = last.failures if last is not None and now - last.until < self.forgotten else 0
        self.entries[key] = _Pause(in_a_row + 1, until or now + self.pause(in_a_row + 1), reason, until is not None)

    def worked(self, key: Key) -> None:
        """The next failure is the first of a row. A pause that the service asked for goes on."""
        last = self.entries.get(key)
        if last is not None and not last.told:
            self.entries.pop(key, None)

    def on(self, now: datetime) -> dict[Key, str]:
        """Return what is paused, each with why."""
        return {key: pause.reason for key, pause in self.entries.copy().items() if now < pause.until}


class Pauses:
    """The pauses of the runners of one site. Safe to use from several threads: each entry is replaced whole."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._sizes: _GrowingPauses[ServerSize] = _GrowingPauses(
            lambda failures: backoff(FIRST_NO_ROOM, failures, LONGEST_NO_ROOM), 2 * LONGEST_NO_ROOM
        )
        self._enrolments: _GrowingPauses[str] = _GrowingPauses(
            lambda failures: backoff(FIRST_GITHUB, failures, LONGEST_GITHUB), LONGEST_GITHUB
        )
        self.idle: dict[IdleKind, tuple[int, datetime]] = {}
        """Kinds of which runners failed that were to wait for jobs: how many in a row, when the next may be made."""

    def no_room(self, choice: ServerChoice, reason: str) -> None:
        """Pause a size of server: one of this choice could not be started. Others of its pool may have room: a pair
        finds no free group while single GPUs are free."""
        self._sizes.failed(size_of(choice), reason, self._now())

    def has_room(self, choice: ServerChoice) -> None:
        self._sizes.worked(size_of(choice))

    def crowded(self) -> dict[ServerSize, str]:
        """Return the sizes of servers of which none is started now, each with why."""
        return self._sizes.on(self._now())

    def github_failed(self, enrolment: str, reason: str, until: datetime | None) -> None:
        """Pause an enrolment. `until`: when GitHub wants to be asked again, if it has said so."""
        self._enrolments.failed(enrolment, reason, self._now(), until)

    def github_worked(self, enrolment: str) -> None:
        """End an enrolment's row of failures: GitHub has registered a runner."""
        self._enrolments.worked(enrolment)

    def stopped(self) -> dict[str, str]:
        """Return the enrolments for which no runner is made now, each with why."""
        return self._enrolments.on(self._now())

    def idle_failed(self, runner: Runner) -> None:
        """Pause the kind of a runner that was to wait for jobs and failed."""
        failures = self.idle.get(idle_kind(runner), (0, self._now()))[0] + 1
        self.idle[idle_kind(runner)] = failures, self._now() + retry_after(failures)

    def idle_worked(self, runner: Runner) -> None:
        self.idle.pop(idle_kind(runner), None)

    def idle_until(self, kinds: Mapping[IdleKind, object]) -> dict[IdleKind, datetime]:
        """Return when the next runner of each kind may be made; kinds that are not desired any more are forgotten."""
        self.idle = {kind: pause for kind, pause in self.idle.items() if kind in kinds}
        return {kind: until for kind, (_, until) in self.idle.items()}


def idle_kind(runner: Runner) -> IdleKind:
    return runner.scope, runner.for_repository, runner.scale_set, runner.spec.kind
