"""When work on a host may begin, whatever the clock does meanwhile.

Nova 34: a scheduler that has looked at a host before its nova-compute was disabled may still place a server there
(scheduler/manager.py, `_schedule`: filters look at hosts in `_get_sorted_hosts`, before `claim_resources`).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.maintenance import Maintenance, MaintenanceState
from gpuyard.health.store import HealthStore
from gpuyard.model.world import HostService, Provider, Snapshot
from gpuyard.openstack.rows import ServerRow
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.site.health_rules import SiteHealth
from tests.support.clouds import NoCloud
from tests.support.health_portals import site_gpus
from tests.support.ledgers import ROOT, Clock, open_ledger

HOST = "gpu-3"
SECOND = timedelta(seconds=1)


class EmptyCloud(NoCloud):
    """One in which no server is on its way to the host."""

    def servers(self, host: str, provider: str) -> dict[str, ServerRow]:
        return {}


class Drained:
    """A host that is drained, on which there is no server. The cloud is looked at again in each round."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.steady = Clock(), 1000.0
        ledger = open_ledger(folder, None, self.clock)
        assert ledger.upkeep.leadership.try_to_lead(BOOKINGS)
        health = HealthService(HealthStore(ledger.database), ledger, SiteHealth.model_validate({}), self.clock)
        self.observation: CloudObservation | None = None
        self.service = MaintenanceService(health, ledger, site_gpus(), lambda: self.observation, EmptyCloud())
        now = self.clock()
        self.id = self.service.plan(HOST, now, now + timedelta(hours=3), "new kernel", ROOT).id

    def round(self, seconds: float, jump: timedelta = timedelta()) -> Maintenance:
        """`seconds` go by, and the clock jumps besides."""
        self.steady += seconds
        self.clock.now += timedelta(seconds=seconds) + jump
        snapshot = Snapshot(
            self.clock(), {HOST: Provider("p3", HOST, "p3")}, frozenset(), {}, frozenset(), {}, {},
            services={HOST: HostService(HOST, up=True, enabled=False)}, residents={HOST: ()},
        )  # fmt: skip
        self.observation = CloudObservation(snapshot, frozenset(), began=self.steady)
        self.service.run()
        return self.service.view(self.id).maintenance


@pytest.fixture
def drained(tmp_path: Path) -> Drained:
    return Drained(tmp_path)


def test_work_begins_when_what_was_under_way_has_arrived(drained: Drained) -> None:
    states = [drained.round(2).state.value for _ in range(4)]
    assert states == ["draining", "draining", "draining", "in work"], "after 5 seconds"


@pytest.mark.parametrize("jump", [10 * SECOND, timedelta(hours=1)])
def test_a_clock_that_goes_forward_lets_work_begin_no_sooner(drained: Drained, jump: timedelta) -> None:
    drained.round(2)
    assert drained.round(2, jump).problems == ("nova-compute on gpu-3 was disabled a moment ago",)
    drained.round(2)
    assert drained.round(2).state is MaintenanceState.IN_WORK


def test_a_clock_that_goes_back_keeps_nobody_waiting(drained: Drained) -> None:
    drained.clock.now += timedelta(hours=1)
    drained.round(2)
    drained.round(2, -10 * SECOND)
    drained.round(2)
    assert drained.round(2).state is MaintenanceState.IN_WORK
