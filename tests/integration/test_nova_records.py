"""What Nova records of a server that is created, resized, reverted, migrated, shelved, or fails: what the simulation of
random lives (tests/support/simulated_nova.py) and docs/reference/stand-ins/nova.md say of it, on a real Nova."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import moment
from gpuyard.site.compile import CompiledSite
from gpuyard.usage.lives import ServerLife, flavor_spans, moves, use_spans, whole
from gpuyard.usage.read_lives import LifeReader, pools_by_alias
from gpuyard_lab import host_power
from gpuyard_lab.exercise import Exercise
from tests.integration.conftest import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.slow]
SMALL, LARGE = "t4.15cores90GB", "t4.30cores180GB"
RESIZED = {"t4", "titan-xp"}
"""Pools of the servers that are resized and migrated here."""
MOMENT = timedelta(seconds=2)


@pytest.fixture(scope="module", autouse=True)
def counted_again(lab: RunningLab, example: CompiledSite) -> Iterator[None]:
    """Has Nova count the devices of these hosts again when all is done: a resize may claim others than Placement has
    allocated, and those stay claimed after their server is deleted. Placement calls them free then, and the scheduler
    refuses them. What gives them back is `PciDevTracker.clean_usage` (nova 34.0.0, nova/pci/manager.py), which
    `ResourceTracker` calls when it updates a host's resources; in the lab that is when nova-compute starts
    (docs/adr/0006)."""
    yield
    for host in sorted({gpu.host for gpu in example.gpus if gpu.pool in RESIZED}):
        host_power.switch(lab.lab, host, on=False)
        host_power.switch(lab.lab, host, on=True)


class Records:
    """What Nova and Placement have of servers, as their APIs show it."""

    def __init__(self, api: CloudApi, compiled: CompiledSite) -> None:
        self.api, self.compiled = api, compiled
        self.began = datetime.now(UTC) - timedelta(minutes=1)

    def act(self, exercise: Exercise, server: str, action: str, body: object, status: str) -> None:
        self.api.request("POST", "compute", f"/servers/{server}/action", {action: body})
        exercise.wait_for_status(server, status)

    def row(self, server: str) -> dict[str, Any]:
        row: dict[str, Any] = self.api.get("compute", f"/servers/{server}")["server"]
        return row

    def launched(self, server: str) -> datetime:
        launched_at = moment(self.row(server)["OS-SRV-USG:launched_at"])
        assert launched_at is not None
        return launched_at

    def action(self, server: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The last action of a name, and its events by theirs."""
        path = f"/servers/{server}/os-instance-actions"
        rows = [row for row in self.api.get("compute", path)["instanceActions"] if row["action"] == name]
        last = max(rows, key=lambda row: row["start_time"])
        events = self.api.get("compute", f"{path}/{last['request_id']}")["instanceAction"]["events"]
        return last, {row["event"]: row for row in events}

    def migration(self, server: str) -> dict[str, Any]:
        """The last one."""
        rows = list(self.api.pages("compute", "/os-migrations", "migrations", limit=1000, instance_uuid=server))
        return max(rows, key=lambda row: row["id"])

    def gpus(self, consumer: str) -> list[str]:
        """Names of the devices that it has in Placement."""
        held = self.api.get("placement", f"/allocations/{consumer}")["allocations"]
        return sorted(r["name"] for r in self.api.providers() if r["parent_provider_uuid"] and r["uuid"] in held)

    def life(self, server: str) -> ServerLife:
        reader = LifeReader(self.api, pools_by_alias(self.compiled))
        return reader.read(self.began, datetime.now(UTC), by_id=[server])[server]


@pytest.fixture
def records(operator: CloudApi, example: CompiledSite) -> Records:
    return Records(operator, example)


def ended(event: dict[str, Any]) -> datetime:
    finished_at = moment(event["finish_time"])
    assert event["result"] == "Success"
    assert finished_at is not None
    return finished_at


