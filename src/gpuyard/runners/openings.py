"""When GPUs of a pool could be had: the room there is, less what this plan has given away already.

Times are whole seconds since the epoch. Within a plan there is ever less room, so what was found to be the first
opening of a host can only come later: each length of time has a heap of hosts by their first openings, and only the
one at the top is looked at again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpuyard.ledger.leases import PoolRoom
from gpuyard.runners.records import ServerChoice
from gpuyard.store.times import seconds


class _Lane:
    """What is left of a lane: gaps that do not touch, in order of time."""

    __slots__ = ("gaps", "size")

    def __init__(self, size: int, gaps: list[tuple[int, int]]) -> None:
        self.size = size
        self.gaps = gaps

    def first(self, length: int) -> tuple[int, int] | None:
        for gap in self.gaps:
            if gap[1] - gap[0] >= length:
                return gap
        return None

    def is_free(self, start: int, end: int) -> bool:
        return any(gap[0] <= start and end <= gap[1] for gap in self.gaps)

    def take(self, start: int, end: int) -> None:
        for place, (begin, until) in enumerate(self.gaps):
            if begin <= start and end <= until:
                left = [(begin, start)] if begin < start else []
                right = [(end, until)] if end < until else []
                self.gaps[place : place + 1] = left + right
                return
        raise ValueError(f"[{start}, {end}) is not free")


class Shape(NamedTuple):
    """What a server needs of one host."""

    lanes: int
    size: int
    """GPUs that its lane must have; 0 for any."""

    @staticmethod
    def of(choice: ServerChoice) -> Shape:
        return Shape(1, choice.gpus) if choice.same_group else Shape(choice.gpus, 0)


Opening = tuple[int, int, int, str]
"""When, how wasteful (size of the lane, seconds left over; 0 for several lanes), and where. The least first."""


class PoolOpenings:
    """A pool in the course of one plan."""

    def __init__(self, room: PoolRoom, now: int) -> None:
        self.now = now
        self.blocked = room.blocked
        self._hosts: dict[str, list[_Lane]] = defaultdict(list)
        for lane in room.lanes:
            gaps = [(max(seconds(start), now), seconds(end)) for start, end in lane.free]
            self._hosts[lane.host].append(_Lane(lane.size, [gap for gap in gaps if gap[0] < gap[1]]))
        for lanes in self._hosts.values():  # whatever the order in which they were told
            lanes.sort(key=lambda lane: (lane.size, lane.gaps))
        self._heaps: dict[tuple[Shape, int], list[Opening]] = {}
        self.lanes = len(room.lanes)
        self.busy = sum(not lane.is_free(now, now + 1) for lane in self._lanes())
        """Lanes that others had at the beginning."""
        self.given = 0
        """Lanes that were given away from now on."""

    def first(self, shape: Shape, length: int) -> int | None:
        """When the first server of a shape could have `length` seconds; None when never, as far as is known."""
        heap = self._top(shape, length)
        return heap[0][0] if heap else None

    def take(self, shape: Shape, length: int) -> int:
        """Give away the first opening: when it begins. Raises IndexError when there is none."""
        start, _, _, host = self._top(shape, length)[0]
        able = [lane for lane in self._suitable(host, shape) if lane.is_free(start, start + length)]
        able.sort(key=lambda lane: (lane.size, _waste(lane, start, length)))
        for lane in able[: shape.lanes]:
            lane.take(start, start + length)
        self.given += shape.lanes if start == self.now else 0
        return start

    def many_now(self, shape: Shape, length: int) -> int:
        """How many servers of a shape could begin now, one beside the other."""
        end = self.now + length
        return sum(
            sum(lane.is_free(self.now, end) for lane in self._suitable(host, shape)) // shape.lanes
            for host in self._hosts
        )

    def ever(self, shape: Shape) -> bool:
        """Whether any host has what it needs, however long it would have to wait."""
        return any(len(self._suitable(host, shape)) >= shape.lanes for host in self._hosts)

    def _lanes(self) -> Iterator[_Lane]:
        for lanes in self._hosts.values():
            yield from lanes

    def _suitable(self, host: str, shape: Shape) -> list[_Lane]:
        lanes = self._hosts[host]
        return [lane for lane in lanes if lane.size == shape.size] if shape.size else lanes

    def _top(self, shape: Shape, length: int) -> list[Opening]:
        """The heap of a shape and length, its top as it is now."""
        heap = self._heaps.get((shape, length))
        if heap is None:
            heap = [found for host in self._hosts if (found := self._opening(host, shape, length))]
            heapify(heap)
            self._heaps[shape, length] = heap
            return heap
        while heap:
            now = self._opening(heap[0][-1], shape, length)
            if now == heap[0]:
                break
            heappop(heap)
            if now:
                heappush(heap, now)
        return heap

    def _opening(self, host: str, shape: Shape, length: int) -> Opening | None:
        lanes = self._suitable(host, shape)
        if shape.lanes > 1:
            return _together(host, lanes, shape.lanes, length)
        best: Opening | None = None
        for lane in lanes:
            gap = lane.first(length)
            if gap is not None:
                found = (gap[0], lane.size, gap[1] - gap[0] - length, host)
                if best is None or found < best:
                    best = found
        return best


def _together(host: str, lanes: list[_Lane], number: int, length: int) -> Opening | None:
    """The first moment from which so many lanes are free for so long."""
    able = sorted(gap for lane in lanes for gap in lane.gaps if gap[1] - gap[0] >= length)
    for place, (start, _) in enumerate(able):
        free = sum(end - start >= length for _, end in able[: place + 1])
        free += sum(begin == start for begin, _ in able[place + 1 :])
        if free >= number:
            return start, 0, 0, host
    return None


def _waste(lane: _Lane, start: int, length: int) -> int:
    return min(end for begin, end in lane.gaps if begin <= start and start + length <= end) - start - length
