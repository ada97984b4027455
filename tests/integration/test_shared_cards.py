"""Shares of GPUs on the real services: vGPUs that Nova's libvirt driver reports and makes, and virtual functions in PCI
in Placement. Both are shown, counted, booked and held."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings.pool_view import PREPARE
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.model.booking import BookingState, Person
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.units import hold_of
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from tests.integration.booked_lab import PREFIX, BookedLab, people_of, set_reserved
from tests.integration.conftest import REUSE_VARIABLE, RunningLab, start_lab
from tests.integration.test_enforcement import start
from tests.support.booked_sites import ShiftedClock, open_ledger
from tests.support.on_request import only_by
from tests.support.shared_cards import H200, T4, classic, h200_host, t4_host
from tests.support.sites import flavor, write_site
from tests.support.sysfs import Sysfs

pytestmark = [pytest.mark.lab, pytest.mark.slow]

POOLS = {
    "t4-4q": {"models": [T4], "kind": "vgpu", "type": "nvidia-232", "hosts": ["t4-host"]},
    "h200-mig": {"models": [H200], "kind": "vf", "type": "1414"},
}
PAIR = {"models": [T4], "kind": "vgpu", "type": "nvidia-233", "hosts": ["pair-host"]}
DOCUMENT: dict[str, Any] = {
    "site": "shares",
    "hosts": {name: {"recording": f"{name}.json"} for name in ("t4-host", "h200-host", "pair-host")},
    "pools": POOLS | {"t4-8q": PAIR},
    "flavors": {pool: flavor(gpus={pool: 1}) for pool in POOLS}
    | {"two": flavor(gpus={"h200-mig": 2}), "two-cards": flavor(gpus={"t4-8q": 2})},
    "limits": {"servers": 100},
}
BOOKED = {"booking": {"must_book": True, "grace": "30 min", "dry_run": False, "hold": "10 min"}}
FREE = {"booking": {**BOOKED["booking"], "must_book": False}, "projects": {"art": {"gpus": dict.fromkeys(POOLS, 4)}}}
UNITS = 4
OPERATOR = Person("op", "op", "ops", "ops", frozenset({"admin"}))


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """A lab with a host whose card makes vGPUs, and one whose virtual functions are given away."""
    reuse_folder = os.environ.get(REUSE_VARIABLE)
    folder = Path(f"{reuse_folder}-shares") if reuse_folder else tmp_path_factory.mktemp("shares")
    folder.mkdir(exist_ok=True)
    pair = Sysfs()
    for address, group in (("18:00.0", 1), ("3b:00.0", 2)):
        classic(pair, address, group, {}, {"nvidia-233": 2})
    hosts = {"t4-host": t4_host(), "h200-host": h200_host(chosen=UNITS), "pair-host": pair}
    running = start_lab(folder / "lab", site=write_site(folder, json.dumps(DOCUMENT), hosts))
    yield running
    if not reuse_folder:
        control.down(running.settings)


class Shares:
    """One test's."""

    def __init__(self, lab: RunningLab, folder: Path, document: dict[str, Any]) -> None:
        site = Path(lab.lab.site).with_name(f"{folder.name}.yaml")
        site.write_text(json.dumps(DOCUMENT | document))
        loaded = load_site(site)
        self.compiled, self.inventories = loaded.compiled, loaded.inventories
        self.operator = CloudApi(lab.connect(ADMIN_CLOUD))
        made: list[str] = []
        people, apis = people_of(lab, self.operator, made, {"ada": "physics", "bob": "art"})
        self.apply()
        clock = ShiftedClock()
        exercises = {who: Exercise(self.operator, api, self.compiled, f"{PREFIX}{who}-") for who, api in apis.items()}
        ledger = open_ledger(folder, self.compiled, clock)
        self.booked = BookedLab(self.operator, self.compiled, ledger, clock, people, exercises, apis, made)

    def apply(self) -> None:
        observed = read_objects(self.operator, self.compiled)
        SiteApplier(self.operator, observed).apply(plan_site(self.compiled, observed), lambda step: None)

    def states(self, pool: str) -> Counter[GpuState]:
        return Counter(status.state for status in self.statuses(pool))

    def statuses(self, pool: str) -> list[GpuStatus]:
        return [status for status in self.booked.statuses(pool) if not status.gpu.blocked]

    def limits(self, resource: str) -> dict[str, int]:
        rows = self.operator.get("identity", "/limits")["limits"]
        names = {person.project_id: person.project for person in self.booked.people.values()}
        mine = [row for row in rows if row["resource_name"] == resource and row["project_id"] in names]
        return {names[row["project_id"]]: row["resource_limit"] for row in mine}

    def held(self, pool: str) -> set[str]:
        """Units with an allocation of ours."""
        names = {status.gpu.provider_name for status in self.statuses(pool)}
        path = "/allocations/{}"
        return {n for n in names if self.operator.get("placement", path.format(hold_of(n)))["allocations"]}

    def provider(self, pool: str) -> str:
        gpu = next(gpu for gpu in self.compiled.gpus if gpu.pool == pool and not gpu.blocked)
        return self.booked.snapshot_providers()[gpu.provider]

    def close(self) -> None:
        for exercise in self.booked.exercises.values():
            exercise.clear()
        for gpu in self.compiled.gpus:
            with suppress(CloudError):
                self.operator.request("DELETE", "placement", f"/allocations/{hold_of(gpu.provider_name)}")
        for pool in POOLS:
            set_reserved(self.operator, self.provider(pool), 0)
        self.booked.clear()


