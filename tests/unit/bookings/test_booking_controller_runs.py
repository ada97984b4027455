"""Whole runs of the loop of bookings, with things that happen between two of its calls: errors that nobody has thought
of, another process, a person who changes a booking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.bookings.controllers.bookings import BookingController, BookingsError, LeadershipLostError
from gpuyard.bookings.controllers.channel import Message
from gpuyard.bookings.controllers.site_ledger import book_of, site_lanes
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.reclaim import warning
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Ask, Booking, BookingState, Person
from gpuyard.notifications.mail import body_of
from tests.support.booked_sites import booked_site
from tests.support.clouds import SmallCloud

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
T4 = "class:CUSTOM_GPU_T4_COUNT"
MUST = {"must_book": True, "dry_run": False, "grace": "30 min"}
ADA = Person("u-ada", "ada", "p-physics", "physics", frozenset({"member"}), "ada@example.org")
BOB = Person("u-bob", "bob", "p-art", "art", frozenset({"member"}))


@dataclass
class Harness:
    """One controller with its ledger and cloud; the time is what tests set."""

    folder: Path
    booking: dict[str, Any]
    now: datetime = NOW
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys of the site file."""
    ids: Iterator[int] = field(default_factory=lambda: iter(range(1, 999)))
    idle_servers: frozenset[str] = frozenset()
    """Servers that do nothing, as their guests say."""

    def __post_init__(self) -> None:
        self.compiled = booked_site(self.folder, self.booking, {"art": {"gpus": {"t4": 4}}}, **self.more)
        self.cloud = SmallCloud(self.compiled, projects={"physics": "p-physics", "art": "p-art", "ci": "p-ci"})
        self.url = f"sqlite:///{self.folder / 'ledger.db'}"
        self.start()

    def start(self) -> None:
        """As the portal begins: it knows what is in the database."""
        self.store = Store.open(self.url)
        self.store.sync_lanes(site_lanes(self.compiled.gpus))
        self.ledger = Ledger(self.store, book_of(self.compiled), lambda: self.now, lambda: f"b{next(self.ids)}")
        api: Any = self.cloud
        self.controller = BookingController(
            api, self.compiled, self.ledger, api, lambda: self.now, idle_servers=lambda: self.idle_servers
        )

    def book(self, who: Person, hours: float = 8, pool: str = "t4", gpus: int = 1, **more: Any) -> Booking:
        """From now on."""
        (made,) = self.ledger.create(Ask(pool, self.now, self.now + timedelta(hours=hours), gpus, **more), who)
        return made

    def boot(self, id: str, who: Person, *places: int, name: str = "") -> None:
        """On T4 by their place in the pool."""
        names = {(gpu.host, gpu.address): gpu.provider_name for gpu in self.compiled.gpus}
        all_of_them = [names[lane.host, address] for lane in self.ledger.lanes("t4") for address in lane.addresses]
        self.cloud.boot(id, who.user_id, who.project_id, [all_of_them[place] for place in places], self.now, name)

    def limits(self, pool: str = "T4") -> dict[str, int]:
        """Project's id -> limit."""
        resource_name = f"class:CUSTOM_GPU_{pool}_COUNT"
        return {project: limit for (project, resource), limit in self.cloud.limits.items() if resource == resource_name}

    def forward(self, **time: float) -> None:
        self.now += timedelta(**time)

    def run_for(self, hours: float) -> None:
        for _ in range(round(hours * 15)):
            self.forward(minutes=4)
            self.controller.run()

    def state(self, booking: Booking) -> BookingState:
        return self.ledger.get(booking.id).state

    def told(self) -> list[tuple[str, str]]:
        """Events of reclaiming, with addresses."""
        deliveries = self.store.take_undelivered("test", self.now, 1000)
        return [
            (delivery.event.kind, delivery.event.email)
            for delivery in deliveries
            if delivery.event.kind.startswith("reclaim")
        ]

    def audit(self, target: str) -> list[tuple[str, str]]:
        return [(entry.action, entry.text) for entry in reversed(self.ledger.audit(1000)) if entry.target == target]


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(**booking: Any) -> Harness:
        made.append(Harness(tmp_path, {**MUST, **booking}))
        made[-1].store.take_undelivered("test", NOW, 1)
        return made[-1]

    yield make
    for harness in made:
        harness.store.close()


