"""Bookings come true on the real services: who has booked gets in, who has not stays out, whatever is killed when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpuyard.bookings.controllers.bookings import BookingsError
from gpuyard.bookings.enforcement import SETTLE
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.pool_view import PREPARE, read_memory
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.model.booking import Booking, BookingState
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site
from gpuyard_lab.exercise import Exercise
from tests.integration.booked_lab import FLAVOR, POOL, PREFIX, RUNNER, BookedLab, Open, open_booked_lab, set_reserved
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

MUST = {"must_book": True, "grace": "30 min", "dry_run": False, "hold": "10 min"}
FREE = {**MUST, "must_book": False}
RUNNERS = {"project": "booked-ci", "enrolments": [{"organization": "conda-forge", "token_file": "token"}]}
ART = {"art": {"gpus": {"t4": 4}}}


@pytest.fixture
def opened(
    lab: RunningLab, operator: CloudApi, example: CompiledSite, exercise: Exercise, tmp_path: Path
) -> Iterator[Open]:
    """Makes a lab with bookings; everything is as it was afterwards."""
    made: list[BookedLab] = []

    def make(booking: dict[str, Any], projects: dict[str, Any] | None = None, **more: Any) -> BookedLab:
        made.append(open_booked_lab(lab, operator, tmp_path, booking, projects, **more))
        return made[-1]

    yield make
    for booked_lab in made:
        booked_lab.clear()
    observed = read_objects(operator, example)
    SiteApplier(operator, observed).apply(plan_site(example, observed), lambda step: None)


def start(booked: BookedLab, booking: Booking, early: float = 0) -> None:
    """Until a booking's start, and its GPUs are released. All of the waiting that matters is real."""
    booked.clock.until(booking.ask.start - PREPARE)
    booked.controller.run()
    threading.Event().wait(early or SETTLE.total_seconds() + 1.5)
    booked.clock.until(booking.ask.start)
    settle(booked)


def settle(booked: BookedLab) -> None:
    """Look as the loop does, until there is nothing to look again for: on a busy machine Nova takes its time."""
    for _ in range(30):
        again = booked.controller.run()
        if again is None:
            return
        threading.Event().wait(again)
    raise AssertionError(f"not released: {booked.controller.waits}")


def states(booked: BookedLab) -> list[GpuState]:
    return sorted(status.state for status in booked.statuses())


def test_a_booking_lets_its_owner_in_and_nobody_else_and_ends(opened: Open) -> None:
    booked = opened(MUST)
    booked.controller.run()
    assert booked.refused("ada"), "nothing is booked"
    booking = booked.book("ada")
    booked.controller.run()
    assert booked.refused("ada"), "it has not begun"
    assert states(booked) == [GpuState.FREE] * 4
    booked.clock.until(booking.ask.start - 1.5 * PREPARE)
    booked.controller.run()
    assert states(booked) == [GpuState.BOOKED, *[GpuState.FREE] * 3]
    (booked_status,) = [status for status in booked.statuses() if status.state is GpuState.BOOKED]
    assert booked_status.reason.startswith("booked by ada (physics) from 20")
    assert booked.refused("ada")
    booked.clock.until(booking.ask.start)
    booked.controller.run()
    assert booked.limits() == {"physics": 1}
    assert not booked.reserved()
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    assert booked.refused("bob")
    assert booked.refused("ada"), "one was booked"
    booked.controller.run()
    holding = booked.now(booking)
    assert holding.claimed is not None
    (claim,) = [s for s in booked.statuses() if s.claim and s.claim.server_id == boot.server_id]
    assert f"{claim.gpu.host}/{claim.gpu.address}" == booked.lanes()[holding.lanes[0]].name
    booked.clock.until(booking.ask.end)
    booked.controller.run()
    assert booked.now(booking).state is BookingState.ENDED
    assert booked.limits() == {}
    assert booked.refused("ada")


def lease(booked: BookedLab, server: str, *, yields: bool = False) -> Booking:
    who, end = booked.people[RUNNER], booked.clock() + timedelta(hours=1)
    take = booked.ledger.leases.take
    return take(POOL, 1, False, end, server, who.project_id, who.project, f"runner {server}", yields=yields)


