"""The life of a runner: which states follow which, and why. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuyard.model.errors import BlockedError
from gpuyard.runners.records import Cause, Runner, RunnerState

S = RunnerState

TRANSITIONS: dict[tuple[RunnerState, RunnerState], str] = {
    (S.REQUESTED, S.CREATING): "GitHub has registered it",
    (S.CREATING, S.REGISTERING): "its server is ACTIVE",
    (S.CREATING, S.IDLE): "GitHub has it online before Nova was asked again",
    (S.CREATING, S.BUSY): "it has a job before Nova was asked again",
    (S.REGISTERING, S.IDLE): "GitHub has it online",
    (S.REGISTERING, S.BUSY): "it has a job before GitHub was asked again",
    (S.IDLE, S.BUSY): "GitHub gave it a job",
    **{
        (state, S.DELETING): "it is not needed any more, or of no use"
        for state in (S.REQUESTED, S.CREATING, S.REGISTERING, S.IDLE, S.BUSY)
    },
    (S.DELETING, S.GONE): "server, registration and lease are gone",
    (S.DELETING, S.FAILED): "server, registration and lease are gone, and it never did its work",
}
"""From, to: what makes it happen."""

FAILURES = frozenset(Cause) - {
    Cause.FINISHED,
    Cause.NOT_NEEDED,
    Cause.TIME_LIMIT,
    Cause.BOOKING,
    Cause.REFUSED,
}
"""Causes of which a runner has failed rather than done its work."""


class RunnerLifeError(BlockedError):
    """A runner cannot go where it was asked to."""


def become(runner: Runner, to: RunnerState, now: datetime, cause: Cause | None = None, reason: str = "") -> Runner:
    """The runner in another state, with all that the state means for it. Raises RunnerLifeError.

    A runner that is over is FAILED rather than GONE when its cause is one of FAILURES.
    """
    if to is S.GONE and runner.cause in FAILURES:
        to = S.FAILED
    if (runner.state, to) not in TRANSITIONS:
        raise RunnerLifeError(f"runner {runner.name} is {runner.state.value} and cannot become {to.value}")
    new = replace(runner, state=to, changed=now)
    if to is S.REGISTERING:
        return replace(new, active=now)
    if to is S.IDLE:
        return replace(new, active=runner.active or now, online=now)
    if to is S.BUSY:
        until = now + runner.wanted.longest
        return replace(new, active=runner.active or now, online=runner.online or now, busy=now, until=until)
    if to is S.DELETING:
        return replace(new, cause=cause or Cause.NOT_NEEDED, reason=reason)
    if to in (S.GONE, S.FAILED):
        return replace(new, ended=now)
    return new