def at(request: str, do: Callable[[], Any]) -> Callable[[str], None]:
    """Do something once, right before the cloud is asked this."""
    left = [do]

    def between(call: str) -> None:
        if call.startswith(request) and left:
            left.pop()()

    return between


# Errors that nobody has thought of.


def test_an_error_of_one_pool_that_nobody_has_thought_of_keeps_no_other_from_its_bookings(
    inventory: Callable[..., Harness], caplog: pytest.LogCaptureFixture
) -> None:
    harness = inventory()
    harness.store.set_value("t4", "holds", "what=ever")
    harness.book(ADA)
    harness.book(ADA, pool="v100")
    for _ in range(2):
        with pytest.raises(BookingsError, match=r"^pool t4: ValueError: invalid literal"):
            harness.controller.run()
    assert (harness.limits("V100"), harness.limits()) == ({"p-physics": 1}, {})
    error_records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in error_records] == [
        "pool t4: ValueError: invalid literal for int() with base 10: 'ever'"
    ]
    assert error_records[0].exc_info, "with where it came from"
    harness.store.set_value("t4", "holds", None)
    harness.controller.run()
    assert (harness.limits("V100"), harness.limits()) == ({"p-physics": 1}, {"p-physics": 1})


def test_what_was_wrong_with_gpus_of_a_pool_that_cannot_be_looked_at_is_not_forgotten(
    inventory: Callable[..., Harness],
) -> None:
    harness = inventory()
    bad = harness.ledger.lanes("t4")[0]
    harness.ledger.upkeep.set_troubles({bad.id: "it fell off the bus"})
    harness.store.set_value("t4", "holds", "what=ever")
    with pytest.raises(BookingsError, match=r"^pool t4: "):
        harness.controller.run()
    assert harness.ledger.lanes("t4")[0].trouble == "it fell off the bus"


