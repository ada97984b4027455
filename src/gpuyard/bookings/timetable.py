"""A timetable in memory of which lanes of a pool are taken when.

"Is one free" takes microseconds among a million bookings. Times are whole seconds since the epoch, UTC. It is only ever
a copy of the store's, at one generation.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType

Taken = tuple[int, int, int]
"""Lane, start, end."""
FOREVER = 2**62


class Timetable:
    """Intervals of lanes, none of which overlap on the same lane."""

    def __init__(self, taken: Iterable[Taken] = ()) -> None:
        self._starts: dict[int, array[int]] = {}
        self._ends: dict[int, array[int]] = {}
        for lane, start, end in taken:
            self.add(lane, start, end)

    def add(self, lane: int, start: int, end: int) -> None:
        """Add an interval. Raises ValueError when the lane is not free then."""
        if not self.is_free(lane, start, end):
            raise ValueError(f"lane {lane} is not free in [{start}, {end})")
        starts = self._starts.setdefault(lane, array("q"))
        place = bisect_left(starts, start)
        starts.insert(place, start)
        self._ends.setdefault(lane, array("q")).insert(place, end)

    def remove(self, lane: int, start: int, end: int) -> None:
        """Remove an interval. Raises ValueError when there is no such interval."""
        starts = self._starts.get(lane, array("q"))
        place = bisect_left(starts, start)
        if place == len(starts) or starts[place] != start or self._ends[lane][place] != end:
            raise ValueError(f"lane {lane} is not taken in [{start}, {end})")
        del starts[place], self._ends[lane][place]

    @contextmanager
    def without(self, taken: Iterable[Taken]) -> Iterator[None]:
        """Take these intervals off the timetable for as long as the context lasts."""
        taken = list(taken)
        for interval in taken:
            self.remove(*interval)
        try:
            yield
        finally:
            for interval in taken:
                self.add(*interval)

    def is_free(self, lane: int, start: int, end: int) -> bool:
        """Return whether nothing is on the lane in [start, end)."""
        ends = self._ends.get(lane)
        if not ends:
            return True
        following = bisect_right(ends, start)  # the first interval that ends after the start
        return following == len(ends) or self._starts[lane][following] >= end

    def free(self, lanes: Iterable[int], start: int, end: int) -> Iterator[int]:
        """Return those of the lanes that are free throughout, in their order."""
        return (lane for lane in lanes if self.is_free(lane, start, end))

    def gap(self, lane: int, start: int, end: int) -> int:
        """Return the smaller of the two gaps, in seconds, that [start, end) leaves before and after it on a lane that
        is free then."""
        ends = self._ends.get(lane)
        if not ends:
            return FOREVER
        following = bisect_right(ends, start)
        before = start - ends[following - 1] if following else FOREVER
        after = self._starts[lane][following] - end if following < len(ends) else FOREVER
        return min(before, after)

    def intervals(self, lane: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what is on a lane in [start, end), in order of time."""
        ends = self._ends.get(lane)
        if not ends:
            return
        starts = self._starts[lane]
        for place in range(bisect_right(ends, start), len(ends)):
            if starts[place] >= end:
                return
            yield starts[place], ends[place]

    def peak(self, lanes: Iterable[int], start: int, end: int) -> int:
        """Return the most of these lanes that are taken at one moment of [start, end)."""
        changes: list[tuple[int, int]] = []
        for lane in lanes:
            for taken, free_again in self.intervals(lane, start, end):
                changes += [
                    (max(taken, start), 1),
                    (free_again, -1),
                ]  # at the same moment the one that ends sorts first
        busy = most = 0
        for _, change in sorted(changes):
            busy += change
            most = max(most, busy)
        return most

    def earliest(
        self,
        lanes: Iterable[int],
        count: int,
        start: int,
        length: int,
        until: int,
        not_before: Mapping[int, int] = MappingProxyType({}),
    ) -> int | None:
        """Return the first moment from `start` on, and not after `until`, from which `count` of the lanes are free for
        `length` seconds. `not_before`: lane -> when it can be had first, where that is later."""
        lane_starts = [(lane, max(start, not_before.get(lane, start))) for lane in lanes]
        if count == 1:  # most of all questions, and no need to look beyond each lane's first chance
            firsts = (next(self._beginnings(lane, first, length, until), None) for lane, first in lane_starts)
            return min((first for first, _ in filter(None, firsts)), default=None)
        changes: list[tuple[int, int]] = []
        for lane, begin in lane_starts:
            for first, last in self._beginnings(lane, begin, length, until):
                changes += [(first, 1), (last + 1, -1)]  # at the same moment the one that ends sorts first
        able = 0
        for moment, change in sorted(changes):
            able += change
            if able >= count:
                return moment
        return None

    def _beginnings(self, lane: int, start: int, length: int, until: int) -> Iterator[tuple[int, int]]:
        """The moments (first and last of each stretch) from which a lane is free for a length of time."""
        at = start
        for taken, free_again in self.intervals(lane, start, until + length):
            if taken - length >= at:
                yield at, min(taken - length, until)
            at = free_again
        if at <= until:
            yield at, until

    def free_by_step(self, lanes: Iterable[int], start: int, end: int, step: int) -> list[int]:
        """Count the lanes that are free throughout each step of [start, end)."""
        number = -(-(end - start) // step)
        lanes = list(lanes)
        change = [0] * (number + 1)
        for lane in lanes:
            covered = 0  # steps before this one were counted for this lane already
            for taken, free_again in self.intervals(lane, start, end):
                first = max((max(taken, start) - start) // step, covered)
                covered = max(covered, -(-(min(free_again, end) - start) // step))
                if first < covered:
                    change[first] += 1
                    change[covered] -= 1
        result, busy = [], 0
        for value in islice(change, number):
            busy += value
            result.append(len(lanes) - busy)
        return result

    def __len__(self) -> int:
        return sum(map(len, self._starts.values()))
