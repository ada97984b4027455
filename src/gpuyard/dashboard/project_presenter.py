"""Prepares the use of a project for its page: how much, by day, pool and member, and what it may have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from gpuyard.dashboard.mine_presenter import MineBooking
from gpuyard.dashboard.use_presenter import SpanLink
from gpuyard.health.web.card_use import UseLine
from gpuyard.inventory.web.presenter import Since, gpu_href, since
from gpuyard.model.booking import Rules, lasting
from gpuyard.model.gpu import GpuStatus
from gpuyard.usage.accounts import USED, Prices, UseAccount, UseKind, accounts, total
from gpuyard.usage.budgets import BudgetStatus, hours
from gpuyard.usage.reckoning import DAY
from gpuyard.usage.records import Sum
from gpuyard.usage.web.charts import Column, Layer, Scale, percent, scale_of, stack

SHOWN = (UseKind.BOOKED, UseKind.RUNNER, UseKind.UNBOOKED, UseKind.STARTING, UseKind.BOOKED_UNUSED)
"""Uses that belong to somebody."""
NO_PRICES = Prices()


@dataclass(frozen=True)
class ShareRow:
    """GPU-hours of one pool, or of one member."""

    name: str
    used: str
    cells: Sequence[str]
    """GPU-hours of each of `SHOWN`."""
    share: str
    """Share of what the project has used."""
    percent: int


@dataclass(frozen=True)
class PoolLimit:
    pool: str
    most: str
    longest: str
    month: str
    """GPU-hours that it may book there in a month."""


@dataclass(frozen=True)
class HeldLine:
    """A GPU that a server of the project has."""

    gpu: str
    href: str
    pool: str
    server: str
    user: str
    since: Since | None
    use: UseLine | None
    """The GPU's activity, where its server reports it."""


def held_lines(statuses: Iterable[GpuStatus], uses: Mapping[str, UseLine], now: datetime) -> list[HeldLine]:
    """Return lines of GPUs that are claimed, those that do little first."""
    lines = [
        HeldLine(
            gpu=name,
            href=gpu_href(status.gpu.host, status.gpu.address),
            pool=status.gpu.pool,
            server=status.claim.server_name or status.claim.server_id,
            user=status.claim.user,
            since=since(status.claim.since, now) if status.claim.since else None,
            use=uses.get(name),
        )
        for status in statuses
        if status.claim is not None and (name := f"{status.gpu.host}/{status.gpu.address}")
    ]
    return sorted(lines, key=lambda line: (not (line.use and line.use.little), line.gpu))


@dataclass(frozen=True)
class ProjectPage:
    name: str
    months: Sequence[SpanLink]
    others: Sequence[SpanLink]
    """Pages of other projects of the visitor."""
    choices: Sequence[str]
    """Other projects to choose from, for visitors who may see any; empty for others."""
    numbers: Sequence[tuple[str, str]]
    layers: Sequence[Layer]
    scale: Scale
    marks: Sequence[str]
    label: str
    heads: Sequence[str]
    pools: Sequence[ShareRow]
    members: Sequence[ShareRow]
    whose: str
    """Heading of `members`: all members, or the visitor and the others together."""
    limits: Sequence[PoolLimit]
    bookings: Sequence[MineBooking]


@dataclass(frozen=True)
class ShownDays:
    """The days in [first, end) that a page shows."""

    first: date
    end: date
    until: datetime | None
    """The moment until which use is known; None: not at all."""
    span: Callable[[date], tuple[datetime, datetime]]
    """[start, end) of a local day."""


@dataclass(frozen=True)
class ProjectLinks:
    """Links to other months of the project, and to other projects: see ProjectPage."""

    months: Sequence[SpanLink]
    others: Sequence[SpanLink]
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class ProjectCosts:
    """The cost of use, and what is left of the budget. Empty where the site keeps no accounts."""

    budget: Sequence[tuple[str, str]] = ()
    prices: Prices = NO_PRICES
    currency: str = ""


