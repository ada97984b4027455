"""Prepares the history of GPUs for pages: strips, charts, tables, shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from gpuyard.bookings.web.booking_documents import BookingRow
from gpuyard.dashboard.waits import LONG, Waits, WaitStep
from gpuyard.inventory.web.presenter import Since, duration, lasted, since
from gpuyard.model.booking import BookingState, lasting
from gpuyard.runners.web.runner_figures import Figures
from gpuyard.usage.accounts import USED, UseKind, use_of
from gpuyard.usage.reckoning import local_day
from gpuyard.usage.records import Extent, Interval, TrackState
from gpuyard.usage.web.charts import SLUGS, Column, Layer, Scale, percent, scale_of, stack, strip
from gpuyard.usage.web.utilisation import SPANS, Utilisation, Week, coarse, together

MOST_ROWS = 100
"""Rows of the table of a GPU's timeline, at most."""
MOST_STEPS = 31
"""Rows of the table of a chart, at most."""
MOST_WAITED = 100
"""Rows of the table of waiting times, at most."""
MOST_CHARTS = 6
"""Pools with a chart of their own; of more than these only the one that is asked for."""
WAITS = frozenset({BookingState.REQUESTED, BookingState.WAITING, BookingState.OFFERED})
"""States of bookings that have no GPU yet."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class SpanLink:
    text: str
    href: str
    current: bool


@dataclass(frozen=True)
class TimelineRow:
    """One interval of a GPU."""

    slug: str
    use: str
    start: Since
    end: Since | None
    """None: it goes on."""
    lasted: str
    who: str
    server: str
    why: str
    about: bool
    """Its start or end is only when it was seen, which may be some seconds off."""


@dataclass(frozen=True)
class Timeline:
    spans: Sequence[SpanLink]
    layers: Sequence[Layer]
    marks: Sequence[str]
    label: str
    rows: Sequence[TimelineRow]
    """The latest first."""
    more: bool


def timeline(
    intervals: Sequence[Interval], extent: Extent | None, start: datetime, now: datetime, days: int, href: str,
    *, cut: bool,
) -> Timeline:  # fmt: skip
    """Return the timeline of one GPU since `start`. `intervals`: as the visitor may see them, by start. `cut`: there
    were more before these. `href`: of its page, to which the days are added."""
    links = [
        SpanLink(f"{span} day{'s' if span > 1 else ''}", f"{href}&days={span}", span == days)
        for span in SPANS
        if span < 365
    ]
    until = min(now, extent.until) if extent else now
    pieces = [
        (max(interval.start, start), min(interval.end or until, until), use_of(interval.state, interval.tenure.kind))
        for interval in intervals
    ]
    shown = [piece for piece in pieces if piece[0] < piece[1]]
    if not shown:
        return Timeline(links, (), (), "", (), more=False)
    layers = strip(shown, start, until) if start < until else []
    shares = ", ".join(f"{layer.name} {layer.share}" for layer in layers)
    rows = [_row(interval, now) for interval in reversed(intervals)][:MOST_ROWS]
    return Timeline(
        spans=links,
        layers=layers,
        marks=_marks(start, until, "UTC"),
        label=f"The last {days} days: {shares}. The table below has each time.",
        rows=rows,
        more=cut or len(intervals) > MOST_ROWS,
    )


def _row(interval: Interval, now: datetime) -> TimelineRow:
    own, use = interval.tenure, use_of(interval.state, interval.tenure.kind)
    length = (interval.end or now) - interval.start
    why = "" if interval.state is TrackState.CLAIMED else own.reason
    return TimelineRow(
        slug=SLUGS[use],
        use=use.value,
        start=since(interval.start, now),
        end=since(interval.end, now) if interval.end else None,
        lasted=lasting(timedelta(seconds=int(length.total_seconds()))),
        who=" in ".join(filter(None, (own.user, own.project))),
        server=own.server_name or own.server,
        why=" ".join(filter(None, (why, own.repository))),
        about=not interval.exact_start or (interval.end is not None and not interval.exact_end),
    )


def _marks(start: datetime, end: datetime, zone: str) -> list[str]:
    """Of a time axis: its beginning, middle and end."""
    form = "%m-%d %H:%M" if end - start <= timedelta(days=8) else "%Y-%m-%d"
    zone_info = ZoneInfo(zone)
    return [moment.astimezone(zone_info).strftime(form) for moment in (start, start + (end - start) / 2, end)]


@dataclass(frozen=True)
class ChartRow:
    start: str
    cells: Sequence[str]
    """Average GPUs of each use of the chart."""


@dataclass(frozen=True)
class UseChart:
    id: str
    name: str
    scale: Scale
    used: str
    layers: Sequence[Layer]
    marks: Sequence[str]
    label: str
    heads: Sequence[str]
    rows: Sequence[ChartRow]


@dataclass(frozen=True)
class HeatCell:
    level: int
    """0 to 5."""
    text: str


@dataclass(frozen=True)
class HeatRow:
    day: str
    cells: Sequence[HeatCell]


@dataclass(frozen=True)
class WaitLine:
    what: str
    who: str
    state: str
    since: Since
    start: Since


@dataclass(frozen=True)
class WaitedRow:
    """Waiting times of all bookings or jobs of a pool."""

    start: str
    pool: str
    of: str
    count: int
    waited: int
    p50: str
    p90: str
    percent: int
    """`p90` in percent of the longest of the table."""


@dataclass(frozen=True)
class OverviewPage:
    days: int
    pool: str
    """Empty: all."""
    spans: Sequence[SpanLink]
    seen: Since | None
    charts: Sequence[UseChart]
    pools: Sequence[SpanLink]
    """Links to the pools; empty where there is only one."""
    heat: Sequence[HeatRow]
    heat_of: str
    heat_csv: str
    zone: str
    waited: Sequence[WaitedRow]
    """By pool, of the whole time."""
    waited_steps: Sequence[WaitedRow]
    """The same by day or week, the latest first."""
    waited_step: str
    """``day``"""
    waiting_csv: str
    waited_more: bool
    """There were more steps before these."""
    waited_csv: str
    waiting: Sequence[WaitLine]
    waits: Sequence[tuple[str, str]]
    """Summary of who waits, and for how long."""
    csv: str


def overview(
    usage: Utilisation, waits: Waits, days: int, pool: str, waiting: Sequence[BookingRow], jobs: Figures | None,
    queued: int | None, zone: str, now: datetime,
) -> OverviewPage:  # fmt: skip
    """Return the page. `pool`: empty for all. `waiting`: bookings that have no GPU yet, as the visitor may see them.
    `jobs` and `queued`: of GitHub's, where there are runners."""
    names = [pool] if pool else list(usage.pools) if len(usage.pools) <= MOST_CHARTS else []
    charts = [_chart("All pools", together(usage.pools.values()), zone)] if not pool and len(usage.pools) != 1 else []
    charts += [_chart(name, usage.pools.get(name, ()), zone) for name in names]
    of_pool = [("pool", pool)] if pool else []
    states = [("state", state.value) for state in sorted(WAITS)]
    more = f"&{urlencode(of_pool)}" if pool else ""
    steps = [step for step in reversed(waits.steps) if pool in ("", step.pool)]
    return OverviewPage(
        days=days,
        pool=pool,
        spans=[
            SpanLink(f"{span} day{'s' if span > 1 else ''}", f"overview?days={span}{more}", span == days)
            for span in SPANS
        ],
        seen=since(usage.extent.until, now) if usage.extent else None,
        charts=[chart for chart in charts if chart.layers],
        pools=[
            SpanLink(name or "all", f"overview?{urlencode({'days': days, 'pool': name})}", name == pool)
            for name in ("", *usage.pools)
        ] if len(usage.pools) > 1 else [],
        heat=_heat(usage.weeks.get(pool, {})),
        heat_of=pool or "all pools",
        heat_csv=f"v1/utilisation/week?{urlencode({'pool': pool, 'format': 'csv'})}",
        zone=zone,
        waited=_waited([step for step in waits.whole if pool in ("", step.pool)], zone),
        waited_steps=_waited(steps[:MOST_WAITED], zone),
        waited_step="day" if days <= LONG else "week",
        waiting_csv=f"v1/bookings?{urlencode([*states, *of_pool, ('format', 'csv')])}",
        waited_more=len(steps) > MOST_WAITED,
        waited_csv=f"v1/waits?days={days}{more}&format=csv",
        waiting=[_wait(booking, now) for booking in waiting],
        waits=_waits(waiting, jobs, queued, now),
        csv=f"v1/utilisation?days={days}{more}&format=csv",
    )  # fmt: skip


