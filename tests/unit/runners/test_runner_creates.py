"""Creates that could only fail are not tried, and what cannot be read says nothing of a runner.

Nova answers 403 to a create beyond a limit of Keystone (nova/api/openstack/compute/servers.py), and a 500 of Glance, of
Neutron or of Nova's own lists says that the service is out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.servers import NovaServers, ServerError, ServerProblem, ServerWish
from gpuyard.runners.controllers import runner_executor as runner_executor
from gpuyard.runners.controllers.runner_executor import LATE
from gpuyard.runners.records import Cause
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.records import JobOrder
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook
from tests.unit.openstack.test_whose_images import Cloud

RELEASED = "GPUs of pool v100 are released for booking b1"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of these tests does not wait for anybody."""
    monkeypatch.setattr(runner_executor, "READ_AGAIN", (0.0, 0.0, 0.0))


def with_job(folder: Path) -> tuple[SimulatedRunners, int]:
    world = SimulatedRunners(folder, sets=False)
    cirun_repository(world)
    hook(world)
    (job,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    return world, job


def test_a_name_that_github_has_already_costs_a_job_nothing(tmp_path: Path) -> None:
    """It waited for 30 s, as after a failure of its own, while its GPU was free. GitHub answers 409 "Already exists - A
    runner with the name *** already exists" (recorded in ubicloud/ubicloud#692)."""
    world, _ = with_job(tmp_path)
    faults = world.github.forge.faults
    faults.rates = FaultRates(conflict=1.0)
    world.until(lambda: "conflict" in faults.counts(), seconds=1)
    faults.rates, began = FaultRates(), world.clock()
    world.until(lambda: len(world.nova.posts) == 1, seconds=1)
    assert (world.clock() - began).total_seconds() <= 5
    (ours,) = world.store.jobs()
    assert (ours.tries, ours.not_before) == (0, None)


@pytest.mark.parametrize("late", [10, 45])
def test_a_server_that_comes_after_its_answer_was_lost_is_deleted_and_its_job_runs_once(
    tmp_path: Path, late: int
) -> None:
    """Within LATE its name is looked for; after it the GPU is another runner's, and the late one is swept."""
    world, job = with_job(tmp_path)
    create, requests = world.nova.create, []

    def hangs(wish: ServerWish) -> str:
        world.nova.create = create  # type: ignore[method-assign]
        requests.append((world.clock(), wish))
        raise ServerError("504 Gateway Time-out", 504, ServerProblem.UNKNOWN)

    world.nova.create = hangs  # type: ignore[method-assign]
    world.until(lambda: bool(requests), seconds=1)
    (at, wish) = requests[0]
    world.until(lambda: (world.clock() - at).total_seconds() >= late, seconds=1)
    assert bool(world.nova.posts) is (late > LATE.total_seconds()), "the GPU was given back after LATE"
    server = create(wish)
    world.until(lambda: server not in world.nova.servers, hours=1)
    world.until(world.at_rest)
    assert (world.job(job).conclusion, world.guests.ran) == ("success", [job])
    assert world.left_over() == []


def refusing(world: SimulatedRunners) -> None:
    """Nova refuses servers while limits are down, as the loop of bookings has told the ledger."""
    create = world.nova.create

    def limited(wish: ServerWish) -> str:
        if world.ledger.leases.blocked("v100"):
            raise ServerError("403 Quota exceeded for class:CUSTOM_GPU_V100", 403, ServerProblem.QUOTA)
        return create(wish)

    world.nova.create = limited  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", ["before POST jit", "after POST jit", "before nova create"])
def test_limits_that_go_down_while_a_runner_is_made_cost_its_job_nothing(tmp_path: Path, moment: str) -> None:
    world, job = with_job(tmp_path)
    refusing(world)

    def between(what: str) -> None:
        how, _, path = what.rpartition(" ")
        where = f"{how} jit" if path.endswith("/generate-jitconfig") else what
        if where == moment and not world.ledger.leases.blocked("v100"):
            world.between = lambda what: None
            world.ledger.leases.tell("v100", RELEASED, ())

    world.between = between
    world.until(lambda: bool(world.ledger.leases.blocked("v100")))
    for _ in range(12):
        world.step()
    (ours,) = world.store.jobs()
    assert (ours.tries, ours.not_before) == (0, None)
    assert (world.nova.posts, world.left_over()) == ([], [f"job {ours.id} queued "])
    assert len(world.store.runners(over=True)) == 1, "it is not tried again as long as limits are down"
    assert RELEASED in world.runners.controller.plan.queue[0].reason
    world.ledger.leases.tell("v100", "", ())
    world.step()
    assert len(world.nova.posts) == 1, "at once, without a pause of the pool"
    world.until(world.at_rest)
    assert world.job(job).conclusion == "success"


def test_what_cannot_be_read_before_a_create_is_read_again_for_the_same_runner(tmp_path: Path) -> None:
    world, job = with_job(tmp_path)
    create, failures = world.nova.create, iter([True, True, False])

    def unreadable(wish: ServerWish) -> str:
        if next(failures, False):
            raise ServerError("GET /flavors: 500", 500, ServerProblem.UNREAD)
        return create(wish)

    world.nova.create = unreadable  # type: ignore[method-assign]
    world.until(world.at_rest)
    (runner,) = world.store.runners(over=True)
    assert (runner.cause, world.job(job).conclusion) == (Cause.FINISHED, "success")


def test_a_service_that_stays_out_of_order_counts_as_no_try_of_a_job(tmp_path: Path) -> None:
    world, job = with_job(tmp_path)
    create = world.nova.create

    def unreadable(wish: ServerWish) -> str:
        raise ServerError("GET /images: 503", 503, ServerProblem.UNREAD)

    world.nova.create = unreadable  # type: ignore[method-assign]
    for _ in range(60):
        world.step()
    assert [job.tries for job in world.store.jobs()] == [0]
    world.nova.create = create  # type: ignore[method-assign]
    world.until(world.at_rest)
    assert world.job(job).conclusion == "success"


@pytest.mark.parametrize("kind", ["flavor", "image", "network"])
def test_a_500_on_a_read_is_no_answer_about_the_server(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud()
    cloud.image("i", "i", cloud.project)

    def broken(of: Callable[..., Any]) -> Callable[..., Any]:
        def asked(service: str, path: str, *args: Any, **query: Any) -> Any:
            if path == f"/{kind}s":
                raise CloudError(f"GET {path}: 500", 500)
            return of(service, path, *args, **query)

        return asked

    monkeypatch.setattr(cloud, "get", broken(cloud.get))
    monkeypatch.setattr(cloud, "pages", broken(cloud.pages))
    servers = NovaServers(cast("CloudApi", cloud), "site", "net" if kind == "network" else "none")
    with pytest.raises(ServerError) as raised:
        servers.create(ServerWish("n", "f", "i", "data"))
    assert (raised.value.problem, cloud.asked) == (ServerProblem.UNREAD, [])


@pytest.mark.parametrize("moment", ["its answer is lost", "it boots", "it has its job"])
def test_a_runner_in_a_cell_that_does_not_answer_is_not_gone(tmp_path: Path, moment: str) -> None:
    """Nova leaves servers of such a cell out of its lists: nobody else gets the GPU."""
    world, job = with_job(tmp_path)
    create = world.nova.create

    def lost(wish: ServerWish) -> str:
        create(wish)
        world.nova.is_silent = True
        world.nova.create = create  # type: ignore[method-assign]
        raise ServerError("no answer", None, ServerProblem.UNKNOWN)

    if moment == "its answer is lost":
        world.nova.create = lost  # type: ignore[method-assign]
    world.until(lambda: bool(world.nova.servers))
    if moment == "it has its job":
        world.until(lambda: world.job(job).status == "in_progress")
    world.nova.is_silent = True
    for _ in range(120):
        world.step()
    runners = world.store.runners()
    assert len(runners) == len(world.nova.posts), "each server has its runner"
    assert all(runner.lease for runner in runners), "no GPU is free"
    if moment != "its answer is lost":
        assert [runner.cause for runner in runners] == [Cause.FINISHED], "its job went on"
    world.nova.is_silent = False
    world.until(world.at_rest)
    assert world.job(job).conclusion == "success"
    assert world.left_over() == []
