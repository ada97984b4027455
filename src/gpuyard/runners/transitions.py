"""State machine of a runner: the allowed transitions between its states, and what each means for its fields. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuyard.model.errors import BlockedError
from gpuyard.runners.records import Cause, Runner, RunnerState

TRANSITIONS: dict[tuple[RunnerState, RunnerState], str] = {
    (RunnerState.REQUESTED, RunnerState.CREATING): "GitHub has registered it",
    (RunnerState.CREATING, RunnerState.REGISTERING): "its server is ACTIVE",
    (RunnerState.CREATING, RunnerState.IDLE): "GitHub has it online before Nova was asked again",
    (RunnerState.CREATING, RunnerState.BUSY): "it has a job before Nova was asked again",
    (RunnerState.REGISTERING, RunnerState.IDLE): "GitHub has it online",
    (RunnerState.REGISTERING, RunnerState.BUSY): "it has a job before GitHub was asked again",
    (RunnerState.IDLE, RunnerState.BUSY): "GitHub gave it a job",
    **{
        (state, RunnerState.DELETING): "it is not needed any more, or of no use"
        for state in (
            RunnerState.REQUESTED,
            RunnerState.CREATING,
            RunnerState.REGISTERING,
            RunnerState.IDLE,
            RunnerState.BUSY,
        )
    },
    (RunnerState.DELETING, RunnerState.GONE): "server, registration and lease are gone",
    (RunnerState.DELETING, RunnerState.FAILED): "server, registration and lease are gone, and it never did its work",
}
"""(from, to) -> what makes it happen."""

FAILURES = frozenset(Cause) - {
    Cause.FINISHED,
    Cause.NOT_NEEDED,
    Cause.TIME_LIMIT,
    Cause.BOOKING,
    Cause.GPU_KEPT_BACK,
    Cause.REFUSED,
}
"""Causes by which a runner has failed rather than done its work."""


class RunnerLifeError(BlockedError):
    """A transition that a runner cannot make."""


def become(runner: Runner, to: RunnerState, now: datetime, cause: Cause | None = None, reason: str = "") -> Runner:
    """Return the runner in another state, with all that the state means for it. Raises RunnerLifeError.

    A runner that is over is FAILED rather than GONE when its cause is one of FAILURES.
    """
    if to is RunnerState.GONE and runner.cause in FAILURES:
        to = RunnerState.FAILED
    if (runner.state, to) not in TRANSITIONS:
        raise RunnerLifeError(f"runner {runner.name} is {runner.state.value} and cannot become {to.value}")
    new = replace(runner, state=to, changed=now)
    if to is RunnerState.REGISTERING:
        return replace(new, active=now)
    if to is RunnerState.IDLE:
        return replace(new, active=runner.active or now, online=now)
    if to is RunnerState.BUSY:
        until = now + runner.spec.longest
        return replace(new, active=runner.active or now, online=runner.online or now, busy=now, until=until)
    if to is RunnerState.DELETING:
        return replace(new, cause=cause or Cause.NOT_NEEDED, reason=reason)
    if to in (RunnerState.GONE, RunnerState.FAILED):
        return replace(new, ended=now)
    return new
