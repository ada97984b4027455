"""Servers leave a host of the lab: it is drained with bookings in view, by a command that is killed at each of its
steps; it dies, is evacuated, and comes back; what is left behind is found and taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.bookings.records import Query
from gpuyard.cli.main import app
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.drain.apply import HostMover, Pace
from gpuyard.drain.host_return import give_back
from gpuyard.drain.kept import kept_of
from gpuyard.drain.leftovers import Recount, find_leftovers, keeps_closed, steps_of
from gpuyard.drain.leftovers_apply import clean_leftovers, read_leftovers
from gpuyard.drain.planner import MoveRules, MoveWay
from gpuyard.drain.read import MovesReader
from gpuyard.model.booking import Booking
from gpuyard.model.errors import BlockedError
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.disabled_reason import Purpose
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
from gpuyard.usage.lives import moves
from gpuyard.usage.read_lives import LifeReader, pools_by_alias
from gpuyard_lab import host_power
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import RunningLab
from tests.integration.test_enforcement import start
from tests.integration.test_health import MUST
from tests.support.on_request import only_by
from tests.support.sites import plain_site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    only_by("moves", "minutes"),
]
SOURCE, TARGET = "cld-dfa-gpu-03", "cld-dfa-gpu-01"
XP, TITAN = "titan-xp.10cores120GB", "gtx-titan.8cores"
PACE = Pace(0.2, timedelta(minutes=5))


class Killed(BaseException):
    """As SIGKILL, nobody catches it."""


class MortalApi:
    """A door to the cloud behind which the process is killed, before or after its first request that writes."""

    def __init__(self, api: CloudApi, after: bool) -> None:
        self._api, self._after = api, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def request(self, method: str, *given: Any, **more: Any) -> dict[str, Any]:
        if method == "GET":
            return self._api.request(method, *given, **more)
        if self._after:
            self._api.request(method, *given, **more)
        raise Killed


def wait(until: Callable[[], bool], what: str, patience: float = 120) -> None:
    end = monotonic() + patience
    while not until():
        assert monotonic() < end, what
        sleep(0.2)


def count_again(inventory: Harness, host: str) -> list[str]:
    """Where Nova has counted a server's devices twice. The lab's nova-compute counts when it starts, and not every
    minute."""
    steps = [
        step for step in steps_of(find_leftovers(read_leftovers(inventory.api, host))) if isinstance(step, Recount)
    ]
    if not steps:
        return []
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(clean_leftovers, inventory.api, host, steps)
        wait(lambda: not ComputeService(inventory.api, host).look().enabled or future.done(), "the host is closed")
        host_power.switch(inventory.lab.lab, host, on=False)
        host_power.switch(inventory.lab.lab, host, on=True)
        return future.result(timeout=300)


class Harness:
    """The lab, and what is moved there."""

    def __init__(self, api: CloudApi, loaded: LoadedSite, lab: RunningLab) -> None:
        self.api, self.loaded, self.lab = api, loaded, lab
        self.example = loaded.compiled
        self.said: list[str] = []

    def mover(self, host: str, rules: MoveRules, booked: BookedLab | None = None, api: Any = None) -> HostMover:
        door = api or self.api

        def keepings() -> Any:
            if booked is None:
                return (), {}
            bookings = booked.ledger.find(Query())
            return kept_of(bookings, booked.ledger.lanes()), booked.controller.words

        reader = MovesReader(door, self.loaded, host, keepings)
        now = booked.clock if booked else lambda: datetime.now(UTC)
        return HostMover(door, reader.read, rules, self.said.append, PACE, now)

    def give_back(self, host: str) -> None:
        give_back(self.api, host, (), self.said.append)

    def where(self, server: str) -> tuple[str, str | None]:
        row = self.api.get("compute", f"/servers/{server}")["server"]
        return row["status"], row["OS-EXT-SRV-ATTR:host"]

    def gpus(self, server: str) -> set[str]:
        """Hosts of the GPUs that Placement has for it."""
        return {name.partition("_")[0] for name in self.devices(server)}

    def devices(self, server: str) -> set[str]:
        """Names of the providers of its GPUs."""
        held = self.api.get("placement", f"/allocations/{server}")["allocations"]
        return {row["name"] for row in self.api.providers() if row["uuid"] in held and row["parent_provider_uuid"]}

    def stock(self, device: str) -> tuple[str, dict[str, Any]]:
        """The path of its inventory, and that."""
        (provider,) = (row["uuid"] for row in self.api.providers() if row["name"] == device)
        path = f"/resource_providers/{provider}/inventories"
        return path, self.api.get("placement", path)

    def keep_back(self, device: str, *, back: bool) -> None:
        """Whether Placement gives it to nobody."""
        path, stock = self.stock(device)
        for row in stock["inventories"].values():
            row["reserved"] = int(back)
        self.api.request("PUT", "placement", path, stock)


@pytest.fixture
def inventory(lab: RunningLab, operator: CloudApi, exercise: Exercise) -> Iterator[Harness]:
    """Put right before the servers of the exercise are deleted: a host that is off deletes none."""
    yield Harness(operator, load_site(plain_site()), lab)
    for host in (SOURCE, TARGET):
        host_power.switch(lab.lab, host, on=True)
        door = ComputeService(operator, host)
        if door.look().forced_down:
            wait(lambda host=host: read_leftovers(operator, host).has_restarted, f"{host} starts")  # type: ignore[misc]
            door.raise_up()
        wait(lambda door=door: door.look().up, f"{host} is heard of")  # type: ignore[misc]
        service = operator.get("compute", "/os-services", binary="nova-compute", host=host)["services"][0]
        if service["status"] != "enabled":
            operator.request("PUT", "compute", f"/os-services/{service['id']}", {"status": "enabled"})


def boot_on(inventory: Harness, exercise: Exercise, flavor: str, host: str) -> str:
    """A server there, by closing the other host meanwhile."""
    other = TARGET if host == SOURCE else SOURCE
    door = ComputeService(inventory.api, other)
    tag = door.close(Purpose.DRAIN)
    boot = exercise.boot(flavor)
    door.open(tag)
    assert boot.status == "ACTIVE", boot.fault
    assert inventory.where(boot.server_id) == ("ACTIVE", host)
    return boot.server_id


def test_a_drain_that_is_killed_at_each_step_goes_on(inventory: Harness, exercise: Exercise) -> None:
    """Close, migrate, confirm, shelve: killed before and after each."""
    moved = boot_on(inventory, exercise, XP, SOURCE)
    shelved = exercise.boot(TITAN).server_id
    rules = MoveRules(shelve=True)
    (before, other) = inventory.mover(SOURCE, rules).plan(SOURCE).verdicts
    assert {before.way, other.way} == {MoveWay.MIGRATE, MoveWay.SHELVE}
    kills = 0
    plan = None
    while plan is None:
        for after in (False, True):
            try:
                plan = inventory.mover(SOURCE, rules, api=MortalApi(inventory.api, after)).run(SOURCE)
            except Killed:
                kills += 1
    assert kills >= 8, "before and after each of close, migrate, confirm and shelve"
    assert not plan.verdicts
    assert inventory.where(moved) == ("ACTIVE", TARGET)
    assert inventory.gpus(moved) == {TARGET}
    assert inventory.where(shelved) == ("SHELVED_OFFLOADED", None)
    assert not inventory.gpus(shelved)
    closed = ComputeService(inventory.api, SOURCE).look()
    assert closed.disabled_reason.startswith("gpuyard: drain since ")
    assert not find_leftovers(read_leftovers(inventory.api, SOURCE))
    inventory.give_back(SOURCE)
    assert ComputeService(inventory.api, SOURCE).look().enabled
    count_again(inventory, TARGET)
    assert len(inventory.devices(moved)) == 1
    assert not [
        difference.code for difference in drift_of(inventory) if difference.code.startswith(("server-", "allocation-"))
    ]


def test_nova_forgets_which_gpu_placement_gave_to_a_server_that_it_migrates(
    inventory: Harness, exercise: Exercise
) -> None:
    """Why a host with a GPU that is kept back is no target: what Nova's own tracker takes first may be the one that is
    held, and which that is nobody can tell."""
    ends = {}
    devices = sorted(
        gpu.provider_name for gpu in inventory.example.gpus if gpu.host == TARGET and gpu.pool == "titan-xp"
    )
    for held in devices:
        server = boot_on(inventory, exercise, XP, SOURCE)
        inventory.keep_back(held, back=True)
        try:
            (stays,) = inventory.mover(SOURCE, MoveRules()).plan(SOURCE).verdicts
            assert stays.way is MoveWay.WAIT
            assert "Nova chooses the GPU itself" in dict(stays.others)[TARGET]
            inventory.api.request("POST", "compute", f"/servers/{server}/action", {"migrate": {"host": TARGET}})
            wait(lambda server=server: inventory.where(server)[0] in ("VERIFY_RESIZE", "ERROR"), "it is moved, or not")  # type: ignore[misc]
            ends[held] = inventory.where(server)
            exercise.delete([server])
        finally:
            inventory.keep_back(held, back=False)
    assert ("ERROR", SOURCE) in ends.values()
    assert {*ends.values()} <= {("ERROR", SOURCE), ("VERIFY_RESIZE", TARGET)}


def test_a_gpu_that_is_counted_twice_is_shown_and_counted_again(inventory: Harness, exercise: Exercise) -> None:
    """As Nova leaves it by chance: here the second one is written into the server's allocation by hand."""
    server = boot_on(inventory, exercise, XP, TARGET)
    (has,) = inventory.devices(server)
    (other,) = (gpu.provider_name for gpu in inventory.example.gpus if gpu.host == TARGET and gpu.pool == "titan-xp"
                and gpu.provider_name != has)  # fmt: skip
    path, stock = inventory.stock(other)
    held = inventory.api.get("placement", f"/allocations/{server}")
    (kind,) = stock["inventories"]
    held["allocations"][path.split("/")[2]] = {"resources": {kind: 1}}
    inventory.api.request("PUT", "placement", f"/allocations/{server}", {**held, "consumer_type": "INSTANCE"})
    assert inventory.devices(server) == {has, other}

    statuses = exercise.statuses()
    assert len([status for status in statuses if status.claim is not None and status.claim.server_id == server]) == 1
    assert [status.state for status in statuses if server in status.reason] == [GpuState.BLOCKED]
    assert "server-holds-unasked" in {difference.code for difference in drift_of(inventory)}
    (message,) = count_again(inventory, TARGET)
    assert message == f"{server}: has 1 device of {TARGET}, as nova-compute there counts"
    assert inventory.devices(server) == {has}, "what is attached, whichever was taken for it before"
    assert ComputeService(inventory.api, TARGET).look().enabled
    assert not [
        difference.code for difference in drift_of(inventory) if difference.code.startswith(("server-", "allocation-"))
    ]


