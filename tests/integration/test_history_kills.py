"""A process that is killed at any point of a look, of a day's sums, or of taking old intervals away: nothing of history
is lost, and nothing is there twice."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.usage.reckoning import day_span
from gpuyard.usage.records import TrackState
from gpuyard.usage.store import HistoryStore, SumStore
from tests.support import killed_looks
from tests.support.history_world import ZERO, SimCloud, at, partition_problems, used_by
from tests.support.killed_looks import GPUS, KEEP, truth
from tests.support.postgres import server

pytestmark = pytest.mark.slow
KILLS = 25
A_DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/history.db"
    else:
        with server(tmp_path_factory.mktemp("postgres")) as running:
            yield running.database()


def test_a_kill_loses_nothing_and_doubles_nothing(url: str) -> None:
    seed = random.randrange(1_000_000)
    done = subprocess.run(
        [sys.executable, "-m", killed_looks.__name__, url, str(seed), str(KILLS)],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout) >= 3, f"seed {seed}: it was too quick to be killed"
    cloud, last = truth(seed)
    with closing(Database(url)) as database:
        check(HistoryStore(database), cloud, last, f"seed {seed}")


def check(store: HistoryStore, cloud: SimCloud, last: int, seed: str) -> None:
    extent = store.seen()
    assert extent is not None
    assert (extent.first, extent.until) == (at(0), at(last))
    assert extent.rolled is not None
    # All that was used: by days that are summed up, and since then by intervals.
    sums, rolled = SumStore(store.database), day_span(extent.rolled + A_DAY, killed_looks.ZONE)[0]
    summed = (ZERO.date(), extent.rolled + A_DAY)
    use_sums = sums.sums(*summed, ["state"])
    second = int((rolled - at(0)).total_seconds())
    claimed = sum(use_sum.seconds for use_sum in use_sums if use_sum.slice.state == TrackState.CLAIMED)
    assert claimed == cloud.used(0, second).total(), seed
    assert sum(use_sum.seconds for use_sum in use_sums) == GPUS * second, seed
    for by in (["pool", "user"], ["host", "user"], ["user", "project"]):  # as each table has it
        assert sum(use_sum.seconds for use_sum in sums.sums(*summed, by, "month")) == GPUS * second, f"{seed}, {by}"
    assert sum(hour.seconds for hour in sums.hours(at(-last), rolled)) == GPUS * second, seed
    # What is not forgotten, from the first whole day on.
    begins = day_span((at(last) - KEEP).date() + A_DAY, killed_looks.ZONE)[0]
    intervals = store.intervals(begins, at(last))
    low = int((begins - at(0)).total_seconds())
    assert used_by(intervals, begins, at(last)) == cloud.used(low, last), seed
    assert (
        partition_problems(
            [replace(interval, start=max(interval.start, begins)) for interval in intervals], begins, at(last)
        )
        == []
    ), seed
