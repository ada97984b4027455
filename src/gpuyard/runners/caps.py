"""Limits on how many GPUs runners use at once: of the whole site, a scale set, or a repository. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Cap:
    """One of these limits in the course of one plan. Times are whole seconds.

    A job that waits has the right to what it will need: those behind it get a GPU under the same limit only if that
    leaves enough, or if they are done before it could begin.
    """

    __slots__ = ("_ends", "_level", "has", "most", "name", "promised", "until", "words")

    def __init__(self, name: str, most: int, words: str, ends: list[tuple[int, int]], until: int) -> None:
        """`ends`: (when, GPUs) of those that are running. `until`: a time after all ends."""
        self.name = name
        self.most = most
        self.words = words
        self._ends = list(ends)
        heapify(self._ends)
        self.has = self._level = sum(gpus for _, gpus in ends)
        self.promised = 0
        self.until = until
        """When the first of those that wait under it could begin."""

    def allows(self, gpus: int, end: int) -> bool:
        """Return whether `gpus` more may start now and stay until `end`."""
        left = self.most - self.has - gpus
        return left >= 0 and (left >= self.promised or end <= self.until)

    def start(self, gpus: int, end: int) -> None:
        """Count `gpus` that start now and end at `end`."""
        self.has += gpus
        self._add(gpus, end)

    def wait(self, gpus: int, start: int, end: int) -> None:
        """Reserve `gpus` for a job that waits, from `start` to `end`."""
        self.promised += gpus
        self.until = min(self.until, start)
        self._add(gpus, end)

    def first(self, gpus: int, now: int) -> int | None:
        """Return when `gpus` more could start, if all before them take their longest time; None for never. Each call
        must be for a job that is behind all that were asked for before."""
        if gpus > self.most:
            return None
        start = now
        while self._level + gpus > self.most:
            end, some = heappop(self._ends)
            self._level -= some
            start = max(start, end)
        return start

    def reason(self, gpus: int) -> str:
        """Say why `gpus` more may not start now."""
        some = f"{self.most} GPU{'' if self.most == 1 else 's'}"
        if self.has + gpus > self.most:
            verb = "has its" if self.words.startswith("its ") else "have their"
            return f"{self.words} {verb} most of {some}"
        return f"{self.words} may have {some} at once, and jobs before it need them"

    def _add(self, gpus: int, end: int) -> None:
        self._level += gpus
        heappush(self._ends, (end, gpus))
