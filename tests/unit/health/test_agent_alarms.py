"""What guests' alarms do as long as they stand, whatever goes wrong beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.agent_controller import FAILURES, LATER, AgentController
from gpuyard.health.limits import SitePlace
from gpuyard.health.planner import Circumstances, GpuObservation, plan_health
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.samples import report_of
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.site.health_rules import SiteHealth
from tests.support.agent_portals import PORTAL, RULES, AgentPortal, agent_portal, report
from tests.support.inventories import GPUS as YARD
from tests.support.inventories import LONE
from tests.support.ledgers import ROOT

PLACE = SitePlace(LONE.host, LONE.address, "v100", "slot")
"""Of the GPU that s2 has."""
WORKS: list[int | None] = [50, 50, 50, 50, 0, 0, 0]


@pytest.fixture
def portal(tmp_path: Path) -> AgentPortal:
    return agent_portal(tmp_path)


def says(portal: AgentPortal, server: str, number: int, *rows: list[int | None] | None) -> None:
    """A report of its agent is judged and taken; a row that is None is a GPU that does not answer."""
    judged = portal.service.judge(server, report_of(report(*rows, number=number)))
    if judged.observations:
        portal.service.observe(judged, judged.observations)
    portal.service.take(judged)


def planned(portal: AgentPortal, observed: GpuObservation) -> GpuHealth:
    """What has become of PLACE when its host has looked just now, and the cloud was seen to be so."""
    store, now = portal.service.store, portal.clock()
    around = Circumstances(now, {PLACE.name: observed}, heard={PLACE.host: now})
    plan = plan_health([PLACE], store.gpus(), store.open_observations(), portal.health.rules, around)
    for change in plan.changes:
        store.put(change.gpu, *change.events, settles=change.settles)
    (record,) = store.gpus()
    return record


def test_alarms_are_repeated_whatever_nova_does_not_write(portal: AgentPortal) -> None:
    portal.token("s2")
    portal.cloud.broken = {"s1", "s2"}
    for minute in range(40):
        says(portal, "s2", minute + 1, None)
        portal.controller.run()
        assert planned(portal, HAS_IT).state is HealthState.SUSPECT
        portal.clock.forward(minutes=1)
    assert set(portal.cloud.refused) == {"s1", "s2"}, "what one server is not told another one is still told"


def test_what_nova_does_not_write_is_tried_again_later_and_holds_up_nobody(portal: AgentPortal) -> None:
    """Each failure may take half a minute: a look has FAILURES of them at most."""
    servers = [f"a{number}" for number in range(FAILURES + 1)]
    portal.cloud.has = {server: (gpu,) for server, gpu in zip([*servers, "s2"], YARD, strict=False)}
    portal.cloud.broken = set(servers)
    portal.controller.run()
    assert portal.cloud.refused == servers[:FAILURES]
    portal.controller.run()
    assert portal.cloud.refused == servers
    assert portal.cloud.written == ["s2"]
    portal.clock.forward(seconds=LATER.total_seconds() - 1)
    portal.controller.run()
    assert portal.cloud.refused == servers
    portal.cloud.broken.clear()
    portal.clock.forward(seconds=1)
    portal.controller.run()
    assert set(portal.cloud.written) == {*servers, "s2"}


def test_alarms_that_could_not_be_written_down_are_repeated_with_the_next_look(
    portal: AgentPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal.token("s2")
    says(portal, "s2", 1, None)
    store = portal.service.store
    store.settle([observation.id for observation in store.open_observations()])
    with monkeypatch.context() as patched:
        patched.setattr(store, "observe", broken)
        with pytest.raises(StoreError):
            portal.controller.run()
    portal.clock.forward(seconds=10)
    portal.controller.run()
    assert alarms(portal) == {("guest-lost", PLACE.name)}


def broken(*_: object) -> None:
    raise StoreError("the disk is full")


def alarms(portal: AgentPortal) -> set[tuple[str, str]]:
    return {(observation.code, observation.gpu) for observation in portal.service.store.open_observations()}


FREE, HAS_IT = GpuObservation(), GpuObservation("s2")


def test_an_alarm_that_stands_is_repeated_until_a_report_ends_it_or_it_goes_with_the_gpu(portal: AgentPortal) -> None:
    """Also while its agent says nothing, by whichever portal took the report."""
    portal.token("s2")
    other = AgentController(portal.restarted(), portal.cloud, PORTAL, portal.clock)

    def repeated(controller: AgentController, observed: GpuObservation = HAS_IT) -> set[tuple[str, str]]:
        planned(portal, observed)
        portal.clock.forward(minutes=5)
        controller.run()
        return alarms(portal)

    lost, left = {("guest-lost", PLACE.name)}, {("alarm-left", PLACE.name)}
    says(portal, "s2", 1, None)
    assert repeated(portal.controller) == lost
    assert repeated(other) == lost
    says(portal, "s2", 2, WORKS)
    assert repeated(portal.controller) == set()
    says(portal, "s2", 3, None)
    assert repeated(portal.controller) == lost
    del portal.cloud.has["s2"]
    assert repeated(portal.controller, FREE) == left
    assert repeated(portal.controller, FREE) == set(), "once: from now on it is the GPU's"
    assert repeated(AgentController(portal.restarted(), portal.cloud, PORTAL, portal.clock), FREE) == set()


def loses(portal: AgentPortal) -> None:
    """The agent of s2 says that it lost PLACE, for five minutes; then its owner deletes s2."""
    portal.token("s2")
    for minute in range(5):
        says(portal, "s2", minute + 1, None)
        portal.controller.run()
        assert planned(portal, HAS_IT).state is HealthState.SUSPECT
        portal.clock.forward(minutes=1)
    del portal.cloud.has["s2"]


def becomes(portal: AgentPortal, observed: GpuObservation, minutes: int = 60) -> list[HealthState]:
    """The states that PLACE is in, one after the other, when the loops go on for so long."""
    states = [HealthState.SUSPECT]
    for _ in range(minutes):
        portal.controller.run()
        state = planned(portal, observed).state
        states += [state] if state is not states[-1] else []
        portal.clock.forward(minutes=1)
    return states


ACCEPTANCE = {"acceptance": {"required": ["repair"]}}
ONCE = SitePlace(LONE.host, LONE.address, "v100", "slot", once=True)


@pytest.mark.parametrize(
    ("rules", "place", "sight", "states"),
    [
        ({}, PLACE, FREE, [HealthState.SUSPECT, HealthState.QUARANTINED]),
        (ACCEPTANCE, PLACE, FREE, [HealthState.SUSPECT, HealthState.TO_ACCEPT]),
        ({}, ONCE, GpuObservation(reserved=True), [HealthState.SUSPECT, HealthState.RETURNED]),
        (ACCEPTANCE, ONCE, GpuObservation(reserved=True), [HealthState.SUSPECT, HealthState.RETURNED]),
        ({}, ONCE, FREE, [HealthState.SUSPECT, HealthState.QUARANTINED]),
        ({}, PLACE, GpuObservation("m1", is_moved=True), [HealthState.SUSPECT]),
        ({"signals": {"guest-lost": "note"}}, PLACE, FREE, [HealthState.SUSPECT, HealthState.FINE]),
    ],
)
def test_an_alarm_goes_with_the_gpu_when_its_server_is_gone(
    portal: AgentPortal, tmp_path: Path, rules: dict[str, object], place: SitePlace, sight: GpuObservation,
    states: list[HealthState], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A pool without one_time_use resets nothing between two servers: the next tenant would have got it as it was."""
    monkeypatch.setattr(f"{__name__}.PLACE", place)
    loses(portal)
    portal.health.rules = SiteHealth.model_validate({**RULES, **rules})
    portal.health.verdicts = SignalVerdicts(portal.health.rules)
    assert becomes(portal, sight) == states