def _chart(name: str, columns: Sequence[Column], zone: str) -> UseChart:
    scale = scale_of(columns)
    layers = stack(columns, scale.top)
    seconds = {use: sum(column.seconds.get(use, 0) for column in columns) for use in SLUGS}
    observed = sum(amount for use, amount in seconds.items() if use is not UseKind.UNSEEN)
    used = percent(sum(seconds[use] for use in USED), observed)
    uses = [use for use in SLUGS if seconds[use]]
    zone_info = ZoneInfo(zone)
    return UseChart(
        id=f"use-{name.replace(' ', '-')}",
        name=name,
        scale=scale,
        used=f"{used} of the observed time in use",
        layers=layers,
        marks=_marks(columns[0].start, columns[-1].end, zone) if columns else (),
        label=f"{name} over time: {', '.join(f'{layer.name} {layer.share}' for layer in layers)}. A table follows.",
        heads=[use.value for use in uses],
        rows=[
            ChartRow(
                column.start.astimezone(zone_info).strftime("%Y-%m-%d %H:%M"),
                [f"{column.seconds.get(use, 0) / (column.end - column.start).total_seconds():.1f}" for use in uses],
            )
            for column in coarse(columns, MOST_STEPS)
        ],
    )


def _heat(week: Week) -> list[HeatRow]:
    if not week:
        return []
    return [HeatRow(name, [_cell(week.get((number, hour))) for hour in range(24)]) for number, name in enumerate(DAYS)]