def test_a_resize_and_its_revert(records: Records, exercise: Exercise) -> None:
    boot = exercise.boot(SMALL)
    assert boot.status == "ACTIVE", boot.fault
    server = boot.server_id
    created = ended(records.action(server, "create")[1]["compute__do_build_and_run_instance"])
    assert abs(records.launched(server) - created) < MOMENT
    before = records.gpus(server)
    assert len(before) == 1

    large = exercise._flavors[LARGE]
    records.act(exercise, server, "resize", {"flavorRef": large}, "VERIFY_RESIZE")
    _, parts = records.action(server, "resize")
    assert {"cold_migrate", "compute_prep_resize", "compute_resize_instance", "compute_finish_resize"} <= parts.keys()
    resized, migration = ended(parts["compute_finish_resize"]), records.migration(server)
    assert timedelta(0) <= resized - records.launched(server) < MOMENT, (
        "launched_at moves, shortly before the part ends"
    )
    assert (migration["migration_type"], migration["status"]) == ("resize", "finished")
    small_id, large_id = migration["old_instance_type_id"], migration["new_instance_type_id"]
    assert isinstance(small_id, int), "and no list of flavors has these ids"
    assert small_id != large_id
    assert str(small_id) not in {row["id"] for row in records.api.get("compute", "/flavors")["flavors"]}
    assert records.gpus(migration["uuid"]) == before, "the old one is the migration's"
    assert len(records.gpus(server)) in (2, 3, 4), "more than two where Nova has claimed others than Placement"
    assert records.row(server)["flavor"]["original_name"] == LARGE

    records.act(exercise, server, "revertResize", None, "ACTIVE")
    _, parts = records.action(server, "revertResize")
    reverted, migration = ended(parts["compute_finish_revert_resize"]), records.migration(server)
    assert timedelta(0) <= reverted - records.launched(server) < MOMENT
    assert migration["status"] == "reverted"
    assert (migration["old_instance_type_id"], migration["new_instance_type_id"]) == (small_id, large_id)
    assert (records.gpus(server), records.gpus(migration["uuid"])) == (before, [])
    assert records.row(server)["flavor"]["original_name"] == SMALL

    life = records.life(server)
    assert moves(life) == [whole(resized), whole(reverted)]
    gave_back = whole(ended(parts["compute_revert_resize"]))
    assert [end for _, end in use_spans(life)] in ([gave_back, None], [None]), "one if it took no whole second"
    assert [span.gpus for span in flavor_spans(life)] == [1, None, 1], "a revert brings the same flavor back"
    recorded = [(whole(resized), whole(reverted), "t4")] * 2
    assert [span.gpus for span in flavor_spans(life, recorded)] == [1, 2, 1]


def test_a_cold_migration_a_shelving_and_a_rebuild(records: Records, exercise: Exercise) -> None:
    boot = exercise.boot("titan-xp.10cores120GB")
    assert boot.status == "ACTIVE", boot.fault
    server = boot.server_id
    records.act(exercise, server, "migrate", None, "VERIFY_RESIZE")
    moved, migration = ended(records.action(server, "migrate")[1]["compute_finish_resize"]), records.migration(server)
    assert migration["migration_type"] == "migration"
    assert migration["old_instance_type_id"] == migration["new_instance_type_id"]
    assert migration["dest_compute"] == records.row(server)["OS-EXT-SRV-ATTR:host"] != migration["source_compute"]
    records.act(exercise, server, "confirmResize", None, "ACTIVE")
    dest_gpus = [name for name in records.gpus(server) if name.startswith(migration["dest_compute"])]
    # One more where Nova has claimed another one than Placement had allocated: test_host_moves.py has it counted again.
    assert len(dest_gpus) in (1, 2)
    assert records.gpus(migration["uuid"]) == []
    assert moves(records.life(server)) == [whole(moved)]

    launched = records.launched(server)
    records.act(exercise, server, "os-stop", None, "SHUTOFF")
    records.act(exercise, server, "os-start", None, "ACTIVE")
    assert records.launched(server) == launched, "starting dates nothing"

    records.act(exercise, server, "shelve", None, "SHELVED_OFFLOADED")
    # The status comes first.
    exercise._until(lambda: records.row(server)["OS-EXT-SRV-ATTR:host"] is None, "its host has forgotten it")
    assert records.gpus(server) == []
    records.act(exercise, server, "unshelve", None, "ACTIVE")
    unshelved = ended(records.action(server, "unshelve")[1]["compute_unshelve_instance"])
    assert timedelta(0) <= unshelved - records.launched(server) < MOMENT
    life = records.life(server)
    assert len(use_spans(life)) == 2, life.deeds
    assert not any(deed.is_move_under_way for deed in life.deeds)

    image = records.row(server)["image"]["id"]
    records.act(exercise, server, "rebuild", {"imageRef": image}, "ACTIVE")
    assert "compute_rebuild_instance" in records.action(server, "rebuild")[1]
    assert len(moves(records.life(server))) == 1, "a rebuild is no move"


def test_creates_that_fail_never_launched(records: Records, exercise: Exercise) -> None:
    (gpu,) = (gpu for gpu in records.compiled.gpus if gpu.pool == "gtx-titan")
    (provider,) = (row["uuid"] for row in records.api.providers() if row["name"] == gpu.provider_name)
    path = f"/resource_providers/{provider}/inventories/{gpu.resource_class}"
    stock = records.api.get("placement", path)
    held = records.api.request("PUT", "placement", path, {**stock, "reserved": 1})
    try:
        boot = exercise.boot("gtx-titan.8cores")
    finally:
        records.api.request("PUT", "placement", path, {**held, "reserved": 0})
    assert boot.status == "ERROR"
    row = records.row(boot.server_id)
    assert (row["OS-SRV-USG:launched_at"], row["OS-EXT-SRV-ATTR:host"]) == (None, None)
    assert records.gpus(boot.server_id) == []
    assert use_spans(records.life(boot.server_id)) == []


def test_who_may_not_list_migrations_is_told_none(user: CloudApi) -> None:
    with Reader(user) as cloud:
        assert cloud.migrations_if_allowed(instance_uuid="00000000-0000-0000-0000-000000000000") is None