def test_a_server_on_a_lease_starts_at_once_and_makes_way_for_a_booking(opened: Open) -> None:
    booked = opened(MUST, runners=RUNNERS)
    booked.controller.run()
    assert booked.limits() == {"booked-ci": 4}
    mine = lease(booked, f"{PREFIX}{RUNNER}-1", yields=True)
    boot = booked.boot(RUNNER)
    assert (boot.status, boot.name) == ("ACTIVE", mine.server), "nobody has looked since the lease was taken"
    assert booked.refused("ada"), "whoever has not booked stays out"
    booked.controller.run()
    claim = booked.claim_on(booked.lanes()[booked.now(mine).lanes[0]])
    assert claim is not None
    assert claim.server_id == boot.server_id, "Nova's choice is the ledger's"
    assert not booked.ledger.upkeep.records.open_overstays()
    booking = booked.book("bob", start=0, gpus=4)
    assert (booked.now(mine).state, booked.now(mine).reason) == (BookingState.ENDED, MADE_WAY)
    booked.controller.run()
    assert booked.limits() == {"booked-ci": 4, "art": 3}, "nobody is let in who would find somebody there"
    assert any(boot.name in wait for wait in booked.controller.waits)
    booked.exercises[RUNNER].delete([boot.server_id])
    booked.controller.run()
    assert booked.limits() == {"booked-ci": 4, "art": 4}
    assert not booked.controller.waits
    assert booked.now(booking).state is BookingState.ACTIVE


def test_no_server_on_a_lease_starts_while_a_bookings_gpus_are_released(opened: Open) -> None:
    booked = opened(FREE, ART, runners=RUNNERS)
    booking = booked.book("ada")
    booked.controller.run()
    assert booked.limits() == {"booked-ci": 4, "art": 4}
    start(booked, booking)
    assert booked.ledger.leases.rooms()[POOL].blocked.startswith(f"GPUs of pool {POOL} are released for booking")
    with pytest.raises(RefusedError, match="are released for booking"):
        lease(booked, f"{PREFIX}{RUNNER}-1")
    assert booked.refused(RUNNER), "Nova refuses it, too, should a lease have been taken just before"
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    booked.controller.run()
    lease(booked, f"{PREFIX}{RUNNER}-2")
    assert booked.boot(RUNNER).status == "ACTIVE"


def test_a_plan_lets_the_runners_project_see_flavors_and_have_servers(opened: Open) -> None:
    size = {"vcpus": 15, "ram": "90 GiB", "disk": "20 GiB", "ephemeral": "500 GiB"}
    flavors = {FLAVOR: {**size, "gpus": {"t4": 1}, "projects": ["art"]}}
    runners = {**RUNNERS, "allowed": {"flavors": [FLAVOR]}}
    booked = opened(MUST, {"art": {}}, runners=runners, flavors=flavors, limits={"servers": 1})
    observed = read_objects(booked.operator, booked.compiled)
    SiteApplier(booked.operator, observed).apply(plan_site(booked.compiled, observed), lambda step: None)
    try:
        assert not plan_site(booked.compiled, read_objects(booked.operator, booked.compiled)).steps
        pages = {who: api.pages("compute", "/flavors", "flavors", limit=1000) for who, api in booked.apis.items()}
        seers = {who for who, rows in pages.items() if FLAVOR in {row["name"] for row in rows}}
        assert seers == {"bob", RUNNER}
        booked.controller.run()
        assert [booked.boot(RUNNER).status for _ in range(2)] == ["ACTIVE"] * 2, "everybody else has one server at most"
    finally:
        for row in booked.operator.get("identity", "/limits")["limits"]:
            if row["project_id"] == booked.people[RUNNER].project_id:
                booked.operator.request("DELETE", "identity", f"/limits/{row['id']}")


def test_limits_of_others_on_these_gpus_do_not_stand_and_plans_leave_ours_alone(opened: Open) -> None:
    booked = opened(MUST)
    booking = booked.book("ada", start=0)
    booked.controller.run()
    assert booked.limits() == {"physics": 1}
    observed = read_objects(booked.operator, booked.compiled)
    assert {
        i.limit.value for i in observed.limits if i.limit.project == "demo" and "GPU_T4" in i.limit.resource
    } == set()
    plan = plan_site(booked.compiled, observed, prune=True)
    assert not [step for step in plan.steps if step.kind == "project limit" and "GPU" in step.name]
    booked.ledger.end(booking.id, booked.people["ada"])
    booked.controller.run()
    assert booked.limits() == {}


@pytest.mark.slow
def test_holds_of_an_operator_and_of_bookings_do_not_touch_each_other(opened: Open) -> None:
    booked = opened(MUST)
    booking = booked.book("ada", start=5 * 60, gpus=4)
    providers = booked.snapshot_providers()
    by_hand = sorted(gpu.provider_name for gpu in booked.compiled.gpus if gpu.pool == "t4")[0]
    set_reserved(booked.operator, providers[by_hand], 1)
    booked.controller.run()
    assert len(booked.reserved()) == 4
    remembered = read_memory(booked.ledger._store.values("t4")).holds
    assert remembered == {
        name: booked.operator.get("placement", f"/resource_providers/{providers[name]}")["generation"]
        for name in booked.reserved() - {by_hand}
    }, "the generation that a hold was to give is the one that it gave"
    booked.clock.until(booking.ask.start)
    booked.controller.run()
    assert booked.reserved() == {by_hand}
    assert booked.limits() == {"physics": 3}, "so many there are"
    booked.ledger.end(booking.id, booked.people["ada"])
    booked.controller.run()
    assert booked.reserved() == {by_hand}