def project_page(
    name: str,
    sums: Sequence[Sum],
    days: ShownDays,
    bookings: Sequence[MineBooking],
    limits: Sequence[PoolLimit],
    see: Callable[[str], bool],
    links: ProjectLinks,
    costs: ProjectCosts,
) -> ProjectPage:
    """Return the page. `sums`: of the project, by day and tariff, of those days. `see`: whether the visitor sees what a
    user (id) has used."""
    whole = total(accounts(sums, ["pool"], costs.prices))
    cost = [(f"{whole.cost} {costs.currency}".rstrip(), "cost")] if costs.prices.price else []
    columns, first, end = _columns(sums, days), days.first, days.end
    scale = scale_of(columns)
    layers = stack(columns, scale.top)
    shares = ", ".join(f"{layer.name} {layer.share}" for layer in layers)
    sees_all = all(see(use_sum.slice.user_id) for use_sum in sums)
    return ProjectPage(
        name=name,
        months=links.months,
        others=links.others,
        choices=links.choices,
        numbers=[*costs.budget, *_numbers(whole), *cost],
        layers=layers,
        scale=scale,
        marks=[f"{first:%Y-%m-%d}", f"{first + (end - first) / 2:%Y-%m-%d}", f"{end - DAY:%Y-%m-%d}"],
        label=f"GPUs of project {name} by day: {shares}.",
        heads=[use.value for use in SHOWN],
        pools=_rows(accounts(sums, ["pool"]), whole.used),
        members=_rows(_members(sums, see), whole.used),
        whose="Members" if sees_all else "You, and the others together",
        limits=limits,
        bookings=bookings,
    )


def _columns(sums: Iterable[Sum], days: ShownDays) -> list[Column]:
    """A step for each day that has been, also those without use."""
    by_day = {date.fromisoformat(account.key[0]): account.seconds for account in accounts(sums, ["day"])}
    columns, day = [], days.first
    while days.until is not None and day < days.end:
        start, over = days.span(day)
        if start >= days.until:
            break
        mine = {use: amount for use, amount in by_day.get(day, {}).items() if use in SHOWN}
        columns.append(Column(start, min(over, days.until), mine))
        day += DAY
    return columns


def _members(sums: Iterable[Sum], see: Callable[[str], bool]) -> list[UseAccount]:
    """Of all who are seen, each by name, and of the others together."""
    visible: list[Sum] = []
    others: list[Sum] = []
    for use_sum in sums:
        (visible if see(use_sum.slice.user_id) else others).append(use_sum)
    lines = accounts(visible, ["user"])
    if others:
        rest = UseAccount(("others",))
        rest.merge(total(accounts(others, ["pool"])))
        lines.append(rest)
    return sorted(lines, key=lambda line: (-line.used, line.key))


def _rows(lines: Iterable[UseAccount], used: int) -> list[ShareRow]:
    return [
        ShareRow(
            name=line.key[0] or "nobody's",
            used=hours(line.used),
            cells=[hours(line.seconds.get(use, 0)) for use in SHOWN],
            share=percent(line.used, used),
            percent=round(100 * line.used / used) if used else 0,
        )
        for line in lines
    ]


def _numbers(whole: UseAccount) -> list[tuple[str, str]]:
    booked = whole.of({UseKind.BOOKED, UseKind.BOOKED_UNUSED})
    unused = whole.seconds.get(UseKind.BOOKED_UNUSED, 0)
    return [
        (hours(whole.of(USED)), "GPU-hours used"),
        (hours(booked), "GPU-hours booked, until now"),
        (hours(unused), f"of these without a server, {percent(unused, booked)}"),
        (hours(whole.seconds.get(UseKind.UNBOOKED, 0)), "GPU-hours used without a booking"),
    ]


def budget_numbers(budget: BudgetStatus | None) -> list[tuple[str, str]]:
    """Return the state of a project's budget now, in numbers and words; nothing where it has none."""
    if budget is None:
        return []
    until = f" until {budget.end:%Y-%m-%d %H:%M} UTC" if budget.end else ""
    carried = f", {hours(budget.carried)} of them carried over" if budget.carried else ""
    return [
        (hours(budget.left), f"GPU-hours left to book{until}, of a budget of {hours(budget.limit)}{carried}"),
        (f"{budget.percent:.0f} %", f"of the budget used; {hours(budget.ahead)} GPU-hours are booked ahead"),
    ]


def pool_limit(pool: str, rules: Rules) -> PoolLimit:
    month, per_gpu = rules.gpu_hours_per_month, rules.most_active_per_gpu
    return PoolLimit(
        pool=pool,
        most=str(rules.most_active) if per_gpu is None else f"{rules.most_active}, {per_gpu} on one GPU",
        longest=lasting(timedelta(seconds=rules.longest.total_seconds())),
        month="any number" if month is None else str(month),
    )
