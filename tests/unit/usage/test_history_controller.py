"""The loop of history on a cloud that a test makes up: looks of one process, of two, and of a clock that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import AuditEntry
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.openstack.errors import CloudError
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.site.compile import CompiledSite
from gpuyard.usage.controllers.history import HistoryController, HistoryError
from gpuyard.usage.lives import ServerLife
from gpuyard.usage.records import TrackState
from gpuyard.usage.store import HistoryStore
from gpuyard.usage.store.repair import carry_out, plan_repair
from tests.support.booked_sites import ShiftedClock, open_ledger
from tests.support.nova_samples import silent_service
from tests.support.sites import flavor, site

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
HOST = "gpu-server"


@dataclass
class Watch:
    """Stands for the loop of bookings."""

    observation: CloudObservation | None = None


@dataclass
class Past:
    """Stands for what Nova remembers."""

    fails: bool = False
    asked: int = 0

    def read(self, since: datetime, now: datetime, also: object = (), by_id: object = ()) -> dict[str, ServerLife]:
        self.asked += 1
        if self.fails:
            raise CloudError("Nova does not answer")
        return {}


@pytest.fixture
def compiled(tmp_path: Path) -> CompiledSite:
    return site(tmp_path, {"flavors": {"one": flavor(gpus={"v100": 1})}, "booking": {}}).compiled


@pytest.fixture
def ledger(tmp_path: Path, compiled: CompiledSite) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path, compiled, ShiftedClock())
    assert opened.upkeep.leadership.try_to_lead(BOOKINGS)
    yield opened
    opened.close()


def history_of(
    watch: Watch, past: Past, ledger: Ledger, compiled: CompiledSite, now: Callable[[], datetime] = lambda: NOW
) -> HistoryController:
    """A controller on the ledger's database, as of a new process."""
    store = HistoryStore(ledger.database)
    return HistoryController(store, past, watch, ledger, compiled, now)  # type: ignore[arg-type]  # stand-ins


def observed(compiled: CompiledSite, seconds: int, *servers: Server) -> CloudObservation:
    names = [gpu.provider_name for gpu in compiled.gpus]
    snapshot = Snapshot(
        NOW + timedelta(seconds=seconds),
        {name: Provider(name, name, HOST) for name in [HOST, *names]},
        frozenset(names[len(servers) :]),
        dict(zip(names, (server.id for server in servers), strict=False)),
        frozenset(),
        {},
        {server.id: server for server in servers},
        {HOST: HostService(HOST, True, True)},
    )
    return CloudObservation(snapshot, frozenset(), words={})


def test_looks_are_written_once_and_only_forward(compiled: CompiledSite, ledger: Ledger) -> None:
    watch, past, store = Watch(), Past(), HistoryStore(ledger.database)
    first, second = (history_of(watch, past, ledger, compiled) for _ in range(2))
    first.run()
    watch.observation = replace(observed(compiled, 0), words=None)
    first.run()
    assert store.seen() is None, "nothing is known of what the ledger kept"
    watch.observation = observed(compiled, 0)
    first.run()
    assert len(store.open()) == len(compiled.gpus)
    train = Server("s1", "train", "ACTIVE", HOST, "alpha", "ada", "one", NOW, NOW + timedelta(seconds=3))
    watch.observation = observed(compiled, 5, train)
    first.run()
    second.run()
    assert past.asked == 1, "the look was there already"
    (used,) = [interval for interval in store.open() if interval.state is TrackState.CLAIMED]
    assert (used.start, used.exact_start) == (NOW + timedelta(seconds=3), True)
    past.fails, watch.observation = True, observed(compiled, 10)
    with pytest.raises(CloudError):
        first.run()
    assert used in store.open(), "of a look that cannot ask everything nothing follows"
    past.fails = False
    first.run()
    assert used not in store.open(), "it is made up for"
    watch.observation = observed(compiled, -60)
    with pytest.raises(
        HistoryError, match=r"the clock says 2026-11-23 08:59:00 UTC, and history goes until .* 09:00:10"
    ):
        second.run()