@pytest.fixture
def opened(shares: RunningLab, tmp_path: Path) -> Iterator[Any]:
    made: list[Shares] = []

    def make(document: dict[str, Any]) -> Shares:
        made.append(Shares(shares, tmp_path, document))
        return made[-1]

    yield make
    for lab in made:
        lab.close()


RESOURCES = {"t4-4q": "class:CUSTOM_GPU_T4_4Q", "h200-mig": "class:CUSTOM_GPU_H200_MIG_COUNT"}
EACH = pytest.mark.parametrize("pool", list(POOLS))
MORE = only_by("shares", "minutes")


@EACH
def test_units_are_shown_as_they_are_taken_and_counted(opened: Any, pool: str) -> None:
    lab = opened({"projects": {"physics": {"gpus": {pool: 3}}}})
    assert lab.states(pool) == {GpuState.FREE: UNITS}
    first, second = lab.booked.boot("ada", pool), lab.booked.boot("ada", pool)
    assert (first.status, second.status) == ("ACTIVE", "ACTIVE"), (first.fault, second.fault)
    statuses = lab.statuses(pool)
    assert [status.claim.server_id if status.claim else status.state for status in statuses] == [
        first.server_id, second.server_id, GpuState.FREE, GpuState.FREE,
    ]  # fmt: skip
    third = lab.booked.boot("ada", pool)
    assert third.status == "ACTIVE", third.fault
    assert lab.booked.refused("ada", pool), "three is its limit"
    assert lab.booked.refused("bob", pool), "and others have none"
    lab.booked.exercises["ada"].delete([first.server_id])
    assert lab.states(pool) == {GpuState.CLAIMED: 2, GpuState.FREE: 2}


@MORE
def test_a_server_of_two_virtual_functions_has_two_units(opened: Any) -> None:
    lab = opened({"projects": {"physics": {"gpus": {"h200-mig": 4}}}})
    boot = lab.booked.boot("ada", "two")
    assert boot.status == "ACTIVE", boot.fault
    statuses = lab.statuses("h200-mig")
    assert [status.claim.server_id if status.claim else status.state for status in statuses] == [
        boot.server_id, boot.server_id, GpuState.FREE, GpuState.FREE,
    ]  # fmt: skip


@MORE
def test_a_server_of_two_vgpus_has_one_of_each_card(opened: Any) -> None:
    lab = opened({"projects": {"physics": {"gpus": {"t4-8q": 4}}}})
    boot = lab.booked.boot("ada", "two-cards")
    assert boot.status == "ACTIVE", boot.fault
    mine = [
        status.gpu.device
        for status in lab.statuses("t4-8q")
        if status.claim and status.claim.server_id == boot.server_id
    ]
    assert sorted(mine) == ["0000:18:00.0", "0000:3b:00.0"]
    assert lab.states("t4-8q") == {GpuState.CLAIMED: 2, GpuState.FREE: 2}
    second = lab.booked.boot("ada", "two-cards")
    assert second.status == "ACTIVE", second.fault
    assert lab.states("t4-8q") == {GpuState.CLAIMED: 4}
    assert lab.booked.refused("ada", "two-cards"), "four is its limit: each vGPU counts"


