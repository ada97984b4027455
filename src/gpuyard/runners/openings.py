"""Finds when GPUs of a pool are free: the capacity there is, less what this plan has given away already.

Times are whole seconds since the epoch. Capacity only shrinks within a plan, so the first opening of a lane can only
move later: each length of time has a heap of lanes by their first openings, and only the one at the top is checked
again. For servers with several lanes it is a heap of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from gpuyard.bookings.ledger.runner_leases import PoolCapacity
from gpuyard.database.times import seconds

DEPTH = 500
"""Capacity is kept for this many jobs of a pool's queue; when those behind have their turn is estimated from the work
before them. (Slurm's backfill looks at as many.)"""


class _Lane:
    """The free time of a lane: gaps that do not touch, in order of time."""

    __slots__ = ("changes", "gaps", "size")

    def __init__(self, size: int, gaps: list[tuple[int, int]]) -> None:
        self.size = size
        self.gaps = gaps
        self.changes = 0

    def is_free(self, start: int, end: int) -> bool:
        return any(gap[0] <= start and end <= gap[1] for gap in self.gaps)

    def left_after(self, start: int, end: int) -> int:
        """Seconds from the end to the end of the gap. Raises StopIteration when it is not free then."""
        return next(gap[1] for gap in self.gaps if gap[0] <= start and end <= gap[1]) - end

    def take(self, start: int, end: int) -> None:
        for place, (begin, until) in enumerate(self.gaps):
            if begin <= start and end <= until:
                left = [(begin, start)] if begin < start else []
                right = [(end, until)] if end < until else []
                self.gaps[place : place + 1] = left + right
                self.changes += 1
                return
        raise ValueError(f"[{start}, {end}) is not free")


class Shape(NamedTuple):
    """The lanes that a server needs on one host."""

    lanes: int
    size: int
    """GPUs that its lane must have; 0 for any. A server without GPUs takes a lane of `cpu_lane`."""


@cache
def shape(gpus: int, same_group: bool) -> Shape:
    return Shape(1, gpus) if same_group else Shape(max(gpus, 1), 0)


class Opening(NamedTuple):
    """The first opening of some lanes. The least is the best."""

    start: int
    size: int
    """GPUs of the lane; 0 for several lanes."""
    left: int
    """Seconds that stay free after it."""
    place: int
    """Index of the lanes among those that come into question."""
    changes: int
    """How many times the lanes had been changed when this was computed."""


class PoolOpenings:
    """The free times of a pool in the course of one plan."""

    def __init__(self, capacity: PoolCapacity, now: int) -> None:
        self.now = now
        self.blocked = capacity.blocked
        hosts: dict[str, list[_Lane]] = {}
        for lane in capacity.lanes:
            gaps = [(max(seconds(start), now), seconds(end)) for start, end in lane.free]
            hosts.setdefault(lane.host, []).append(_Lane(lane.size, [gap for gap in gaps if gap[0] < gap[1]]))
        for lanes in hosts.values():  # whatever the order in which they were told
            lanes.sort(key=lambda lane: (lane.size, lane.gaps))
        self._hosts = [hosts[name] for name in sorted(hosts)]
        self._units: dict[Shape, Sequence[Sequence[_Lane]]] = {}
        self._heaps: dict[tuple[Shape, int], tuple[list[Opening], Sequence[Sequence[_Lane]]]] = {}
        self._changes = 0
        self._firsts: dict[tuple[Shape, int], tuple[int, int | None]] = {}
        """Shape and length -> the first opening, and as of how many changes."""
        self.lanes = len(capacity.lanes)
        self.busy = sum(not lane.is_free(now, now + 1) for lanes in self._hosts for lane in lanes)
        """Lanes that were not free at the beginning of the plan."""
        self.given = 0
        """Lanes that the plan gave away from now on."""
        self._kept = 0
        self._behind = now, 0

    def first(self, shape: Shape, length: int) -> int | None:
        """Return when the first server of a shape could have `length` seconds; None when never, as far as is known."""
        key = shape, length
        cached = self._firsts.get(key)
        if cached is None or cached[0] != self._changes:
            heap = self._top(key)
            cached = self._firsts[key] = self._changes, heap[0].start if heap else None
        return cached[1]

    def take(self, shape: Shape, length: int) -> int:
        """Give away the first opening, and return when it begins. Raises IndexError when there is none."""
        opening = self._top((shape, length))[0]
        start, end = opening.start, opening.start + length
        able = self._of(shape)[opening.place]
        if shape.lanes > 1:
            able = sorted(
                (lane for lane in able if lane.is_free(start, end)),
                key=lambda lane: (lane.size, lane.left_after(start, end)),
            )
        for lane in able[: shape.lanes]:
            lane.take(start, end)
        self._changes += 1
        self.given += shape.lanes if start == self.now else 0
        return start

    def keep(self, shape: Shape, length: int) -> int:
        """Keep the first opening for a job that waits, and return when it begins; with DEPTH jobs before it, estimate
        it instead."""
        if self._kept < DEPTH:
            self._kept += 1
            start = self.take(shape, length)
            self._behind = max(start, self._behind[0]), 0
            return start
        start, seconds_before = self._behind
        self._behind = start, seconds_before + shape.lanes * length
        return start + seconds_before // self.lanes

    def many_now(self, shape: Shape, length: int) -> int:
        """Return how many servers of a shape could begin now, one beside the other."""
        end = self.now + length
        return sum(sum(lane.is_free(self.now, end) for lane in unit) // shape.lanes for unit in self._of(shape))

    def ever(self, shape: Shape) -> bool:
        """Return whether any host has the lanes that a shape needs, however long it would have to wait."""
        return bool(self._of(shape))

    def _of(self, shape: Shape) -> Sequence[Sequence[_Lane]]:
        """Lanes that come into question: each by itself, or those of a host together."""
        units = self._units.get(shape)
        if units is None:
            if shape.lanes > 1:
                units = [lanes for lanes in self._hosts if len(lanes) >= shape.lanes]
            else:
                units = [[lane] for lanes in self._hosts for lane in lanes if shape.size in (0, lane.size)]
            self._units[shape] = units
        return units

    def _top(self, key: tuple[Shape, int]) -> list[Opening]:
        """The heap of a shape and length, with a top that still is as it was found."""
        shape, length = key
        cached = self._heaps.get(key)
        if cached is None:
            units = self._of(shape)
            heap = [
                opening
                for place in range(len(units))
                if (opening := _opening(units[place], place, shape.lanes, length))
            ]
            heapify(heap)
            cached = self._heaps[key] = heap, units
        heap, units = cached
        while heap:
            top = heap[0]
            unit = units[top.place]
            if top.changes == (unit[0].changes if len(unit) == 1 else sum([lane.changes for lane in unit])):
                break
            now = _opening(unit, top.place, shape.lanes, length)
            if now is None:
                heappop(heap)
            else:
                heapreplace(heap, now)
        return heap


def _opening(unit: Sequence[_Lane], place: int, number: int, length: int) -> Opening | None:
    """The first moment from which so many of the lanes are free for so long."""
    if number == 1:
        lane = unit[0]
        for start, end in lane.gaps:
            if end - start >= length:
                return Opening(start, lane.size, end - start - length, place, lane.changes)
        return None
    ends: list[int] = []
    """Of the gaps that have begun, the earliest first."""
    for start, end in sorted([gap for lane in unit for gap in lane.gaps if gap[1] - gap[0] >= length]):
        heappush(ends, end)
        while ends[0] - start < length:
            heappop(ends)
        if len(ends) >= number:
            return Opening(start, 0, 0, place, sum([lane.changes for lane in unit]))
    return None
