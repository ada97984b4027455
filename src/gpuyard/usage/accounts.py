"""Accounts for GPU time: every second of every GPU is of one use, and so all uses add up to all of it. Pure.

A use follows from the state of a GPU in an interval and from the kind of booking, lease or loan that it belonged to.
Costs are summed exactly and rounded once for each line. The words here are those of reports, pages and metrics;
docs/how-to/account-for-use.md says what each means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from functools import cache

from gpuyard.model.booking import BookingKind
from gpuyard.site.tariff_clock import STANDARD
from gpuyard.usage.records import Slice, Sum, TrackState

HOUR = 3600
CENT, NOTHING = Decimal("0.01"), Decimal()


class UseKind(StrEnum):
    """What a GPU was there for."""

    BOOKED = "booked use"
    """A server had it on a booking of its project's."""
    RUNNER = "runner use"
    """A runner's server had it, for a job of GitHub's."""
    UNBOOKED = "unbooked use"
    """A server had it without a booking."""
    STARTING = "starting"
    """Nova was making or moving a server for it."""
    BOOKED_UNUSED = "booked unused"
    """It was kept for a booking or a lease in its time, and no server was there."""
    IDLE = "idle"
    """Nobody had it, and nobody had booked it; also where a neighbour in its group kept others from it, or a booking
    that was about to begin."""
    HELD = "held"
    """Operators kept it out of use: maintenance, quarantine, a loan for repair."""
    LOST = "lost"
    """It could not be used: gone, or blocked by its host."""
    UNSEEN = "unseen"
    """Nobody observed it, and Nova does not tell either."""


USED = frozenset({UseKind.BOOKED, UseKind.RUNNER, UseKind.UNBOOKED})
"""A server that Nova had launched had it, running or shut off."""
CHARGED = {"used": USED, "booked": USED | {UseKind.BOOKED_UNUSED}}
"""Uses that count against prices and budgets, by the site's choice."""

_BY_STATE = {
    TrackState.BOOKED: UseKind.BOOKED_UNUSED,
    TrackState.STARTING: UseKind.STARTING,
    TrackState.FREE: UseKind.IDLE,
    TrackState.STRANDED: UseKind.IDLE,
    TrackState.HELD: UseKind.HELD,
    TrackState.LOST: UseKind.LOST,
    TrackState.BLOCKED: UseKind.LOST,
    TrackState.UNSEEN: UseKind.UNSEEN,
}
_CLAIMED = {
    BookingKind.BOOKING.value: UseKind.BOOKED,
    BookingKind.RUNNER.value: UseKind.RUNNER,
    BookingKind.LOAN.value: UseKind.HELD,
}


@cache
def use_of(state: str, kind: str = "") -> UseKind:
    """Return the use of a GPU in a state (`TrackState`), by the kind of what it belonged to (`BookingKind`; empty:
    nothing). Raises ValueError for a state that there is not."""
    track = TrackState(state)
    if track is TrackState.CLAIMED:
        return _CLAIMED.get(kind, UseKind.UNBOOKED)
    if track is TrackState.BOOKED and kind == BookingKind.LOAN.value:
        return UseKind.HELD
    return _BY_STATE[track]


@dataclass(frozen=True)
class Prices:
    """The prices of GPU-hours, and the uses that are charged."""

    price: Callable[[str, str], Decimal | None] | None = None
    """(pool, tariff) -> price of a GPU-hour; None: no price. None instead of a function where nothing has one."""
    charged: frozenset[UseKind] = USED

    def cost(self, slice: Slice, seconds: int) -> Decimal:
        """Return the cost times 3600, exact and unrounded: an hour's price for each second."""
        if self.price is None or use_of(slice.state, slice.kind) not in self.charged:
            return NOTHING
        return (self.price(slice.pool, slice.tariff or STANDARD) or NOTHING) * seconds


@dataclass
class UseAccount:
    """One line of a report: GPU-seconds of each use, and their cost."""

    key: tuple[str, ...]
    """The values of what the report is by, in the order asked: ``("physics", "2026-11-03")``."""
    seconds: dict[UseKind, int] = field(default_factory=dict)
    _cost: Decimal = Decimal()

    @property
    def cost(self) -> Decimal:
        """The cost, rounded once, here, to hundredths; halves go up."""
        return (self._cost / HOUR).quantize(CENT, ROUND_HALF_UP)

    @property
    def used(self) -> int:
        return self.of(USED)

    @property
    def total(self) -> int:
        return sum(self.seconds.values())

    def of(self, uses: Iterable[UseKind]) -> int:
        return sum(self.seconds.get(use, 0) for use in uses)

    def add(self, slice: Slice, seconds: int, prices: Prices) -> None:
        use = use_of(slice.state, slice.kind)
        self.seconds[use] = self.seconds.get(use, 0) + seconds
        self._cost += prices.cost(slice, seconds)

    def merge(self, other: UseAccount) -> None:
        for use, seconds in other.seconds.items():
            self.seconds[use] = self.seconds.get(use, 0) + seconds
        self._cost += other._cost


BY: Mapping[str, Callable[[Sum], str]] = {
    "project": lambda use_sum: use_sum.slice.project or use_sum.slice.project_id,
    "user": lambda use_sum: use_sum.slice.user or use_sum.slice.user_id,
    "pool": lambda use_sum: use_sum.slice.pool,
    "host": lambda use_sum: use_sum.slice.host,
    "repository": lambda use_sum: use_sum.slice.repository,
    "tariff": lambda use_sum: use_sum.slice.tariff or STANDARD,
    "day": lambda use_sum: _day(use_sum.period),
    "month": lambda use_sum: _day(use_sum.period)[:7],
}
"""The columns that a report can be by: name -> the value that a sum has there; empty is nobody's."""
OF_SOMEBODY = frozenset({"project", "user", "repository"})


def _day(day: date | None) -> str:
    return day.isoformat() if day else ""


def accounts(sums: Iterable[Sum], by: Sequence[str], prices: Prices = Prices()) -> list[UseAccount]:
    """Return the lines of a report, by key. A sum without a project (idle GPUs ...) has a line with an empty one.
    Projects, or users, that only have a name in common have lines of their own, with their ids."""
    sums = list(sums)
    keys = [_apart(sums, name) for name in by]
    accounts_by_key: dict[tuple[str, ...], UseAccount] = {}
    for use_sum in sums:
        key = tuple(read(use_sum) for read in keys)
        account = accounts_by_key.get(key)
        if account is None:
            account = accounts_by_key[key] = UseAccount(key)
        account.add(use_sum.slice, use_sum.seconds, prices)
    return [accounts_by_key[key] for key in sorted(accounts_by_key)]


def _apart(sums: Sequence[Sum], by: str) -> Callable[[Sum], str]:
    """`BY`, for these sums."""
    read = BY[by]
    if by not in ("project", "user"):
        return read
    whose = {(getattr(use_sum.slice, by), getattr(use_sum.slice, f"{by}_id")) for use_sum in sums}
    names = Counter(name for name, _ in whose if name)

    def named(use_sum: Sum) -> str:
        name, id = getattr(use_sum.slice, by), getattr(use_sum.slice, f"{by}_id")
        return f"{name} ({id})" if id and names[name] > 1 else read(use_sum)

    return named


def total(lines: Iterable[UseAccount]) -> UseAccount:
    """Return all lines as one: its cost is that of the unrounded sum."""
    whole = UseAccount(())
    for line in lines:
        whole.merge(line)
    return whole
