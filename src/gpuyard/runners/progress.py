"""Derives a runner's next state, or its end, from observations of Nova, GitHub and its console. Pure.

Observations may be late or lacking, so each step rests on what cannot be taken back: a server that is gone, a job that
GitHub has given it. The end is checked before progress, so that a runner that is done is never moved forward first. A
runner that is to end is only marked DELETING here; RunnerController and RunnerExecutor delete it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuyard.nova.server_states import UNKNOWN, SeenServer
from gpuyard.runners.console import Console, GpuVerdict, JobProgress
from gpuyard.runners.records import DONE, OVER, Cause, Job, JobState, Runner, RunnerState
from gpuyard.runners.transitions import become

OFF = frozenset({"SHUTOFF", "SUSPENDED", "PAUSED", "STOPPED"})
"""Nova's states of a server that does not run."""
NO_ROOM = ("No valid host", "Exceeded maximum number of retries", "over limit", "Quota exceeded")
"""Phrases in Nova's faults that mean that there is no place for a server."""
GRACE = timedelta(minutes=2)
"""Time for which something may look wrong that another service is about to correct: GitHub reports the end of a job
seconds after the server has switched itself off."""
_End = Callable[[Cause, str], Runner]
STEPS = 4
"""Most states that one observation takes a runner through."""


@dataclass(frozen=True)
class RunnerObservation:
    """Everything that was observed of one runner, besides its stored record."""

    server: SeenServer | None = None
    """Its server at Nova; None: not known, or not there."""
    gone: bool = False
    """Nova had its server, and has deleted it for good."""
    registered: bool | None = None
    """Whether GitHub has its registration; None: not asked since its last change."""
    online: bool | None = None
    """Whether GitHub has it online; None: not asked since its last change."""
    busy: bool = False
    console: Console | None = None
    job: Job | None = None
    """The job that GitHub has given it."""


@dataclass(frozen=True)
class Patience:
    """Time limits for a runner to boot and to register."""

    boot: timedelta
    """From the request to Nova to ACTIVE."""
    register: timedelta
    """From ACTIVE until GitHub has it online."""


def progress(runner: Runner, observation: RunnerObservation, patience: Patience, now: datetime) -> Runner:
    """Return the runner as far as it has come; the very same object when nothing is new. One that is to end is
    DELETING, with cause and reason."""
    for _ in range(STEPS):
        if runner.state in OVER or runner.state in (RunnerState.DELETING, RunnerState.REQUESTED):
            break
        after = _end(runner, observation, patience, now) or _forward(runner, observation, now)
        if after is None:
            break
        runner = after
    return runner


def _forward(runner: Runner, observation: RunnerObservation, now: datetime) -> Runner | None:
    """Return the runner one state on, or with a fact that was not known; None when there is neither."""
    if observation.server is not None and not runner.server_id:  # it was asked for before a crash
        return replace(runner, server_id=observation.server.id, changed=now)
    job, console = observation.job, observation.console or Console()
    if runner.state is not RunnerState.BUSY and (
        job is not None or observation.busy or console.job is JobProgress.STARTED
    ):
        return _given(become(runner, RunnerState.BUSY, now), job)
    if runner.state is RunnerState.BUSY:
        return _given(runner, job) if job is not None and runner.job != job.id else None
    if runner.state in (RunnerState.CREATING, RunnerState.REGISTERING) and (observation.online or console.online):
        return become(runner, RunnerState.IDLE, now)
    if (
        runner.state is RunnerState.CREATING
        and observation.server is not None
        and observation.server.status in {"ACTIVE", *OFF}
    ):
        return become(runner, RunnerState.REGISTERING, now)
    return None


def _given(runner: Runner, job: Job | None) -> Runner:
    """Return the runner with its job, and the job's time limit."""
    if job is None:
        return runner
    until = runner.until
    if job.spec is not None and runner.busy is not None:
        until = runner.busy + job.spec.longest
    return replace(runner, job=job.id, until=until)


