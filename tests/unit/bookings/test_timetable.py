"""The timetable beside the dumbest model there is: a list of intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.timetable import Timetable

LANES = range(4)
INTERVALS = st.lists(
    st.tuples(st.sampled_from(LANES), st.integers(0, 40), st.integers(1, 12)).map(lambda x: (x[0], x[1], x[1] + x[2])),
    max_size=30,
)
WINDOW = st.tuples(st.integers(0, 45), st.integers(1, 15)).map(lambda x: (x[0], x[0] + x[1]))


def fill(intervals: list[tuple[int, int, int]]) -> tuple[Timetable, list[tuple[int, int, int]]]:
    table, taken = Timetable(), list[tuple[int, int, int]]()
    for lane, start, end in intervals:
        if any(other == lane and first < end and start < last for other, first, last in taken):
            with pytest.raises(ValueError, match="not free"):
                table.add(lane, start, end)
        else:
            table.add(lane, start, end)
            taken.append((lane, start, end))
    return table, taken


def is_free(taken: list[tuple[int, int, int]], lane: int, start: int, end: int) -> bool:
    return not any(other == lane and first < end and start < last for other, first, last in taken)


@given(INTERVALS, WINDOW)
def test_free_is_what_nothing_overlaps(intervals: list[tuple[int, int, int]], window: tuple[int, int]) -> None:
    table, taken = fill(intervals)
    assert list(table.free(LANES, *window)) == [lane for lane in LANES if is_free(taken, lane, *window)]
    for lane in LANES:
        expected = sorted((s, e) for other, s, e in taken if other == lane and s < window[1] and window[0] < e)
        assert list(table.intervals(lane, *window)) == expected


@given(INTERVALS, st.integers(0, 50), st.integers(1, 10), st.integers(1, 4))
def test_the_earliest_time_is_the_first_that_works(
    intervals: list[tuple[int, int, int]], start: int, length: int, count: int
) -> None:
    table, taken = fill(intervals)
    until = 60
    expected = next(
        (at for at in range(start, until + 1) if sum(is_free(taken, x, at, at + length) for x in LANES) >= count), None
    )
    assert table.earliest(LANES, count, start, length, until) == expected


@given(INTERVALS, WINDOW, st.integers(1, 7))
def test_steps_count_lanes_that_are_free_throughout(
    intervals: list[tuple[int, int, int]], window: tuple[int, int], step: int
) -> None:
    table, taken = fill(intervals)
    start, end = window
    expected = [sum(is_free(taken, lane, at, min(at + step, end)) for lane in LANES) for at in range(start, end, step)]
    assert table.free_by_step(LANES, start, end, step) == expected


@given(INTERVALS, WINDOW)
def test_the_peak_is_the_most_at_one_moment(intervals: list[tuple[int, int, int]], window: tuple[int, int]) -> None:
    table, taken = fill(intervals)
    expected = max(sum(not is_free(taken, lane, at, at + 1) for lane in LANES) for at in range(*window))
    assert table.peak(LANES, *window) == expected


@given(INTERVALS, st.data())
def test_what_was_removed_is_free_and_comes_back(intervals: list[tuple[int, int, int]], data: st.DataObject) -> None:
    table, taken = fill(intervals)
    gone = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
    with table.without(gone):
        assert all(table.is_free(*interval) for interval in gone)
        assert len(table) == len(taken) - len(gone)
    assert not any(table.is_free(*interval) for interval in taken)
    for taken_interval in taken:
        table.remove(*taken_interval)
    assert len(table) == 0
    with pytest.raises(ValueError, match="not taken"):
        table.remove(0, 1, 2)


def test_back_to_back_is_free() -> None:
    table = Timetable([(1, 10, 20)])
    assert table.is_free(1, 0, 10)
    assert table.is_free(1, 20, 30)
    assert not table.is_free(1, 19, 20)
    assert table.gap(1, 25, 30) == 5
    assert table.gap(1, 2, 7) == 3
