"""Jobs, runners, servers and leases together, with a simulated clock: nothing is lost and nothing stays behind."""

from __future__ import annotations

from pathlib import Path

from gpuyard.lab.github.records import JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook


def test_a_job_of_a_scale_set_runs_and_leaves_nothing(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    (id,) = world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60)]).jobs
    world.until(world.at_rest)
    job = world.job(id)
    assert job.conclusion == "success", world.report()
    assert len(job.tries) == 1
    assert [one.name for one in world.store.runners(over=True)] == [job.tries[0].runner]
    assert f"did {id}" in world.store.log(job.tries[0].runner)


def test_a_job_of_a_webhook_runs_and_leaves_nothing(tmp_path: Path) -> None:
    world = SimulatedRunners(tmp_path, sets=False)
    cirun_repository(world)
    hook(world)
    run = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60), JobOrder(("ubuntu-latest",), 5)])
    mine, other = run.jobs
    world.until(lambda: world.job(mine).status == "completed" and not world.left_over())
    assert world.job(mine).conclusion == "success", world.report()
    assert world.our_job(world.job(other)) is None
