"""Counts how often GPUs went bad, by card, by host and by slot, with the mean time between failures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuyard.health.records import HealthEvent, HealthState


class By(StrEnum):
    """What failures are counted of."""

    CARD = "card"
    """Wherever it was put; GPUs whose card nobody has seen are left out."""
    HOST = "host"
    SLOT = "slot"
    """The IOMMU group, by ``host/address`` of its first GPU: whatever card is in it."""


@dataclass(frozen=True)
class Repeat:
    """The failures of one card, host or slot."""

    name: str
    failures: int
    latest: datetime
    mtbf: timedelta | None
    """From one failure to the next, on average; None until there are two."""
    signals: tuple[str, ...]
    """Signals that were seen, the most frequent first."""
    gpus: tuple[str, ...]
    """``host/address`` of where it failed, sorted."""


def is_failure(event: HealthEvent) -> bool:
    """Return whether a GPU went bad: it was quarantined, and not just left by the person who looked after it."""
    return event.after is HealthState.QUARANTINED and event.before not in (
        HealthState.QUARANTINED,
        HealthState.IN_REPAIR,
    )


def repeats(events: Iterable[HealthEvent], by: By, slots: Mapping[tuple[str, str], str] | None = None) -> list[Repeat]:
    """Return the failures, most frequent first. `slots`: (host, address) -> name of its slot; others are slots of their
    own.

    Two GPUs of one slot that go bad at the same moment are one failure of their slot, and of their host.
    """
    records: dict[str, list[HealthEvent]] = {}
    for event in events:
        if name := _name(event, by, slots or {}):
            records.setdefault(name, []).append(event)
    recurring = [_repeat(name, record) for name, record in records.items() if any(map(is_failure, record))]
    return sorted(recurring, key=lambda repeat: (-repeat.failures, repeat.mtbf or timedelta.max, repeat.name))


def _name(event: HealthEvent, by: By, slots: Mapping[tuple[str, str], str]) -> str:
    if by is By.CARD:
        return event.card
    own = f"{event.host}/{event.address}"
    return event.host if by is By.HOST else slots.get((event.host, event.address), own)


def _repeat(name: str, record: list[HealthEvent]) -> Repeat:
    bad = [event for event in record if is_failure(event)]
    times = sorted({event.time for event in bad})
    signals: dict[str, int] = {}
    for event in bad:
        if event.signal:
            signals[event.signal] = signals.get(event.signal, 0) + 1
    return Repeat(
        name,
        len(times),
        times[-1],
        (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        tuple(sorted(signals, key=lambda code: (-signals[code], code))),
        tuple(sorted({f"{event.host}/{event.address}" for event in bad})),
    )
