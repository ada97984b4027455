"""Until a GPU that is kept back is out of Nova's reach nothing is started in its pool, and nothing begins on one that
went bad while Nova was choosing.

What Placement gives is its own rule: a provider has room for as much as total * allocation_ratio - reserved - used
(placement 16, `_capacity_check_clause` in placement/objects/research_context.py and `_check_capacity_exceeded` in
placement/objects/allocation.py), and GPUs have a total and a ratio of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.health.controllers.gpus_kept_from_jobs import HoldCheck, open_hold_check
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.model.gpu import Gpu
from gpuyard.openstack.api import CloudError
from gpuyard.runners.records import Cause
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.clouds import SmallCloud
from tests.support.simulated_runners import SimulatedRunners

POOL = "v100"


class Harness:
    """Runners on a site with health, whose Placement is a small one."""

    def __init__(self, folder: Path) -> None:
        self.cloud: SmallCloud | None = None
        self.world = SimulatedRunners(folder, holds=self.open)
        self.world.github.forge.add_repository("demo/science")
        self.world.until(lambda: bool(self.world.github.forge.sets))
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None
        object.__setattr__(self.world.runners.controller.executor.tools, "sleep", self.sleep)

    def open(self, world: SimulatedRunners) -> HoldCheck:
        self.cloud = SmallCloud(world.compiled)
        assert world.compiled.site.health is not None
        self.service = HealthService(
            HealthStore(world.ledger.database), world.ledger, world.compiled.site.health, world.clock
        )
        api: Any = self.cloud
        self.check = open_hold_check(world.compiled, world.ledger, self.service, api)
        return self.check

    @property
    def placement(self) -> SmallCloud:
        assert self.cloud is not None
        return self.cloud

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.on_sleep()

    def gpus(self) -> list[Gpu]:
        return [gpu for gpu in self.world.compiled.gpus if gpu.pool == POOL]

    def quarantine(self, gpu: Gpu) -> None:
        record = self.service.store.gpu(gpu.host, gpu.address)
        bad = GpuHealth(gpu.host, gpu.address, POOL, HealthState.QUARANTINED, self.world.clock(), "dead", "no-answer")
        assert self.service.store.put(
            bad if record is None else bad.__class__(**{**vars(bad), "version": record.version})
        )

    def hold(self, gpu: Gpu) -> None:
        """As the loop of bookings does: written down first."""
        mine = [peer for peer in self.gpus() if (peer.host, peer.group) == (gpu.host, gpu.group)]
        held = " ".join(f"{peer.provider_name}=2" for peer in mine)
        self.world.ledger.upkeep.records.set_value(POOL, "holds", held)
        self.placement.reserved |= {peer.provider_name: 1 for peer in mine}

    def push(self) -> int:
        (job,) = self.world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 60, "success")]).jobs
        return int(job)


@pytest.fixture
def inventory(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def test_no_server_is_made_before_the_hold_stands(inventory: Harness) -> None:
    """The hold comes to stand at the third look."""
    gpu = inventory.gpus()[0]
    inventory.quarantine(gpu)
    inventory.push()
    posts: list[int] = []

    def third() -> None:
        posts.append(len(inventory.world.nova.posts))
        if len(inventory.slept) == 3:
            inventory.hold(gpu)

    inventory.on_sleep = third
    inventory.world.until(lambda: bool(inventory.world.nova.posts), hours=0.2)
    assert posts[:3] == [0, 0, 0]
    assert gpu.provider_name in inventory.placement.reserved
    inventory.world.until(inventory.world.at_rest)


def test_a_job_waits_without_a_try_while_a_hold_cannot_be_placed(inventory: Harness) -> None:
    gpu = inventory.gpus()[0]
    inventory.quarantine(gpu)
    id = inventory.push()
    inventory.world.until(lambda: len(inventory.slept) > 100, hours=0.2)
    job = inventory.world.our_job(inventory.world.job(id))
    assert job is not None
    assert (inventory.world.nova.posts, inventory.world.github.forge.runners, job.tries) == ([], {}, 0)
    assert f"GPU {gpu.host}/{gpu.address} is not held in Placement yet: " in job.reason
    inventory.hold(gpu)
    inventory.world.until(inventory.world.at_rest)
    assert inventory.world.job(id).conclusion == "success"


def test_a_runner_on_a_gpu_that_went_bad_during_its_create_never_gets_a_job(inventory: Harness) -> None:
    """It goes bad when Nova has been asked, which gives that very one; the hold comes after that."""
    gpu = inventory.gpus()[0]
    id = inventory.push()

    def goes_bad() -> None:
        if not inventory.placement.holders and inventory.world.nova.servers:
            inventory.placement.holders[gpu.provider_name] = min(inventory.world.nova.servers)
            inventory.quarantine(gpu)
            inventory.hold(gpu)

    inventory.on_sleep = goes_bad
    inventory.world.until(lambda: len(inventory.world.nova.posts) == 2, hours=0.5)
    inventory.world.until(inventory.world.at_rest)
    first = next(runner for runner in inventory.world.store.runners(over=True) if runner.server_id == "srv-00001")
    assert (first.gpus, first.cause, first.busy) == ((f"{gpu.host}/{gpu.address}",), Cause.GPU_KEPT_BACK, None)
    assert "dead" in first.reason
    job = inventory.world.job(id)
    assert (job.status, job.conclusion, len(job.tries)) == (COMPLETED, "success", 1)
    assert job.tries[0].runner != first.name
    our_job = inventory.world.our_job(job)
    assert our_job is not None
    assert our_job.tries == 0, "nobody's failure"


def test_what_can_be_had_is_told_by_placement_itself(inventory: Harness) -> None:
    gpu, check = inventory.gpus()[0], inventory.check
    requests: list[str] = []
    inventory.placement.between = requests.append
    assert (check.unheld(POOL), check.out_of_use(), requests) == ("", {}, []), "nothing is kept back, nobody is asked"
    inventory.quarantine(gpu)
    assert check.unheld(POOL).startswith(f"GPU {gpu.host}/{gpu.address} is not held in Placement yet")
    assert check.unheld("t4") == "", "another pool"
    inventory.placement.holders[gpu.provider_name] = "srv"
    assert check.unheld(POOL) == "", "its server has it"
    inventory.placement.holders.clear()
    assert check.unheld(POOL), "that has gone before the hold came"
    inventory.hold(gpu)
    assert check.unheld(POOL) == ""
    requests.clear()
    assert (check.unheld(POOL), requests) == ("", []), "a hold that was seen stands until it is written down otherwise"
    inventory.world.ledger.upkeep.records.set_value(POOL, "holds", f"{gpu.provider_name}=4")
    inventory.placement.reserved.clear()
    assert check.unheld(POOL), "another hold, which does not stand yet"


def test_a_whole_slot_is_out_with_one_of_its_gpus(inventory: Harness) -> None:
    leader, peer = next(
        (gpu, two)
        for gpu in inventory.gpus()
        for two in inventory.gpus()
        if gpu is not two and (gpu.host, gpu.group) == (two.host, two.group)
    )
    inventory.quarantine(peer)
    inventory.placement.reserved[peer.provider_name] = 1
    assert f"{leader.host}/{leader.address}" in inventory.check.unheld(POOL)
    assert inventory.check.out_of_use().keys() == {f"{gpu.host}/{gpu.address}" for gpu in (leader, peer)}


def test_nothing_is_started_while_placement_cannot_be_asked(inventory: Harness) -> None:
    def down(request: str) -> None:
        raise CloudError("503", 503)

    inventory.quarantine(inventory.gpus()[0])
    inventory.placement.between = down
    assert "cannot be told" in inventory.check.unheld(POOL)
    assert inventory.check.gpus_of("srv") == ()