def test_an_alarm_that_was_cleared_does_not_come_back(portal: AgentPortal) -> None:
    loses(portal)
    assert becomes(portal, FREE, minutes=10) == [HealthState.SUSPECT, HealthState.QUARANTINED]
    portal.health.release(PLACE.name, "the guest had unloaded its driver", ROOT)
    assert planned(portal, FREE).state is HealthState.FINE
    portal.health.report(PLACE.name, "it is slow", ROOT)
    assert becomes(portal, FREE) == [HealthState.SUSPECT, HealthState.FINE]


def test_a_server_that_has_the_gpu_again_has_the_alarm_again(portal: AgentPortal) -> None:
    """As when a resize is reverted: while its migration has the GPU, nobody knows who gets it."""
    loses(portal)
    moved = GpuObservation("m1", is_moved=True)
    assert becomes(portal, moved, minutes=30) == [HealthState.SUSPECT]
    portal.cloud.has["s2"] = (LONE,)
    for minute in range(10, 40):
        says(portal, "s2", minute, None)
        portal.controller.run()
        assert planned(portal, HAS_IT).state is HealthState.SUSPECT
        portal.clock.forward(minutes=1)
    says(portal, "s2", 40, WORKS)
    assert becomes(portal, HAS_IT, minutes=40) == [HealthState.SUSPECT, HealthState.IN_USE]
