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
    for harness in made:
        harness.store.close()


def lease(harness: Harness, server: str = "r1", hours: float = 8, *, yields: bool = False) -> Booking:
    end = harness.now + hours * HOUR
    return harness.ledger.leases.take(
        "t4", 1, False, end, server, "p-ci", "ci", f"runner {server} of o/r", yields=yields
    )


def free_now(harness: Harness) -> int:
    return sum(lane.free[0][0] == harness.now for lane in harness.ledger.leases.rooms()["t4"].lanes if lane.free)


def test_the_runners_project_has_its_limit_before_anybody_asks(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    harness.controller.run()
    assert harness.limits() == {"p-ci": 4}
    assert harness.limits("V100") == {"p-ci": 6}
    request_count = len(harness.cloud.asked)
    lease(harness)
    harness.controller.run()
    assert harness.cloud.asked[request_count:] == [], "a lease is no reason to ask the cloud for anything"


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
    harness = inventory({**RUNNERS, **more})
    harness.controller.run()
    assert {pool: harness.limits(pool) for pool in limits} == limits


def test_a_lease_has_the_gpu_that_nova_chose_and_its_server_is_no_case(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    mine, place = lease(harness), 3
    lanes = [lane.id for lane in harness.ledger.lanes("t4")]
    assert mine.lanes != (lanes[place],)
    harness.boot("s1", GPUYARD, place, name="r1")
    harness.controller.run()
    now = harness.ledger.get(mine.id)
    assert (now.lanes, now.claimed) == ((lanes[place],), NOW)
    assert (harness.audit("s1"), harness.ledger._store.open_overstays(), harness.controller.waits) == ([], [], ())


def test_what_is_there_without_a_lease_is_told_and_left_alone_and_its_gpu_is_not_leased(
    inventory: Callable[..., Harness],
) -> None:
    harness = inventory()
    harness.boot("s1", GPUYARD, 0, name="r9")
    harness.boot("s2", BOB, 1)
    for _ in range(3):
        harness.controller.run()
        harness.forward(minutes=1)
    assert [wait.split(": ")[1] for wait in harness.controller.waits] == [
        "server r9 is in the runners' project without a lease"
    ]
    assert [case.server_id for case in harness.ledger._store.open_overstays()] == ["s2"]
    harness.controller.run()
    taken = {lane.id for lane in harness.ledger.lanes("t4")[:2]}
    assert free_now(harness) == 2
    assert {*lease(harness, "r1").lanes, *lease(harness, "r2").lanes} & taken == set()
    with pytest.raises(RefusedError):
        harness.ledger.leases.take("t4", 3, False, harness.now + HOUR, "r3", "p-ci", "ci", "", yields=True)
    (late,) = (room for room in harness.ledger.leases.rooms()["t4"].lanes[:1])
    assert late.free == ((harness.now + timedelta(minutes=1), FOREVER),)


def test_while_a_bookings_gpus_are_released_no_runner_is_started(inventory: Callable[..., Harness]) -> None:
    harness = inventory(must_book=False)
    harness.controller.run()
    assert harness.limits() == {"p-ci": 4, "p-art": 4}
    assert harness.ledger.leases.rooms()["t4"].blocked == ""
    made = harness.book(ADA)
    harness.controller.run()
    assert harness.limits() == {}
    assert harness.ledger.leases.rooms()["t4"].blocked.startswith(f"GPUs of pool t4 are released for booking {made.id}")
    assert harness.ledger.leases.rooms()["v100"].blocked == "", "only there"
    harness.forward(seconds=6)
    harness.controller.run()
    assert harness.limits() == {"p-physics": 1}
    harness.boot("s1", ADA, 0)
    harness.controller.run()
    assert harness.limits() == {"p-ci": 4, "p-art": 4, "p-physics": 1}
    assert harness.ledger.leases.rooms()["t4"].blocked == ""


def test_leases_are_told_that_limits_go_down_before_they_do(
    inventory: Callable[..., Harness], monkeypatch: Any
) -> None:
    """Else a server would be asked for that Nova refuses."""
    harness = inventory(must_book=False)
    harness.controller.run()
    harness.book(ADA)
    blocked_reasons: list[str] = []
    request = harness.cloud.request

    def changing(method: str, service: str, path: str, *args: Any, **more: Any) -> Any:
        if service == "identity" and method != "GET":
            blocked_reasons.append(harness.ledger.leases.blocked("t4"))
        return request(method, service, path, *args, **more)

    monkeypatch.setattr(harness.cloud, "request", changing)
    harness.controller.run()
    assert blocked_reasons
    assert all("are released" in words for words in blocked_reasons)
    with pytest.raises(RefusedError, match="no server can be started in pool t4 now"):
        lease(harness)


def test_a_lease_ends_when_its_server_keeps_a_booking_from_its_gpu(inventory: Callable[..., Harness]) -> None:
    """Nova has put it on the one GPU that somebody must have later, and all others are taken."""
    harness = inventory()
    harness.book(BOB, gpus=2)
    taken = {lane for booking in harness.ledger.find(Query()) for lane in booking.lanes}
    lanes = list(harness.ledger.lanes("t4"))
    place = next(place for place, lane in enumerate(lanes) if lane.id not in taken)
    later = Ask("t4", harness.now + 2 * HOUR, harness.now + 3 * HOUR, gpu=lanes[place].name)
    harness.ledger.create(later, ADA)
    mine = lease(harness)
    assert mine.lanes != (lanes[place].id,)
    harness.boot("s1", GPUYARD, place, name="r1")
    harness.controller.run()
    harness.forward(minutes=109)
    harness.controller.run()
    assert harness.ledger.get(mine.id).state is BookingState.ACTIVE, "nobody needs it yet"
    harness.forward(minutes=2)
    harness.controller.run()
    assert (harness.ledger.get(mine.id).state, harness.ledger.get(mine.id).reason) == (BookingState.ENDED, MADE_WAY)
    harness.forward(minutes=10)
    harness.controller.run()
    assert not [entry for entry in harness.ledger.audit() if entry.action == "booking.delayed"], "gpuyard deletes it"


def test_the_map_says_whose_a_lease_is(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    mine = lease(harness)
    harness.controller.run()
    (words,) = [word for word in harness.controller.words.values() if word.booking == mine.id]
    assert (words.state, words.reason) == (GpuState.BOOKED, "runner r1 of o/r until 2026-11-23 17:00 UTC")
