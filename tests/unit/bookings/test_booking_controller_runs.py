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
        wanted = f"class:CUSTOM_GPU_{pool}_COUNT"
        return {project: limit for (project, resource), limit in self.cloud.limits.items() if resource == wanted}

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
        told = self.store.take_undelivered("test", self.now, 1000)
        return [(one.event.kind, one.event.email) for one in told if one.event.kind.startswith("reclaim")]

    def audit(self, target: str) -> list[tuple[str, str]]:
        return [(one.action, one.text) for one in reversed(self.ledger.audit(1000)) if one.target == target]


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(**booking: Any) -> Harness:
        made.append(Harness(tmp_path, {**MUST, **booking}))
        made[-1].store.take_undelivered("test", NOW, 1)
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def at(request: str, do: Callable[[], Any]) -> Callable[[str], None]:
    """Do something once, right before the cloud is asked this."""
    left = [do]

    def between(asked: str) -> None:
        if asked.startswith(request) and left:
            left.pop()()

    return between


# Errors that nobody has thought of.


def test_an_error_of_one_pool_that_nobody_has_thought_of_keeps_no_other_from_its_bookings(
    inventory: Callable[..., Harness], caplog: pytest.LogCaptureFixture
) -> None:
    one = inventory()
    one.store.set_value("t4", "holds", "what=ever")
    one.book(ADA)
    one.book(ADA, pool="v100")
    for _ in range(2):
        with pytest.raises(BookingsError, match=r"^pool t4: ValueError: invalid literal"):
            one.controller.run()
    assert (one.limits("V100"), one.limits()) == ({"p-physics": 1}, {})
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in told] == [
        "pool t4: ValueError: invalid literal for int() with base 10: 'ever'"
    ]
    assert told[0].exc_info, "with where it came from"
    one.store.set_value("t4", "holds", None)
    one.controller.run()
    assert (one.limits("V100"), one.limits()) == ({"p-physics": 1}, {"p-physics": 1})


def test_what_was_wrong_with_gpus_of_a_pool_that_cannot_be_looked_at_is_not_forgotten(
    inventory: Callable[..., Harness],
) -> None:
    one = inventory()
    bad = one.ledger.lanes("t4")[0]
    one.ledger.upkeep.set_troubles({bad.id: "it fell off the bus"})
    one.store.set_value("t4", "holds", "what=ever")
    with pytest.raises(BookingsError, match=r"^pool t4: "):
        one.controller.run()
    assert one.ledger.lanes("t4")[0].trouble == "it fell off the bus"


