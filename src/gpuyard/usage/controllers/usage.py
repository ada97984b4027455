"""Makes reports of use: asks the history for the sums that a report needs, and makes its lines of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime

from gpuyard.usage.accounts import BY, Prices, UseAccount, accounts, total
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.records import Slice

DIMENSIONS_OF = {
    "project": ("project", "project_id"),
    "user": ("user", "user_id"),
    "pool": ("pool",),
    "host": ("host",),
    "repository": ("repository",),
    "tariff": ("tariff",),
    "day": (),
    "month": (),
}
"""Column of a report -> the dimensions that sums are asked by for it."""
USES, PRICED = frozenset({"state", "kind"}), frozenset({"pool", "tariff"})
"""The dimensions that uses are read from, and those that prices are."""


@dataclass(frozen=True)
class UsageQuery:
    """The choice of a report: days, columns and filters."""

    first: date
    end: date
    """The first day that is not in it; days are the site's."""
    by: tuple[str, ...] = ("project",)
    """Names of `BY`, in the order of the columns."""
    where: Mapping[str, str] = field(default_factory=dict)
    """``project``, ``user`` (name or id), ``pool``, ``host``, ``repository`` -> only this one."""


@dataclass(frozen=True)
class UsageReport:
    """A report, whose lines add up to all GPU time of what was asked for."""

    lines: Sequence[UseAccount]
    total: UseAccount
    until: datetime | None
    """The last observation of the cloud that is in it; later time is not. None: there has been none yet."""


def usage(
    history: History,
    query: UsageQuery,
    prices: Prices,
    shown: Callable[[Slice], Slice] = lambda slice: slice,
    most: int | None = None,
) -> UsageReport:
    """Return a report. `shown`: what the reader sees of whose use it was; filters apply to that. `most`: sums that are
    read for it; raises TooManySumsError when there are more."""
    used_keys = (*query.by, *query.where)
    always = USES | PRICED if prices.price else USES
    dimensions = always.union(*(DIMENSIONS_OF[name] for name in used_keys), *_whose(used_keys))
    period = "day" if "day" in query.by else "month" if "month" in query.by else ""
    # Of what nobody is shown differently the database finds it faster.
    exact = {name: query.where[name] for name in ("pool", "host") if query.where.get(name)}
    use_sums = history.sums(query.first, query.end, dimensions, period, exact, most)
    sums = [replace(use_sum, slice=shown(use_sum.slice)) for use_sum in use_sums.sums]
    filters = {name: value for name, value in query.where.items() if value and name not in exact}
    sums = [use_sum for use_sum in sums if all(_is(use_sum.slice, name, value) for name, value in filters.items())]
    lines = accounts(sums, query.by, prices)
    return UsageReport(lines, total(lines), use_sums.until)


def _whose(used_keys: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Whose project it was says what of it a reader is shown."""
    return (DIMENSIONS_OF["project"],) if {"user", "repository"} & {*used_keys} else ()


def _is(slice: Slice, name: str, value: str) -> bool:
    return value in {getattr(slice, dimension) for dimension in DIMENSIONS_OF[name]}


def names(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a report. Raises ValueError for what a report cannot be by."""
    wrong = [name for name in by if name not in BY]
    if wrong or len({*by}) != len(by):
        raise ValueError(f"a report is by some of {', '.join(BY)}, each once; not by {', '.join(by)}")
    return tuple(by)