@MORE
@EACH
def test_a_booking_of_a_unit_lets_its_owner_in_and_nobody_else(opened: Any, pool: str) -> None:
    lab = opened(BOOKED)
    booked = lab.booked
    booked.controller.run()
    assert booked.refused("ada", pool), "nothing is booked"
    booking = booked.book("ada", pool=pool, gpus=2)
    booked.clock.until(booking.ask.start - 1.5 * PREPARE)
    booked.controller.run()
    assert lab.states(pool) == {GpuState.BOOKED: 2, GpuState.FREE: 2}
    start(booked, booking)
    assert lab.limits(RESOURCES[pool]) == {"physics": 2}
    boots = [booked.boot("ada", pool) for _ in range(2)]
    assert [boot.status for boot in boots] == ["ACTIVE", "ACTIVE"], [boot.fault for boot in boots]
    assert booked.refused("ada", pool), "two were booked"
    assert booked.refused("bob", pool)
    booked.controller.run()
    assert {claim.server_id for lane in booked.now(booking).lanes
            if (claim := booked.claim_on(booked.lanes()[lane]))} == {boot.server_id for boot in boots}  # fmt: skip
    booked.clock.until(booking.ask.end)
    booked.controller.run()
    assert booked.now(booking).state is BookingState.ENDED
    assert lab.limits(RESOURCES[pool]) == {}


@pytest.mark.parametrize("pool", ["t4-4q", pytest.param("h200-mig", marks=MORE)])
def test_a_unit_that_is_held_is_nobody_s_until_it_is_let_go(opened: Any, pool: str) -> None:
    """Where whoever has not booked may use what is free: so it is the hold that keeps them out, and what is beside it
    they get."""
    lab = opened(FREE)
    booked = lab.booked
    booking = booked.book("ada", pool=pool, gpus=3)
    booked.clock.until(booking.ask.start - timedelta(minutes=5))
    booked.controller.run()
    assert len(lab.held(pool)) == 3
    assert lab.states(pool) == {GpuState.BOOKED: 3, GpuState.FREE: 1}
    boot = booked.boot("bob", pool)
    assert boot.status == "ACTIVE", boot.fault
    none_left = booked.boot("bob", pool)
    assert none_left.status == "ERROR", "its limit lets it in, and there is none"
    booked.exercises["bob"].delete([none_left.server_id])
    booked.restart()
    booked.controller.run()
    assert len(lab.held(pool)) == 3, "as before the kill"
    start(booked, booking)
    assert not lab.held(pool)
    assert lab.limits(RESOURCES[pool]).get("physics") == 3
    mine = [booked.boot("ada", pool) for _ in range(3)]
    assert [own_boot.status for own_boot in mine] == ["ACTIVE"] * 3, [own_boot.fault for own_boot in mine]
    booked.controller.run()
    assert lab.states(pool) == {GpuState.CLAIMED: 4}


@MORE
@EACH
def test_an_operator_s_hold_of_one_unit_keeps_that_and_no_other(opened: Any, pool: str) -> None:
    lab = opened(FREE)
    booked = lab.booked
    lane = next(lane for lane in booked.lanes().values() if lane.pool == pool)
    begin = booked.clock().replace(microsecond=0)
    (hold,) = booked.ledger.hold([lane.name], begin, begin + timedelta(hours=1), OPERATOR, "fan is loud")
    booked.controller.run()
    (held,) = [status for status in lab.statuses(pool) if status.state is GpuState.HELD]
    assert f"{held.gpu.host}/{held.gpu.address}" == lane.name
    assert "fan is loud" in held.reason
    assert lab.held(pool) == {held.gpu.provider_name}
    boots = [booked.boot("bob", pool) for _ in range(UNITS)]
    assert [boot.status for boot in boots] == [*["ACTIVE"] * 3, "ERROR"]
    booked.ledger.end(hold.id, OPERATOR)
    booked.controller.run()
    assert not lab.held(pool)


@MORE
@EACH
def test_what_an_operator_reserves_is_not_counted_on(opened: Any, pool: str) -> None:
    lab = opened(FREE)
    reserve_one(lab.operator, lab.provider(pool))
    assert lab.states(pool) == {GpuState.HELD: 1, GpuState.FREE: 3}


@MORE
def test_drift_knows_how_many_shares_there_are_to_be(opened: Any) -> None:
    lab = opened({"projects": {"physics": {"gpus": {"t4-4q": 2}}}})
    assert lab.booked.boot("ada", "t4-4q").status == "ACTIVE"
    world = read_world(lab.operator, lab.compiled)
    assert {name: sum(share.total for share in stock.values()) for name, stock in world.shares.items()} == {
        "t4-host_pci_0000_18_00_0": UNITS, "h200-host_0000:41:00.0": UNITS,
        "pair-host_pci_0000_18_00_0": 2, "pair-host_pci_0000_3b_00_0": 2,
    }  # fmt: skip
    assert not find_drift(lab.compiled, lab.inventories, world)


def reserve_one(operator: CloudApi, provider: str) -> None:
    path = f"/resource_providers/{provider}/inventories"
    answer = operator.get("placement", path)
    ((name, inventory),) = answer["inventories"].items()
    body = {**inventory, "reserved": 1, "resource_provider_generation": answer["resource_provider_generation"]}
    operator.request("PUT", "placement", f"{path}/{name}", body)