def drift_of(inventory: Harness) -> list[Any]:
    world = read_world(inventory.api, inventory.loaded.compiled)
    return find_drift(inventory.loaded.compiled, inventory.loaded.inventories, world)


def test_what_somebody_has_booked_is_no_target_and_the_booking_moves_along(
    inventory: Harness, lab: RunningLab, operator: CloudApi, tmp_path: Path
) -> None:
    booked = open_booked_lab(lab, operator, tmp_path, MUST)
    try:
        inventory.loaded = load_site(tmp_path / "site.yaml")
        mine = booked.book("ada", start=600, hours=5, pool="titan-xp")
        start(booked, mine)
        server = boot_on(inventory, booked.exercises["ada"], XP, SOURCE)
        booked.controller.run()
        taken = [booked.book("bob", start=7200, pool="titan-xp") for _ in range(2)]
        assert hosts_of(booked, taken) == {TARGET}
        (waits,) = inventory.mover(SOURCE, MoveRules(), booked).plan(SOURCE).verdicts
        assert waits.way is MoveWay.WAIT
        assert "bob (art)" in waits.others[0][1]
        assert waits.when == max(booking.ask.end for booking in taken) < mine.ask.end
        booked.ledger.cancel(taken[0].id, booked.people["bob"])
        plan = inventory.mover(SOURCE, MoveRules(), booked).run(SOURCE)
        assert not plan.verdicts
        assert inventory.where(server) == ("ACTIVE", TARGET)
        count_again(inventory, TARGET)
        booked.controller.run()
        assert hosts_of(booked, [mine, taken[1]]) == {TARGET}, "its booking is where it is"
        assert set(booked.now(mine).lanes).isdisjoint(booked.now(taken[1]).lanes), "and bob has the other GPU"
        inventory.give_back(SOURCE)
    finally:
        booked.clear()
        observed = read_objects(operator, inventory.example)
        SiteApplier(operator, observed).apply(plan_site(inventory.example, observed), lambda step: None)


