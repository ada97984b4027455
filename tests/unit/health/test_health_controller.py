"""The loop of health with the loop of bookings, on a small cloud: what people, hosts, runners and Nova say of GPUs, and
kills between any two steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.bookings.controllers.channel import Message
from gpuyard.bookings.controllers.site_ledger import book_of, site_lanes
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.pool_view import read_memory
from gpuyard.bookings.store import Store
from gpuyard.database.engine import Database
from gpuyard.health.baseline import Baseline
from gpuyard.health.cloud_signals import LASTS, PATIENCE
from gpuyard.health.controllers.health import HealthController, Watched, open_health
from gpuyard.health.controllers.health_service import HealthService, NoSuchGpuError
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.life import HealthLifeError
from gpuyard.health.records import HealthState, HostContact, Observation, Software
from gpuyard.health.store import HealthStore
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import FOREVER, Ask, Booking, Person
from gpuyard.model.errors import BlockedError
from gpuyard.model.gpu import GpuState, GpuStatus, provider_name
from gpuyard.notifications.mail import body_of
from gpuyard.runners.controllers.failed_gpu_checks import Quarantine
from gpuyard.site.compile import CompiledSite
from tests.contract.runner_store import RUNNER
from tests.support.booked_sites import booked_site
from tests.support.clouds import SmallCloud

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
MUST = {"must_book": True, "dry_run": False, "grace": "30 min", "hold": "10 min"}
ADA = Person("u-ada", "ada", "p-physics", "physics", frozenset({"member"}), "ada@example.org")
EVE = Person("u-eve", "eve", "p-art", "art", frozenset({"admin"}))
ACCEPTANCE = {"acceptance": {"required": ["repair"]}}
NEW = {"acceptance": {"required": ["new"]}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledSite]:
    def compiled(health: dict[str, Any], **more: Any) -> CompiledSite:
        folder = tmp_path_factory.mktemp("site")
        return booked_site(folder, MUST, {"art": {"gpus": {"t4": 4}}}, health=health, **more)

    return {
        "plain": compiled({}),
        "accepting": compiled(ACCEPTANCE),
        "half": compiled({"quarantine": 50}),
        "new": compiled(NEW),
        "trial": compiled({"trial": True, "signals": {"no-answer": {"verdict": "bad", "trial": False}}}),
    }


@dataclass
class Ward:
    """A site whose GPUs are followed; the time is what tests set."""

    folder: Path
    compiled: CompiledSite
    now: datetime = NOW
    ids: Iterator[int] = field(default_factory=lambda: iter(range(1, 999)))
    watched: Watched = field(init=False)

    def __post_init__(self) -> None:
        self.cloud = SmallCloud(self.compiled, projects={"physics": "p-physics", "art": "p-art"})
        self.open()

    def open(self) -> None:
        """As a process does that has just begun."""
        self.store = Store.open(f"sqlite:///{self.folder / 'ledger.db'}")
        self.store.sync_lanes(site_lanes(self.compiled.gpus))
        self.ledger = Ledger(self.store, book_of(self.compiled), lambda: self.now, lambda: f"b{next(self.ids)}")
        rules = self.compiled.site.health
        assert rules is not None
        api: Any = self.cloud
        self.watched = open_health(
            self.compiled, rules, api, self.ledger, api, lambda: self.now, lambda: self.now.timestamp()
        )
        self.health.kept_back_changed.listen(lambda reason: self.watched.bookings.hold_at_once())

    @property
    def service(self) -> HealthService:
        return self.watched.service

    @property
    def health(self) -> HealthController:
        return self.watched.controller

    def run(self) -> None:
        self.watched.bookings.run()
        self.health.run()
        self.watched.bookings.run()

    def book(self, hours: float = 3, gpus: int = 1) -> Booking:
        begin = self.now + timedelta(hours=hours)
        return self.ledger.create(Ask("t4", begin, begin + timedelta(hours=1), gpus), ADA)[0]

    def gpu_of(self, booking: Booking) -> str:
        return {lane.id: lane.name for lane in self.ledger.lanes()}[self.ledger.get(booking.id).lanes[0]]

    def see(self, gpu: str, code: str) -> None:
        host, _, address = gpu.partition("/")
        self.service.observe([Observation(host, address, code, self.now, "what was seen")])

    def status(self, gpu: str) -> GpuStatus:
        statuses = gpu_statuses(self.compiled.gpus, self.cloud.take(self.now), self.watched.bookings.words)
        return next(status for status in statuses if f"{status.gpu.host}/{status.gpu.address}" == gpu)

    def held(self) -> set[str]:
        """Providers that we know that we hold."""
        return {name for pool in self.ledger.book.pools for name in read_memory(self.store.values(pool)).holds}

    def events(self, gpu: str) -> list[tuple[HealthState, str]]:
        host, _, address = gpu.partition("/")
        return [(event.after, event.by) for event in reversed(self.service.store.events(host, address))][1:]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all its tables: making them takes longer than most of these tests."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    with closing(Store.open(f"sqlite:///{path}")) as store:
        HealthStore(store.database)
    return path


@pytest.fixture
def ward(tmp_path: Path, sites: dict[str, CompiledSite], empty: Path) -> Iterator[Callable[..., Ward]]:
    made: list[Ward] = []

    def make(site: str = "plain") -> Ward:
        shutil.copyfile(empty, tmp_path / "ledger.db")
        made.append(Ward(tmp_path, sites[site]))
        made[-1].run()
        return made[-1]

    yield make
    for harness in made:
        harness.store.close()


def provider(gpu: str) -> str:
    host, _, address = gpu.partition("/")
    return provider_name(host, address)


def test_a_bad_gpu_is_held_its_booking_moves_and_a_person_brings_it_back(ward: Callable[..., Ward]) -> None:
    harness = ward()
    booking = harness.book()
    gpu = harness.gpu_of(booking)
    harness.see(gpu, "no-answer")
    harness.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    assert harness.gpu_of(booking) != gpu
    status = harness.status(gpu)
    assert (status.state, status.reason) == (
        GpuState.HELD, "quarantined: its config space reads 0xff (no-answer)"
    )  # fmt: skip
    harness.service.start_repair(gpu, "reseating it", EVE)
    assert harness.service.gpu(gpu).keeper == "eve"
    harness.service.note(gpu, "the riser was loose", EVE)
    harness.service.end_repair(gpu, "it answers", EVE)
    harness.run()
    assert (harness.cloud.reserved, harness.held()) == ({}, set())
    assert harness.status(gpu).state is GpuState.FREE
    assert harness.events(gpu) == [
        (HealthState.QUARANTINED, ""),
        (HealthState.IN_REPAIR, "eve"),
        (HealthState.IN_REPAIR, "eve"),
        (HealthState.FINE, "eve"),
    ]
    done = [(entry.action, entry.text) for entry in reversed(harness.ledger.audit(10)) if entry.target == gpu]
    assert done == [
        ("gpu.repair", "reseating it"), ("gpu.note", "the riser was loose"), ("gpu.repaired", "it answers")
    ]  # fmt: skip


def test_it_is_held_before_the_next_look_at_the_cloud(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    harness.see(gpu, "no-answer")
    looked = len(harness.cloud.asked)
    harness.health.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    assert len(harness.cloud.asked) == looked + 1, "one change in the cloud"
    assert harness.held() == {provider(gpu)}


def test_no_booking_is_put_there_before_the_next_look_at_the_cloud(ward: Callable[..., Ward]) -> None:
    """Nor an offer or a lease, which are admitted by the same lanes."""
    harness = ward()
    booking = harness.book()
    gpu = harness.gpu_of(booking)
    harness.see(gpu, "no-answer")
    harness.health.run()
    lane = next(lane for lane in harness.ledger.lanes() if lane.name == gpu)
    assert lane.trouble.startswith("quarantined: ")
    assert harness.gpu_of(booking) != gpu


def test_a_hold_that_another_change_overtakes_is_tried_again_at_once(ward: Callable[..., Ward]) -> None:
    """Placement answers 409 when the provider's generation is another one (placement 16, `update_resource_provider_
    inventory` in placement/handlers/inventory.py): each claim and each release of the GPU makes one."""
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    left = iter("xx")

    def overtake(request: str) -> None:
        if request.startswith("PUT placement") and next(left, ""):
            harness.cloud.generations[provider(gpu)] += 1

    harness.cloud.between = overtake
    harness.see(gpu, "no-answer")
    harness.health.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    assert harness.held() == {provider(gpu)}


def test_nobody_is_let_in_before_what_went_bad_meanwhile_is_held(ward: Callable[..., Ward]) -> None:
    """A GPU goes bad when the start of a booking has been planned, and its owner is about to be let in."""
    harness = ward()
    booking = harness.book(hours=1)
    bad = next(gpu for gpu in harness.service.store.gpus() if gpu.pool == "t4" and gpu.name != harness.gpu_of(booking))
    harness.now = booking.ask.start - timedelta(minutes=5)
    harness.run()  # its own GPU is held, and is to be released at the start
    harness.now = booking.ask.start + timedelta(seconds=1)
    broken = iter("x")

    def goes_bad(request: str) -> None:
        if request.startswith("GET placement") and next(broken, ""):
            harness.service.quarantine(bad.name, "it is on fire", EVE)

    harness.cloud.asked.clear()
    harness.cloud.between = goes_bad
    harness.watched.bookings.run()
    hold = harness.cloud.asked.index(
        f"PUT placement /resource_providers/{provider(bad.name)}/inventories/CUSTOM_GPU_T4"
    )
    assert hold < harness.cloud.asked.index("POST identity /limits")


def test_who_cannot_move_is_told_and_not_let_in(ward: Callable[..., Ward]) -> None:
    harness = ward()
    harness.store.take_undelivered("test", harness.now, 1)
    first, _ = harness.book(gpus=2), harness.book(gpus=2)
    gpu = harness.gpu_of(first)
    harness.see(gpu, "no-answer")
    harness.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    kinds = [event.event.kind for event in harness.store.take_undelivered("test", harness.now, 100)]
    assert kinds.count("booking.trouble") == 1
    harness.now += timedelta(hours=3, seconds=1)
    harness.run()
    assert provider(gpu) in harness.cloud.reserved
    assert harness.cloud.limits["p-physics", "class:CUSTOM_GPU_T4_COUNT"] == 3


def test_a_claimed_gpu_is_held_below_its_server_and_its_owner_sees_why(ward: Callable[..., Ward]) -> None:
    harness = ward()
    booking = harness.book(hours=0)
    harness.run()
    gpu = harness.gpu_of(booking)
    harness.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider(gpu)], harness.now)
    harness.run()
    assert (harness.service.gpu(gpu).state, harness.service.gpu(gpu).cause) == (HealthState.IN_USE, "server s1 has it")
    harness.see(gpu, "aer-fatal")
    harness.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    status = harness.status(gpu)
    assert status.state is GpuState.CLAIMED
    assert status.reason.endswith("(aer-fatal); it is kept back when its server ends")
    del harness.cloud.holders[provider(gpu)], harness.cloud.servers["s1"]
    harness.run()
    assert harness.status(gpu).state is GpuState.HELD
    harness.service.release(gpu, "it was a cable", EVE)
    harness.run()
    assert harness.cloud.reserved == {}


def test_half_of_a_group_takes_its_slot_out(ward: Callable[..., Ward]) -> None:
    harness = ward("half")
    lane = next(lane for lane in harness.ledger.lanes() if lane.size == 2)
    bad, other = (f"{lane.host}/{address}" for address in lane.addresses)
    harness.see(bad, "no-answer")
    harness.run()
    assert harness.cloud.reserved.keys() == {provider(bad), provider(other)}
    assert (harness.service.gpu(bad).state, harness.service.gpu(other).state) == (
        HealthState.QUARANTINED,
        HealthState.FINE,
    )
    assert harness.status(other).reason == (
        f"{lane.addresses[0]} is quarantined: its config space reads 0xff (no-answer)"
    )  # fmt: skip


def test_an_operators_hold_stays(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    harness.see(gpu, "no-answer")
    harness.run()
    (hold,) = harness.ledger.hold([gpu], harness.now, FOREVER, EVE, "new fan")
    harness.service.release(gpu, "it answers", EVE)
    harness.run()
    assert harness.cloud.reserved == {provider(gpu): 1}
    assert harness.ledger.get(hold.id).state.value == "active"
    assert harness.status(gpu).reason.startswith("held by eve")


def test_what_cannot_be_done_is_said(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    with pytest.raises(NoSuchGpuError, match="there is no GPU 'h/1'; name one as in"):
        harness.service.quarantine("h/1", "", EVE)
    with pytest.raises(HealthLifeError, match=f"GPU {gpu} is fine and cannot become in repair"):
        harness.service.start_repair(gpu, "", EVE)
    with pytest.raises(BlockedError, match="a repair begins with"):
        harness.service.end_repair(gpu, "", EVE)
    with pytest.raises(ValueError, match="no such signals: nonsense"):
        harness.see(gpu, "nonsense")
    harness.service.quarantine(gpu, "it smells", EVE)
    harness.service.start_repair(gpu, "", EVE)
    with pytest.raises(BlockedError, match="is in repair"):
        harness.service.release(gpu, "", EVE)
    harness.service.end_repair(gpu, "no time", EVE, repaired=False)
    assert harness.service.gpu(gpu).state is HealthState.QUARANTINED


def test_after_a_repair_it_is_accepted_where_the_site_wants_that(ward: Callable[..., Ward]) -> None:
    harness = ward("accepting")
    gpu = harness.gpu_of(harness.book())
    harness.service.quarantine(gpu, "it smells", EVE)
    harness.service.release(gpu, "not any more", EVE)
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.TO_ACCEPT
    assert harness.status(gpu).reason == "to be accepted: an operator has decided so"
    host, _, _ = gpu.partition("/")
    look = {"kernel": "6.1", "firmware": "bios", "qemu": "8.2", "log": []}
    harness.service.hear(HostContact(host, harness.now, json.dumps(look)), {})
    harness.service.release(gpu, "it did a day of work", EVE)
    harness.run()
    record = harness.service.gpu(gpu)
    assert (record.state, record.by, record.accepted) == (HealthState.FINE, "eve", harness.now)
    assert record.software == Software("6.1", "bios", "8.2")
    assert harness.cloud.reserved == {}


def test_a_repair_in_which_the_card_was_changed_ends_with_its_acceptance(ward: Callable[..., Ward]) -> None:
    harness = ward("new")
    gpu = harness.service.view()[0].health.name
    for view in harness.service.view():
        harness.service.release(view.health.name, "it did a day of work", EVE)
    harness.service.know_card(gpu, "0123456789abcdef")
    harness.service.quarantine(gpu, "it smells", EVE)
    harness.service.start_repair(gpu, "", EVE)
    harness.service.know_card(gpu, "fedcba9876543210")
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.IN_REPAIR
    assert harness.service.end_repair(gpu, "another card", EVE).state is HealthState.TO_ACCEPT
    harness.run()
    assert harness.service.release(gpu, "it did a day of work", EVE).state is HealthState.FINE
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.FINE


def test_what_is_bad_when_it_leaves_the_site_file_is_bad_when_it_comes_back(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    harness.service.quarantine(gpu, "it smells", EVE)
    places = harness.health.places
    harness.health.places = tuple(place for place in places if place.name != gpu)
    harness.run()
    with pytest.raises(NoSuchGpuError):
        harness.service.gpu(gpu)
    harness.health.places = places
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.QUARANTINED
    assert harness.cloud.reserved == {provider(gpu): 1}


def test_too_much_is_asked_about_and_a_person_decides(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpus = [lane.name for lane in harness.ledger.lanes("t4")]
    for gpu in gpus:
        harness.see(gpu, "link-width")
    harness.run()
    assert harness.cloud.reserved == {provider(gpus[0]): 1}, "a quarter of four"
    assert harness.health.asked == tuple(sorted(gpus[1:]))
    harness.service.quarantine(gpus[1], "yes", EVE)
    harness.service.release(gpus[2], "no, the rule is wrong", EVE)
    harness.run()
    assert harness.health.asked == (gpus[3],)
    assert harness.cloud.reserved.keys() == {provider(gpus[0]), provider(gpus[1])}
    harness.see(gpus[2], "link-width")
    harness.run()
    assert (harness.health.asked, harness.service.gpu(gpus[2]).state) == ((gpus[3],), HealthState.FINE)


def test_another_card_is_seen_as_such(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    harness.service.know_card(gpu, "00042d")
    harness.service.know_card(gpu, "00042d")
    harness.service.know_card(gpu, "00042e")
    harness.run()
    record = harness.service.gpu(gpu)
    assert (record.card, record.accepted, record.software) == ("00042e", None, Software())
    causes = [event.cause for event in harness.service.store.events(card="00042e")]
    assert "its card is 00042e, and was 00042d" in causes
    assert len(harness.service.store.events(card="00042d")) == 1


def test_what_a_guest_calls_a_card_is_no_other_card(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    harness.service.store.put(replace(harness.service.gpu(gpu), card="GPU-5d3d3b6e"))
    harness.service.know_card(gpu, "00042d")
    assert harness.service.gpu(gpu).card == "00042d"
    assert harness.service.store.open_observations() == []


def test_a_runner_that_fails_its_check_is_one_more_signal(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    runner = replace(RUNNER, gpus=(gpu,), reason="nvidia-smi saw no GPU", choice=replace(RUNNER.choice, pool="t4"))
    Quarantine(harness.ledger, lambda: harness.now, harness.service).hold(runner)
    harness.run()
    record = harness.service.gpu(gpu)
    assert (record.state, record.signal) == (HealthState.QUARANTINED, "job-check")
    assert harness.service.store.events(limit=1)[0].evidence == "r1: runner r1: nvidia-smi saw no GPU"


# What Nova and Placement say.


def test_a_provider_that_is_gone_is_bad_when_its_host_is_there(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    take = harness.cloud.take

    def without(now: datetime) -> Any:
        snapshot = take(now)
        return replace(snapshot, providers={n: p for n, p in snapshot.providers.items() if n != provider(gpu)})

    harness.cloud.take = without  # type: ignore[method-assign]
    harness.run()
    harness.now += PATIENCE - timedelta(seconds=1)
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.FINE, "perhaps nova-compute only restarts"
    harness.now += timedelta(seconds=1)
    harness.run()
    harness.run()
    assert harness.service.gpu(gpu).signal == "no-provider"


def test_three_servers_that_fail_on_one_gpu_make_it_suspect(ward: Callable[..., Ward]) -> None:
    harness = ward()
    gpu = harness.gpu_of(harness.book())
    for number, person in enumerate((ADA, EVE, ADA)):
        assert harness.service.gpu(gpu).state is not HealthState.SUSPECT
        id = f"s{number}"
        harness.cloud.boot(id, person.user_id, person.project_id, [provider(gpu)], harness.now)
        harness.cloud.servers[id] = replace(harness.cloud.servers[id], status="BUILD")
        harness.run()
        del harness.cloud.holders[provider(gpu)]
        harness.cloud.servers[id] = replace(harness.cloud.servers[id], status="ERROR")
        harness.run()
    harness.run()
    assert (harness.service.gpu(gpu).state, harness.service.gpu(gpu).signal) == (HealthState.SUSPECT, "creates-fail")


@pytest.mark.parametrize(
    ("in_use", "state"), [(False, HealthState.SUSPECT), (True, HealthState.IN_USE), (None, HealthState.IN_USE)]
)
def test_a_server_whose_gpu_nobody_has_open(ward: Callable[..., Ward], in_use: bool | None, state: HealthState) -> None:
    harness = ward()
    booking = harness.book(hours=0)
    harness.run()
    gpu = harness.gpu_of(booking)
    host, _, address = gpu.partition("/")
    harness.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider(gpu)], harness.now)
    harness.cloud.servers["s1"] = replace(harness.cloud.servers["s1"], launched=harness.now, host=host)
    harness.service.hear(HostContact(host, harness.now), {address: False})
    harness.run()
    assert harness.service.gpu(gpu).state is HealthState.IN_USE, "that was a moment ago"
    harness.now += LASTS
    harness.service.hear(HostContact(host, harness.now), {address: in_use})
    harness.run()
    harness.run()
    assert harness.service.gpu(gpu).state is state


def test_its_hosts_silence_is_shown(ward: Callable[..., Ward]) -> None:
    harness = ward()
    assert {view.silent for view in harness.service.view()} == {True}
    host = harness.service.view()[0].health.host
    harness.service.hear(HostContact(host, harness.now), {})
    assert {view.silent for view in harness.service.view() if view.health.host == host} == {False}
    harness.now -= timedelta(days=1)
    assert {view.silent for view in harness.service.view()} == {True}, (
        "the clock has gone back, and it said nothing since"
    )
    harness.now += timedelta(days=1, minutes=3)
    assert {view.silent for view in harness.service.view()} == {True}
    harness.run()
    assert {view.health.state for view in harness.service.view()} == {HealthState.FINE}


# Kills.


class Killed(BaseException):
    pass


@contextmanager
def killed_after(steps: int, one: Ward, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As by kill -9: before or after a transaction or a request, whichever is that many steps on."""
    left = [steps]

    def step(*_: object) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1

    writing = Database.writing

    @contextmanager
    def counted(database: Database) -> Iterator[Any]:
        step()
        with writing(database) as connection:
            yield connection
        step()

    with patch.context() as inner:
        inner.setattr(Database, "writing", counted)
        one.cloud.between = step
        try:
            yield
        finally:
            one.cloud.between = lambda request: None


def every_kill(first: Ward, work: Callable[[Ward], object], patch: pytest.MonkeyPatch) -> Iterator[Ward]:
    """The world after a kill at each step of some work, and a new process that has run. All begin as the first one is
    now."""
    first.store.close()
    for steps in range(500):
        folder = first.folder / str(steps)
        folder.mkdir()
        shutil.copyfile(first.folder / "ledger.db", folder / "ledger.db")
        harness = Ward(folder, first.compiled)
        for name in ("reserved", "generations", "limits", "marks"):
            setattr(harness.cloud, name, dict(getattr(first.cloud, name)))
        try:
            with killed_after(steps, harness, patch):
                work(harness)
        except Killed:
            harness.store.close()
            harness.open()
            harness.run()
            yield harness
            harness.store.close()
        else:
            assert steps > 5, "there was something to be killed"
            harness.store.close()
            return
    raise AssertionError("it never ends")


def both_loops(harness: Ward) -> None:
    harness.watched.bookings.run()
    harness.health.run()


def test_a_quarantine_survives_a_kill_at_each_step(ward: Callable[..., Ward], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ward()
    first.see(first.gpu_of(first.book()), "no-answer")
    for harness in every_kill(first, both_loops, monkeypatch):
        (gpu,) = [record for record in harness.service.store.gpus() if record.state is not HealthState.FINE]
        assert harness.events(gpu.name) == [(HealthState.QUARANTINED, "")], "once"
        assert harness.service.store.open_observations() == []
        assert harness.cloud.reserved.keys() == harness.held() == {provider(gpu.name)}
        assert harness.gpu_of(harness.ledger.get("b1")) != gpu.name


def test_a_release_survives_a_kill_at_each_step(ward: Callable[..., Ward], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ward()
    gpu = first.ledger.lanes("t4")[0].name
    first.see(gpu, "no-answer")
    first.run()
    first.service.release(gpu, "well", EVE)
    for harness in every_kill(first, both_loops, monkeypatch):
        assert {record.state for record in harness.service.store.gpus()} == {HealthState.FINE}
        assert (harness.cloud.reserved, harness.held()) == ({}, set())


# Who has a server on a GPU that goes bad.


def boot(harness: Ward, server: str, gpu: str, who: Person = ADA) -> None:
    harness.cloud.boot(server, who.user_id, who.project_id, [provider_name(*gpu.split("/"))], harness.now)


def t4s(harness: Ward) -> list[str]:
    return [f"{gpu.host}/{gpu.address}" for gpu in harness.compiled.gpus if gpu.pool == "t4" and not gpu.blocked]


def told(harness: Ward) -> list[tuple[str, str, str]]:
    """(booking, address, what was seen) of the messages about faults, each once."""
    events = [row.event for row in harness.store.take_undelivered("test", harness.now, 99)]
    for event in events:
        harness.store.mark_delivered("test", event.id, harness.now)
    return [(fault.booking, fault.email, fault.details["trouble"]) for fault in events if fault.kind == "server.fault"]


def test_the_owner_of_a_server_whose_gpu_goes_bad_is_told_once_for_each_time(ward: Callable[..., Ward]) -> None:
    harness = ward()
    told(harness)
    booking = harness.book(hours=0)
    harness.run()
    gpu = harness.gpu_of(booking)
    boot(harness, "s1", gpu)
    harness.run()
    host, _, address = gpu.partition("/")
    harness.service.observe([Observation(host, address, "ecc", harness.now, "3 ECC errors", "s1")])
    harness.run()
    assert told(harness) == [(booking.id, "ada@example.org", "an uncorrectable ECC error more (3 ECC errors)")]
    for code in ("ecc", "no-answer"):  # again, and then worse: it is the same time
        harness.now += timedelta(minutes=2)
        harness.see(gpu, code)
        harness.run()
    assert harness.service.gpu(gpu).state is HealthState.QUARANTINED
    harness.store.close()
    harness.open()
    harness.run()
    assert told(harness) == [], "also not by another process"
    harness.service.release(gpu, "well after all", EVE)
    harness.run()
    harness.now += timedelta(minutes=2)
    harness.see(gpu, "no-answer")
    harness.run()
    assert told(harness) == [(booking.id, "ada@example.org", "its config space reads 0xff")]


def test_a_message_about_a_fault_says_what_comes_and_no_words_of_others(ward: Callable[..., Ward]) -> None:
    harness = ward()
    told(harness)
    gpu = t4s(harness)[0]
    boot(harness, "s1", gpu)
    harness.cloud.emails = {"u-ada": "ada@keystone.example.org"}
    harness.run()
    harness.service.report(gpu, "bob's experiment broke it", EVE)
    harness.run()
    events = [row.event for row in harness.store.take_undelivered("test", harness.now, 99)]
    (event,) = [event for event in events if event.kind == "server.fault"]
    assert (event.booking, event.email) == ("", "ada@keystone.example.org")
    assert event.details["trouble"] == "somebody reported a fault"
    assert "it is fine again at 2026-11-23 09:10 UTC if nothing more is seen" in event.details["next"]
    text = "\n".join(body_of(Message(event, "lab"), ZoneInfo("UTC")))
    assert f"Tell us:   gpuyard gpu report {gpu} 'what is wrong'" in text
    assert "bob" not in text
    assert "To have another GPU" in text


def test_who_cannot_be_told_is_in_the_audit_log_and_runners_are_nobodys(ward: Callable[..., Ward]) -> None:
    harness = ward()
    told(harness)
    first, second = t4s(harness)[:2]
    boot(harness, "s1", first)
    harness.health._faults._runners = "art"
    boot(harness, "s2", second, EVE)
    harness.run()
    for gpu in (first, second):
        harness.service.quarantine(gpu, "it smells", EVE)
    harness.run()
    harness.run()
    assert told(harness) == [("", "", "an operator has taken it out of use")]
    entries = [entry for entry in harness.ledger.audit(100) if entry.action == "server.fault"]
    assert [(entry.target, entry.text) for entry in entries] == [
        ("s1", f"server s1: GPU {first} is quarantined: an operator has taken it out of use")
    ]
    assert ("message.no_address", "s1") in {(entry.action, entry.target) for entry in harness.ledger.audit(100)}


def test_whom_a_bad_gpu_was_lent_to_knows_it(ward: Callable[..., Ward]) -> None:
    harness = ward()
    told(harness)
    lent, other = t4s(harness)[:2]
    for gpu in (lent, other):
        harness.service.quarantine(gpu, "it smells", EVE)
    harness.ledger.loans.lend(lent, ADA.project_id, ADA.project, harness.now + timedelta(hours=1), "look", EVE)
    harness.run()
    harness.now += timedelta(minutes=1)
    boot(harness, "s1", lent)
    harness.run()
    assert told(harness) == []
    boot(harness, "s2", other)  # it was not held in time, or the cloud's clock is ahead
    harness.run()
    assert [trouble for _, _, trouble in told(harness)] == ["an operator has taken it out of use"]


# Baselines


def look(inventory: Ward, gpu: str, number: int, width: int) -> bytes:
    """A look of its host: below all ports that can x16, and it has so many lanes."""
    host, _, address = gpu.partition("/")
    like = {"config": "de10b41d", "driver": "vfio-pci", "power": "D0"}
    lanes = {gpu.address: width if gpu.address == address else 16 for gpu in inventory.service.store.gpus(host=host)}
    link = {"speed": 8.0, "max_speed": 8.0, "max_width": 16}
    gpus = [{"address": gpu_address, **like, "link": {**link, "width": count}} for gpu_address, count in lanes.items()]
    return json.dumps({"host": host, "boot": "b1", "number": number, "gpus": gpus}).encode()


def test_a_slot_that_is_wired_x8_is_released_once(ward: Callable[..., Ward]) -> None:
    inventory = ward()
    inventory.run()
    gpu = inventory.service.store.gpus()[0].name
    looks, numbers = HostReportIntake(inventory.service, [gpu.partition("/")[0]]), iter(range(1, 9999))

    def after(width: int, **time: float) -> HealthState:
        """Its state when it was seen with so many lanes for so long."""
        end = inventory.now + timedelta(**time)
        while inventory.now < end:
            inventory.now += timedelta(minutes=5)
            looks.hear(gpu.partition("/")[0], look(inventory, gpu, next(numbers), width))
            inventory.run()
        return inventory.service.gpu(gpu).state

    assert after(8, minutes=5) is HealthState.SUSPECT
    assert after(8, minutes=15) is HealthState.SUSPECT, "it does not pass"
    inventory.service.release(gpu, "wired x8, it is well", EVE)
    baseline = inventory.service.gpu(gpu).baseline
    assert baseline is not None
    assert (baseline.by, baseline.facts) == ("eve", {"link-width": 8})
    assert after(8, minutes=30) is HealthState.FINE, "it is not so again"
    assert after(4, minutes=5) is HealthState.SUSPECT, "what is worse is a signal"
    inventory.service.release(gpu, "the riser is to be changed next week", EVE)
    assert after(4, minutes=10) is HealthState.FINE
    inventory.service.clear_baseline(gpu, "it has a new riser", EVE)
    assert after(8, minutes=5) is HealthState.SUSPECT, "it is judged as a new one"
    with pytest.raises(BlockedError, match="has no baseline"):
        inventory.service.clear_baseline(gpu, "again", EVE)


@pytest.mark.parametrize(("before", "after", "ends"), [
    ("0048b02d2db0a4c8", "0048b02d2db0a4c9", True),
    ("GPU-5f1c", "0048b02d2db0a4c8", False),
    ("", "0048b02d2db0a4c8", False),
])  # fmt: skip
def test_a_baseline_is_of_one_card(ward: Callable[..., Ward], before: str, after: str, ends: bool) -> None:
    inventory = ward()
    inventory.run()
    gpu = inventory.service.store.gpus()[0]
    facts = {"link-width": 8.0}
    inventory.service.store.put(replace(gpu, card=before, shown=facts, baseline=Baseline(NOW, "eve", before, facts)))
    inventory.service.know_card(gpu.name, after)
    baseline = Baseline(NOW, "eve", after, facts)
    assert (inventory.service.gpu(gpu.name).baseline, inventory.service.gpu(gpu.name).shown) == (
        (None, {}) if ends else (baseline, facts)
    )


def test_a_card_of_other_ids_ends_the_baseline_and_not_one_that_was_taken_since(ward: Callable[..., Ward]) -> None:
    inventory = ward()
    inventory.run()
    gpu = inventory.service.store.gpus()[0]
    for taken, is_kept in ((NOW - timedelta(days=1), False), (NOW + timedelta(minutes=1), True)):
        inventory.service.store.put(
            replace(inventory.service.gpu(gpu.name), baseline=Baseline(taken, facts={"link-width": 8}))
        )
        inventory.see(gpu.name, "changed")
        inventory.run()
        assert (inventory.service.gpu(gpu.name).baseline is not None) is is_kept


# Signals that are overruled


def test_a_trial_moves_no_booking_and_holds_no_gpu(ward: Callable[..., Ward]) -> None:
    """With what is not on trial beside it: that follows."""
    inventory = ward("trial")
    booking = inventory.book()
    inventory.run()
    gpu = inventory.gpu_of(booking)
    inventory.see(gpu, "aer-fatal")
    inventory.run()
    record = inventory.service.gpu(gpu)
    assert (record.state, inventory.service.kept_back(), inventory.held()) == (HealthState.FINE, {}, set())
    assert record.trial is not None
    assert (record.trial.state, record.trial.signal) == (HealthState.QUARANTINED, "aer-fatal")
    assert inventory.gpu_of(booking) == gpu
    inventory.see(gpu, "no-answer")
    inventory.run()
    assert inventory.service.gpu(gpu).state is HealthState.QUARANTINED
    assert inventory.gpu_of(booking) != gpu