def wait_until(true: Callable[[], bool], what: str, patience: float = 120) -> None:
    end = monotonic() + patience
    while not true():
        assert monotonic() < end, f"not within {patience:.0f} s: {what}"
        threading.Event().wait(0.5)


class Thief:
    """Somebody who wants GPUs and has booked none: posts as fast as Nova answers, from several threads, and throws away
    what came out without a GPU."""

    def __init__(self, booked: BookedLab, who: str, threads: int = 3) -> None:
        self._api = booked.apis[who]
        exercise = booked.exercises[who]
        self._body = {"flavorRef": exercise._flavors[FLAVOR], "imageRef": exercise._image, "networks": "none"}
        self._prefix = exercise._prefix
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._steal, args=(n,)) for n in range(threads)]
        self.accepted = self.refused = 0
        self.odd: list[str] = []

    def _steal(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                body = {"server": {**self._body, "name": f"{self._prefix}thief-{number}"}}
                made = self._api.request("POST", "compute", "/servers", body)["server"]["id"]
                self.accepted += 1
                self._throw_away_when_it_failed(made)
            except CloudError as error:
                if error.status == 403:
                    self.refused += 1
                else:
                    self.odd.append(str(error))

    def _throw_away_when_it_failed(self, made: str) -> None:
        while not self._stop.is_set():
            status = self._api.get("compute", f"/servers/{made}")["server"]["status"]
            if status == "ERROR":
                self._api.request("DELETE", "compute", f"/servers/{made}")
            if status != "BUILD":
                return

    def __enter__(self) -> Thief:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2])
def test_a_thief_who_posts_all_the_time_never_gets_the_booked_gpu(opened: Open, rounds: int) -> None:
    """Unbooked use is allowed, and the thief may use every GPU that nobody has booked."""
    booked = opened({**FREE, "most_active": 99}, ART)
    with Thief(booked, "bob") as thief:
        for _ in range(rounds):
            # The run that sees the end of the one before sees this one as well: its GPU goes from hold to hold. A run
            # in between would give the GPU to the thief, and rightly so: nobody has booked it then.
            booking = booked.book("ada", start=9 * 60)
            booked.controller.run()
            held, lanes = booked.reserved(), booked.now(booking).lanes
            mine = booked.lanes()[lanes[0]]
            assert len(held) == 1
            assert booked.claim_on(mine) is None, "it was free when it was held"
            booked.controller.run()
            assert (booked.reserved(), booked.now(booking).lanes) == (held, lanes), "a hold of ours is no trouble"
            # Else another one is free when the booking starts, and Nova may choose that.
            wait_until(lambda: sum(status.claim is not None for status in booked.statuses()) == 3, "the thief has 3")
            start(booked, booking)
            boot = booked.boot("ada")
            assert boot.status == "ACTIVE", boot.fault
            booked.controller.run()
            assert booked.now(booking).lanes == lanes, "it is the GPU that was held"
            claim = booked.claim_on(mine)
            assert claim is not None
            assert claim.server_id == boot.server_id
            booked.exercises["ada"].delete([boot.server_id])
            booked.controller.run()
            assert booked.claim_on(mine) is None, "it stays booked when its server is deleted"
            booked.ledger.end(booking.id, booked.people["ada"])
    assert thief.accepted > 3
    assert thief.refused > rounds
    assert not thief.odd


@pytest.mark.slow
def test_outside_its_window_the_gpu_is_held_and_opens_again_on_request(opened: Open) -> None:
    booked = opened(FREE, ART)
    booked.controller.run()
    assert booked.limits() == {"art": 4}
    booking = booked.book("ada", start=9 * 60, gpus=4)
    booked.controller.run()
    start(booked, booking)
    assert booked.limits() == {"physics": 4}
    assert not booked.reserved()
    booked.clock.until(booked.now(booking).open_until or booking.ask.end)
    booked.controller.run()
    assert booked.limits() == {"art": 4}
    assert len(booked.reserved()) == 4
    assert booked.refused("ada")
    booked.ledger.open(booking.id, booked.people["ada"])
    booked.controller.run()
    assert "are not released again before" in booked.controller.waits[0], "the others' turn is as long"
    booked.clock.forward(minutes=16)
    booked.controller.run()
    booked.ledger.open(booking.id, booked.people["ada"])
    booked.controller.run()
    assert "are not released yet" in booked.controller.waits[0]
    settle(booked)
    assert booked.now(booking).usable_since is not None
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault


