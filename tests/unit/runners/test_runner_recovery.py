"""Jobs of which nothing is heard are asked for, and GitHub does not always know what it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.records import JobState
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.records import COMPLETED, ForgeJob, JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook

LABEL = "cirun-gpu"


def waiting(folder: Path) -> tuple[SimulatedRunners, ForgeJob]:
    """A job that waits, since all that runners may have runs another."""
    world = SimulatedRunners(folder, runners_rules={"most": 1}, sets=False)
    cirun_repository(world)
    hook(world)
    first, second = world.github.forge.push("demo/science", [JobOrder((LABEL,), 3000), JobOrder((LABEL,), 30)]).jobs
    world.until(lambda: world.job(first).status == "in_progress")
    world.until(lambda: bool(world.our_job(world.job(second))))
    return world, world.job(second)


def confused(world: SimulatedRunners, minutes: float, **rates: float) -> None:
    """GitHub has such faults for some time."""
    faults, until = world.github.forge.faults, world.clock() + timedelta(minutes=minutes)
    faults.rates = replace(FaultRates(), **rates)
    world.until(lambda: world.clock() >= until, seconds=20)
    faults.rates = FaultRates()


def test_a_job_that_github_does_not_know_is_given_up_when_it_was_asked_for_twice(tmp_path: Path) -> None:
    world, job = waiting(tmp_path)
    confused(world, 16, missing=1.0)
    ours = world.our_job(job)
    assert ours is not None
    assert (ours.state, ours.reason) == (JobState.FAILED, "GitHub does not know it any more")


def test_one_404_is_no_end_of_a_job(tmp_path: Path) -> None:
    world, job = waiting(tmp_path)
    faults = world.github.forge.faults
    faults.rates = FaultRates(missing=1.0)
    world.until(lambda: f"job {job.id}" in [injected.subject for injected in faults.journal], seconds=20)
    faults.rates = FaultRates()
    world.until(world.at_rest, seconds=20)
    assert (job.status, job.conclusion, len(job.tries)) == (COMPLETED, "success", 1), world.report()


def test_a_job_that_cannot_be_asked_for_hides_no_other(tmp_path: Path) -> None:
    world, job = waiting(tmp_path)
    more = world.github.forge.push("demo/science", [JobOrder((LABEL,), 30)]).jobs
    world.until(lambda: world.our_job(world.job(more[0])) is not None)
    world.github.forge.hooks.clear()
    for id in (job.id, *more):
        world.github.forge.cancel(world.job(id))
    confused(world, 11, forbidden=1.0)
    world.until(lambda: all(_is_over(world, world.job(id)) for id in (job.id, *more)), hours=0.07, seconds=20)


def _is_over(world: SimulatedRunners, job: ForgeJob) -> bool:
    ours = world.our_job(job)
    return ours is not None and ours.state is JobState.COMPLETED


def pushed(world: SimulatedRunners) -> ForgeJob:
    (id,) = world.github.forge.push("demo/science", [JobOrder((LABEL,), 30)]).jobs
    return world.job(id)


def cirun_world(folder: Path, **rates: float) -> SimulatedRunners:
    world = SimulatedRunners(folder, rates=replace(FaultRates(), **rates), sets=False)
    cirun_repository(world)
    hook(world)
    return world


def test_a_job_of_which_no_webhook_told_is_found_by_asking_for_it(tmp_path: Path) -> None:
    world = cirun_world(tmp_path, hook_lost=1.0)
    job = pushed(world)
    world.until(world.at_rest, hours=2)
    assert (job.status, job.conclusion, len(job.tries)) == (COMPLETED, "success", 1)
    assert world.github.forge.sendings == {}, "none was ever sent"


def test_a_webhook_that_failed_is_asked_for_again_until_it_has_arrived(tmp_path: Path) -> None:
    world = cirun_world(tmp_path, hook_failed=1.0)
    world.github.forge.repositories["demo/science"].files.clear()  # so that asking for jobs finds none
    job = pushed(world)
    sendings = world.github.forge.sendings
    world.until(lambda: len(sendings) > 1, hours=1)
    first, second = [*sendings.values()][:2]
    assert (second.guid, second.redelivery, first.redelivery) == (first.guid, True, False)
    assert second.body == first.body
    assert world.our_job(job) is None, "it is delivered; without a file it is nothing of ours"
    later = world.clock() + timedelta(hours=2)
    world.until(lambda: world.clock() >= later, seconds=60)
    assert len(sendings) == 2, "what has arrived is not asked for again"


def test_who_has_few_calls_left_at_github_recovers_nothing(tmp_path: Path) -> None:
    """The last fifth is for runners."""
    world = cirun_world(tmp_path, hook_lost=1.0)
    world.step()
    (client,) = world.runners.ports.clients.values()
    usage = client.usage()
    client.usage = lambda: replace(usage, limit=5000, remaining=999)  # type: ignore[method-assign]
    job = pushed(world)
    later = world.clock() + timedelta(hours=1)
    world.until(lambda: world.clock() >= later, seconds=60)
    assert world.our_job(job) is None
    client.usage = lambda: replace(usage, limit=5000, remaining=1000)  # type: ignore[method-assign]
    world.until(world.at_rest, hours=2)
    assert job.status == COMPLETED


def test_a_mistake_of_ours_in_one_enrolment_keeps_nobody_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = cirun_world(tmp_path)
    recovery, scopes = world.runners.recovery, []
    (client,) = recovery._clients.values()
    monkeypatch.setattr(recovery, "_clients", {"bad": client, "good": client})

    def run(scope: str, *args: object) -> None:
        scopes.append(scope)
        if scope == "bad":
            raise ValueError("nobody thought of that")

    monkeypatch.setattr(recovery._jobs, "run", run)
    with pytest.raises(ValueError, match="nobody"):
        recovery.run()
    assert scopes == ["bad", "good"]


SET = "gpuyard-v100"


def with_one_that_waits(folder: Path) -> tuple[SimulatedRunners, ForgeJob]:
    """A job of a scale set, and beside it in the same run one that nobody has a runner for: the run is never over."""
    world = SimulatedRunners(folder)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    id, _ = world.github.forge.push("demo/science", [JobOrder((SET,), 300), JobOrder(("nobody",), 30)]).jobs
    return world, world.job(id)


def test_the_end_of_a_sets_job_that_nobody_told_of_is_seen_though_its_run_goes_on(tmp_path: Path) -> None:
    world, job = with_one_that_waits(tmp_path)
    world.until(lambda: [job.state for job in world.store.jobs()] == [JobState.RUNNING])
    world.github.forge.faults.rates = FaultRates(message_lost=1.0)
    world.until(lambda: job.status == COMPLETED)
    assert world.store.jobs(), "it was not told"
    world.until(lambda: not world.store.jobs(), hours=1)
    ours = world.our_job(job)
    assert ours is not None
    assert (ours.state, ours.conclusion) == (JobState.COMPLETED, "success")
    world.until(lambda: not world.left_over(), hours=1)


def test_a_sets_job_that_was_cancelled_without_a_word_keeps_no_runner(tmp_path: Path) -> None:
    world, job = with_one_that_waits(tmp_path)
    world.until(lambda: bool(world.store.jobs()))
    world.github.forge.faults.rates = FaultRates(message_lost=1.0)
    world.github.forge.cancel(job)
    world.until(lambda: not world.left_over(), hours=1)
    ours = world.our_job(job)
    assert ours is not None
    assert (ours.state, ours.conclusion) == (JobState.COMPLETED, "cancelled")
