"""How a measurement is shown: minimum, median and maximum of its runs, and how much of the limit the median uses. What
missed its limit, and what was not measured, is said again at the end.

With GPUYARD_BENCH_SMALL=1 everything is small and done once or twice: that shows whether the parts work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TypeVar

Size = TypeVar("Size")
SMALL = os.environ.get("GPUYARD_BENCH_SMALL") == "1"
MISSED: list[str] = []
LEFT_OUT: list[str] = []
MISSED_TITLE, LEFT_OUT_TITLE = "Missed its limit:", "Not measured:"
NOTHING_MISSED = "Everything was measured, and is within its limit."


@dataclass(frozen=True)
class Measured:
    """One line: values in `unit`, and the most that their median may be, or with `least` the least."""

    name: str
    unit: str
    values: Sequence[float]
    limit: float | None = None
    least: bool = False

    @property
    def missed(self) -> bool:
        middle = median(self.values)
        return self.limit is not None and (middle < self.limit if self.least else middle > self.limit)

    def cells(self) -> list[str]:
        low, middle, high = min(self.values), median(self.values), max(self.values)
        share = f"{middle / self.limit:.0%}" if self.limit else ""
        limit = f"{'>= ' * self.least}{self.limit:g} {self.unit}" if self.limit else ""
        return [self.name, str(len(self.values)), *(f"{v:.1f} {self.unit}" for v in (low, middle, high)), limit, share]


def show(title: str, rows: Sequence[Measured]) -> None:
    """Print a table, and remember what missed its limit."""
    MISSED.extend(f"{title}: {row.name}: {' '.join(row.cells()[3:])}" for row in rows if row.missed)
    heads = ["what", "runs", "min", "median", "max", "limit", "median/limit"]
    cells = [heads, *(row.cells() for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    print(f"\n{title}")
    for index, row in enumerate(cells):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if index == 0:
            print("  " + "  ".join("-" * width for width in widths))


def sized(full: Size, small: Size) -> Size:
    """How much of something is measured: `small` with GPUYARD_BENCH_SMALL."""
    return small if SMALL else full


def milliseconds(run: Callable[[], object], times: int) -> list[float]:
    """Wall time of each of several runs, in ms."""
    seconds = []
    for _ in range(sized(times, min(times, 2))):
        began = perf_counter()
        run()
        seconds.append((perf_counter() - began) * 1000)
    return seconds


def leave_out(what: str, why: str) -> None:
    """Something cannot be measured here: that is no pass."""
    print(f"\n{what}: not measured: {why}")
    LEFT_OUT.append(f"{what}: {why}")


def finish() -> int:
    """Say what missed its limit and what was not measured. The exit status: 1 when there is either."""
    for title, lines in ((MISSED_TITLE, MISSED), (LEFT_OUT_TITLE, LEFT_OUT)):
        if lines:
            print(f"\n{title}", *lines, sep="\n  ")
    if not MISSED and not LEFT_OUT:
        print(f"\n{NOTHING_MISSED}")
    return 1 if MISSED or LEFT_OUT else 0