def _waited(steps: Sequence[WaitStep], zone: str) -> list[WaitedRow]:
    most = max((step.p90 for step in steps), default=0.0) or 1.0
    return [
        WaitedRow(
            start=f"{local_day(step.start, zone):%Y-%m-%d}",
            pool=step.pool,
            of=step.of.value,
            count=step.count,
            waited=step.waited,
            p50=lasted(step.p50) if step.p50 >= 1 else "none",
            p90=lasted(step.p90) if step.p90 >= 1 else "none",
            percent=round(100 * step.p90 / most),
        )
        for step in steps
    ]


def _cell(share: float | None) -> HeatCell:
    if share is None:
        return HeatCell(0, "")
    value = round(100 * share)
    return HeatCell(0 if not value else min(5, 1 + value // 20), str(value))


def _wait(booking: BookingRow, now: datetime) -> WaitLine:
    who = " in ".join(filter(None, (booking.user, booking.project)))
    return WaitLine(
        f"{booking.gpus} of {booking.pool}",
        who,
        booking.state.value,
        since(booking.created, now),
        since(booking.start, now),
    )


def _waits(
    waiting: Sequence[BookingRow], jobs: Figures | None, queued: int | None, now: datetime
) -> list[tuple[str, str]]:
    lines = []
    inline = [booking for booking in waiting if booking.state is BookingState.WAITING]
    longest = max(((now - booking.created).total_seconds() for booking in inline), default=0.0)
    lines.append((str(len(inline)), f"on the waitlist{f', for up to {duration(longest)}' if inline else ''}"))
    requested = sum(booking.state is BookingState.REQUESTED for booking in waiting)
    if requested:
        lines.append((str(requested), "for an admin's approval"))
    if queued is not None:
        lines.append((str(queued), "jobs of GitHub in the queue"))
    if jobs is not None and jobs.p50 is not None and jobs.p95 is not None:
        most = duration(jobs.p95)
        lines.append(
            (duration(jobs.p50), f"was the median wait of a week's jobs for a runner; 95 % waited {most} at most")
        )
    return lines
