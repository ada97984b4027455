"""What intervals amount to: nothing twice, nothing left out, by days that are not all as long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.database.engine import Database
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.reckoning import DAY, day_span, due_day, local_day, one_tariff, reckon
from gpuyard.usage.records import Extent, Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore, SumStore

BERLIN = "Europe/Berlin"
START = datetime(2026, 10, 23, 10, 0, 7, tzinfo=UTC)
"""Two days before the clocks go back."""
SECOND = timedelta(seconds=1)
PEOPLE = (
    Tenure(),
    Tenure(kind="booking", server="s1", user="ada", project="alpha"),
    Tenure(kind="runner", server="s2"),
)


def night(pool: str, start: datetime, end: datetime) -> Iterable[tuple[str, datetime, datetime]]:
    """Cheap from 0 to 6 hours UTC, of pool t4."""
    while start < end:
        midnight = start.replace(hour=0, minute=0, second=0)
        six = midnight + timedelta(hours=6)
        cheap = start < six and pool == "t4"
        then = min(end, six if start < six else midnight + DAY)
        yield ("night" if cheap else ""), start, then
        start = then


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Interval], datetime]:
    """Of 3 GPUs, a partition each, over six days at most; with servers that nobody saw."""
    length = draw(st.integers(1, 6 * 86400))
    end = START + length * SECOND
    intervals = []
    for number, pool in enumerate(("t4", "t4", "v100")):
        cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=8))})
        for low, high in pairwise(cuts):
            state, who = draw(st.sampled_from(list(TrackState))), draw(st.sampled_from(PEOPLE))
            last = None if high == length and draw(st.booleans()) else START + high * SECOND
            intervals.append(Interval("h", f"0000:0{number}:00.0", pool, state, START + low * SECOND, last, who))
    for _ in range(draw(st.integers(0, 2))):
        low, high = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        if low < high:
            intervals.append(
                Interval("h", "", "t4", TrackState.CLAIMED, START + low * SECOND, START + high * SECOND, PEOPLE[1])
            )
    return intervals, end


@given(histories())
def test_all_that_was_used_counts_and_nothing_counts_twice(history: tuple[list[Interval], datetime]) -> None:
    intervals, end = history
    whole = reckon(intervals, START, end, night)
    total = sum(whole.slices.values())
    assert total == sum(hour.seconds for hour in whole.hours)
    used = sum(interval.seconds(START, end) for interval in intervals if interval.state is TrackState.CLAIMED)
    assert sum(n for use_slice, n in whole.slices.items() if use_slice.state == "claimed") == used
    available = 3 * (end - START) // SECOND
    assert total >= available
    assert total == available or any(not interval.address for interval in intervals)


@given(histories(), st.integers(0, 6 * 86400))
def test_sums_of_parts_are_the_sum_of_the_whole(history: tuple[list[Interval], datetime], cut: int) -> None:
    intervals, end = history
    middle = min(end, START + cut * SECOND)
    if any(not interval.address for interval in intervals):
        intervals = [interval for interval in intervals if interval.address]
    parts = Counter(reckon(intervals, START, middle, night).slices) + Counter(
        reckon(intervals, middle, end, night).slices
    )
    assert parts == Counter(reckon(intervals, START, end, night).slices)


def test_who_was_not_seen_had_a_gpu_that_nobody_else_did() -> None:
    end = START + 100 * SECOND
    used = Interval("h", "0000:01:00.0", "t4", TrackState.CLAIMED, START, None, PEOPLE[2])
    unseen = Interval("h", "0000:02:00.0", "t4", TrackState.UNSEEN, START, START + 30 * SECOND)
    free = Interval("h", "0000:02:00.0", "t4", TrackState.FREE, START + 30 * SECOND, None)
    other = replace(free, host="i", start=START)
    short = Interval("h", "", "t4", TrackState.CLAIMED, START + 20 * SECOND, START + 60 * SECOND, PEOPLE[1])
    seconds_by_slice = reckon([used, unseen, free, other, short], START, end).slices
    by_state = Counter[tuple[str, str, str]]()
    for use_slice, amount in seconds_by_slice.items():
        by_state[use_slice.host, use_slice.state, use_slice.user] += amount
    assert by_state == {
        ("h", "claimed", ""): 100, ("h", "unseen", ""): 20, ("h", "free", ""): 40, ("i", "free", ""): 100,
        ("h", "claimed", "ada"): 40,
    }  # fmt: skip
    nowhere = reckon([used, replace(short, host="")], START, end).slices
    assert sum(nowhere.values()) == 140, "what there is no room for counts all the same"


def test_thousands_of_servers_that_nobody_saw_are_laid_out_soon() -> None:
    """After an outage of a day at a large site; the time is that of this process alone."""
    unseen = [Interval(f"h{n // 8}", str(n % 8), "t4", TrackState.UNSEEN, START, START + DAY) for n in range(4000)]
    minute = timedelta(minutes=1)
    missed = [
        Interval(
            f"h{n % 500}" if n % 50 else "",
            "",
            "t4",
            TrackState.CLAIMED,
            START + n * SECOND,
            START + n * SECOND + minute,
        )
        for n in range(4000)
    ]
    began = process_time()
    reckoned = reckon([*unseen, *missed], START, START + DAY)
    assert process_time() - began < 5  # it took 14 times as long when all pieces were sorted for each of them
    assert sum(reckoned.slices.values()) == 4000 * 86400
    assert sum(n for use_slice, n in reckoned.slices.items() if use_slice.state == "claimed") == 4000 * 60


def test_days_are_as_long_as_they_are_there() -> None:
    hours = {date(2026, 10, 24): 24, date(2026, 10, 25): 25, date(2027, 3, 28): 23}
    for day, length in hours.items():
        start, end = day_span(day, BERLIN)
        assert (end - start) == timedelta(hours=length)
        assert local_day(start, BERLIN) == local_day(end - SECOND, BERLIN) == day
        interval = Interval("h", "0000:01:00.0", "t4", TrackState.FREE, start - DAY, None)
        reckoned = reckon([interval], start, end)
        assert list(reckoned.slices.values()) == [length * 3600]
        assert [hour.seconds for hour in reckoned.hours] == [3600] * length


def test_a_day_is_due_when_nothing_more_can_come() -> None:
    end = day_span(date(2026, 10, 23), BERLIN)[1]
    fresh = Extent(START, end + DAY, end)
    assert due_day(fresh, BERLIN) is None, "Nova has not answered wholly since"
    assert due_day(replace(fresh, settled=end + timedelta(minutes=10)), BERLIN) == date(2026, 10, 23)
    again = replace(fresh, settled=end + DAY, rolled=date(2026, 10, 23))
    assert due_day(again, BERLIN) is None


@settings(max_examples=12)
@given(history=histories(), rolled=st.integers(0, 7))
def test_how_many_days_have_sums_already_is_not_seen(
    tmp_path_factory: object, history: tuple[list[Interval], datetime], rolled: int
) -> None:
    """Sums of days and of what is left are those of the intervals."""
    intervals, end = history
    intervals = [interval for interval in intervals if interval.address]
    path = Path(str(tmp_path_factory.mktemp("history")))  # type: ignore[attr-defined]
    with closing(Database(f"sqlite:///{path}/history.db")) as database:
        store, last = HistoryStore(database), None
        store.write(None, START, START, {}, [])
        store.write(START, end, end, {}, intervals)
        history_of = History(store, BERLIN, night)
        before, hours = history_of.sums(date(2026, 10, 1), date(2026, 11, 30)), history_of.hours(START - DAY, end)
        assert before.until == end
        assert {use_sum.slice: use_sum.seconds for use_sum in before.sums} == reckon(
            intervals, START, end, night
        ).slices
        for _ in range(rolled):
            extent = store.seen()
            assert extent is not None
            day = due_day(extent, BERLIN)
            if day is None:
                break
            low, high = day_span(day, BERLIN)
            sums = reckon(store.intervals(low, high), low, high, night)
            assert SumStore(database).put_day(last, day, sums.slices, sums.hours)
            last = day
        assert history_of.sums(date(2026, 10, 1), date(2026, 11, 30)) == before
        assert Counter(history_of.hours(START - DAY, end)) == Counter(hours)
        by_month = history_of.sums(date(2026, 10, 1), date(2026, 11, 30), ["state"], "month", {"pool": "v100"}).sums
        assert {use_sum.period for use_sum in by_month} == {date(2026, 10, 1)}
        assert sum(use_sum.seconds for use_sum in by_month) == (end - START) // SECOND


@pytest.mark.parametrize("what", ["sums", "hours"])
def test_a_day_that_is_summed_up_while_somebody_reads_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/history.db")) as database:
        store, end = HistoryStore(database), START + 3 * DAY
        store.write(None, START, START, {}, [])
        store.write(START, end, end, {}, [Interval("h", "0000:01:00.0", "t4", TrackState.FREE, START, None)])
        history = History(store, BERLIN)
        read = getattr(history._sums, what)

        def late(*args: object) -> object:
            sum_up(store, BERLIN, one_tariff, 1)
            return read(*args)

        monkeypatch.setattr(history._sums, what, late)
        days = (START - DAY).date(), (end + DAY).date()
        sums = history.sums(*days).sums if what == "sums" else history.hours(START - DAY, end)
        assert sum(use_sum.seconds for use_sum in sums) == 3 * 86400
        extent = store.seen()
        assert extent is not None
        assert extent.rolled is not None