def hosts_of(booked: BookedLab, bookings: list[Booking]) -> set[str]:
    return {booked.lanes()[lane].host for booking in bookings for lane in booked.now(booking).lanes}


def test_a_dead_host_is_evacuated_and_comes_back_clean(inventory: Harness, exercise: Exercise) -> None:
    server = boot_on(inventory, exercise, XP, SOURCE)
    rules = MoveRules(Purpose.EVACUATE)
    with pytest.raises(BlockedError, match="is up: its servers run"):
        inventory.mover(SOURCE, rules).run(SOURCE)
    host_power.switch(inventory.lab.lab, SOURCE, on=False)
    door = ComputeService(inventory.api, SOURCE)
    wait(lambda: not door.look().up, "Nova notices")
    with pytest.raises(BlockedError, match="--fenced"):
        inventory.mover(SOURCE, rules).run(SOURCE)
    for after in (False, True) * 3:  # the tag, that it is down, and the server
        with pytest.raises(Killed):
            inventory.mover(SOURCE, rules, api=MortalApi(inventory.api, after)).run(SOURCE, fenced=True)
    assert not inventory.mover(SOURCE, rules).run(SOURCE, fenced=True).verdicts
    assert inventory.where(server) == ("ACTIVE", TARGET)

    assert inventory.gpus(server) == {SOURCE, TARGET}, "Nova leaves it until the old host is back"
    assert "server-elsewhere" in {difference.code for difference in drift_of(inventory)}
    statuses = exercise.statuses()
    has = [status.gpu.host for status in statuses if status.claim is not None and status.claim.server_id == server]
    left = [status for status in statuses if server in status.reason and status.gpu.host == SOURCE]
    twice = [status for status in statuses if server in status.reason and status.gpu.host == TARGET]
    assert has == [TARGET], "it has what its own host says"
    assert [(status.state, status.claim) for status in left] == [(GpuState.BLOCKED, None)]
    # Where Nova has taken another GPU than Placement gave, Placement counts both: `count_again` puts that right.
    assert all(status.state is GpuState.BLOCKED and "beyond what its flavor" in status.reason for status in twice)
    reader = LifeReader(inventory.api, pools_by_alias(inventory.example))
    life = reader.read(datetime.now(UTC), datetime.now(UTC), by_id=[server])[server]
    assert len(moves(life)) == 1, life.deeds
    assert not life.is_moving
    count_again(inventory, TARGET)
    findings = find_leftovers(read_leftovers(inventory.api, SOURCE))
    assert [finding.code for finding in findings] == ["evacuated", "guest-left"]
    with pytest.raises(BlockedError, match="its nova-compute has to remove"):
        inventory.give_back(SOURCE)
    (done,) = clean_leftovers(inventory.api, SOURCE, steps_of(findings))
    assert done.endswith(f"has nothing of {SOURCE} any more")
    assert inventory.gpus(server) == {TARGET}
    assert not keeps_closed(find_leftovers(read_leftovers(inventory.api, SOURCE)))

    host_power.switch(inventory.lab.lab, SOURCE, on=True)
    inventory.give_back(SOURCE)
    service = door.look()
    assert (service.up, service.enabled, service.forced_down) == (True, True, False)
    assert inventory.gpus(server) == {TARGET}
    assert not find_leftovers(read_leftovers(inventory.api, SOURCE))
    assert boot_on(inventory, exercise, XP, SOURCE), "its GPU can be had again"


