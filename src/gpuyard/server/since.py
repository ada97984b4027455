"""Compares a database with a backup: lists for operators what has been written since and would be unknown after a
restore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store
from gpuyard.database.engine import Database
from gpuyard.health.records import KEPT_BACK, GpuHealth
from gpuyard.health.store import HealthStore
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.text import counted, printable
from gpuyard.runners.store import RunnerStore
from gpuyard.usage.store import HistoryStore
from gpuyard.web.store import PortalStore

T = TypeVar("T")
NAMED = 5
"""Most things of a kind that are named; the rest is counted."""
OVER = frozenset({BookingState.ENDED, BookingState.CANCELLED, BookingState.NO_SHOW, BookingState.EXPIRED})
PAGE = 1000


@dataclass(frozen=True)
class Holdings:
    """The contents of a database that a restore could lose."""

    bookings: dict[str, Booking]
    runners: frozenset[str]
    """Names of runners that are not over."""
    kept_back: dict[str, GpuHealth]
    """GPUs that are kept back, by name."""
    history: datetime | None
    """The time until which the history of use is complete."""
    feeds: frozenset[str]
    sessions: int


def kept(database: Database, now: datetime) -> Holdings:
    """Return the holdings of a database with this release's tables. Raises StoreError."""
    portal, extent = PortalStore(database), HistoryStore(database).seen()
    return Holdings(
        {booking.id: booking for booking in _bookings(Store(database))},
        frozenset(runner.name for runner in RunnerStore(database).runners()),
        {gpu.name: gpu for gpu in HealthStore(database).gpus(KEPT_BACK)},
        extent.until if extent else None,
        frozenset(feed.digest for feed in portal.feeds(now)),
        len(portal.sessions(now)),
    )


def _bookings(store: Store) -> Iterator[Booking]:
    marker = ""
    while page := store.find(Query(), PAGE, marker):
        yield from page
        marker = page[-1].id


def lost_since(current: Holdings, backup: Holdings, now: datetime) -> list[str]:
    """Return one line for each kind of thing that would be lost; none when nothing would be."""
    bookings = [booking for booking in current.bookings.values() if booking.kind is not BookingKind.RUNNER]
    new = [booking for booking in bookings if booking.id not in backup.bookings]
    holds, new = _parted(new, lambda booking: booking.kind is BookingKind.HOLD)
    open_, past = _parted(new, lambda booking: booking.ask.end > now and booking.state not in OVER)
    changed = [
        booking
        for booking in bookings
        if booking.id in backup.bookings and booking.version != backup.bookings[booking.id].version
    ]
    runners = sorted(current.runners - backup.runners)
    bad = [current.kept_back[name] for name in sorted(current.kept_back.keys() - backup.kept_back.keys())]
    good = sorted(backup.kept_back.keys() - current.kept_back.keys())
    return [
        *_line(open_, "booking", "made since will be unknown; their servers are then servers without a booking", _said),
        *_line(past, "booking", "made since that are over will be unknown, also to reports", _said),
        *_line(holds, "hold", "made since will be unknown, and their GPUs given out", _said),
        *_line(
            changed,
            "booking",
            "changed since will be as before",
            lambda booking: _change(backup.bookings[booking.id], booking),
        ),
        *_line(runners, "runner", "started since will be unknown: their servers are deleted, and their jobs fail", str),
        *_line(bad, "GPU", "kept back since will be given out again; quarantine those that are bad", _why),
        *_line(good, "GPU", "put back into use since will be kept back again", str),
        *_history(current, backup),
        *_line(sorted(current.feeds - backup.feeds), "calendar address", "made since will not work", None),
        *([f"{counted(current.sessions, 'person')} will have to log in again"] if current.sessions else []),
    ]


def _history(current: Holdings, backup: Holdings) -> Iterator[str]:
    if current.history and (backup.history is None or current.history > backup.history):
        since = f"from {backup.history:%Y-%m-%d %H:%M} to {current.history:%H:%M} UTC" if backup.history else "all"
        yield f"history {since} will be unknown, but for what Nova still says of its servers"


def _line(things: Sequence[T], noun: str, words: str, describe: Callable[[T], str] | None) -> Iterator[str]:
    if not things:
        return
    named = "; ".join(printable(describe(thing)) for thing in things[:NAMED]) if describe else ""
    more = f"; and {len(things) - NAMED} more" if named and len(things) > NAMED else ""
    yield f"{counted(len(things), noun)} {words}{': ' if named else ''}{named}{more}"


def _said(booking: Booking) -> str:
    gpus = counted(booking.ask.gpus, "GPU")
    start, end = (f"{moment:%Y-%m-%d %H:%M}" for moment in (booking.ask.start, booking.ask.end))
    return f"{booking.id} of {booking.user}, {gpus} of {booking.ask.pool} from {start} to {end}"


def _change(old: Booking, new: Booking) -> str:
    if old.state is not new.state:
        return f"{old.id} of {old.user} {old.state.value} again (now {new.state.value})"
    return f"{old.id} of {old.user}"


def _why(gpu: GpuHealth) -> str:
    return f"{gpu.name} {gpu.state.value}: {gpu.cause}"


def _parted(things: Iterable[Booking], test: Callable[[Booking], bool]) -> tuple[list[Booking], list[Booking]]:
    parts: tuple[list[Booking], list[Booking]] = ([], [])
    for thing in things:
        parts[0 if test(thing) else 1].append(thing)
    return parts
