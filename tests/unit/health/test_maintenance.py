"""The maintenance of a host, from the plan to the check: with the loops of bookings and health on a small cloud, and
kills between any two steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.closing import gaps
from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.controllers.maintenance import (
    MaintenanceService,
    MaintenanceView,
    NoSuchHostError,
    NoSuchMaintenanceError,
)
from gpuyard.health.maintenance import (
    OVER,
    SOON,
    TRANSITIONS,
    HostNow,
    Maintenance,
    MaintenanceError,
    MaintenanceState,
    next_step,
    refuse_times,
    transition,
)
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState, Observation, Software
from gpuyard.health.store import HealthStore
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Person
from gpuyard.model.gpu import GpuState
from gpuyard.model.host_report import GpuReport, HostReport
from gpuyard.model.world import HostService, Server
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.disabled_reason import Purpose, tag_of
from gpuyard.site.compile import CompiledSite
from tests.support.booked_sites import booked_site
from tests.support.nova_samples import silent_service
from tests.unit.health.test_health_controller import ADA, EVE, MUST, NOW, Ward, provider

M, S = MaintenanceState, HealthState
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOST, OTHER = "cld-dfa-gpu-03", "cld-dfa-gpu-01"
XP = f"{HOST}/0000:3b:00.0"
KERNEL = {"acceptance": {"required": ["kernel"]}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledSite]:
    def compiled(health: dict[str, Any]) -> CompiledSite:
        return booked_site(tmp_path_factory.mktemp("site"), MUST, {"art": {"gpus": {"t4": 4}}}, health=health)

    return {"plain": compiled({}), "kernel": compiled(KERNEL)}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    with closing(Store.open(f"sqlite:///{path}")) as store:
        HealthStore(store.database)
    return path


class HostWard(Ward):
    """With a host that says how it is."""

    number = 0
    boot, kernel = "boot-1", "6.1"
    gone: frozenset[str] = frozenset()
    """Addresses that it does not see."""

    def hear(self, host: str = HOST) -> None:
        self.number += 1
        looks = HostReportIntake(self.service, {gpu.host for gpu in self.compiled.gpus})
        gpus = tuple(
            GpuReport(gpu.address, gpu.address not in self.gone, "10de:1eb8", "b81e10de", "vfio-pci", in_use=False)
            for gpu in self.compiled.gpus
            if gpu.host == host
        )
        look = HostReport(host, self.boot, self.number, "", self.kernel, "bios", "8.2", gpus)
        looks.hear(host, json.dumps(look.as_dict()).encode())

    def turn(self, **time: float) -> None:
        """Time goes on, and all that there is looks once."""
        self.now += timedelta(**time or {"seconds": 6})
        self.watched.bookings.run()
        self.health.run()
        self.watched.maintenance.run()
        self.health.run()
        self.watched.bookings.run()

    @property
    def one(self) -> MaintenanceView:
        (view,) = self.watched.maintenance.views(past=True)
        return view

    def state(self) -> MaintenanceState:
        return self.one.maintenance.state

    def holds(self) -> list[Booking]:
        states = frozenset({BookingState.CONFIRMED, BookingState.ACTIVE})
        return self.ledger.find(Query(kinds=frozenset({BookingKind.HOLD}), states=states))

    def taken(self) -> set[str]:
        """Hosts of whose GPUs something is reserved."""
        return {name.partition("_")[0] for name in self.cloud.reserved}

    def gpus(self) -> list[GpuHealth]:
        return self.service.store.gpus(host=HOST)


@pytest.fixture
def ward(tmp_path: Path, sites: dict[str, CompiledSite], empty: Path) -> Iterator[Callable[..., HostWard]]:
    made: list[HostWard] = []

    def make(site: str = "plain") -> HostWard:
        shutil.copyfile(empty, tmp_path / "ledger.db")
        made.append(HostWard(tmp_path, sites[site]))
        made[-1].run()
        made[-1].hear()
        made[-1].turn()
        return made[-1]

    yield make
    for harness in made:
        harness.store.close()


def book(harness: HostWard, hours: float, length: float = 1, gpu: str = "", who: Person = ADA) -> Booking:
    begin = harness.now.replace(microsecond=0) + hours * HOUR
    return harness.ledger.create(Ask("titan-xp", begin, begin + length * HOUR, gpu=gpu), who)[0]


def told(harness: HostWard) -> list[tuple[str, str]]:
    """(kind, why) of what owners were told since the last time."""
    deliveries = harness.store.take_undelivered("test", harness.now, 100)
    return [(row.event.kind, row.event.details.get("why", "")) for row in deliveries]


def lines(harness: HostWard) -> list[HealthEvent]:
    """Of the record of XP, the newest first."""
    host, _, address = XP.partition("/")
    return harness.service.store.events(host, address)


def plan(harness: HostWard, hours: float = 2, length: float = 2) -> Maintenance:
    begin = harness.now.replace(microsecond=0) + hours * HOUR
    return harness.watched.maintenance.plan(HOST, begin, begin + length * HOUR, "new kernel", EVE)


# The whole of it


def test_a_host_is_drained_worked_on_checked_and_back(ward: Callable[..., HostWard]) -> None:
    harness = ward("kernel")
    for gpu in harness.gpus():  # accepted with the kernel that it has
        harness.service.store.put(replace(gpu, accepted=harness.now, software=Software("6.1", "bios", "8.2")))
    booking = book(harness, 2.5, gpu=XP)
    server = book(harness, 0, 2.4, gpu=XP)
    harness.turn()
    harness.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider(XP)], harness.now)
    harness.turn()
    told(harness)
    with pytest.raises(RefusedError):
        harness.ledger.hold([], harness.now, harness.now + HOUR, EVE, "", hosts=[HOST])  # that would be refused
    begin = harness.now.replace(microsecond=0) + 2 * HOUR
    would = harness.watched.maintenance.forecast(HOST, begin, begin + 2 * HOUR)
    assert [claim.server_name for claim in would.servers or ()] == ["s1"]
    assert [[each.id for each in some] for some in (would.bookings.moves, would.bookings.stays)] == [
        [booking.id], [server.id]
    ]  # fmt: skip
    assert (told(harness), harness.gpu_of(booking), harness.holds()) == ([], XP, []), "nothing has changed"
    planned = plan(harness)
    assert (planned.state, planned.by, planned.title) == (M.PLANNED, "eve", f"maintenance of {HOST}: new kernel")
    assert harness.gpu_of(booking).startswith(OTHER), "what can be elsewhere is"
    assert told(harness) == [("booking.maintenance", planned.title)], "who cannot is told, at once"
    assert [affected.id for affected in harness.one.bookings] == [server.id]
    holds = harness.holds()
    assert {(hold.ask.pool, hold.ask.start, hold.ask.end, hold.user) for hold in holds} == {
        ("gtx-titan", planned.start, planned.until, "eve"),
        ("titan-xp", server.ask.end, planned.until, "eve"),
    }, "its own lane is the server's until that ends"
    with pytest.raises(RefusedError):
        book(harness, 2.5, gpu=XP)
    harness.turn()
    assert harness.status(XP).state is GpuState.CLAIMED
    assert harness.taken() == set()

    harness.turn(hours=2)
    assert harness.state() is M.DRAINING
    assert [claim.server_name for claim in harness.one.servers or ()] == ["s1"]
    assert harness.taken() == {HOST}, "nobody new gets in, below the server neither"
    until = planned.until.strftime("%Y-%m-%d %H:%M UTC")
    words = f"maintenance of {HOST}: new kernel, until {until}"
    assert harness.status(XP).reason == f"{words}; it is kept back when its server ends"
    harness.ledger.end(server.id, ADA)
    del harness.cloud.holders[provider(XP)], harness.cloud.servers["s1"]
    harness.turn()
    harness.turn()
    harness.turn()
    assert harness.state() is M.IN_WORK
    assert (harness.status(XP).state, harness.status(XP).reason) == (GpuState.HELD, words)

    harness.boot, harness.kernel, harness.gone = "boot-2", "6.12", frozenset({"0000:3b:00.0"})
    harness.hear()  # while the card is out
    harness.turn()
    assert {gpu.state for gpu in harness.gpus()} <= {S.FINE, S.RETURNED}
    last = lines(harness)[0]
    assert (last.signal, last.cause) == ("missing", "not in sysfs; its host is in maintenance")
    harness.turn(minutes=10)
    assert not any(view.silent for view in harness.service.view() if view.health.host == HOST)
    assert {view.maintenance for view in harness.service.view() if view.health.host == HOST} == {words}

    harness.turn()
    harness.watched.maintenance.done(planned.id, "6.12 runs", EVE)
    harness.turn()
    harness.turn()
    assert harness.state() is M.CHECKING
    assert "has not been heard from since the work was done" in harness.one.maintenance.problems[0]
    harness.hear()
    harness.turn()
    assert harness.state() is M.CHECKING
    assert harness.one.maintenance.problems[0] == "0000:3b:00.0: not in sysfs (missing)"
    assert harness.taken() == {HOST}
    harness.gone = frozenset()
    harness.watched.maintenance.start(planned.id, "the card is loose", EVE)
    harness.turn()
    harness.watched.maintenance.done(planned.id, "it is in again", EVE)
    harness.turn()
    harness.hear()
    harness.turn()
    assert harness.state() is M.BACK
    assert harness.holds() == []
    assert {gpu.state for gpu in harness.gpus()} == {S.TO_ACCEPT}, "the whole host, whatever share of its pools that is"
    assert {(gpu.signal, gpu.by) for gpu in harness.gpus()} == {("kernel", "eve")}
    harness.turn()
    assert harness.status(XP).reason == "to be accepted: another kernel than it was accepted with (kernel)"
    for gpu in harness.gpus():
        harness.service.release(gpu.name, "it works", EVE)
    harness.turn()
    assert (harness.taken(), harness.held()) == (set(), set())
    causes = [event.cause for event in reversed(lines(harness)) if "maintenance" in event.cause]
    assert len(causes) == 8
    assert causes[-1].endswith("kernel 6.12, and 6.1 before; 2 of them must be accepted before anybody gets them")
    assert all(gpu.keeper == "" for gpu in harness.gpus())
    actions = [entry.action for entry in harness.ledger.audit(200) if entry.action.startswith("maintenance.")]
    assert actions == [f"maintenance.{what}" for what in ("done", "start", "done", "plan")]


def test_nobody_works_on_a_host_as_long_as_somebody_may_get_in(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    plan(harness)
    harness.turn(hours=2)
    assert harness.state() is M.DRAINING
    harness.now += timedelta(seconds=2)
    (name,) = [name for name in harness.cloud.reserved if name == provider(XP)]
    harness.cloud.reserved.pop(name)  # as a look sees it that is older than its hold
    harness.watched.bookings.observation = replace(
        harness.watched.bookings.observation, snapshot=harness.cloud.take(harness.now)
    )  # type: ignore[type-var]
    harness.watched.maintenance.run()
    assert harness.state() is M.DRAINING
    harness.turn()
    harness.turn()
    harness.turn()
    assert harness.state() is M.IN_WORK


def test_what_was_heard_when_the_clock_was_ahead_gives_nothing_back(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0)
    harness.now += timedelta(days=400)
    harness.hear()
    harness.now -= timedelta(days=400)
    for _ in range(4):
        harness.turn()
    assert harness.state() is M.IN_WORK
    harness.watched.maintenance.done(planned.id, "", EVE)
    harness.turn()
    assert harness.state() is M.CHECKING
    harness.hear()
    harness.turn()
    assert harness.state() is M.BACK


def test_it_takes_longer_and_never_ends_by_the_clock(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0, 1)
    others = [book(harness, 0.9, 2, f"{OTHER}/{address}", EVE) for address in ("0000:18:00.0", "0000:86:00.0")]
    later = book(harness, 1.2)
    assert harness.gpu_of(later) == XP, "the others are taken"
    told(harness)
    harness.turn(seconds=5)
    harness.turn()
    harness.turn()
    assert harness.state() is M.IN_WORK
    harness.turn(minutes=46)
    assert harness.one.maintenance.until > planned.until
    assert harness.one.maintenance.promised == planned.until, "whoever waits for it is told by what was said"
    assert ("booking.maintenance", planned.title) in told(harness), "its owner hears of it in time"
    for _ in range(8):
        harness.turn(minutes=20)
        assert harness.state() is M.IN_WORK
        assert harness.one.maintenance.until > harness.now
        assert harness.taken() == {HOST}
    assert harness.status(XP).state is GpuState.HELD
    assert len(others) == 2
    harness.watched.maintenance.done(planned.id, "", EVE)
    harness.turn()
    harness.hear()
    harness.turn()
    assert (harness.state(), harness.taken(), harness.holds()) == (M.BACK, set(), [])
    assert harness.gpu_of(book(harness, 0.1, gpu=XP)) == XP


def test_what_becomes_free_is_held_and_another_end_is_followed(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    server = book(harness, 0, 4, gpu=XP)
    harness.turn()
    harness.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider(XP)], harness.now)
    harness.turn()
    planned = plan(harness, 1, 4)
    mine = [hold for hold in harness.holds() if hold.ask.pool == "titan-xp"]
    assert [(hold.ask.start, hold.ask.end) for hold in mine] == [(server.ask.end, planned.until)]
    harness.ledger.end(server.id, ADA)
    harness.turn()
    times = sorted((hold.ask.start, hold.ask.end) for hold in harness.holds() if hold.ask.pool == "titan-xp")
    assert times == [(planned.start, server.ask.end), (server.ask.end, planned.until)]
    service = harness.watched.maintenance
    service.extend(planned.id, planned.until - HOUR, "less to do", EVE)
    assert {hold.ask.end for hold in harness.holds()} == {planned.until - HOUR, server.ask.end}
    service.extend(planned.id, planned.until + HOUR, "more to do", EVE)
    assert max(hold.ask.end for hold in harness.holds()) == planned.until + HOUR
    service.cancel(planned.id, "not needed", EVE)
    assert (harness.state(), harness.holds()) == (M.CANCELLED, [])
    assert plan(harness, 1, 1).state is M.PLANNED, "another one may follow"


def test_leases_of_runners_end_before_it(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 1, 2)
    (lane,) = harness.ledger.leases.rooms()["gtx-titan"].lanes
    until = planned.start - 10 * MINUTE  # the rule `hold`
    assert lane.free[0] == (harness.now, until)
    take = partial(harness.ledger.leases.take, "gtx-titan", 1, False)
    with pytest.raises(RefusedError):
        take(until + MINUTE, "r1", "p-ci", "ci", "r1", yields=False)
    assert take(until, "r1", "p-ci", "ci", "r1", yields=False).ask.end == until


def test_a_hold_that_somebody_ends_is_made_again(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    plan(harness, 1, 1)
    before = len(harness.holds())
    harness.ledger.cancel(harness.holds()[0].id, EVE)
    harness.turn()
    assert len(harness.holds()) == before


def test_a_gpu_that_is_bad_keeps_the_host_until_somebody_takes_it(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0, 4)
    harness.turn()
    harness.turn()
    harness.turn()
    harness.watched.maintenance.done(planned.id, "", EVE)
    harness.turn()
    harness.see(XP, "aer-fatal")
    harness.hear()
    harness.turn()
    assert harness.service.gpu(XP).state is S.QUARANTINED, "what is seen after the work counts"
    assert (harness.state(), harness.taken()) == (M.CHECKING, {HOST})
    assert harness.one.maintenance.problems == ("0000:3b:00.0 is quarantined: a fatal or non-fatal AER error more",)
    harness.service.start_repair(XP, "its riser", EVE)
    harness.turn()
    assert harness.state() is M.BACK
    assert set(harness.cloud.reserved) == {provider(XP)}, "the others are back"


def test_a_card_that_stays_out_is_left_to_a_person(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0, 4)
    harness.turn()
    harness.turn()
    harness.turn()
    harness.watched.maintenance.done(planned.id, "", EVE)
    harness.gone = frozenset({"0000:3b:00.0"})
    for _ in range(3):
        harness.turn(minutes=2)
        harness.hear()
        harness.turn()
        assert harness.state() is M.CHECKING
        assert harness.one.maintenance.problems == ("0000:3b:00.0: not in sysfs (missing)",)
    harness.service.quarantine(XP, "the vendor has the card", EVE)
    harness.turn()
    assert harness.state() is M.BACK
    assert set(harness.cloud.reserved) == {provider(XP)}


def test_somebody_answers_for_a_host_that_says_nothing(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0, 4)
    harness.turn()
    harness.turn()
    harness.turn()
    harness.watched.maintenance.done(planned.id, "no watch there yet", EVE, unchecked=True)
    harness.turn()
    assert (harness.state(), harness.taken(), harness.holds()) == (M.BACK, set(), [])
    assert lines(harness)[0].cause.endswith("the host is given back without a check: no watch there yet")


def test_a_cloud_out_of_sight_gives_nothing_back(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    planned = plan(harness, 0, 4)
    harness.turn()
    harness.turn()
    harness.turn()
    harness.watched.maintenance.done(planned.id, "", EVE)
    harness.now += timedelta(minutes=2)
    harness.hear()
    harness.watched.maintenance.run()
    assert harness.one.maintenance.problems == ("what OpenStack has is not known at the moment",)


def test_what_cannot_be_is_said(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    service, soon = harness.watched.maintenance, harness.now + HOUR
    with pytest.raises(NoSuchHostError, match="there is no host 'nowhere' with GPUs of the site; there are"):
        service.plan("nowhere", soon, soon + HOUR, "", EVE)
    with pytest.raises(MaintenanceError, match="is not after the start"):
        service.plan(HOST, soon, soon, "", EVE)
    planned = plan(harness, 0, 1)
    with pytest.raises(MaintenanceError, match=r"has a maintenance already, from .*: new kernel; end or cancel"):
        service.plan(HOST, soon, soon + HOUR, "", EVE)
    with pytest.raises(NoSuchMaintenanceError, match="there is no maintenance 'x'"):
        service.done("x", "", EVE)
    harness.turn()
    harness.turn()
    harness.turn()
    with pytest.raises(MaintenanceError, match=f"somebody works on {HOST}: say 'gpuyard host maintenance done"):
        service.cancel(planned.id, "", EVE)
    service.done(planned.id, "", EVE, unchecked=True)
    for step in (service.start, service.done, service.cancel):
        with pytest.raises(MaintenanceError, match=f"the maintenance of {HOST} is back"):
            step(planned.id, "", EVE)
    with pytest.raises(MaintenanceError, match="is back"):
        service.extend(planned.id, soon + HOUR, "", EVE)


def test_the_map_says_whose_a_gpu_is_that_is_lent_for_its_repair(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    harness.service.quarantine(XP, "it smells", EVE)
    harness.turn()
    harness.service.lend(XP, harness.now + HOUR, "memtest", EVE, ADA)
    for _ in range(4):
        harness.turn(seconds=20)
    assert provider(XP) not in harness.cloud.reserved, "it is released for a server of its project"
    status = harness.status(XP)
    assert status.state is GpuState.BOOKED
    assert status.reason.startswith("lent to project physics until 2026-11-23 10:00 UTC: repair of")
    assert status.reason.endswith("memtest; quarantined: an operator has decided so")
    harness.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider(XP)], harness.now)
    harness.turn(seconds=20)
    assert (harness.status(XP).state, harness.status(XP).reason) == (GpuState.CLAIMED, status.reason)
    harness.service.take_back(XP, "it is the riser", EVE)
    del harness.cloud.holders[provider(XP)], harness.cloud.servers["s1"]
    harness.turn(seconds=20)
    assert (harness.status(XP).state, harness.status(XP).reason) == (
        GpuState.HELD,
        "quarantined: an operator has decided so",
    )


# All servers of the host, and its nova-compute


def cpu(harness: HostWard, id: str, host: str | None = HOST, status: str = "ACTIVE", task: str = "") -> Server:
    """A server without GPUs."""
    server = Server(id, id, status, host, "physics", "ada", "m1.small", harness.now, project_id="p-physics", task=task)
    harness.cloud.servers[id] = server
    return server


def drained(harness: HostWard, turns: int = 4) -> MaintenanceView:
    for _ in range(turns):
        harness.turn()
    return harness.one


@pytest.mark.parametrize("status", ["ACTIVE", "SHUTOFF", "SHELVED", "BUILD", "ERROR", "PAUSED", "VERIFY_RESIZE"])
def test_a_server_without_gpus_keeps_work_from_beginning(ward: Callable[..., HostWard], status: str) -> None:
    harness = ward()
    cpu(harness, "web", status=status)
    cpu(harness, "elsewhere", OTHER)
    planned = plan(harness, 0, 4)
    view = drained(harness)
    assert view.maintenance.state is M.DRAINING
    assert [claim.server_name for claim in view.servers or ()] == ["web"]
    harness.watched.maintenance.allow(planned.id, ["not-web"], "", EVE)
    assert drained(harness).maintenance.state is M.DRAINING
    harness.watched.maintenance.allow(planned.id, ["web"], "its owner knows", EVE)
    assert drained(harness, 1).maintenance.state is M.IN_WORK
    assert harness.one.maintenance.may_go_down == ("not-web", "web")
    assert lines(harness)[1].cause.endswith("servers that may go down with it: web: its owner knows")


def row_of_migration(server: str, source: str, target: str | None, status: str, kind: str) -> dict[str, Any]:
    """As Nova lists it (nova 34.0.0, api/openstack/compute/schemas/migrations.py)."""
    return {
        "uuid": f"m-{server}", "instance_uuid": server, "status": status, "migration_type": kind,
        "source_compute": source, "dest_compute": target, "created_at": "2026-11-23T09:00:00.000000",
    }  # fmt: skip


def test_servers_on_their_way_to_the_host_keep_work_from_beginning(ward: Callable[..., HostWard]) -> None:
    """Nova lists none of them under the host: a build has none before it is claimed, a live migration is on its source
    until its end, and a cold one that waits to be confirmed on its target."""
    harness = ward()
    build = Server("build", "build", "BUILD", None, "", "", "m1.small", task="scheduling")
    live = Server("live", "live", "MIGRATING", OTHER, "", "", "m1.small", task="migrating")
    away = Server("away", "away", "VERIFY_RESIZE", OTHER, "", "", "m1.small")
    left = Server("left", "left", "ACTIVE", OTHER, "", "", "m1.small")
    harness.cloud.hidden = {server.id: server for server in (build, live, away, left)}
    harness.cloud.coming[HOST] = {"build", "left", "m-away"}
    harness.cloud.migrations = [
        row_of_migration("live", OTHER, HOST, "running", "live-migration"),
        row_of_migration("away", HOST, OTHER, "finished", "migration"),
        row_of_migration("left", HOST, OTHER, "confirmed", "migration"),
    ]
    plan(harness, 0, 4)
    for name, done in (
        ("away", lambda: harness.cloud.migrations.pop(1)),
        ("build", lambda: harness.cloud.hidden.update(build=replace(build, host=OTHER, status="ACTIVE", task=""))),
        ("live", lambda: harness.cloud.hidden.update(live=replace(live, status="ACTIVE", task=""))),
    ):
        maintenance = drained(harness).maintenance
        assert maintenance.state is M.DRAINING
        assert f"server {name} ({name}) is there or on its way: " in " ".join(maintenance.problems)
        done()
    assert drained(harness, 1).maintenance.state is M.IN_WORK, "what has only left something behind is not there"


def test_what_is_not_known_is_not_empty(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    plan(harness, 0, 4)
    silent = {"services": {HOST: silent_service(HOST)}, "residents": {}}
    looks: list[dict[str, Any]] = [{"residents": None}, silent, {"services": {}}]
    for look in looks:
        harness.cloud.odd = look
        assert drained(harness).maintenance.state is M.DRAINING, look
        assert (harness.one.servers is None) is ("residents" in look)
        assert not harness.cloud.service(HOST).enabled, "it stays closed"
        if look is silent:
            assert harness.one.maintenance.problems == (silent_service(HOST).unheard,)
    harness.cloud.odd = {}

    def away(request: str) -> None:
        if request == "GET compute /os-migrations":
            raise CloudError("cloud small: GET compute /os-migrations: 403 Policy doesn't allow it", 403)

    harness.cloud.between = away
    assert drained(harness).maintenance.problems == (
        "cloud small: GET compute /os-migrations: 403 Policy doesn't allow it",
    )
    harness.cloud.between = lambda asked: None
    harness.now += timedelta(minutes=2)  # what was seen is too old
    harness.watched.maintenance.run()
    assert (harness.state(), harness.one.servers) == (M.DRAINING, None)
    assert drained(harness).maintenance.state is M.IN_WORK


def test_what_is_booked_in_a_pool_with_a_silent_host_stays(ward: Callable[..., HostWard]) -> None:
    """Nothing is released, taken back or given out by a look in which servers are missing."""
    harness = ward()
    booking = harness.book(hours=1)
    harness.turn()
    harness.now = booking.ask.start
    host = harness.gpu_of(booking).partition("/")[0]
    services = {gpu.host: harness.cloud.service(gpu.host) for gpu in harness.compiled.gpus}
    harness.cloud.odd = {"services": {**services, host: silent_service(host)}, "residents": {}}
    requests_before = len(harness.cloud.asked)
    harness.turn()
    assert f"pool t4: {silent_service(host).unheard}" in harness.watched.bookings.waits
    assert harness.cloud.asked[requests_before:] == []
    assert harness.watched.bookings.observation is not None
    assert harness.watched.bookings.observation.snapshot.taken_at == harness.now, "others see what there is"
    harness.cloud.odd = {}
    harness.turn()
    assert (harness.watched.bookings.waits, harness.cloud.asked[requests_before:] == []) == ((), False)


def test_a_maintenance_disables_nova_compute_and_enables_it_for_the_check(ward: Callable[..., HostWard]) -> None:
    harness = ward()
    cpu(harness, "web")
    planned = plan(harness, 1, 4)
    drained(harness)
    assert harness.cloud.service(HOST).enabled, "its time has not come"
    harness.now += HOUR
    drained(harness)
    tag = tag_of(harness.cloud.service(HOST).disabled_reason)
    assert (tag and tag.purpose) is Purpose.MAINTENANCE
    harness.cloud.services[HOST] = HostService(HOST, True, True)  # somebody enables it by hand
    drained(harness, 1)
    assert not harness.cloud.service(HOST).enabled
    del harness.cloud.servers["web"]
    assert drained(harness).maintenance.state is M.IN_WORK
    harness.cloud.services[HOST] = replace(harness.cloud.service(HOST), up=False)  # it reboots
    harness.watched.maintenance.done(planned.id, "", EVE)
    drained(harness, 2)
    assert not harness.cloud.service(HOST).enabled, "Nova would not tell it"
    harness.cloud.services[HOST] = replace(harness.cloud.service(HOST), up=True)
    drained(harness, 2)
    assert harness.cloud.service(HOST) == HostService(HOST, True, True)
    cpu(harness, "early")  # comes while it is checked
    harness.turn()
    harness.watched.maintenance.start(planned.id, "the fan is loose", EVE)
    assert drained(harness).maintenance.state is M.DRAINING
    assert not harness.cloud.service(HOST).enabled
    with pytest.raises(MaintenanceError, match="somebody works on"):
        harness.watched.maintenance.cancel(planned.id, "", EVE)
    harness.watched.maintenance.done(planned.id, "it is fixed", EVE)
    harness.turn()
    harness.hear()
    drained(harness)
    assert (harness.state(), harness.cloud.service(HOST).enabled) == (M.BACK, True)


def test_the_host_may_be_drained_while_it_is_maintained(ward: Callable[..., HostWard]) -> None:
    """The drain takes the closed host over: who moves the servers looks for leftovers before it is opened again."""
    harness = ward()
    cpu(harness, "web")
    planned = plan(harness, 0, 4)
    drained(harness, 2)
    api: Any = harness.cloud
    began = tag_of(harness.cloud.service(HOST).disabled_reason)
    tag = ComputeService(api, HOST).close(Purpose.DRAIN)
    assert began is not None
    assert (tag.purpose, tag.since, tag.before) == (Purpose.DRAIN, began.since, None)
    assert ComputeService(api, HOST).tag == tag == ComputeService(api, HOST).close(Purpose.DRAIN)
    del harness.cloud.servers["web"]
    assert drained(harness).maintenance.state is M.IN_WORK
    harness.watched.maintenance.done(planned.id, "", EVE)
    drained(harness)
    assert ComputeService(api, HOST).tag == tag, "gpuyard host return opens it"
    ComputeService(api, HOST).open(tag)
    assert harness.cloud.service(HOST).enabled


@pytest.mark.parametrize("reason", ["rack 4 gets a new PDU", "gpuyard: drain since 2026-11-23T08:00:00Z", ""])
def test_what_somebody_else_has_disabled_stays_so(ward: Callable[..., HostWard], reason: str) -> None:
    harness = ward()
    harness.cloud.services[HOST] = HostService(HOST, True, False, reason)
    planned = plan(harness, 0, 4)
    assert drained(harness).maintenance.state is M.IN_WORK
    harness.watched.maintenance.done(planned.id, "", EVE, unchecked=True)
    drained(harness)
    assert harness.cloud.service(HOST) == HostService(HOST, True, False, reason)
    assert not [request for request in harness.cloud.asked if "os-services" in request]


def test_a_service_that_cannot_be_disabled_is_said_and_nothing_begins(ward: Callable[..., HostWard]) -> None:
    harness = ward()

    def forbidden(request: str) -> None:
        if request.startswith("PUT compute /os-services"):
            raise CloudError("cloud small: 403", 403)

    harness.cloud.between = forbidden
    plan(harness, 0, 4)
    view = drained(harness)
    assert view.maintenance.state is M.DRAINING
    assert view.maintenance.problems == (f"nova-compute on {HOST} is to be disabled: cloud small: 403",)


def test_a_service_is_enabled_whatever_end_a_maintenance_has(ward: Callable[..., HostWard]) -> None:
    """Also when the process that ended it was killed before it said so, and when the record is gone."""
    harness = ward()
    planned = plan(harness, 0, 4)
    drained(harness, 2)
    assert not harness.cloud.service(HOST).enabled
    harness.watched.maintenance.cancel(planned.id, "not needed", EVE)
    harness.store.close()
    harness.open()
    drained(harness, 2)
    assert harness.cloud.service(HOST).enabled


# Kills


class Killed(BaseException):
    """As kill -9: nothing of the program runs on."""


def test_a_kill_between_any_two_writes_loses_nothing(
    ward: Callable[..., HostWard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is what is left of a process. Each write of it, and each request, may be the last."""
    harness = ward()
    booking, written, stop = book(harness, 0.5, gpu=XP), [0], [10**9]
    real = type(harness.store.database).writing

    def writing(database: Any) -> Any:
        written[0] += 1
        if written[0] > stop[0]:
            raise Killed
        return real(database)

    monkeypatch.setattr(type(harness.store.database), "writing", writing)
    harness.cloud.between = lambda asked: writing_is_due()

    def writing_is_due() -> None:
        if written[0] >= stop[0]:
            raise Killed

    kills = 0

    def until(done: Callable[[], bool], act: Callable[[], object]) -> None:
        """Again and again, a little further each time, until it is so."""
        nonlocal kills
        for further in range(60):
            written[0], stop[0] = 0, further
            try:
                act()
            except Killed:
                kills += 1
                stop[0] = 10**9
                harness.store.close()
                harness.open()
                continue
            finally:
                stop[0] = 10**9
            if done():
                return
        raise AssertionError("it does not end")

    def service() -> MaintenanceService:
        return harness.watched.maintenance

    def open_one() -> Maintenance | None:
        views = service().views()
        return views[0].maintenance if views else None

    def step(act: Callable[[Maintenance], object], state: MaintenanceState) -> Callable[[], object]:
        def do() -> None:
            maintenance = open_one()
            if maintenance is not None and maintenance.state is not state:
                act(maintenance)
            harness.turn()

        return do

    def plan_once() -> None:
        if open_one() is None:
            plan(harness, 0.25, 2)
        harness.turn()

    until(lambda: len(harness.holds()) == 2, plan_once)
    assert harness.gpu_of(booking).startswith(OTHER)
    harness.now += HOUR / 2
    until(lambda: harness.taken() == {HOST} and harness.state() is M.IN_WORK, harness.turn)
    until(lambda: harness.state() is M.CHECKING, step(lambda seen: service().done(seen.id, "", EVE), M.CHECKING))
    harness.now += 2 * MINUTE
    harness.hear()
    until(lambda: harness.state() is M.BACK and harness.holds() == [] and harness.taken() == set(), harness.turn)
    assert harness.held() == set()
    assert kills > 20, "else this proves nothing"
    assert not harness.service.maintenances.with_holds()