def test_an_error_while_the_ledger_is_told_is_named_and_the_rest_goes_on(
    inventory: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = inventory()
    one.book(ADA)

    def broken(*_: object) -> None:
        raise KeyError("lane")

    monkeypatch.setattr(one.ledger.upkeep, "set_troubles", broken)
    monkeypatch.setattr(one.ledger.upkeep, "record_claims", broken)
    with pytest.raises(BookingsError, match=r"^what is wrong with GPUs: KeyError: 'lane'; who is let in: KeyError"):
        one.controller.run()
    assert one.limits() == {"p-physics": 1}


def test_a_site_that_was_never_applied_is_told_what_to_do(inventory: Callable[..., Harness]) -> None:
    """Keystone answers 403 to a limit on what has no registered one."""
    one = inventory()
    one.cloud.registered = False
    one.book(ADA)
    with pytest.raises(BookingsError, match=r"no registered limit on class:CUSTOM_GPU_T4.*gpuyard site apply"):
        one.controller.run()


# The clock of no-shows.


def test_who_was_never_let_in_is_no_no_show(inventory: Callable[..., Harness]) -> None:
    """Bob's servers are on every GPU, and a dry run lets them."""
    one = inventory(dry_run=True)
    for place in range(4):
        one.boot(f"s{place}", BOB, place)
    booking = one.book(ADA, hours=12)
    for _ in range(20):
        one.controller.run()
        one.forward(minutes=15)
    assert one.state(booking) is BookingState.ACTIVE
    assert one.limits() == {}
    one.cloud.holders = {name: id for name, id in one.cloud.holders.items() if id != "s0"}
    for _ in range(15):
        for _ in range(4):
            one.controller.run()
            one.forward(minutes=4)
    assert one.state(booking) is BookingState.ACTIVE, "the four hours begin now"
    assert one.limits() == {"p-physics": 1}
    one.controller.run()
    one.forward(minutes=4)
    one.controller.run()
    assert one.state(booking) is BookingState.NO_SHOW


@pytest.mark.parametrize("returns", [False, True])
def test_who_deletes_his_server_and_starts_none_gives_the_gpus_back(
    inventory: Callable[..., Harness], returns: bool
) -> None:
    """Nobody else, and no job, could have them until the booking's end. The four hours are stored: they begin when the
    owner can start another server, and anew after each server."""
    one = inventory()
    booking = one.book(ADA, hours=24)
    one.boot("s1", ADA, 0)
    for _ in range(90):  # six hours with a server
        one.controller.run()
        one.forward(minutes=4)
    one.cloud.holders = {}
    one.controller.run()
    for _ in range(45):
        one.forward(minutes=4)
        one.controller.run()
    if returns:
        one.boot("s2", ADA, 0)
        one.controller.run()
        one.forward(minutes=4)
        one.controller.run()
        one.cloud.holders = {}
        one.controller.run()
    for _ in range(14):
        assert one.state(booking) is BookingState.ACTIVE
        one.forward(minutes=4)
        one.controller.run()
    one.forward(minutes=4)
    one.controller.run()
    assert one.state(booking) is (BookingState.ACTIVE if returns else BookingState.NO_SHOW)
    if not returns:
        assert one.ledger.get(booking.id).reason.startswith("its server is gone, and no other one came in time")
        assert len([lane for lane in one.ledger.leases.rooms()["t4"].lanes if lane.free[0][0] == one.now]) == 4


def test_who_used_a_part_of_a_booking_has_as_long_as_everybody_for_another_server(
    inventory: Callable[..., Harness],
) -> None:
    """The owner could have started a second server all the time, and need not."""
    one = inventory()
    booking = one.book(ADA, hours=24, gpus=2)
    one.boot("s1", ADA, 0)
    one.controller.run()
    one.run_for(hours=6)
    assert one.ledger.get(booking.id).usable_since is not None
    one.cloud.holders = {}
    one.controller.run()
    assert one.state(booking) is BookingState.ACTIVE
    one.boot("s2", ADA, 1)
    one.run_for(hours=6)
    one.cloud.holders = {}
    one.controller.run()
    one.run_for(hours=3.9)
    assert one.state(booking) is BookingState.ACTIVE
    one.run_for(hours=0.2)
    assert one.state(booking) is BookingState.NO_SHOW


@pytest.mark.parametrize("first", ["the window", "the server"])
def test_after_a_window_the_clock_begins_when_the_server_goes(inventory: Callable[..., Harness], first: str) -> None:
    """Another window is the owner's to have. It goes on when the portal is restarted, or the owner has such a window
    and starts nothing. A server that was there before the booking needed none."""
    one = inventory(must_book=False)
    if first == "the server":
        one.boot("s1", ADA, 0)
        one.controller.run()
    booking = one.book(ADA, hours=24)
    for _ in range(2):
        one.controller.run()
        one.forward(seconds=6)
    if first == "the window":
        one.boot("s1", ADA, 0)
    one.run_for(hours=6)
    one.cloud.holders = {}
    one.controller.run()
    one.run_for(hours=2)
    one.ledger.open(booking.id, ADA)
    one.store.close()
    one.start()
    one.controller.run()
    one.run_for(hours=1.9)
    assert one.state(booking) is BookingState.ACTIVE
    one.run_for(hours=0.2)
    assert one.state(booking) is BookingState.NO_SHOW


def test_where_a_window_is_had_the_clock_goes_on_after_it(inventory: Callable[..., Harness]) -> None:
    """Another one is the owner's to have, at any time."""
    one = inventory(must_book=False)
    booking = one.book(ADA, hours=12)
    for _ in range(3):
        one.controller.run()
        one.forward(seconds=6)
    for _ in range(60):
        assert one.state(booking) is BookingState.ACTIVE
        one.forward(minutes=4)
        one.controller.run()
    one.forward(minutes=1)
    one.controller.run()
    assert one.state(booking) is BookingState.NO_SHOW


# Whom reclaiming tells.


def test_who_never_booked_is_told_at_the_address_that_keystone_has(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    one.cloud.emails = {"u-bob": "bob@example.org"}
    one.boot("s1", BOB, 0)
    one.boot("s2", BOB, 1)
    one.controller.run()
    assert one.told() == [("reclaim.warned", "bob@example.org")] * 2
    assert one.cloud.asked.count("GET identity /users/u-bob") == 1


def test_who_has_no_address_is_in_the_audit_log(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    one.cloud.emails = {"u-bob": None}
    one.boot("s1", BOB, 0)
    one.controller.run()
    one.controller.run()
    assert one.told() == [("reclaim.warned", "")]
    action, text = one.audit("s1")[-1]
    assert action == "message.no_address"
    assert text == "server s1: its owner could not be told: Keystone has no address of user u-bob"
    assert len(one.audit("s1")) == 2


def test_the_address_of_a_booking_helps_when_keystone_has_none(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    booking = one.book(ADA, hours=1)
    one.boot("s1", ADA, 0)
    one.controller.run()
    one.ledger.end(booking.id, ADA)
    one.controller.run()
    assert one.told() == [("reclaim.warned", "ada@example.org")]


# Servers that do nothing.


def idle_yard(folder: Path, **rules: str) -> Harness:
    health = {"agent": {"projects": ["physics"]}, "idle": {"after": "1 h", **rules}}
    one = Harness(folder, {**MUST, "reclaim": "shelve"}, more={"health": health})
    one.store.take_undelivered("test", NOW, 1)
    one.idle_servers = frozenset({"s1"})
    return one


def test_who_does_nothing_with_a_booked_gpu_is_asked_to_give_it_back(tmp_path: Path) -> None:
    one = idle_yard(tmp_path)
    with closing(one.store):
        booking = one.book(ADA)
        one.boot("s1", ADA, 0)
        for _ in range(3):
            one.controller.run()
            one.forward(minutes=40)
        (told,) = [two.event for two in one.store.take_undelivered("test", one.now, 99) if "idle" in two.event.kind]
        assert (told.kind, told.user_id, told.email) == ("server.idle", "u-ada", "ada@example.org")
        assert told.details["give_back"] == f"gpuyard booking end {booking.id}"
        text = "\n".join(body_of(Message(told, "lab"), ZoneInfo("UTC")))
        assert f"Then:      gpuyard booking end {booking.id}" in text
        assert "Use it, or give its GPU back" in text
        words = "nothing has run on its GPUs for long: use it, or delete or shelve this server, please, "
        assert [warning(case) for case in one.store.open_cases()] == [f"{words}and end its booking"]
        assert [asked for asked in one.cloud.asked if "compute" in asked] == ["POST compute /servers/s1/metadata"]
        one.idle_servers = frozenset()
        one.controller.run()
        assert one.store.open_cases() == []
        assert one.cloud.asked[-1] == "DELETE compute /servers/s1/metadata/gpuyard"


def test_where_the_site_says_so_an_idle_server_is_reclaimed_after_its_grace(tmp_path: Path) -> None:
    one = idle_yard(tmp_path, action="reclaim")
    with closing(one.store):
        one.book(ADA)
        one.boot("s1", ADA, 0)
        one.controller.run()
        (case,) = one.store.cases()
        assert "at 2026-11-23 09:30 UTC this server is shelved" in warning(case)
        one.forward(minutes=29)
        one.controller.run()
        assert one.cloud.holders
        one.forward(minutes=2)
        one.controller.run()
        assert not one.cloud.holders


# Servers on several bookings, and bookings that change under the controller's eyes.


def test_a_server_on_two_bookings_of_one_gpu_each_stays(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    first, second = one.book(ADA), one.book(ADA)
    one.controller.run()
    assert one.limits() == {"p-physics": 2}
    # Both GPUs of one host, wherever the bookings have theirs.
    lanes = one.ledger.lanes("t4")
    one.boot("s1", ADA, 2, 3)
    one.controller.run()
    assert one.store.cases() == []
    taken = [one.ledger.get(booking.id).lanes for booking in (first, second)]
    assert sorted(taken) == [(lanes[2].id,), (lanes[3].id,)]
    assert all(one.ledger.get(booking.id).claimed for booking in (first, second))
    assert one.limits() == {"p-physics": 2}


def overdue(one: Harness) -> Booking:
    """A booking that was over half an hour ago, whose server is to be shelved at the next run."""
    booking = one.book(ADA, hours=1)
    one.boot("s1", ADA, 0)
    one.controller.run()
    one.ledger.end(booking.id, ADA)
    one.controller.run()
    one.forward(minutes=31)
    return booking


@pytest.mark.parametrize("moment", ["GET identity /limits", "GET compute /servers/s1"])
def test_who_books_while_the_controller_waits_for_an_answer_keeps_the_server(
    inventory: Callable[..., Harness], moment: str
) -> None:
    one = inventory()
    overdue(one)
    one.cloud.between = at(moment, lambda: one.book(ADA))
    one.controller.run()
    assert "POST compute /servers/s1/action" not in one.cloud.asked
    one.controller.run()
    assert [case.cleared for case in one.store.cases()] == [one.now]


def test_without_a_booking_it_is_shelved(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    overdue(one)
    one.controller.run()
    assert "POST compute /servers/s1/action" in one.cloud.asked


def test_an_error_with_one_server_keeps_no_other_case_waiting(inventory: Callable[..., Harness]) -> None:
    from gpuyard.openstack.api import CloudError

    one = inventory()
    one.boot("s1", BOB, 0)
    one.boot("s2", BOB, 1)
    one.controller.run()
    one.forward(minutes=31)

    def refuse(asked: str) -> None:
        if asked == "GET compute /servers/s1":
            raise CloudError("500 what is this server", 500)

    one.cloud.between = refuse
    with pytest.raises(BookingsError, match=r"^pool t4: server s1 \(s1\): 500"):
        one.controller.run()
    assert "POST compute /servers/s2/action" in one.cloud.asked


# Another process.


def test_who_has_lost_the_turn_does_not_finish_its_run(inventory: Callable[..., Harness]) -> None:
    one = inventory(must_book=False)
    one.ledger.create(Ask("t4", NOW + timedelta(minutes=5), NOW + timedelta(hours=4), 4), ADA)
    one.cloud.limits = {("p-art", T4): 2}
    with closing(Store.open(one.url)) as other:

        def fail_over() -> None:
            one.store.resign()
            assert other.try_to_lead("bookings")

        one.cloud.between = at("PUT placement", fail_over)
        with pytest.raises(LeadershipLostError, match="no longer leads bookings"):
            one.controller.run()
        changes = [asked for asked in one.cloud.asked if not asked.startswith("GET")]
        assert len(changes) == 1, "the one that was on its way"
        one.controller.run()
        assert one.controller.waits == ("another process on this database keeps the bookings",)
    one.controller.run()
    assert len(one.cloud.reserved) == 4
    assert one.limits() == {"p-art": 4}


def test_what_another_process_has_written_down_is_not_lost(inventory: Callable[..., Harness]) -> None:
    one = inventory()
    one.ledger.create(Ask("t4", NOW + timedelta(minutes=5), NOW + timedelta(hours=4), 1), ADA)
    other = [gpu.provider_name for gpu in one.compiled.gpus if gpu.pool == "t4"][-1]

    def hold() -> None:
        """As the other one does for a booking that is cancelled right away."""
        one.store.set_value("t4", "holds", f"{other}=2")
        one.cloud.reserved[other], one.cloud.generations[other] = 1, 2

    one.cloud.between = at("GET placement", hold)
    one.controller.run()
    (held,) = one.cloud.reserved
    assert held != other, "nobody needs that one"
    assert one.store.value("t4", "holds") == f"{held}=2"


def test_a_new_database_takes_nobody_s_gpus_away(tmp_path: Path, inventory: Callable[..., Harness]) -> None:
    one = inventory()
    one.book(ADA)
    one.controller.run()
    assert one.limits() == {"p-physics": 1}
    with closing(Store.open(f"sqlite:///{tmp_path / 'misspelt.db'}")) as store:
        store.sync_lanes(site_lanes(one.compiled.gpus))
        ledger = Ledger(store, book_of(one.compiled), lambda: one.now, lambda: "x")
        api: Any = one.cloud
        other = BookingController(api, one.compiled, ledger, api, lambda: one.now)
        for _ in range(2):
            with pytest.raises(BookingsError, match=r"is new, and the cloud has . limits of its bookings"):
                other.run()
    assert one.limits() == {"p-physics": 1}
    one.controller.run()
