"""Pools, people and asks for tests of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuyard.bookings.budget_check import Allowance
from gpuyard.bookings.ledger.ledger import BookingSettings, Ledger
from gpuyard.bookings.records import Event
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Ask, Lane, Person, Rules

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
"""A Monday."""
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ADA = Person("u-ada", "ada", "p-physics", "physics", frozenset({"member", "reader"}), "ada@example.org")
BOB = Person("u-bob", "bob", "p-biology", "biology", frozenset({"member", "reader"}), "bob@example.org")
EVE = Person("u-eve", "eve", "p-physics", "physics", frozenset({"reader"}))
ROOT = Person("u-root", "root", "p-admin", "admin", frozenset({"admin", "member", "reader"}))

V100 = (("gpu-1", ("0000:27:00.0", "0000:28:00.0")), ("gpu-1", ("0000:43:00.0", "0000:44:00.0")))
V100 += (("gpu-1", ("0000:a3:00.0",)), ("gpu-1", ("0000:c3:00.0",)))  # type: ignore[assignment]
T4 = (("gpu-2", ("0000:18:00.0",)), ("gpu-3", ("0000:18:00.0",)))
SITE = {"v100": V100, "t4": T4}
"""Two slots of two GPUs and two lone ones on one host; two lone ones on two hosts."""


def lanes(pool: str = "v100") -> tuple[Lane, ...]:
    """The lanes of a pool as a store would number them, from 1 on."""
    return tuple(Lane(number, pool, host, addresses) for number, (host, addresses) in enumerate(SITE[pool], 1))


def ask(start: float = 1, hours: float = 4, gpus: int = 1, pool: str = "v100", **more: object) -> Ask:
    """An ask that starts `start` hours after NOON."""
    begin = NOON + start * HOUR
    return Ask(pool, begin, begin + hours * HOUR, gpus, **more)  # type: ignore[arg-type]


@dataclass
class Clock:
    """Time that tests set."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, hours: float = 0, **more: float) -> None:
        self.now += hours * HOUR + timedelta(**more)


@dataclass
class Numbers:
    """Ids that tests can foresee: b1, b2, ..."""

    given: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9)))

    def __call__(self) -> str:
        return f"b{next(self.given)}"


def open_ledger(
    url: str | Path,
    rules: Rules | dict[str, Rules] | None = None,
    clock: Clock | None = None,
    zone: str = "UTC",
    allowance: Callable[[str, str], Allowance | None] = lambda project_id, project: None,
) -> Ledger:
    """A ledger of SITE on a database. `rules`: of all, or by project. `allowance`: of a project (id, name)."""
    store = Store.open(url if isinstance(url, str) else f"sqlite:///{url / 'ledger.db'}")
    store.sync_lanes([(pool, host, addresses) for pool, slots in SITE.items() for host, addresses in slots])
    by_project = rules if isinstance(rules, dict) else {}
    default = rules if isinstance(rules, Rules) else Rules(most_active=100)
    book = BookingSettings(
        tuple(SITE), lambda pool, project: by_project.get(project, default), zone, allowance=allowance
    )
    return Ledger(store, book, clock or Clock(), Numbers())


def write_event(store: Store, event: Event, pool: str = "t4") -> None:
    """An event that belongs to no change of a booking."""
    with store.change(pool) as change:
        change.event(event)


def names(reasons: Sequence[object]) -> list[str]:
    """Codes of reasons, in order."""
    return [reason.code for reason in reasons]  # type: ignore[attr-defined]