def _end(runner: Runner, observation: RunnerObservation, patience: Patience, now: datetime) -> Runner | None:
    """Return the runner on its way out, when there is reason for it."""

    def end(cause: Cause, reason: str) -> Runner:
        last = _given(runner, observation.job) if observation.job is not None and not runner.job else runner
        return become(last, RunnerState.DELETING, now, cause, reason)

    job, console = observation.job, observation.console or Console()
    # One that we gave up, or refused, GitHub may run all the same: it is over when GitHub says so.
    over = job is not None and job.state in DONE and (job.state is JobState.COMPLETED or job.completed is not None)
    if job is not None and job.state is JobState.REFUSED and not over:
        return end(Cause.REFUSED, job.reason or "a policy does not allow its job")
    if over or console.job is JobProgress.FINISHED:
        return end(Cause.FINISHED, "its job is over")
    if observation.gone:
        return end(Cause.SERVER_ERROR, "its server was deleted by somebody else")
    if runner.state is RunnerState.BUSY and runner.until is not None and now >= runner.until:
        return end(Cause.TIME_LIMIT, f"its job has run for {_hours(runner)}, which is as long as it may")
    server = observation.server
    if server is not None and server.status == "ERROR":
        full = any(word in server.fault for word in NO_ROOM)
        cause = Cause.NO_CAPACITY if full else Cause.SERVER_ERROR
        return end(cause, f"Nova: {server.fault or 'the server is in ERROR'}"[:500])
    return _silent(runner, observation, patience, now, end)


def _silent(
    runner: Runner, observation: RunnerObservation, patience: Patience, now: datetime, end: _End
) -> Runner | None:
    """Return the end of a runner that should have said something, or has said that it cannot go on."""
    console, state = observation.console or Console(), runner.state
    # A job could write anything: what is said of the GPU counts only while there can have been none (console.py). After
    # a job GitHub has let go of the registration, and one that ended its own runner is still busy there.
    offline = observation.registered is True and observation.online is False and not observation.busy
    never = runner.online is None and runner.busy is None and observation.job is None and offline
    if never and console.gpu is GpuVerdict.FAILED:
        return end(Cause.GPU_CHECK, f"its GPU did not pass the check: {console.gpu_words or 'no words'}")
    if never and console.failed:
        return end(Cause.GITHUB_ERROR, f"its runner did not start: {console.failed}")
    quiet = now - runner.changed >= GRACE
    if observation.registered is False and state is RunnerState.BUSY and quiet:
        return end(Cause.FINISHED, "GitHub has let go of it, which it does after the job")
    off = observation.server is not None and observation.server.status in OFF
    if off and state is RunnerState.BUSY and quiet:
        return end(
            Cause.LOST,
            f"its server is {observation.server.status if observation.server else ''}, and its job is not over",
        )
    if off and state in (RunnerState.REGISTERING, RunnerState.IDLE) and _heard_out(runner, observation, patience, now):
        return end(Cause.SERVER_ERROR, "its server has switched itself off before it had a job")
    if observation.registered is False and state in (RunnerState.REGISTERING, RunnerState.IDLE) and quiet:
        return end(Cause.GITHUB_ERROR, "GitHub has its registration no more")
    if observation.server is not None and observation.server.status == UNKNOWN:
        return None  # its cell of Nova does not answer: that it is late says nothing
    if state is RunnerState.CREATING and now - runner.changed >= patience.boot:
        return end(Cause.BOOT_TIMEOUT, f"its server was not ACTIVE within {patience.boot}")
    if state is RunnerState.REGISTERING and runner.active is not None and now - runner.active >= patience.register:
        return end(Cause.REGISTRATION_TIMEOUT, f"it was not online at GitHub within {patience.register}")
    return None


def _heard_out(runner: Runner, observation: RunnerObservation, patience: Patience, now: datetime) -> bool:
    """Return whether there is no more to hear of a runner whose server is off. It says why before it goes, and what it
    did in the seconds since the last look GitHub may know before we do."""
    console = observation.console or Console()
    if console.job is not JobProgress.NONE:
        return False
    if runner.state is RunnerState.REGISTERING:
        late = runner.active is not None and now - runner.active >= patience.register
        return late or (console.over and observation.online is not None)
    return console.over or (observation.online is False and now - runner.changed >= GRACE)


def _hours(runner: Runner) -> str:
    began = runner.busy or runner.changed
    return str((runner.until or began) - began)
