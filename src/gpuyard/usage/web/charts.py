"""Draws charts as SVG on the server: no script, and beside each one the same as a table (ADR 37). Pure.

A chart has no text in it: it is stretched to the width that there is. What its lines stand for is said beside it
(`Scale`). Its colours and patterns are those of pages.css and patterns.html, one of each for every use of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.usage.accounts import UseKind

WIDTH, HEIGHT = 1000, 200
"""Size of a chart, in its own units."""
MOST_LINES = 5
"""Lines of a scale at most, besides that at 0."""
SLUGS = {
    UseKind.BOOKED: "booked", UseKind.RUNNER: "runner", UseKind.UNBOOKED: "unbooked", UseKind.STARTING: "starting",
    UseKind.BOOKED_UNUSED: "kept", UseKind.IDLE: "idle", UseKind.HELD: "held", UseKind.LOST: "lost",
    UseKind.UNSEEN: "unseen",
}  # fmt: skip
"""Use -> name of its colour and pattern, from the bottom of a stack to its top."""


@dataclass(frozen=True)
class Layer:
    """One use in a stack, or in a strip."""

    slug: str
    name: str
    path: str
    """Its areas, as the ``d`` of one path."""
    share: str
    """``41 %`` of all the time that there is."""


@dataclass(frozen=True)
class Column:
    """One step of time."""

    start: datetime
    end: datetime
    seconds: Mapping[UseKind, int]
    """GPU-seconds."""

    @property
    def gpus(self) -> float:
        """Number of GPUs that there were, on average."""
        return sum(self.seconds.values()) / max(1.0, (self.end - self.start).total_seconds())


@dataclass(frozen=True)
class Scale:
    """The axis of a stack: it begins at 0, and its lines are equally far from each other."""

    top: float
    """Number of GPUs that is as high as the chart; 0 where there is nothing to show."""
    marks: Sequence[str]
    """Labels of its lines, from the top to 0."""
    lines: str
    """The lines as the ``d`` of one path; with one in the middle of the time."""


def scale_of(columns: Sequence[Column]) -> Scale:
    """Return a scale on which the highest column fits, with at most `MOST_LINES` lines at numbers that are easily
    read."""
    high = max((column.gpus for column in columns), default=0.0)
    if not high:
        return Scale(0.0, (), "")
    size = 10.0 ** math.floor(math.log10(high))
    # A hair less than a line is that line: averages are not exact.
    count, step = next(
        (math.ceil(high / step - 1e-6), step)
        for step in (size * part for part in (0.1, 0.2, 0.5, 1, 2, 5, 10))
        if high / step <= MOST_LINES + 1e-6 and (step >= 1 or high < 1)
    )
    across = "".join(f"M0 {HEIGHT * number / count:.1f}h{WIDTH}" for number in range(1, count))
    return Scale(
        step * count, [f"{step * left:.4g}" for left in range(count, -1, -1)], f"{across}M{WIDTH / 2:.1f} 0v{HEIGHT}"
    )


def stack(columns: Sequence[Column], top: float) -> list[Layer]:
    """Stack uses on each other, over time. `top`: GPUs that are as high as the chart; no column has more."""
    if not top:
        return []
    begins, ends = columns[0].start, columns[-1].end
    areas: dict[UseKind, list[str]] = {}
    for column in columns:
        x, width = _x(column.start, begins, ends), _x(column.end, begins, ends) - _x(column.start, begins, ends)
        scale = HEIGHT / (top * (column.end - column.start).total_seconds())
        y = float(HEIGHT)
        for use in SLUGS:
            height = column.seconds.get(use, 0) * scale
            if height > 0:
                y = max(0.0, y - height)
                areas.setdefault(use, []).append(_box(x, y, width, height))
    totals = _totals(columns)
    return [_layer(use, areas[use], totals) for use in SLUGS if use in areas]


def strip(pieces: Sequence[tuple[datetime, datetime, UseKind]], start: datetime, end: datetime) -> list[Layer]:
    """Draw the uses of one GPU, over time: pieces of [start, end) in order."""
    areas: dict[UseKind, list[str]] = {}
    totals: dict[UseKind, int] = {}
    for first, last, use in pieces:
        x = _x(first, start, end)
        areas.setdefault(use, []).append(_box(x, 0, max(0.5, _x(last, start, end) - x), HEIGHT))
        totals[use] = totals.get(use, 0) + int((last - first).total_seconds())
    return [_layer(use, areas[use], totals) for use in SLUGS if use in areas]


def percent(part: float, whole: float) -> str:
    """Format a share as percent: ``41 %``, ``under 1 %``."""
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    return "under 1 %" if share < 1 else f"{share:.0f} %"


def _layer(use: UseKind, areas: Sequence[str], totals: Mapping[UseKind, int]) -> Layer:
    return Layer(SLUGS[use], use.value, "".join(areas), percent(totals[use], sum(totals.values())))


def _totals(columns: Sequence[Column]) -> dict[UseKind, int]:
    return {use: sum(column.seconds.get(use, 0) for column in columns) for use in SLUGS}


def _x(moment: datetime, start: datetime, end: datetime) -> float:
    return WIDTH * ((moment - start) / (end - start))


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
