"""Capacity for runners without GPUs. Pure.

They take none of the GPUs that the ledger gives away, so they have no lease, and bookings never end them. Two things
bound them: the number that the site allows at once (`cpu_runners`), and Nova, which refuses a server that finds no CPU,
RAM or disk. The planner sees them as a pool with that many lanes: they wait in a queue of their own, by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gpuyard.bookings.ledger.runner_leases import LaneCapacity, PoolCapacity
from gpuyard.model.booking import FOREVER
from gpuyard.runners.placing import TEARDOWN, lease_length
from gpuyard.runners.records import Runner, RunnerState
from gpuyard.site.runner_rules import CPU, SiteRunners


def has_server(runner: Runner) -> bool:
    """Return whether a runner without GPUs that is not over still has, or may get, its server."""
    return runner.ended is None


def cpu_room(
    site: SiteRunners, runners: Iterable[Runner], boots: Mapping[str, timedelta], now: datetime
) -> PoolCapacity:
    """Return the capacity of the pool without GPUs: one lane for each runner that the site allows. `runners`: all that
    are not over."""
    ends = sorted(
        (_end(runner, site, boots, now) for runner in runners if not runner.choice.gpus and has_server(runner)),
        reverse=True,
    )
    taken = [LaneCapacity(1, ((end, FOREVER),), CPU) for end in ends[: site.cpu_runners]]
    free = [LaneCapacity(1, ((now, FOREVER),), CPU)] * (site.cpu_runners - len(taken))
    return PoolCapacity(CPU, (*taken, *free))


def _end(runner: Runner, site: SiteRunners, boots: Mapping[str, timedelta], now: datetime) -> datetime:
    """Return when a runner's server is gone at the latest, if GitHub gives it a job now."""
    if runner.state is RunnerState.DELETING:
        return now + TEARDOWN
    if runner.until is not None:
        return max(runner.until, now) + TEARDOWN
    return max(runner.created + lease_length(site, runner.spec, boots), now + runner.spec.longest + TEARDOWN)