def test_history_has_not_seen_a_host_whose_cell_is_silent(compiled: CompiledSite, ledger: Ledger) -> None:
    """Nova names none of its servers then, and Placement still has their allocations."""
    watch, store = Watch(), HistoryStore(ledger.database)
    controller = history_of(watch, Past(), ledger, compiled)
    train = Server("s1", "train", "ACTIVE", HOST, "alpha", "ada", "one", NOW, NOW)
    watch.observation = observed(compiled, 5, train)
    controller.run()
    (used,) = [interval for interval in store.open() if interval.state is TrackState.CLAIMED]
    before = {interval.address: interval.state for interval in store.open()}
    observation = observed(compiled, 10, train)
    silent = replace(observation.snapshot, servers={}, services={HOST: silent_service(HOST)})
    watch.observation = replace(observation, snapshot=silent)
    controller.run()
    extent = store.seen()
    assert extent is not None
    assert (extent.settled, extent.until) == (NOW + timedelta(seconds=5), NOW + timedelta(seconds=10))
    assert used in store.open()
    assert {interval.state for interval in store.open() if interval != used} == {TrackState.UNSEEN}
    watch.observation = observed(compiled, 15, train)
    controller.run()
    assert used in store.open(), "it was there all the time"
    assert {interval.address: interval.state for interval in store.open()} == before


def test_a_clock_that_the_cloud_does_not_have_adds_nothing(compiled: CompiledSite, ledger: Ledger) -> None:
    """And takes nothing away, however old it makes what is there."""
    watch, store, clock = Watch(), HistoryStore(ledger.database), [NOW]
    controller = history_of(watch, Past(), ledger, compiled, lambda: clock[0])
    for seconds in (0, 5):
        watch.observation = observed(
            compiled, seconds, *[Server("s1", "t", "ACTIVE", HOST, "a", "b", "one", NOW, NOW)] * (seconds == 5)
        )
        controller.run()
    recorded, two_years = (store.seen(), store.intervals(NOW, NOW + timedelta(days=1))), timedelta(days=730)
    ahead = observed(compiled, 10)
    shown = ahead.snapshot.taken_at
    clock[0] += two_years
    snapshot = replace(ahead.snapshot, taken_at=shown + two_years, clock=shown)
    watch.observation = replace(ahead, snapshot=snapshot)
    with pytest.raises(
        HistoryError, match=r"says 2028-11-22 09:00:10 UTC, and the cloud's 2026-11-23 09:00:10 UTC: .* 5 min"
    ):
        controller.run()
    watch.observation = None
    controller.run()
    assert (store.seen(), store.intervals(NOW, NOW + timedelta(days=1))) == recorded
    clock[0] -= two_years
    watch.observation = replace(ahead, snapshot=replace(snapshot, taken_at=shown, clock=shown - timedelta(minutes=4)))
    controller.run()
    extent = store.seen()
    assert extent is not None
    assert extent.until == shown, "a little later is what networks make"


def test_history_goes_on_once_what_a_wrong_clock_wrote_is_taken_back(compiled: CompiledSite, ledger: Ledger) -> None:
    """While the process that keeps it goes on."""
    watch, store = Watch(), HistoryStore(ledger.database)
    controller = history_of(watch, Past(), ledger, compiled)
    train = Server("s1", "train", "ACTIVE", HOST, "alpha", "ada", "one", NOW, NOW)
    for second in (0, 5):
        watch.observation = observed(compiled, second, train)
        controller.run()
    honest, year = store.open(), 365 * 86_400
    history_of(watch, Past(), ledger, compiled).look(observed(compiled, year, train))
    watch.observation = observed(compiled, 10, train)
    with pytest.raises(HistoryError, match="'gpuyard usage repair' takes it back"):
        controller.run()
    now = NOW + timedelta(seconds=12)
    plan = plan_repair(store, "UTC", now)
    assert plan is not None
    assert carry_out(store, "UTC", plan, AuditEntry(now, "root", "history.repair", "history"))
    watch.observation = observed(compiled, 15, train)
    controller.run()
    extent = store.seen()
    assert extent is not None
    assert extent.until == NOW + timedelta(seconds=15)
    had = [interval for interval in honest if interval.state is TrackState.CLAIMED]
    assert had == [interval for interval in store.open() if interval.state is TrackState.CLAIMED], (
        "it goes on as if nothing had been"
    )
    every = store.intervals(NOW, NOW + timedelta(days=3 * 365))
    by_gpu = {
        interval.address: sum(i.seconds(NOW, extent.until) for i in every if i.address == interval.address)
        for interval in honest
    }
    assert set(by_gpu.values()) == {15}
