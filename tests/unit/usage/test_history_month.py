"""A month of use, simulated, and its sums: right to the second of what Nova remembers, by local days."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

from gpuyard.database.engine import Database
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import forget, sum_up
from gpuyard.usage.reckoning import one_tariff
from gpuyard.usage.recorder import plan_look
from gpuyard.usage.records import TrackState
from gpuyard.usage.store import HistoryStore, Which
from tests.support.history_world import ZERO, SimCloud, at

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY = 3600, 86400
PEOPLE = ("ada", "bob", "eve")


def look(cloud: SimCloud, store: HistoryStore) -> None:
    second, extent = cloud.second, store.seen()
    plan = plan_look(store.open(), extent, cloud.seen(extent, store, at(second), cloud.tracks()))
    if plan is not None:
        store.write(extent.until if extent else None, at(second), plan.settled, plan.ends, plan.adds)


def a_day(cloud: SimCloud, store: HistoryStore, chance: Random) -> None:
    """Portals look in the mornings, every minute, and in the afternoons hardly; servers come and go all day."""
    begin = cloud.second
    events = sorted(chance.sample(range(begin + 60, begin + DAY), 40))
    looks = [*range(begin, begin + HOUR // 4, 60), *chance.sample(range(begin + HOUR, begin + DAY), 5)]
    for second, is_look in sorted([*((event, False) for event in events), *((report, True) for report in looks)]):
        cloud.run(second)
        if is_look:
            look(cloud, store)
            continue
        servers = [server for server in cloud.servers.values() if server.terminated is None]
        what = chance.choice(["create", "create", "delete", "offload", "unshelve", "migrate"])
        if what == "create":
            cloud.create(chance.choice([1, 1, 2]), chance.randrange(90), user=chance.choice(PEOPLE))
        elif servers and what == "delete":
            cloud.delete(chance.choice(servers))
        elif servers:
            getattr(cloud, what)(chance.choice(servers), chance.randrange(60))
    cloud.run(begin + DAY)


def by_day_and_user(cloud: SimCloud, last: int) -> Counter[tuple[date, str]]:
    """The truth: GPU-seconds, cut at every midnight of Berlin's clocks."""
    gpu_seconds: Counter[tuple[date, str]] = Counter()
    midnights = [datetime(2026, 10, 1, tzinfo=BERLIN) + timedelta(days=n) for n in range(70)]
    edges = [(midnight.date(), int((midnight.astimezone(UTC) - ZERO).total_seconds())) for midnight in midnights]
    for server in cloud.servers.values():
        for start, end in server.uses:
            for (day, low), (_, high) in pairwise(edges):
                amount = min(end if end is not None else last, high, last) - max(start, low, 0)
                gpu_seconds[day, server.user] += server.gpus * max(0, amount)
    return +gpu_seconds


def test_a_month_is_right_to_the_second(tmp_path: Path) -> None:
    cloud, chance = SimCloud(4), Random(1)
    with closing(Database(f"sqlite:///{tmp_path}/history.db")) as database:
        store = HistoryStore(database)
        history = History(store, "Europe/Berlin")
        for day in range(33):
            a_day(cloud, store, chance)
            if day % 5:  # else nobody is there to sum up; it is made up for
                sum_up(store, "Europe/Berlin", one_tariff, 7)
                forget(store, "Europe/Berlin", at(cloud.second) - timedelta(days=10))
        look(cloud, store)
        extent = store.seen()
        assert extent is not None
        assert extent.rolled is not None
        assert (extent.until.date() - extent.rolled).days <= 2
        first, end = date(2026, 10, 1), date(2026, 12, 1)
        used = history.sums(first, end, ["user", "state"], "day", {"state": TrackState.CLAIMED})
        assert used.until == at(cloud.second)
        assert Counter(
            {(use_sum.period, use_sum.slice.user): use_sum.seconds for use_sum in used.sums}
        ) == by_day_and_user(cloud, cloud.second)
        assert len(used.sums) > 60
        everything = history.sums(first, end, ["state"]).sums
        assert sum(use_sum.seconds for use_sum in everything) == 4 * cloud.second, (
            "all of it adds up to the time that there was"
        )
        assert {use_sum.slice.state for use_sum in everything} >= {"free", "claimed", "unseen", "starting"}
        by_month = Counter[date | None]()
        for month_sum in history.sums(first, end, ["user"], "month", {"state": TrackState.CLAIMED}).sums:
            by_month[month_sum.period] += month_sum.seconds
        assert sum(by_month.values()) == sum(use_sum.seconds for use_sum in used.sums)
        assert set(by_month) == {date(2026, 10, 1), date(2026, 11, 1)}
        hours = history.hours(ZERO, at(cloud.second))
        assert sum(hour.seconds for hour in hours if hour.state == "claimed") == sum(by_month.values())
        intervals = history.intervals(ZERO, at(cloud.second), Which(states=[TrackState.CLAIMED]))
        assert min(interval.end for interval in intervals if interval.end) > at(cloud.second) - timedelta(days=12), (
            "old ones are gone"
        )
