"""Groups that runners have leased are held until Nova is asked for the server, whatever the loop of bookings does at
the same time, and wherever a process ends.

Placement's side is its own rule (placement 14, placement/handlers/inventory.py, `update_inventory`: 409 "resource
provider generation conflict" when the generation is not the provider's, which every write increments).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings import enforcement
from gpuyard.bookings.controllers.group_holds import GroupHolds, open_group_holds
from gpuyard.bookings.pool_view import read_memory
from gpuyard.model.booking import Booking
from tests.support.clouds import SmallCloud
from tests.unit.bookings.test_booking_controller_leases import RUNNERS
from tests.unit.bookings.test_booking_controller_runs import MUST, Harness

POOL = "v100"


class Killed(BaseException):
    """As SIGKILL, nobody catches it."""


class Groups(Harness):
    """The loop of bookings, and holds of groups, on one cloud and database."""

    def start(self) -> None:
        super().start()
        self.back: dict[tuple[str, str], str] = {}
        api: Any = self.cloud
        self.holds: GroupHolds = open_group_holds(self.compiled, self.ledger, api, lambda: self.back)

    def lease(self, server: str = "r1", gpus: int = 2) -> Booking:
        end = self.now + timedelta(hours=2)
        return self.ledger.leases.take(
            POOL, gpus, gpus > 1, end, server, "p-ci", "ci", f"runner {server} of o/r", yields=False
        )

    def group(self, lease: Booking) -> set[str]:
        """Names of its providers."""
        names = {(gpu.host, gpu.address): gpu.provider_name for gpu in self.compiled.gpus}
        lanes = (lane for lane in self.ledger.lanes(POOL) if lane.id in self.ledger.get(lease.id).lanes)
        return {names[lane.host, address] for lane in lanes for address in lane.addresses}

    def remembered(self) -> set[str]:
        return {*read_memory(self.ledger.upkeep.records.values(POOL)).holds}

    def boot_pair(self, lease: Booking) -> None:
        self.cloud.boot("s1", "u-gpuyard", "p-ci", self.group(lease), self.now, lease.server)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Groups]:
    groups = Groups(tmp_path, MUST, more={"runners": RUNNERS})
    groups.controller.run()
    yield groups
    groups.store.close()


def calls(cloud: SmallCloud, number: int, then: Callable[[], object]) -> list[set[str]]:
    """Do something before that call to the cloud, once, and nothing about the calls that this makes. Returns what was
    reserved before each call after it, the next included: empty as long as it was not done."""
    left, after = [number], list[set[str]]()

    def between(call: str) -> None:
        if left[0] == 0:
            left[0] = -1
            then()
            left[0] = -2
        left[0] -= left[0] > 0
        if left[0] == -2:
            after.append({*cloud.reserved})

    cloud.between = between
    return after


def test_a_leased_group_is_held_until_nova_is_asked(made: Groups) -> None:
    lease = made.lease()
    made.holds.place(lease.id)
    assert set(made.cloud.reserved) == made.group(lease) == made.remembered()
    changes = list(made.cloud.asked)
    made.controller.run()
    assert made.cloud.asked == changes, "the loop would do just that"
    assert not [lane.trouble for lane in made.ledger.lanes(POOL) if lane.trouble]
    assert made.holds.lift(lease.id) == ""
    assert not made.cloud.reserved
    made.controller.run()
    assert (made.cloud.reserved, made.remembered()) == ({}, set())
    made.boot_pair(lease)
    made.controller.run()
    assert made.ledger.get(lease.id).claimed is not None
    assert not made.cloud.reserved


def test_a_look_that_began_before_a_hold_came_off_takes_it_for_ours(made: Groups) -> None:
    """Else the GPUs would be in trouble, as ones that somebody else has reserved."""
    lease = made.lease()
    made.holds.place(lease.id)
    snapshot = made.cloud.take(made.now)
    made.holds.lift(lease.id)
    take, made.cloud.take = made.cloud.take, lambda now: snapshot  # type: ignore[method-assign]
    made.controller.run()
    assert not [lane.trouble for lane in made.ledger.lanes(POOL) if lane.trouble]
    made.cloud.take = take  # type: ignore[method-assign]
    made.controller.run()
    assert (made.cloud.reserved, made.remembered()) == ({}, set())


def test_single_gpus_are_not_held(made: Groups) -> None:
    lease, changes = made.lease(gpus=1), list(made.cloud.asked)
    made.holds.place(lease.id)
    assert made.holds.lift(lease.id) == ""
    made.controller.run()
    assert (made.cloud.asked, made.cloud.reserved) == (changes, {})


def test_what_is_kept_back_stays_held(made: Groups) -> None:
    lease = made.lease()
    made.holds.place(lease.id)
    (lane,) = (lane for lane in made.ledger.lanes(POOL) if lane.id in lease.lanes)
    made.back[lane.host, lane.addresses[0]] = "broken: Xid 79"
    assert "broken: Xid 79" in made.holds.lift(lease.id)
    assert set(made.cloud.reserved) == made.group(lease)


def test_a_group_that_somebody_has_meanwhile_is_not_held_and_the_runner_goes_on(made: Groups) -> None:
    lease = made.lease()
    leader = min(made.group(lease))
    calls(made.cloud, 3, lambda: made.cloud.generations.update({leader: 99}))
    made.holds.place(lease.id)
    assert made.holds.lift(lease.id) == ""
    made.controller.run()
    assert (made.cloud.reserved, made.remembered()) == ({}, set())


@pytest.mark.parametrize("lifting", [False, True])
def test_killed_at_any_call_the_loop_ends_what_was_begun(tmp_path: Path, lifting: bool) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = Groups(folder, MUST, more={"runners": RUNNERS})
        made.controller.run()
        lease = made.lease()
        if lifting:
            made.holds.place(lease.id)
        died = False

        def die() -> None:
            raise Killed

        calls(made.cloud, number, die)
        try:
            made.holds.lift(lease.id) if lifting else made.holds.place(lease.id)
        except Killed:
            died = True
        made.cloud.between = lambda asked: None
        lifted = lease.id in read_memory(made.ledger.upkeep.records.values(POOL)).lifted
        made.controller.run()
        assert set(made.cloud.reserved) == (set() if lifted else made.group(lease))
        made.ledger.leases.end(lease.id, "nobody works on it any more")
        made.controller.run()
        assert (made.cloud.reserved, made.remembered()) == ({}, set())
        made.store.close()
        if not died:
            assert number > 3, "every call of it was tried"
            return
    raise AssertionError("it makes more calls than were tried")


@pytest.mark.parametrize(("placed", "loop_first"), [(False, True), (True, True), (True, False)])
def test_nothing_holds_a_group_once_it_is_lifted(tmp_path: Path, placed: bool, loop_first: bool) -> None:
    """The loop runs at each call of the lift, and the lift at each call of the loop."""
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = Groups(folder, MUST, more={"runners": RUNNERS})
        made.controller.run()
        lease = made.lease()
        if placed:
            made.holds.place(lease.id)
        if loop_first:
            after = calls(made.cloud, number, partial(made.holds.lift, lease.id))
            made.controller.run()
            held = any(after)
        else:
            after = calls(made.cloud, number, made.controller.run)
            assert made.holds.lift(lease.id) == ""
            held = bool(made.cloud.reserved)
        made.cloud.between = lambda asked: None
        if after:
            assert not held, f"before call {number}"
            assert not made.cloud.reserved
            made.controller.run()
            assert (made.cloud.reserved, made.remembered()) == ({}, set())
        made.store.close()
        if not after:
            assert number > 1, "every call was tried"
            return
    raise AssertionError("there are more calls than were tried")


def test_without_a_last_look_the_loop_would_hold_what_was_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the test before this one can fail."""
    monkeypatch.setattr(enforcement, "_require_waiting", lambda view, holding: ())
    with pytest.raises(AssertionError, match="before call"):
        test_nothing_holds_a_group_once_it_is_lifted(tmp_path, placed=False, loop_first=True)
