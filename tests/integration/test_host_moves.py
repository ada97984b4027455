"""Servers leave a host of the lab: it is drained with bookings in view, by a command that is killed at each of its
steps; it dies, is evacuated, and comes back; what is left behind is found and taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.advice.drift import find_drift
from gpuyard.advice.moves.facts import Purpose
from gpuyard.advice.moves.kept import kept_of
from gpuyard.advice.moves.leftovers import find_leftovers, keeps_closed, steps_of
from gpuyard.advice.moves.planner import MoveRules, MoveWay
from gpuyard.cli.main import app
from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.apply import SiteApplier
from gpuyard.cloud.host_return import give_back
from gpuyard.cloud.host_service import ServiceDoor
from gpuyard.cloud.leftovers import clean_leftovers, read_leftovers
from gpuyard.cloud.moves import HostMover, Pace
from gpuyard.cloud.observe.moves import MovesReader
from gpuyard.cloud.observe.objects import read_objects
from gpuyard.cloud.observe.world import read_world
from gpuyard.lab import host_power
from gpuyard.lab.clients import ADMIN_CLOUD
from gpuyard.lab.exercise import Exercise
from gpuyard.ledger.records import Query
from gpuyard.model.booking import Booking
from gpuyard.model.errors import BlockedError
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
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


class Yard:
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
            found = booked.ledger.find(Query())
            return kept_of(found, booked.ledger.lanes()), booked.keeper.words

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
        held = self.api.get("placement", f"/allocations/{server}")["allocations"]
        rows = {row["uuid"]: row for row in self.api.providers()}
        return {rows[rows[id]["root_provider_uuid"]]["name"] for id in held if rows[id]["parent_provider_uuid"]}


@pytest.fixture
def yard(lab: RunningLab, operator: CloudApi, exercise: Exercise) -> Iterator[Yard]:
    """Put right before the servers of the exercise are deleted: a host that is off deletes none."""
    yield Yard(operator, load_site(plain_site()), lab)
    for host in (SOURCE, TARGET):
        host_power.switch(lab.lab, host, on=True)
        door = ServiceDoor(operator, host)
        if door.look().forced_down:
            wait(lambda host=host: read_leftovers(operator, host).has_restarted, f"{host} starts")  # type: ignore[misc]
            door.raise_up()
        wait(lambda door=door: door.look().up, f"{host} is heard of")  # type: ignore[misc]
        service = operator.get("compute", "/os-services", binary="nova-compute", host=host)["services"][0]
        if service["status"] != "enabled":
            operator.request("PUT", "compute", f"/os-services/{service['id']}", {"status": "enabled"})


def boot_on(yard: Yard, exercise: Exercise, flavor: str, host: str) -> str:
    """A server there, by closing the other host meanwhile."""
    other = TARGET if host == SOURCE else SOURCE
    door = ServiceDoor(yard.api, other)
    tag = door.close(Purpose.DRAIN)
    boot = exercise.boot(flavor)
    door.open(tag)
    assert boot.status == "ACTIVE", boot.fault
    assert yard.where(boot.server_id) == ("ACTIVE", host)
    return boot.server_id


def test_a_drain_that_is_killed_at_each_step_goes_on(yard: Yard, exercise: Exercise) -> None:
    """Close, migrate, confirm, shelve: killed before and after each."""
    moved = boot_on(yard, exercise, XP, SOURCE)
    shelved = exercise.boot(TITAN).server_id
    rules = MoveRules(shelve=True)
    (before, other) = yard.mover(SOURCE, rules).plan(SOURCE).verdicts
    assert {before.way, other.way} == {MoveWay.MIGRATE, MoveWay.SHELVE}
    kills = 0
    plan = None
    while plan is None:
        for after in (False, True):
            try:
                plan = yard.mover(SOURCE, rules, api=MortalApi(yard.api, after)).run(SOURCE)
            except Killed:
                kills += 1
    assert kills >= 8, "before and after each of close, migrate, confirm and shelve"
    assert not plan.verdicts
    assert yard.where(moved) == ("ACTIVE", TARGET)
    assert yard.gpus(moved) == {TARGET}
    assert yard.where(shelved) == ("SHELVED_OFFLOADED", None)
    assert not yard.gpus(shelved)
    closed = ServiceDoor(yard.api, SOURCE).look()
    assert closed.disabled_reason.startswith("gpuyard: drain since ")
    assert not find_leftovers(read_leftovers(yard.api, SOURCE))
    yard.give_back(SOURCE)
    assert ServiceDoor(yard.api, SOURCE).look().enabled
    assert not [one.code for one in drift_of(yard) if one.code.startswith(("server-", "allocation-"))]


def drift_of(yard: Yard) -> list[Any]:
    world = read_world(yard.api, yard.loaded.compiled)
    return find_drift(yard.loaded.compiled, yard.loaded.inventories, world)


def test_what_somebody_has_booked_is_no_target_and_the_booking_moves_along(
    yard: Yard, lab: RunningLab, operator: CloudApi, tmp_path: Path
) -> None:
    booked = open_booked_lab(lab, operator, tmp_path, MUST)
    try:
        yard.loaded = load_site(tmp_path / "site.yaml")
        mine = booked.book("ada", start=600, hours=5, pool="titan-xp")
        start(booked, mine)
        server = boot_on(yard, booked.exercises["ada"], XP, SOURCE)
        booked.keeper.run()
        taken = [booked.book("bob", start=7200, pool="titan-xp") for _ in range(2)]
        assert hosts_of(booked, taken) == {TARGET}
        (waits,) = yard.mover(SOURCE, MoveRules(), booked).plan(SOURCE).verdicts
        assert waits.way is MoveWay.WAIT
        assert "bob (art)" in waits.others[0][1]
        assert waits.when == max(one.ask.end for one in taken) < mine.ask.end
        booked.ledger.cancel(taken[0].id, booked.people["bob"])
        plan = yard.mover(SOURCE, MoveRules(), booked).run(SOURCE)
        assert not plan.verdicts
        assert yard.where(server) == ("ACTIVE", TARGET)
        booked.keeper.run()
        assert hosts_of(booked, [mine, taken[1]]) == {TARGET}, "its booking is where it is"
        assert set(booked.now(mine).lanes).isdisjoint(booked.now(taken[1]).lanes), "and bob has the other GPU"
        yard.give_back(SOURCE)
    finally:
        booked.clear()
        seen = read_objects(operator, yard.example)
        SiteApplier(operator, seen).apply(plan_site(yard.example, seen), lambda step: None)


def hosts_of(booked: BookedLab, bookings: list[Booking]) -> set[str]:
    return {booked.lanes()[lane].host for one in bookings for lane in booked.now(one).lanes}


def test_a_dead_host_is_evacuated_and_comes_back_clean(yard: Yard, exercise: Exercise) -> None:
    server = boot_on(yard, exercise, XP, SOURCE)
    rules = MoveRules(Purpose.EVACUATE)
    with pytest.raises(BlockedError, match="is up: its servers run"):
        yard.mover(SOURCE, rules).run(SOURCE)
    host_power.switch(yard.lab.lab, SOURCE, on=False)
    door = ServiceDoor(yard.api, SOURCE)
    wait(lambda: not door.look().up, "Nova notices")
    with pytest.raises(BlockedError, match="--fenced"):
        yard.mover(SOURCE, rules).run(SOURCE)
    for after in (False, True) * 3:  # the tag, that it is down, and the server
        with pytest.raises(Killed):
            yard.mover(SOURCE, rules, api=MortalApi(yard.api, after)).run(SOURCE, fenced=True)
    assert not yard.mover(SOURCE, rules).run(SOURCE, fenced=True).verdicts
    assert yard.where(server) == ("ACTIVE", TARGET)

    assert yard.gpus(server) == {SOURCE, TARGET}, "Nova leaves it until the old host is back"
    assert {"server-elsewhere", "server-holds-unasked"} <= {one.code for one in drift_of(yard)}
    found = find_leftovers(read_leftovers(yard.api, SOURCE))
    assert [one.code for one in found] == ["evacuated", "guest-left"]
    with pytest.raises(BlockedError, match="its nova-compute has to remove"):
        yard.give_back(SOURCE)
    (done,) = clean_leftovers(yard.api, SOURCE, steps_of(found))
    assert done.endswith(f"has nothing of {SOURCE} any more")
    assert yard.gpus(server) == {TARGET}
    assert not keeps_closed(find_leftovers(read_leftovers(yard.api, SOURCE)))

    host_power.switch(yard.lab.lab, SOURCE, on=True)
    yard.give_back(SOURCE)
    service = door.look()
    assert (service.up, service.enabled, service.forced_down) == (True, True, False)
    assert yard.gpus(server) == {TARGET}
    assert not find_leftovers(read_leftovers(yard.api, SOURCE))
    assert boot_on(yard, exercise, XP, SOURCE), "its GPU can be had again"


def test_only_what_carries_our_tag_is_undone(yard: Yard) -> None:
    door = ServiceDoor(yard.api, SOURCE)
    id = yard.api.get("compute", "/os-services", binary="nova-compute", host=SOURCE)["services"][0]["id"]
    theirs: dict[str, object] = {"status": "disabled", "disabled_reason": "fan is loud"}
    yard.api.request("PUT", "compute", f"/os-services/{id}", theirs)
    with pytest.raises(BlockedError, match="was not closed by gpuyard"):
        yard.give_back(SOURCE)
    yard.mover(SOURCE, MoveRules()).run(SOURCE)
    assert door.look().disabled_reason.endswith("; before: fan is loud")
    yard.give_back(SOURCE)
    assert (door.look().enabled, door.look().disabled_reason) == (False, "fan is loud")


def test_a_server_that_its_owner_has_resized_is_left_alone(yard: Yard, exercise: Exercise) -> None:
    server = boot_on(yard, exercise, XP, SOURCE)
    yard.api.request("POST", "compute", f"/servers/{server}/action", {"migrate": {"host": TARGET}})
    wait(lambda: yard.where(server) == ("VERIFY_RESIZE", TARGET), "it is migrated by hand")
    (stays,) = yard.mover(SOURCE, MoveRules()).plan(SOURCE).verdicts
    assert stays.way is MoveWay.STAY
    assert "before this drain" in stays.reason
    (unconfirmed,) = find_leftovers(read_leftovers(yard.api, SOURCE))
    assert unconfirmed.code == "unconfirmed"
    assert not steps_of([unconfirmed])
    yard.api.request("POST", "compute", f"/servers/{server}/action", {"confirmResize": None})
    wait(lambda: yard.where(server) == ("ACTIVE", TARGET), "and confirmed")


def test_the_commands(yard: Yard, exercise: Exercise) -> None:
    """As the how-to shows them."""
    server = boot_on(yard, exercise, XP, SOURCE)

    def typed(*words: str) -> str:
        result = CliRunner().invoke(app, ["host", *words, "--os-cloud", ADMIN_CLOUD, "--site", str(plain_site())])
        assert result.exception is None, result.output
        return result.stdout

    assert f"  migrate to {TARGET}: " in typed("drain", SOURCE, "--plan")
    assert yard.where(server) == ("ACTIVE", SOURCE)
    assert f"{SOURCE} is empty." in typed("drain", SOURCE, "--yes")
    assert yard.where(server) == ("ACTIVE", TARGET)
    assert typed("leftovers", SOURCE) == f"Nothing is left behind on {SOURCE}.\n"
    assert typed("return", SOURCE) == f"{SOURCE}: open\n"
