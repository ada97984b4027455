"""How a measurement is shown: minimum, median and maximum of its runs, and how much of the limit the median uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Measured:
    """One line: values in `unit`, and the most that they may be."""

    name: str
    unit: str
    values: Sequence[float]
    limit: float | None = None

    def cells(self) -> list[str]:
        low, middle, high = min(self.values), median(self.values), max(self.values)
        share = f"{middle / self.limit:.0%}" if self.limit else ""
        limit = f"{self.limit:g} {self.unit}" if self.limit else ""
        return [self.name, str(len(self.values)), *(f"{v:.1f} {self.unit}" for v in (low, middle, high)), limit, share]


def show(title: str, rows: Sequence[Measured]) -> None:
    """Print a table."""
    heads = ["what", "runs", "min", "median", "max", "limit", "median/limit"]
    cells = [heads, *(row.cells() for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    print(f"\n{title}")
    for index, row in enumerate(cells):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if index == 0:
            print("  " + "  ".join("-" * width for width in widths))


def milliseconds(run: Callable[[], object], times: int) -> list[float]:
    """Wall time of each of several runs, in ms."""
    seconds = []
    for _ in range(times):
        began = perf_counter()
        run()
        seconds.append((perf_counter() - began) * 1000)
    return seconds
