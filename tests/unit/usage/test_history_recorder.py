"""What looks make of the lives of servers: every second of use, once, whatever becomes of portals and clouds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuyard.bookings.records import AuditEntry
from gpuyard.bookings.store import Store
from gpuyard.database.engine import Database
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.reckoning import one_tariff
from gpuyard.usage.recorder import GAP, HistoryWrites, plan_look
from gpuyard.usage.records import TrackState
from gpuyard.usage.store import HistoryStore, SumStore
from gpuyard.usage.store.repair import carry_out, plan_repair
from tests.support.history_world import SimCloud, at, partition_problems, used_by

FAR = 10_000_000
AHEAD = 3 * 86_400


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "template.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        HistoryStore(database)
    Store.open(f"sqlite:///{path}").close()  # with the audit log
    return path


@contextmanager
def fresh(template: Path) -> Iterator[HistoryStore]:
    path = template.with_name("history.db")
    for old in (*template.parent.glob("history.db*"), *template.parent.glob("history.backup")):
        old.unlink()
    shutil.copy(template, path)
    with closing(Database(f"sqlite:///{path}")) as database:
        yield HistoryStore(database)


class Portals:
    """Those who look, with what goes wrong with them."""

    def __init__(self, cloud: SimCloud, store: HistoryStore) -> None:
        self.cloud, self.store = cloud, store
        self.stale: tuple[HistoryWrites, object, int] | None = None
        """What another portal has planned and not written yet."""
        self.first: int | None = None

    def look(
        self,
        reads_for: int = 0,
        unnamed: frozenset[str] = frozenset(),
        hidden: frozenset[str] = frozenset(),
        missed: frozenset[str] = frozenset(),
    ) -> None:
        """`reads_for`: seconds between the look at GPUs and what Nova is asked then, in which the cloud goes on.
        `missed`: servers of which neither Nova nor Placement tells, and nothing says that it is so."""
        second, extent = self.cloud.second, self.store.seen()
        unnamed, hidden = unnamed | missed, hidden | missed
        tracks, open = self.cloud.tracks(unnamed, hidden), self.store.open()
        self.cloud.run(second + reads_for)
        observed = self.cloud.seen(extent, self.store, at(second), tracks, unnamed, unnoticed=bool(missed))
        plan = plan_look(open, extent, observed)
        if plan is None:
            return
        last = extent.until if extent else None
        if self.stale is None:
            self.stale = plan, last, second
        assert self.store.write(last, at(second), plan.settled, plan.ends, plan.adds)
        if self.first is None:
            self.first = second

    @property
    def looked_lately(self) -> bool:
        extent = self.store.seen()
        return extent is None or at(self.cloud.second) - extent.until <= GAP

    def late_one(self) -> None:
        """The other portal comes with what it had planned from an older look."""
        if self.stale is not None and self.stale[2] != (self.first if self.first is not None else -1):
            plan, last, second = self.stale
            assert not self.store.write(last, at(second), plan.settled, plan.ends, plan.adds)  # type: ignore[arg-type]
        self.stale = None

    def clock_back(self, by: int) -> None:
        """A look by a clock that has gone back."""
        extent = self.store.seen()
        if extent is not None:
            taken = extent.until - (at(by) - at(0))
            observed = self.cloud.seen(extent, self.store, taken, self.cloud.tracks())
            assert plan_look(self.store.open(), extent, observed) is None

    def ahead(self, looks: int, lasts: int) -> None:
        """Looks by a clock that is days ahead, and sums of those days; then nobody can look for a while, until what
        they wrote is taken back."""
        first = self.store.seen()
        self.stale = None
        for n in range(looks):
            second, extent = self.cloud.second, self.store.seen()
            taken = at(second + AHEAD)
            observed = self.cloud.seen(extent, self.store, taken, self.cloud.tracks())
            plan = plan_look(self.store.open(), extent, observed)
            if plan is not None:
                assert self.store.write(extent.until if extent else None, taken, plan.settled, plan.ends, plan.adds)
            sum_up(self.store, "UTC", one_tariff, 1)
            self.cloud.run(second + 5 * n)
        self.cloud.run(self.cloud.second + lasts)
        now = at(self.cloud.second)
        repair = plan_repair(self.store, "UTC", now)
        assert (repair is None) == (looks == 0)
        if repair is not None and first is not None:
            entry = AuditEntry(now, "root", "history.repair", "history")
            assert carry_out(self.store, "UTC", repair, entry)
            extent = self.store.seen()
            assert extent is not None
            assert extent.first == first.first
            assert extent.rolled is None
            assert extent.until <= now
            assert plan_repair(self.store, "UTC", now) is None
            assert not carry_out(self.store, "UTC", repair, entry), "it was, already"
            assert SumStore(self.store.database).sums(date(2026, 1, 1), date(2027, 1, 1)) == []
            assert SumStore(self.store.database).hours(at(-FAR), at(FAR)) == []

    def copy(self) -> None:
        """A backup, in place of an older one."""
        self.store.database.close()  # with its log
        shutil.copy(self._file, self._backup)

    def restore(self) -> None:
        """The last backup is there again, as if nothing had been seen since."""
        if self._backup.exists():
            self.store.database.close()
            shutil.copy(self._backup, self._file)
            self.stale = None

    @property
    def _file(self) -> Path:
        return Path(self.store.database.url.database or "")

    @property
    def _backup(self) -> Path:
        return self._file.with_suffix(".backup")


OPS = st.tuples(
    st.integers(0, 12),
    st.sampled_from(
        ["look"] * 8
        + ["create"] * 3
        + ["short", "delete", "delete", "offload", "unshelve", "unshelve", "migrate", "rescue", "fails"]
        + [
            "outage",
            "outage",
            "late",
            "back",
            "unnamed",
            "hidden",
            "missed",
            "missed",
            "ahead",
            "ahead",
            "copy",
            "restore",
        ]
    ),
    st.integers(0, 7),
)


def play(portals: Portals, ops: list[tuple[int, str, int]]) -> None:
    cloud = portals.cloud
    for wait, what, number in ops:
        cloud.run(cloud.second + wait)
        servers = list(cloud.servers.values())
        server = servers[number % len(servers)] if servers else None
        if what == "look":
            portals.look(number % 3)
        elif what == "create":
            cloud.create(1 + number % 2, number)
        elif what == "fails":
            cloud.create(1, number, fails=True)
        elif what == "short":  # comes and goes between two looks
            short_lived = cloud.create(1, 0)
            cloud.run(cloud.second + number)
            if short_lived is not None:
                cloud.delete(short_lived)
        elif what == "outage":
            cloud.run(cloud.second + 40 * number)
        elif what == "late":
            portals.late_one()
        elif what in ("copy", "restore"):
            getattr(portals, what)()
        elif what == "ahead":
            portals.ahead(number % 3, 20 * number)
        elif what == "back":
            portals.clock_back(number)
        elif server is not None and what == "missed":
            # One that is there: what it does meanwhile is dated when it shows. After a gap of minutes a look that
            # misses it takes some of its time with it (ADR 34).
            portals.look(missed=frozenset({server.id} if server.on and portals.looked_lately else ()))
        elif server is not None and what in ("unnamed", "hidden"):
            portals.look(**{what: frozenset({server.id})})  # type: ignore[arg-type]
        elif server is not None and what == "unshelve":
            cloud.unshelve(server, number, fails=number == 6)
        elif server is not None and what in ("offload", "migrate"):
            getattr(cloud, what)(server, number)
        elif server is not None:
            getattr(cloud, what)(server)


def check(template: Path, gpus: int, ops: list[tuple[int, str, int]]) -> None:
    cloud = SimCloud(gpus)
    with fresh(template) as store:
        portals = Portals(cloud, store)
        portals.look()
        play(portals, ops)
        cloud.run(cloud.second + 30)
        portals.look()
        cloud.run(cloud.second + 1)
        portals.look()
        extent = store.seen()
        assert extent is not None
        intervals = store.intervals(at(-FAR), at(FAR))
        assert used_by(intervals, extent.first, extent.until) == cloud.used(0, cloud.second)
        assert partition_problems(intervals, extent.first, extent.until) == []
        assert all(interval.end is None or interval.start < interval.end for interval in intervals)


QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
LONG = settings(QUICK, max_examples=500)


@QUICK
@given(
    looks=st.lists(st.tuples(st.integers(1, 60), st.sets(st.sampled_from(["s0", "s1"]))), max_size=12),
    gpus=st.integers(1, 2),
)
def test_what_was_left_out_for_a_while_is_where_it_was(
    template: Path, looks: list[tuple[int, set[str]]], gpus: int
) -> None:
    """Two servers, of which now and then neither Nova nor Placement tells, for as long as it may be: when they are seen
    again on the same GPUs,
    they have had them all the time."""
    cloud = SimCloud(4)
    servers = [cloud.create(gpus, 1) for _ in range(2)]
    cloud.run(2)
    with fresh(template) as store:
        portals = Portals(cloud, store)
        portals.look()
        for wait, missed in [*looks, (5, set())]:
            cloud.run(cloud.second + wait)
            portals.look(missed=frozenset(missed))
        extent = store.seen()
        assert extent is not None
        intervals = store.intervals(at(-FAR), at(FAR))
        for server in servers:
            assert server is not None
            had = [i for i in intervals if i.tenure.server == server.id]
            assert {i.address for i in had} == {*server.on}
            assert sum(i.seconds(extent.first, extent.until) for i in had) == gpus * (cloud.second - 2)
        assert partition_problems(intervals, extent.first, extent.until) == []


def test_a_backup_of_yesterday_catches_up(template: Path) -> None:
    """What one has had since, what came and went, and what ended: by Nova's records. The rest was not seen."""
    cloud, day = SimCloud(3), 86_400
    with fresh(template) as store:
        portals = Portals(cloud, store)
        stays, ends = cloud.create(1, 5), cloud.create(1, 5)
        assert stays is not None
        assert ends is not None
        cloud.run(100)
        portals.look()
        cloud.run(110)
        portals.look()
        portals.copy()
        for second in range(120, day, 3600):
            cloud.run(second)
            portals.look()
            if second == 120 + 5 * 3600:
                cloud.delete(ends)
            if second == 120 + 7 * 3600:
                came = cloud.create(1, 5)
            if second == 120 + 9 * 3600:
                assert came is not None
                cloud.delete(came)
        assert sum_up(store, "UTC", one_tariff, 9) == 1
        portals.restore()
        extent = store.seen()
        assert extent is not None
        assert (extent.until, extent.rolled) == (at(110), None)
        cloud.run(day + 60)
        portals.look()
        assert sum_up(store, "UTC", one_tariff, 9) == 1
        intervals = store.intervals(at(-FAR), at(FAR))
        assert used_by(intervals, at(100), at(day + 60)) == cloud.used(100, day + 60)
        assert partition_problems(intervals, at(100), at(day + 60)) == []
        recorded = [
            (interval.tenure.server, interval.address != "", interval.state)
            for interval in intervals
            if interval.start > at(110)
        ]
        assert (came.id, False, TrackState.CLAIMED) in recorded  # type: ignore[union-attr]
        assert ("", True, TrackState.UNSEEN) in recorded
        (yesterday,) = SumStore(store.database).sums(date(2026, 10, 5), date(2026, 10, 6), ["host"])
        assert yesterday.seconds == 3 * (16 * 3600 - 100)


PLAYED = given(gpus=st.integers(1, 3), ops=st.lists(OPS, max_size=40))


@QUICK
@PLAYED
@example(gpus=1, ops=[(0, "create", 0), (0, "offload", 0), (0, "unshelve", 1)])
def test_every_second_of_use_is_known_and_none_twice(
    template: Path, gpus: int, ops: list[tuple[int, str, int]]
) -> None:
    check(template, gpus, ops)


@pytest.mark.slow
@LONG
@PLAYED
def test_every_second_of_use_is_known_in_many_lives(template: Path, gpus: int, ops: list[tuple[int, str, int]]) -> None:
    check(template, gpus, ops)