@pytest.mark.slow
def test_a_whole_slot_is_booked_and_no_single_server_gets_half_of_it(opened: Open) -> None:
    booked = opened(MUST)
    whole = booked.book("ada", start=9 * 60, pool="v100", gpus=2, same_group=True)
    single = booked.book("bob", start=9 * 60, pool="v100", gpus=2, same_host=False)
    booked.controller.run()
    start(booked, whole)
    assert booked.refused("bob", "gpu_tiny"), "as long as the slot is released"
    (lane,) = booked.now(whole).lanes
    letters = {(g.host, g.address): g.set_letter for g in booked.compiled.gpus}
    letter = letters[booked.lanes()[lane].host, booked.lanes()[lane].addresses[0]]
    boot = booked.boot("ada", f"gpu_pair-{str(letter).lower()}")
    assert boot.status == "ACTIVE", boot.fault
    booked.controller.run()
    assert booked.now(whole).lanes == (lane,)
    for _ in range(2):
        assert booked.boot("bob", "gpu_tiny").status == "ACTIVE"
    booked.controller.run()
    assert booked.refused("bob", "gpu_tiny")
    assert len(booked.now(single).lanes) == 2
    assert not {lane} & set(booked.now(single).lanes)


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


class Killer:
    """Counts what is changed in the cloud and in the store's memory, and stops before the nth of them, or after."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0

    def around(self, change: Any) -> Any:
        def changed(*args: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == self.at and not self.after:
                raise Killed
            result = change(*args, **more)
            if self.count == self.at:
                raise Killed
            return result

        return changed


def run_until_killed(booked: BookedLab, monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> bool:
    """A run that dies at a change; False when it came to its end before."""
    killer = Killer(at, after)
    real = booked.operator.request

    def request(method: str, *more: Any, **others: Any) -> Any:
        return (real if method == "GET" else killer.around(real))(method, *more, **others)

    with monkeypatch.context() as patch:
        patch.setattr(booked.operator, "request", request)
        patch.setattr(booked.ledger._store, "swap_value", killer.around(booked.ledger._store.swap_value))
        try:
            booked.restart()
            booked.controller.run()
        except Killed:
            return True
        finally:
            booked.restart()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_change_of_a_start_or_an_end_it_goes_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The nth run is killed at its nth change; the next one brings everything to where it must be."""
    booked = opened({**FREE, "most_active": 99}, ART)
    booked.controller.run()
    at, kills = 1, 1
    while kills:
        kills = 0
        booking = booked.book("ada", start=9 * 60)
        kills += run_until_killed(booked, monkeypatch, at, after)
        assert len(booked.reserved()) <= 1
        booked.clock.until(booking.ask.start - PREPARE)
        kills += run_until_killed(booked, monkeypatch, at, after)
        booked.controller.run()
        assert len(booked.reserved()) == 1, "held"
        assert booked.limits() == {}, "and everybody else is out"
        booked.clock.until(booking.ask.start)
        kills += run_until_killed(booked, monkeypatch, at, after)
        assert "art" not in booked.limits()
        booked.controller.run()
        assert (booked.limits(), booked.reserved()) == ({"physics": 1}, set())
        booked.ledger.end(booking.id, booked.people["ada"])
        kills += run_until_killed(booked, monkeypatch, at, after)
        booked.controller.run()
        assert (booked.limits(), booked.reserved()) == ({"art": 4}, set())
        assert booked.ledger._store.values("t4") == {}, "nothing is left behind"
        at += 1
    assert at > 5


@pytest.mark.slow
def test_while_the_cloud_is_away_bookings_go_on_and_enforcement_catches_up(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    booked = opened(MUST)
    booking = booked.book("ada", start=60)
    real = booked.operator.request
    for service in ("identity", "compute", "placement"):

        def away(method: str, to: str, *more: Any, down: str = service, **others: Any) -> Any:
            if to == down:
                raise CloudError(f"cloud: {down} cannot be reached")
            return real(method, to, *more, **others)

        with monkeypatch.context() as patch:
            patch.setattr(booked.operator, "request", away)
            with pytest.raises((CloudError, BookingsError), match=f"{service} cannot be reached"):
                booked.controller.run()
            made = booked.book("bob", start=7200)
            booked.ledger.cancel(made.id, booked.people["bob"])
    booked.clock.until(booking.ask.start)
    assert booked.now(booking).state is BookingState.CONFIRMED
    booked.controller.run()
    assert booked.now(booking).state is BookingState.ACTIVE
    assert booked.boot("ada").status == "ACTIVE"


def test_a_project_that_is_gone_keeps_nobody_else_from_theirs(opened: Open) -> None:
    booked = opened(MUST)
    booked.people = {**booked.people, "ghost": replace(booked.people["bob"], project_id="0" * 32, user_id="1" * 32)}
    booked.book("ghost", start=0)
    booked.book("ada", start=0)
    booked.controller.run()
    assert booked.limits() == {"physics": 1}