def test_an_error_while_the_ledger_is_told_is_named_and_the_rest_goes_on(
    inventory: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = inventory()
    harness.book(ADA)

    def broken(*_: object) -> None:
        raise KeyError("lane")

    monkeypatch.setattr(harness.ledger.upkeep, "set_troubles", broken)
    monkeypatch.setattr(harness.ledger.upkeep, "record_claims", broken)
    with pytest.raises(BookingsError, match=r"^what is wrong with GPUs: KeyError: 'lane'; who is let in: KeyError"):
        harness.controller.run()
    assert harness.limits() == {"p-physics": 1}


def test_a_site_that_was_never_applied_is_told_what_to_do(inventory: Callable[..., Harness]) -> None:
    """Keystone answers 403 to a limit on what has no registered one."""
    harness = inventory()
    harness.cloud.registered = False
    harness.book(ADA)
    with pytest.raises(BookingsError, match=r"no registered limit on class:CUSTOM_GPU_T4.*gpuyard site apply"):
        harness.controller.run()


# The clock of no-shows.


def test_who_was_never_let_in_is_no_no_show(inventory: Callable[..., Harness]) -> None:
    """Bob's servers are on every GPU, and a dry run lets them."""
    harness = inventory(dry_run=True)
    for place in range(4):
        harness.boot(f"s{place}", BOB, place)
    booking = harness.book(ADA, hours=12)
    for _ in range(20):
        harness.controller.run()
        harness.forward(minutes=15)
    assert harness.state(booking) is BookingState.ACTIVE
    assert harness.limits() == {}
    harness.cloud.holders = {name: id for name, id in harness.cloud.holders.items() if id != "s0"}
    for _ in range(15):
        for _ in range(4):
            harness.controller.run()
            harness.forward(minutes=4)
    assert harness.state(booking) is BookingState.ACTIVE, "the four hours begin now"
    assert harness.limits() == {"p-physics": 1}
    harness.controller.run()
    harness.forward(minutes=4)
    harness.controller.run()
    assert harness.state(booking) is BookingState.NO_SHOW


@pytest.mark.parametrize("returns", [False, True])
def test_who_deletes_his_server_and_starts_none_gives_the_gpus_back(
    inventory: Callable[..., Harness], returns: bool
) -> None:
    """Nobody else, and no job, could have them until the booking's end. The four hours are stored: they begin when the
    owner can start another server, and anew after each server."""
    harness = inventory()
    booking = harness.book(ADA, hours=24)
    harness.boot("s1", ADA, 0)
    for _ in range(90):  # six hours with a server
        harness.controller.run()
        harness.forward(minutes=4)
    harness.cloud.holders = {}
    harness.controller.run()
    for _ in range(45):
        harness.forward(minutes=4)
        harness.controller.run()
    if returns:
        harness.boot("s2", ADA, 0)
        harness.controller.run()
        harness.forward(minutes=4)
        harness.controller.run()
        harness.cloud.holders = {}
        harness.controller.run()
    for _ in range(14):
        assert harness.state(booking) is BookingState.ACTIVE
        harness.forward(minutes=4)
        harness.controller.run()
    harness.forward(minutes=4)
    harness.controller.run()
    assert harness.state(booking) is (BookingState.ACTIVE if returns else BookingState.NO_SHOW)
    if not returns:
        assert harness.ledger.get(booking.id).reason.startswith("its server is gone, and no other one came in time")
        assert len([lane for lane in harness.ledger.leases.rooms()["t4"].lanes if lane.free[0][0] == harness.now]) == 4


def test_who_used_a_part_of_a_booking_has_as_long_as_everybody_for_another_server(
    inventory: Callable[..., Harness],
) -> None:
    """The owner could have started a second server all the time, and need not."""
    harness = inventory()
    booking = harness.book(ADA, hours=24, gpus=2)
    harness.boot("s1", ADA, 0)
    harness.controller.run()
    harness.run_for(hours=6)
    assert harness.ledger.get(booking.id).usable_since is not None
    harness.cloud.holders = {}
    harness.controller.run()
    assert harness.state(booking) is BookingState.ACTIVE
    harness.boot("s2", ADA, 1)
    harness.run_for(hours=6)
    harness.cloud.holders = {}
    harness.controller.run()
    harness.run_for(hours=3.9)
    assert harness.state(booking) is BookingState.ACTIVE
    harness.run_for(hours=0.2)
    assert harness.state(booking) is BookingState.NO_SHOW


@pytest.mark.parametrize("first", ["the window", "the server"])
def test_after_a_window_the_clock_begins_when_the_server_goes(inventory: Callable[..., Harness], first: str) -> None:
    """Another window is the owner's to have. It goes on when the portal is restarted, or the owner has such a window
    and starts nothing. A server that was there before the booking needed none."""
    harness = inventory(must_book=False)
    if first == "the server":
        harness.boot("s1", ADA, 0)
        harness.controller.run()
    booking = harness.book(ADA, hours=24)
    for _ in range(2):
        harness.controller.run()
        harness.forward(seconds=6)
    if first == "the window":
        harness.boot("s1", ADA, 0)
    harness.run_for(hours=6)
    harness.cloud.holders = {}
    harness.controller.run()
    harness.run_for(hours=2)
    harness.ledger.open(booking.id, ADA)
    harness.store.close()
    harness.start()
    harness.controller.run()
    harness.run_for(hours=1.9)
    assert harness.state(booking) is BookingState.ACTIVE
    harness.run_for(hours=0.2)
    assert harness.state(booking) is BookingState.NO_SHOW


def test_where_a_window_is_had_the_clock_goes_on_after_it(inventory: Callable[..., Harness]) -> None:
    """Another one is the owner's to have, at any time."""
    harness = inventory(must_book=False)
    booking = harness.book(ADA, hours=12)
    for _ in range(3):
        harness.controller.run()
        harness.forward(seconds=6)
    for _ in range(60):
        assert harness.state(booking) is BookingState.ACTIVE
        harness.forward(minutes=4)
        harness.controller.run()
    harness.forward(minutes=1)
    harness.controller.run()
    assert harness.state(booking) is BookingState.NO_SHOW


# Whom reclaiming tells.


def test_who_never_booked_is_told_at_the_address_that_keystone_has(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    harness.cloud.emails = {"u-bob": "bob@example.org"}
    harness.boot("s1", BOB, 0)
    harness.boot("s2", BOB, 1)
    harness.controller.run()
    assert harness.told() == [("reclaim.warned", "bob@example.org")] * 2
    assert harness.cloud.asked.count("GET identity /users/u-bob") == 1


def test_who_has_no_address_is_in_the_audit_log(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    harness.cloud.emails = {"u-bob": None}
    harness.boot("s1", BOB, 0)
    harness.controller.run()
    harness.controller.run()
    assert harness.told() == [("reclaim.warned", "")]
    action, text = harness.audit("s1")[-1]
    assert action == "message.no_address"
    assert text == "server s1: its owner could not be told: Keystone has no address of user u-bob"
    assert len(harness.audit("s1")) == 2


def test_the_address_of_a_booking_helps_when_keystone_has_none(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    booking = harness.book(ADA, hours=1)
    harness.boot("s1", ADA, 0)
    harness.controller.run()
    harness.ledger.end(booking.id, ADA)
    harness.controller.run()
    assert harness.told() == [("reclaim.warned", "ada@example.org")]


# Servers that do nothing.


def idle_yard(folder: Path, **rules: str) -> Harness:
    health = {"agent": {"projects": ["physics"]}, "idle": {"after": "1 h", **rules}}
    harness = Harness(folder, {**MUST, "reclaim": "shelve"}, more={"health": health})
    harness.store.take_undelivered("test", NOW, 1)
    harness.idle_servers = frozenset({"s1"})
    return harness


def test_who_does_nothing_with_a_booked_gpu_is_asked_to_give_it_back(tmp_path: Path) -> None:
    harness = idle_yard(tmp_path)
    with closing(harness.store):
        booking = harness.book(ADA)
        harness.boot("s1", ADA, 0)
        for _ in range(3):
            harness.controller.run()
            harness.forward(minutes=40)
        (event,) = [
            two.event for two in harness.store.take_undelivered("test", harness.now, 99) if "idle" in two.event.kind
        ]
        assert (event.kind, event.user_id, event.email) == ("server.idle", "u-ada", "ada@example.org")
        assert event.details["give_back"] == f"gpuyard booking end {booking.id}"
        text = "\n".join(body_of(Message(event, "lab"), ZoneInfo("UTC")))
        assert f"Then:      gpuyard booking end {booking.id}" in text
        assert "Use it, or give its GPU back" in text
        words = "nothing has run on its GPUs for long: use it, or delete or shelve this server, please, "
        assert [warning(case) for case in harness.store.open_overstays()] == [f"{words}and end its booking"]
        assert [call for call in harness.cloud.asked if "compute" in call] == ["POST compute /servers/s1/metadata"]
        harness.idle_servers = frozenset()
        harness.controller.run()
        assert harness.store.open_overstays() == []
        assert harness.cloud.asked[-1] == "DELETE compute /servers/s1/metadata/gpuyard"


def test_where_the_site_says_so_an_idle_server_is_reclaimed_after_its_grace(tmp_path: Path) -> None:
    harness = idle_yard(tmp_path, action="reclaim")
    with closing(harness.store):
        harness.book(ADA)
        harness.boot("s1", ADA, 0)
        harness.controller.run()
        (case,) = harness.store.overstays()
        assert "at 2026-11-23 09:30 UTC this server is shelved" in warning(case)
        harness.forward(minutes=29)
        harness.controller.run()
        assert harness.cloud.holders
        harness.forward(minutes=2)
        harness.controller.run()
        assert not harness.cloud.holders


# Servers on several bookings, and bookings that change under the controller's eyes.


def test_a_server_on_two_bookings_of_one_gpu_each_stays(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    first, second = harness.book(ADA), harness.book(ADA)
    harness.controller.run()
    assert harness.limits() == {"p-physics": 2}
    # Both GPUs of one host, wherever the bookings have theirs.
    lanes = harness.ledger.lanes("t4")
    harness.boot("s1", ADA, 2, 3)
    harness.controller.run()
    assert harness.store.overstays() == []
    taken = [harness.ledger.get(booking.id).lanes for booking in (first, second)]
    assert sorted(taken) == [(lanes[2].id,), (lanes[3].id,)]
    assert all(harness.ledger.get(booking.id).claimed for booking in (first, second))
    assert harness.limits() == {"p-physics": 2}


def overdue(harness: Harness) -> Booking:
    """A booking that was over half an hour ago, whose server is to be shelved at the next run."""
    booking = harness.book(ADA, hours=1)
    harness.boot("s1", ADA, 0)
    harness.controller.run()
    harness.ledger.end(booking.id, ADA)
    harness.controller.run()
    harness.forward(minutes=31)
    return booking


@pytest.mark.parametrize("moment", ["GET identity /limits", "GET compute /servers/s1"])
def test_who_books_while_the_controller_waits_for_an_answer_keeps_the_server(
    inventory: Callable[..., Harness], moment: str
) -> None:
    harness = inventory()
    overdue(harness)
    harness.cloud.between = at(moment, lambda: harness.book(ADA))
    harness.controller.run()
    assert "POST compute /servers/s1/action" not in harness.cloud.asked
    harness.controller.run()
    assert [case.cleared for case in harness.store.overstays()] == [harness.now]


def test_without_a_booking_it_is_shelved(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    overdue(harness)
    harness.controller.run()
    assert "POST compute /servers/s1/action" in harness.cloud.asked


def test_an_error_with_one_server_keeps_no_other_case_waiting(inventory: Callable[..., Harness]) -> None:
    from gpuyard.openstack.api import CloudError

    harness = inventory()
    harness.boot("s1", BOB, 0)
    harness.boot("s2", BOB, 1)
    harness.controller.run()
    harness.forward(minutes=31)

    def refuse(call: str) -> None:
        if call == "GET compute /servers/s1":
            raise CloudError("500 what is this server", 500)

    harness.cloud.between = refuse
    with pytest.raises(BookingsError, match=r"^pool t4: server s1 \(s1\): 500"):
        harness.controller.run()
    assert "POST compute /servers/s2/action" in harness.cloud.asked


# Another process.


def test_who_has_lost_the_turn_does_not_finish_its_run(inventory: Callable[..., Harness]) -> None:
    harness = inventory(must_book=False)
    harness.ledger.create(Ask("t4", NOW + timedelta(minutes=5), NOW + timedelta(hours=4), 4), ADA)
    harness.cloud.limits = {("p-art", T4): 2}
    with closing(Store.open(harness.url)) as other:

        def fail_over() -> None:
            harness.store.resign()
            assert other.try_to_lead("bookings")

        harness.cloud.between = at("PUT placement", fail_over)
        with pytest.raises(LeadershipLostError, match="no longer leads bookings"):
            harness.controller.run()
        changes = [call for call in harness.cloud.asked if not call.startswith("GET")]
        assert len(changes) == 1, "the one that was on its way"
        harness.controller.run()
        assert harness.controller.waits == ("another process on this database leads bookings",)
    harness.controller.run()
    assert len(harness.cloud.reserved) == 4
    assert harness.limits() == {"p-art": 4}


def test_what_another_process_has_written_down_is_not_lost(inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    harness.ledger.create(Ask("t4", NOW + timedelta(minutes=5), NOW + timedelta(hours=4), 1), ADA)
    other = [gpu.provider_name for gpu in harness.compiled.gpus if gpu.pool == "t4"][-1]

    def hold() -> None:
        """As the other one does for a booking that is cancelled right away."""
        harness.store.set_value("t4", "holds", f"{other}=2")
        harness.cloud.reserved[other], harness.cloud.generations[other] = 1, 2

    harness.cloud.between = at("GET placement", hold)
    harness.controller.run()
    (held,) = harness.cloud.reserved
    assert held != other, "nobody needs that one"
    assert harness.store.value("t4", "holds") == f"{held}=2"


def test_a_new_database_takes_nobody_s_gpus_away(tmp_path: Path, inventory: Callable[..., Harness]) -> None:
    harness = inventory()
    harness.book(ADA)
    harness.controller.run()
    assert harness.limits() == {"p-physics": 1}
    with closing(Store.open(f"sqlite:///{tmp_path / 'misspelt.db'}")) as store:
        store.sync_lanes(site_lanes(harness.compiled.gpus))
        ledger = Ledger(store, book_of(harness.compiled), lambda: harness.now, lambda: "x")
        api: Any = harness.cloud
        other = BookingController(api, harness.compiled, ledger, api, lambda: harness.now)
        for _ in range(2):
            with pytest.raises(BookingsError, match=r"is new, and the cloud has . limits of its bookings"):
                other.run()
    assert harness.limits() == {"p-physics": 1}
    harness.controller.run()