def test_only_what_carries_our_tag_is_undone(inventory: Harness) -> None:
    door = ComputeService(inventory.api, SOURCE)
    id = inventory.api.get("compute", "/os-services", binary="nova-compute", host=SOURCE)["services"][0]["id"]
    theirs: dict[str, object] = {"status": "disabled", "disabled_reason": "fan is loud"}
    inventory.api.request("PUT", "compute", f"/os-services/{id}", theirs)
    with pytest.raises(BlockedError, match="was not closed by gpuyard"):
        inventory.give_back(SOURCE)
    inventory.mover(SOURCE, MoveRules()).run(SOURCE)
    assert door.look().disabled_reason.endswith("; before: fan is loud")
    inventory.give_back(SOURCE)
    assert (door.look().enabled, door.look().disabled_reason) == (False, "fan is loud")


def test_a_server_that_its_owner_has_resized_is_left_alone(inventory: Harness, exercise: Exercise) -> None:
    server = boot_on(inventory, exercise, XP, SOURCE)
    inventory.api.request("POST", "compute", f"/servers/{server}/action", {"migrate": {"host": TARGET}})
    wait(lambda: inventory.where(server) == ("VERIFY_RESIZE", TARGET), "it is migrated by hand")
    (stays,) = inventory.mover(SOURCE, MoveRules()).plan(SOURCE).verdicts
    assert stays.way is MoveWay.STAY
    assert "before this drain" in stays.reason
    (unconfirmed,) = find_leftovers(read_leftovers(inventory.api, SOURCE))
    assert unconfirmed.code == "unconfirmed"
    assert not steps_of([unconfirmed])
    inventory.api.request("POST", "compute", f"/servers/{server}/action", {"confirmResize": None})
    wait(lambda: inventory.where(server) == ("ACTIVE", TARGET), "and confirmed")


def test_the_commands(inventory: Harness, exercise: Exercise) -> None:
    """As the how-to shows them."""
    server = boot_on(inventory, exercise, XP, SOURCE)

    def typed(*words: str) -> str:
        result = CliRunner().invoke(app, ["host", *words, "--os-cloud", ADMIN_CLOUD, "--site", str(plain_site())])
        assert result.exception is None, result.output
        return result.stdout

    assert f"  migrate to {TARGET}: " in typed("drain", SOURCE, "--plan")
    assert inventory.where(server) == ("ACTIVE", SOURCE)
    assert f"{SOURCE} is empty." in typed("drain", SOURCE, "--yes")
    assert inventory.where(server) == ("ACTIVE", TARGET)
    assert typed("leftovers", SOURCE) == f"Nothing is left behind on {SOURCE}.\n"
    assert typed("return", SOURCE) == f"{SOURCE}: open\n"
