"""Readiness of the portal and the banner of its pages, from how its loops went. Pure.

A loop is late when its last good run is too long ago. A late loop that is essential makes the portal unready, so that a
gateway asks another one, and the map stale. Any other late loop leaves the portal ready, since it can do everything
else: GitHub's outage must not take bookings down with it. Both are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.presenter import clock_time
from gpuyard.model.moments import iso_text
from gpuyard.runtime.control_loops import LoopStatus, jumped

ERROR_LENGTH = 300
"""Characters of an error that the page shows; the log has all of them."""


@dataclass(frozen=True)
class Trouble:
    """One trouble that the banner shows."""

    text: str
    stale: bool
    """The last good run was too long ago to trust the map."""


@dataclass(frozen=True)
class Pulse:
    """The part of the page that changes also when no GPU does."""

    seen_iso: str
    """When the cloud was last looked at; empty before the first time."""
    seen: str
    troubles: tuple[Trouble, ...]

    @property
    def stale(self) -> bool:
        return any(trouble.stale for trouble in self.troubles)


def allowed_age(status: LoopStatus) -> float:
    """Seconds since its last good run after which a loop is late: some failed runs are nothing to wake anybody for."""
    return max(10 * status.period, 10 * status.last_seconds, 30.0)


def is_late(status: LoopStatus) -> bool:
    """Return whether a loop is late; one that has never had a good run is late too."""
    return status.age is None or status.age > allowed_age(status)


def unready(view: InventoryView | None, loops: Sequence[LoopStatus], errors: bool = True) -> list[str]:
    """List why the portal cannot be relied on; empty when it can be. `errors`: also what loops failed with, which may
    contain addresses."""
    reasons = [] if view else ["the cloud has not been seen yet"]
    return reasons + _complaints((loop for loop in loops if loop.essential), errors)


def degraded(loops: Sequence[LoopStatus], errors: bool = True) -> list[str]:
    """List which loops are late that the portal can serve without. `errors` as in `unready`."""
    return _complaints((loop for loop in loops if not loop.essential), errors)


def _complaints(loops: Iterable[LoopStatus], errors: bool) -> list[str]:
    reasons = []
    for loop in loops:
        if is_late(loop):
            error = f": {loop.error}" if loop.error and errors else ""
            if loop.age is None:
                reasons.append(f"loop {loop.name} has not had a good run yet{error}")
            else:
                allowed = allowed_age(loop)
                reasons.append(
                    f"loop {loop.name} had its last good run {loop.age:.0f} s ago, more than {allowed:.0f} s{error}"
                )
        if loop.jump:
            reasons.append(f"{jumped(loop.jump)}, and loop {loop.name} has not had a good run since")
    return reasons


def pulse(view: InventoryView | None, loops: Sequence[LoopStatus], now: datetime) -> Pulse:
    troubles = [_trouble(loop, now) for loop in loops]
    return Pulse(
        seen_iso=iso_text(view.taken_at) if view else "",
        seen=clock_time(view.taken_at, now) if view else "",
        troubles=tuple(trouble for trouble in troubles if trouble),
    )


def _trouble(loop: LoopStatus, now: datetime) -> Trouble | None:
    """A failed run is told at once; a run that never ends is told when the loop is late."""
    if not loop.essential:
        return _minor_trouble(loop, now)
    if loop.last_success is None:
        return Trouble(f"The cloud has not answered yet: {_short(loop.error)}", True) if loop.error else None
    since, late = clock_time(loop.last_success, now), is_late(loop)
    if loop.error:
        return Trouble(f"The cloud has not answered since {since}: {_short(loop.error)}", late)
    if late:
        return Trouble(f"The cloud has not answered since {since}: the loop {loop.name!r} is still waiting.", True)
    return None


def _minor_trouble(loop: LoopStatus, now: datetime) -> Trouble | None:
    """Trouble of a loop that the map does not depend on."""
    since = f"since {clock_time(loop.last_success, now)}" if loop.last_success else "yet"
    if loop.error:
        return Trouble(f"The loop {loop.name!r} has not succeeded {since}: {_short(loop.error)}", False)
    if loop.last_success and is_late(loop):
        return Trouble(f"The loop {loop.name!r} has not succeeded {since}: it is still waiting.", False)
    return None


def _short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= ERROR_LENGTH else line[: ERROR_LENGTH - 1] + "…"
