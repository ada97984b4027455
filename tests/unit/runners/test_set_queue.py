"""Jobs of scale sets among others for the same GPUs: GitHub assigns none that the set has not announced."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard_lab.github.records import JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook

SET: dict[str, Any] = {"flavors": ["gpu_tiny"], "images": ["tiny"]}
RUN = 900
"""Seconds that each of many jobs runs."""
WAIT = timedelta(minutes=30)
"""Within it each GPU has become free once: such a job, the boot of its server, and its deletion."""


def waits(world: SimulatedRunners, repository: str, label: str, others: tuple[str, str]) -> timedelta:
    """How long a job waits when those of a repository and label (`others`) queue for all GPUs."""
    forge = world.github.forge
    crowd = [*forge.push(others[0], [JobOrder((others[1],), RUN)] * 8).jobs]
    for _ in range(12):
        world.step()
    (id,) = forge.push(repository, [JobOrder((label,), 60)]).jobs
    began = world.clock()
    while world.job(id).status == "queued" and world.clock() - began < 3 * WAIT:
        world.step(30)
        over = sum(world.job(job_id).status == "completed" for job_id in crowd)
        crowd += forge.push(others[0], [JobOrder((others[1],), RUN)] * (8 + over - len(crowd))).jobs
    assert world.job(id).status != "queued", f"lost behind {len(crowd)} others"
    return world.clock() - began


@pytest.mark.parametrize("label", ["gpuyard-v100", "cirun-gpu"])
def test_a_job_of_a_scale_set_has_its_turn_while_jobs_by_label_queue(tmp_path: Path, label: str) -> None:
    world = SimulatedRunners(tmp_path, runners_rules={"longest": "30 min"})
    for repository in ("demo/science", "demo/art"):
        cirun_repository(world, repository)
    hook(world)
    world.until(lambda: bool(world.github.forge.sets))
    assert waits(world, "demo/art", label, ("demo/science", "cirun-gpu")) < WAIT


def test_of_two_scale_sets_the_one_with_priority_gets_the_next_gpu(tmp_path: Path) -> None:
    sets = {"low": SET, "high": {**SET, "priority": 100}}
    world = SimulatedRunners(tmp_path, runners_rules={"longest": "30 min", "sets": sets}, sets=False)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: len(world.github.forge.sets) == 2)
    assert waits(world, "demo/science", "high", ("demo/science", "low")) < WAIT
