"""Random lives of servers, as Nova records them, and what history makes of them: every GPU-second of a server that Nova
and the looks can tell, and none that it did not have."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.database.engine import Database
from gpuyard.usage.controllers.history import HistoryController
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.read_lives import LifeReader
from gpuyard.usage.reckoning import one_tariff, reckon
from gpuyard.usage.records import Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore
from tests.support.history_world import partition_problems
from tests.support.simulated_nova import GPUS, ZERO, SimServer, SimulatedNova, at, truth_problems

ZONE = "Europe/Berlin"
EVERY = 50
HOURS = 8
HOUR = 3600
ALL = (
    ["create"] * 6 + ["delete"] * 3 + ["stop", "rebuild", "shelve", "offload", "unshelve", "unshelve"]
    + ["resize"] * 3 + ["migrate", "confirm", "confirm", "revert", "revert", "live", "evacuate"]
)  # fmt: skip
SEEDS = int(os.environ.get("GPUYARD_TEST_LIVES", "4"))


def history_of(nova: SimulatedNova, database: Database) -> HistoryController:
    """The loop of history without bookings."""
    ledger = SimpleNamespace(book=SimpleNamespace(zone=ZONE), find=lambda *_: [])
    site = SimpleNamespace(history=None, booking=None, accounting=None)
    lives = LifeReader(nova, {"t4": "t4", "a100": "a100"})  # type: ignore[arg-type]
    return HistoryController(
        HistoryStore(database), lives, SimpleNamespace(), ledger, SimpleNamespace(gpus=GPUS, site=site),  # type: ignore[arg-type]
        lambda: at(nova.now),
    )  # fmt: skip


def look(nova: SimulatedNova, controller: HistoryController) -> None:
    nova.looked()
    assert controller.look(CloudObservation(nova.snapshot(), frozenset(), words={}))


def play(seed: int, folder: Path) -> tuple[int, int]:
    """One cloud; looks every EVERY seconds, in every second one with outages of up to an hour. GPU-seconds that nobody
    can tell, and all that were used."""
    chance = Random(seed)
    nova = SimulatedNova(chance, ALL)
    path = folder / f"{seed}.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        controller = history_of(nova, database)
        looks, things = 0, 60
        while nova.now < HOURS * HOUR:
            nova.run(min(looks, things))
            if nova.now == things:
                nova.something()
                things += chance.randrange(5, 300)
            if nova.now == looks:
                look(nova, controller)
                outage = seed % 2 and chance.random() < 0.05
                looks += chance.randrange(300, 3600) if outage else EVERY
        nova.run(nova.now + 1)
        look(nova, controller)
        result = check(nova, HistoryStore(database))
    path.unlink()
    return result


def check(nova: SimulatedNova, store: HistoryStore) -> tuple[int, int]:
    """Each server's use; that all of a GPU's time is counted once; and the sums by days, of which one has 25 hours."""
    last = at(nova.now)
    claimed = [interval for interval in store.intervals(ZERO, last) if interval.state is TrackState.CLAIMED]
    counted = [(interval.tenure.server, _second(interval.start), _second(interval.end or last)) for interval in claimed]
    problems, missing = truth_problems(nova, counted, nova.now)
    assert not problems, problems
    assert not partition_problems(store.intervals(ZERO, last), ZERO, last)
    sum_up(store, ZONE, one_tariff, 9)
    days = History(store, ZONE).sums(date(2026, 10, 1), date(2026, 12, 1), ["project", "pool", "state"], "day").sums
    assert sum(day.seconds for day in days) == len(GPUS) * nova.now
    expected: Counter[tuple[date, str, str]] = Counter()
    midnight = int((datetime(2026, 10, 25, tzinfo=ZoneInfo(ZONE)) - ZERO).total_seconds())
    for used_interval, (_, start, end) in zip(claimed, counted, strict=True):
        expected[date(2026, 10, 24), used_interval.tenure.project_id, used_interval.pool] += max(
            0, min(end, midnight) - start
        )
        expected[date(2026, 10, 25), used_interval.tenure.project_id, used_interval.pool] += max(
            0, end - max(start, midnight)
        )
    used = {
        (day.period, day.slice.project, day.slice.pool): day.seconds
        for day in days
        if day.slice.state == TrackState.CLAIMED
    }
    assert used == +expected
    return missing, sum(b - a for _, a, b in counted)


def _second(time: datetime) -> int:
    return int((time - ZERO).total_seconds())


@pytest.mark.parametrize("first", [0, 1], ids=["looks without a gap", "looks with outages"])
def test_every_gpu_second_of_random_lives(first: int, tmp_path: Path) -> None:
    """With outages some time is of flavors that nobody can tell any more; without, only what is shorter than a look."""
    missing = used = 0
    for seed in range(first, SEEDS, 2):
        unseen, counted = play(seed, tmp_path)
        missing, used = missing + unseen, used + counted
    assert missing < used / (1000 if first == 0 else 10)


class RecordedHistory:
    """One server whose life a test tells, and what history says of it. `looks`: seconds between which somebody looks;
    `end`: the last look."""

    def __init__(self, database: Database) -> None:
        self.nova, self.store = SimulatedNova(Random(1), []), HistoryStore(database)
        self.controller = history_of(self.nova, database)

    @property
    def server(self) -> SimServer:
        (server,) = self.nova.servers.values()
        return server

    def looks(self, until: int) -> None:
        while self.nova.now < until:
            self.nova.run(min(until, self.nova.now + EVERY))
            look(self.nova, self.controller)

    def nobody_looks(self, until: int) -> None:
        self.nova.run(until)

    def used(self) -> dict[str, int]:
        """GPU-seconds by flavor; of those that nobody can tell the name of, by none."""
        seconds_by_flavor: Counter[str] = Counter()
        for interval in self.store.intervals(ZERO, at(self.nova.now)):
            if interval.state is TrackState.CLAIMED:
                seconds_by_flavor[interval.tenure.flavor] += interval.seconds(ZERO, at(self.nova.now))
        return dict(seconds_by_flavor)

    def truth(self) -> list[tuple[int, int]]:
        return [(use.gpus, (self.nova.now if use.end is None else use.end) - use.start) for use in self.server.uses]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[RecordedHistory]:
    with closing(Database(f"sqlite:///{tmp_path}/history.db")) as database:
        history = RecordedHistory(database)
        look(history.nova, history.controller)
        yield history


def test_gpus_that_a_server_got_by_a_resize_are_not_those_of_its_past(told: RecordedHistory) -> None:
    """Without a GPU for 58 hours, with two for the last one; nobody looked."""
    told.nova.create("cpu", fails=False)
    told.looks(HOUR)
    told.nobody_looks(59 * HOUR)
    told.nova.move("resize", told.server, "t4.2", "done")
    told.nobody_looks(60 * HOUR)
    told.looks(60 * HOUR + 600)
    (_, without), (_, seconds) = told.truth()
    assert (without // HOUR, told.used()) == (59, {"t4.2": 2 * seconds})


def test_gpus_that_a_server_gave_away_by_a_resize_were_its_own(told: RecordedHistory) -> None:
    """Two for 51 hours and then none, when nobody looked; it was seen with them before."""
    told.nova.create("t4.2", fails=False)
    told.looks(HOUR)
    told.nobody_looks(52 * HOUR)
    told.nova.move("resize", told.server, "cpu", "done")
    told.nobody_looks(60 * HOUR)
    told.looks(60 * HOUR + 600)
    (_, seconds), (_, _) = told.truth()
    assert told.used() == {"t4.2": 2 * seconds}
    assert seconds > 50 * HOUR


def test_of_a_flavor_that_nobody_saw_and_nova_does_not_name_nothing_is_said(told: RecordedHistory) -> None:
    """One GPU for 50 hours, then two for one, and nobody looked: Nova has the new flavor, and an id of the old one."""
    told.looks(HOUR)
    told.nova.create("t4.1", fails=False)
    told.nobody_looks(52 * HOUR)
    told.nova.move("resize", told.server, "t4.2", "done")
    told.nobody_looks(53 * HOUR)
    told.looks(53 * HOUR + 600)
    (_, _), (_, seconds) = told.truth()
    assert told.used() == {"t4.2": 2 * seconds}


def test_a_flavor_that_it_had_before_and_after_is_known_by_its_id(told: RecordedHistory) -> None:
    """Up and down again, by two resizes, in one outage."""
    told.looks(HOUR)
    told.nova.create("t4.1", fails=False)
    for hour, flavor in ((20, "t4.2"), (30, "t4.1")):
        told.nobody_looks(hour * HOUR)
        told.nova.move("resize", told.server, flavor, "done")
        told.nobody_looks(hour * HOUR + 500)
        told.nova.confirm()
    told.nobody_looks(40 * HOUR)
    told.looks(40 * HOUR + 600)
    (_, first), (_, _), (_, last) = told.truth()
    assert sum(told.used().values()) == first + last


def test_a_resize_that_copies_for_half_an_hour_uses_what_it_had_until_then(told: RecordedHistory) -> None:
    told.nova.create("t4.1", fails=False)
    told.looks(HOUR)
    told.nova.move("resize", told.server, "t4.2", "done", copies=1800)
    told.looks(2 * HOUR)
    (_, before), (_, after) = told.truth()
    assert told.used() == {"t4.1": before, "t4.2": 2 * after}


def test_a_server_that_was_away_and_is_back_has_not_had_its_gpu_throughout(told: RecordedHistory) -> None:
    """It was shelved and unshelved when nobody looked, and is being resized at the first look since."""
    told.nova.create("t4.2", fails=False)
    told.looks(HOUR)
    told.nova.shelve(at_once=True)
    told.nobody_looks(2 * HOUR)
    told.nova.unshelve(fails=False)
    told.nobody_looks(3 * HOUR)
    told.nova.move("resize", told.server, "t4.1", "done", copies=1800)
    told.nobody_looks(3 * HOUR + 60)
    assert told.server.status == "RESIZE"
    told.looks(4 * HOUR)
    assert sum(told.used().values()) == sum(gpus * seconds for gpus, seconds in told.truth())
    assert len(told.server.uses) == 3


def test_an_evacuated_server_uses_its_gpus_once(told: RecordedHistory) -> None:
    """Its old host stays away for long; Placement counts it on both."""
    told.nova.create("t4.2", fails=False)
    told.looks(HOUR)
    told.nova.evacuate()
    told.looks(2 * HOUR)
    assert sum(told.used().values()) == sum(gpus * seconds for gpus, seconds in told.truth())
    assert len(told.server.uses) == 2


def test_time_of_no_known_host_is_taken_from_what_others_leave() -> None:
    """Else the GPU of the one host could be taken twice, and another one's not at all."""
    gpus = [Interval(host, "0000:01:00.0", "t4", TrackState.UNSEEN, at(0), at(100)) for host in ("h1", "h2")]
    used = [
        Interval(host, "", "t4", TrackState.CLAIMED, at(0), at(100), Tenure(server=f"on {host or 'some host'}"))
        for host in ("", "h1")
    ]
    assert sum(reckon([*gpus, *used], at(0), at(100)).slices.values()) == 200
