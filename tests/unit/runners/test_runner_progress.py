"""Where a runner is, by what was seen of it: above all when its server has switched itself off, as each does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuyard.nova.server_states import SeenServer
from gpuyard.runners.console import Console, GpuVerdict, JobProgress
from gpuyard.runners.progress import GRACE, Patience, RunnerObservation, progress
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, ServerChoice, ServerSpec

NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)
PATIENCE = Patience(boot=timedelta(minutes=15), register=timedelta(minutes=10))
CHOICE = ServerChoice("v100", "gpu_tiny", "runner")
CREATING = Runner(
    name="r", state=RunnerState.CREATING, scope="demo", repository="demo/science", labels=("gpu",),
    spec=ServerSpec("gpu", (CHOICE,), timedelta(hours=1)), choice=CHOICE, created=NOW, changed=NOW, server_id="s",
)  # fmt: skip
REGISTERING = replace(CREATING, state=RunnerState.REGISTERING, active=NOW)
IDLE = replace(REGISTERING, state=RunnerState.IDLE, online=NOW)
JOB = Job("github.com/1", "demo/science", ("gpu",), JobState.COMPLETED, NOW, "demo", runner="r", conclusion="success")
ON, OFF = SeenServer("s", "r", "ACTIVE"), SeenServer("s", "r", "SHUTOFF")
BAD = Console(gpu=GpuVerdict.FAILED, gpu_words="nvidia-smi has not answered in 60 s", over=True)
DONE = Console(gpu=GpuVerdict.OK, online=True, job=JobProgress.FINISHED, result="Succeeded", over=True)


def became(
    runner: Runner, observation: RunnerObservation, after: timedelta = timedelta(seconds=30)
) -> tuple[RunnerState, Cause | None]:
    updated = progress(runner, observation, PATIENCE, NOW + after)
    return updated.state, updated.cause


def test_a_gpu_that_fails_is_the_cause_in_whatever_order_it_is_seen() -> None:
    assert became(REGISTERING, RunnerObservation(OFF)) == (RunnerState.REGISTERING, None), "it has not been heard yet"
    assert became(REGISTERING, RunnerObservation(OFF, console=BAD)) == (RunnerState.REGISTERING, None), (
        "GitHub has not been asked yet"
    )
    assert became(REGISTERING, RunnerObservation(ON, console=BAD)) == (RunnerState.REGISTERING, None)
    observation = RunnerObservation(OFF, registered=True, online=False)
    assert became(REGISTERING, observation) == (RunnerState.REGISTERING, None)
    assert became(REGISTERING, replace(observation, console=BAD)) == (RunnerState.DELETING, Cause.GPU_CHECK)
    assert became(CREATING, replace(observation, console=BAD)) == (RunnerState.DELETING, Cause.GPU_CHECK), (
        "off before it was seen on"
    )


def test_a_runner_that_was_online_has_a_good_gpu_whatever_it_says() -> None:
    """A job can write to its console."""
    observation = RunnerObservation(ON, registered=True, online=True, console=replace(BAD, over=False))
    assert became(REGISTERING, observation) == (RunnerState.IDLE, None)
    assert became(IDLE, replace(observation, online=False)) == (RunnerState.IDLE, None)
    assert became(IDLE, RunnerObservation(OFF, registered=True, online=False, console=BAD)) == (
        RunnerState.DELETING,
        Cause.SERVER_ERROR,
    )


def test_a_short_job_that_nobody_has_seen_cannot_say_that_its_gpu_is_bad() -> None:
    """It can push everything else out of its console, and its registration is gone when it is over."""
    forged = RunnerObservation(ON, registered=False, online=False, console=BAD)
    assert became(REGISTERING, forged) == (RunnerState.REGISTERING, None)
    assert became(REGISTERING, forged, GRACE) == (RunnerState.DELETING, Cause.GITHUB_ERROR)
    killed = RunnerObservation(ON, registered=True, online=False, busy=True, console=BAD)
    assert became(REGISTERING, killed) == (RunnerState.BUSY, None)
    running = replace(JOB, state=JobState.RUNNING, conclusion="")
    assert became(REGISTERING, RunnerObservation(ON, registered=True, online=False, job=running, console=BAD)) == (
        RunnerState.BUSY,
        None,
    )


@pytest.mark.parametrize("runner", [CREATING, REGISTERING, IDLE])
def test_a_job_that_is_over_before_anybody_has_heard_of_it_is_no_failure(runner: Runner) -> None:
    assert became(runner, RunnerObservation(OFF))[1] is None
    assert became(runner, RunnerObservation(OFF, registered=False, online=False))[1] is None
    assert became(runner, RunnerObservation(OFF, console=DONE)) == (RunnerState.DELETING, Cause.FINISHED)
    assert became(runner, RunnerObservation(OFF, job=JOB)) == (RunnerState.DELETING, Cause.FINISHED)


def test_a_job_that_was_killed_with_its_runner_is_lost() -> None:
    killed = replace(DONE, job=JobProgress.STARTED, result="")
    assert became(IDLE, RunnerObservation(OFF, registered=True, online=False, console=killed)) == (
        RunnerState.BUSY,
        None,
    )
    busy = replace(IDLE, state=RunnerState.BUSY, busy=NOW, until=NOW + timedelta(hours=1))
    assert became(busy, RunnerObservation(OFF, console=killed), GRACE) == (RunnerState.DELETING, Cause.LOST)


def test_a_server_that_goes_without_a_word_is_not_waited_for_for_ever() -> None:
    """It crashed, or the cloud shows no consoles."""
    gone = RunnerObservation(OFF, registered=True, online=False)
    assert became(REGISTERING, gone, PATIENCE.register) == (RunnerState.DELETING, Cause.SERVER_ERROR)
    assert became(IDLE, gone) == (RunnerState.IDLE, None)
    assert became(IDLE, gone, GRACE) == (RunnerState.DELETING, Cause.SERVER_ERROR)


def test_a_runner_that_had_nothing_to_do() -> None:
    idle = replace(DONE, job=JobProgress.NONE, result="")
    assert became(IDLE, RunnerObservation(OFF, console=idle)) == (RunnerState.DELETING, Cause.SERVER_ERROR)


def test_why_there_is_no_runner() -> None:
    why = Console(gpu=GpuVerdict.OK, failed="the image has no runner", over=True)
    updated = progress(REGISTERING, RunnerObservation(OFF, registered=True, online=False, console=why), PATIENCE, NOW)
    assert (updated.cause, updated.reason) == (Cause.GITHUB_ERROR, "its runner did not start: the image has no runner")
