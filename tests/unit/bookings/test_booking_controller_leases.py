"""What the loop of bookings does for leases, and for bookings that meet them, on a small cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings.ledger.ledger import RefusedError
from gpuyard.bookings.records import Query
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.model.booking import FOREVER, Ask, Booking, BookingState, Person
from gpuyard.model.gpu import GpuState
from tests.unit.bookings.test_booking_controller_runs import ADA, BOB, MUST, NOW, Harness

GPUYARD = Person("u-gpuyard", "gpuyard", "p-ci", "ci")
RUNNERS = {"project": "ci", "enrolments": [{"organization": "conda-forge", "token_file": "token"}]}
HOUR = timedelta(hours=1)


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(runners: dict[str, Any] = RUNNERS, **booking: Any) -> Harness:
        made.append(Harness(tmp_path, {**MUST, **booking}, more={"runners": runners}))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def lease(one: Harness, server: str = "r1", hours: float = 8, *, yields: bool = False) -> Booking:
    end = one.now + hours * HOUR
    return one.ledger.leases.take("t4", 1, False, end, server, "p-ci", "ci", f"runner {server} of o/r", yields=yields)


def free_now(one: Harness) -> int:
    return sum(lane.free[0][0] == one.now for lane in one.ledger.leases.rooms()["t4"].lanes if lane.free)


def test_the_runners_project_has_its_limit_before_anybody_asks(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    one.controller.run()
    assert one.limits() == {"p-ci": 4}
    assert one.limits("V100") == {"p-ci": 6}
    asked = len(one.cloud.asked)
    lease(one)
    one.controller.run()
    assert one.cloud.asked[asked:] == [], "a lease is no reason to ask the cloud for anything"


@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ({"most": 3}, {"T4": {"p-ci": 3}, "V100": {"p-ci": 3}}),
        ({"allowed": {"flavors": ["gpu_tiny"]}}, {"T4": {}, "V100": {"p-ci": 6}}),
        ({"project": "nobody"}, {"T4": {}, "V100": {}}),
    ],
)
def test_it_is_as_many_as_the_site_lets_runners_have(
    inventory: Callable[..., Harness], more: dict[str, Any], limits: dict[str, dict[str, int]]
) -> None:
    one = inventory({**RUNNERS, **more})
    one.controller.run()
    assert {pool: one.limits(pool) for pool in limits} == limits


def test_a_lease_has_the_gpu_that_nova_chose_and_its_server_is_no_case(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    mine, place = lease(one), 3
    lanes = [lane.id for lane in one.ledger.lanes("t4")]
    assert mine.lanes != (lanes[place],)
    one.boot("s1", GPUYARD, place, name="r1")
    one.controller.run()
    now = one.ledger.get(mine.id)
    assert (now.lanes, now.claimed) == ((lanes[place],), NOW)
    assert (one.audit("s1"), one.ledger._store.open_cases(), one.controller.waits) == ([], [], ())


def test_what_is_there_without_a_lease_is_told_and_left_alone_and_its_gpu_is_not_leased(
    inventory: Callable[..., Harness],
) -> None:
    one = inventory()
    one.boot("s1", GPUYARD, 0, name="r9")
    one.boot("s2", BOB, 1)
    for _ in range(3):
        one.controller.run()
        one.forward(minutes=1)
    assert [wait.split(": ")[1] for wait in one.controller.waits] == [
        "server r9 is in the runners' project without a lease"
    ]
    assert [case.server_id for case in one.ledger._store.open_cases()] == ["s2"]
    one.controller.run()
    taken = {lane.id for lane in one.ledger.lanes("t4")[:2]}
    assert free_now(one) == 2
    assert {*lease(one, "r1").lanes, *lease(one, "r2").lanes} & taken == set()
    with pytest.raises(RefusedError):
        one.ledger.leases.take("t4", 3, False, one.now + HOUR, "r3", "p-ci", "ci", "", yields=True)
    (late,) = (room for room in one.ledger.leases.rooms()["t4"].lanes[:1])
    assert late.free == ((one.now + timedelta(minutes=1), FOREVER),)


def test_while_a_bookings_gpus_are_released_no_runner_is_started(inventory: Callable[..., Harness]) -> None:
    one = inventory(must_book=False)
    one.controller.run()
    assert one.limits() == {"p-ci": 4, "p-art": 4}
    assert one.ledger.leases.rooms()["t4"].blocked == ""
    made = one.book(ADA)
    one.controller.run()
    assert one.limits() == {}
    assert one.ledger.leases.rooms()["t4"].blocked.startswith(f"GPUs of pool t4 are released for booking {made.id}")
    assert one.ledger.leases.rooms()["v100"].blocked == "", "only there"
    one.forward(seconds=6)
    one.controller.run()
    assert one.limits() == {"p-physics": 1}
    one.boot("s1", ADA, 0)
    one.controller.run()
    assert one.limits() == {"p-ci": 4, "p-art": 4, "p-physics": 1}
    assert one.ledger.leases.rooms()["t4"].blocked == ""


def test_leases_are_told_that_limits_go_down_before_they_do(
    inventory: Callable[..., Harness], monkeypatch: Any
) -> None:
    """Else a server would be asked for that Nova refuses."""
    one = inventory(must_book=False)
    one.controller.run()
    one.book(ADA)
    told: list[str] = []
    request = one.cloud.request

    def changing(method: str, service: str, path: str, *args: Any, **more: Any) -> Any:
        if service == "identity" and method != "GET":
            told.append(one.ledger.leases.blocked("t4"))
        return request(method, service, path, *args, **more)

    monkeypatch.setattr(one.cloud, "request", changing)
    one.controller.run()
    assert told
    assert all("are released" in words for words in told)
    with pytest.raises(RefusedError, match="no server can be started in pool t4 now"):
        lease(one)


def test_a_lease_ends_when_its_server_keeps_a_booking_from_its_gpu(inventory: Callable[..., Harness]) -> None:
    """Nova has put it on the one GPU that somebody must have later, and all others are taken."""
    one = inventory()
    one.book(BOB, gpus=2)
    taken = {lane for booking in one.ledger.find(Query()) for lane in booking.lanes}
    lanes = list(one.ledger.lanes("t4"))
    place = next(place for place, lane in enumerate(lanes) if lane.id not in taken)
    later = Ask("t4", one.now + 2 * HOUR, one.now + 3 * HOUR, gpu=lanes[place].name)
    one.ledger.create(later, ADA)
    mine = lease(one)
    assert mine.lanes != (lanes[place].id,)
    one.boot("s1", GPUYARD, place, name="r1")
    one.controller.run()
    one.forward(minutes=109)
    one.controller.run()
    assert one.ledger.get(mine.id).state is BookingState.ACTIVE, "nobody needs it yet"
    one.forward(minutes=2)
    one.controller.run()
    assert (one.ledger.get(mine.id).state, one.ledger.get(mine.id).reason) == (BookingState.ENDED, MADE_WAY)
    one.forward(minutes=10)
    one.controller.run()
    assert not [entry for entry in one.ledger.audit() if entry.action == "booking.delayed"], "gpuyard deletes it"


def test_the_map_says_whose_a_lease_is(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    mine = lease(one)
    one.controller.run()
    (words,) = [word for word in one.controller.words.values() if word.booking == mine.id]
    assert (words.state, words.reason) == (GpuState.BOOKED, "runner r1 of o/r until 2026-11-23 17:00 UTC")