# The rules by themselves

TIMES = st.integers(0, 300).map(lambda minutes: NOW + minutes * MINUTE)
GPU = GpuHealth(HOST, "0000:3b:00.0", "titan-xp", S.FINE, NOW)
LOOK = HostReport(HOST, "b", 1, "", gpus=(GpuReport(GPU.address, True, "10de:1eb8", "b81e10de", "vfio-pci"),))
BAD_LOOK = replace(LOOK, gpus=())
HOSTS = st.builds(
    HostNow,
    st.sampled_from([None, (), ("s1",)]),
    st.sampled_from([(), ("nova-compute is enabled",)]),
    st.sampled_from([(), ("nova-compute is down",)]),
    st.sampled_from([(), (GPU.address,)]),
    st.one_of(st.none(), TIMES),
    st.sampled_from([None, LOOK, BAD_LOOK]),
    st.tuples(
        st.builds(replace, st.just(GPU), state=st.sampled_from(list(S)), since=TIMES, by=st.sampled_from(["", "eve"]))
    ),
    st.sampled_from([(), (Observation(HOST, GPU.address, "aer-fatal", NOW),)]),
)
SAYS = st.sampled_from([None, M.DRAINING, M.CHECKING, M.IN_WORK, M.CANCELLED])


@given(TIMES, TIMES, st.lists(st.tuples(TIMES, HOSTS, SAYS), max_size=12))
def test_every_life_keeps_the_rules(
    start: datetime, until: datetime, days: list[tuple[datetime, HostNow, MaintenanceState | None]]
) -> None:
    maintenance = Maintenance("m", HOST, start, until, "", "eve", M.PLANNED, NOW, NOW)
    for now, host, state in sorted(days, key=lambda day: day[0]):
        if state is not None and (maintenance.state, state) in TRANSITIONS:
            maintenance = replace(
                transition(maintenance, state, now), done=now if state is M.CHECKING else maintenance.done
            )
        for _ in range(8):
            step = next_step(maintenance, host, now)
            if step is None:
                break
            new, _ = step
            assert new != maintenance
            assert new.state is maintenance.state or (maintenance.state, new.state) in TRANSITIONS
            if new.state is M.BACK:
                assert maintenance.done is not None
                assert host.heard is not None
                assert host.heard > maintenance.done, "only a host that was heard of since is given back"
                assert not host.cloud
                (gpu,) = host.gpus
                out = (
                    gpu.state is S.IN_REPAIR
                    or (gpu.state is S.QUARANTINED and bool(gpu.by))
                    or (
                        gpu.state in (S.QUARANTINED, S.SUSPECT)
                        and maintenance.begun is not None
                        and gpu.since < maintenance.begun
                    )
                )
                assert out or (host.look is LOOK and not host.observations and not host.missing)
                assert out or gpu.state not in (S.QUARANTINED, S.SUSPECT)
            maintenance = new
        else:
            raise AssertionError("it does not come to rest")
        assert next_step(maintenance, host, now) is None
        if maintenance.on:
            assert now < maintenance.until - SOON, "it is never over by the clock"
        if maintenance.state in OVER:
            return


@given(st.tuples(TIMES, TIMES), st.lists(st.tuples(TIMES, TIMES).map(lambda two: (min(two), max(two))), max_size=6))
def test_gaps_and_what_is_taken_are_all_of_the_time(
    time: tuple[datetime, datetime], taken: list[tuple[datetime, datetime]]
) -> None:
    intervals = gaps(time, taken)
    minutes = [NOW + number * MINUTE for number in range(300)]
    for minute in minutes:
        inside = time[0] <= minute < time[1]
        is_taken = any(start <= minute < end for start, end in taken)
        assert any(start <= minute < end for start, end in intervals) is (inside and not is_taken)
    assert all(start < end for start, end in intervals)


def test_times_that_are_over_are_refused() -> None:
    refuse_times(NOW - HOUR, NOW + MINUTE, NOW)
    for start, until in ((NOW - HOUR, NOW), (NOW + HOUR, NOW + HOUR)):
        with pytest.raises(MaintenanceError):
            refuse_times(start, until, NOW)
