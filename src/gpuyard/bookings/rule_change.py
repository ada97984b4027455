"""Finds what bookings that are there would lose by changed rules of the site file. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.bookings.policy import Usage, booking_owner, broken_rules
from gpuyard.model.booking import Booking, BookingState, Reason, Rules, rule_text
from gpuyard.model.finding import Finding, Severity

UNDECIDED = frozenset({BookingState.REQUESTED, BookingState.WAITING, BookingState.OFFERED})
"""States in which the rules are still asked before it gets its GPUs."""
SPANS = {
    "no_show": "its owner has {now} to start a server, and had {before}",
    "window": "its GPUs are released for {now} when it begins, and were for {before}",
    "hold": "its GPUs are kept free {now} before it starts, and were {before}",
}
"""Rules that give a booking something for a time, and what it loses when they give less."""


def losses(
    booking: Booking, before: Rules, after: Rules | None, facts: Usage, zones: tuple[str, str]
) -> Iterator[Finding]:
    """Yield what a booking loses when `after` holds instead of `before`; None: its pool leaves the site file. `zones`:
    the time zones of quiet hours, before and after.

    It is judged as when it was made, and what the old rules forbid too is not told.
    """
    if after is None:
        text = f"pool {booking.ask.pool} is no longer in the site file"
        yield _finding(booking, "pool-gone", Severity.ERROR, "no_such_pool", text, "keep the pool until it ends")
        return
    old, new = (
        broken_rules(booking.ask, rules, booking_owner(booking), facts, zone, booking.created)
        for rules, zone in zip((before, after), zones, strict=True)
    )
    known_codes = {reason.code for reason in old}
    for reason in new:
        if reason.code not in known_codes:
            yield _not_allowed(booking, reason)
    for key, text in SPANS.items():
        had, has = getattr(before, key), getattr(after, key)
        if has is None or (had is not None and has >= had) or not _matters(key, booking, after):
            continue
        message = text.format(now=rule_text(key, has), before="any time" if had is None else rule_text(key, had))
        yield _finding(booking, "booking-loses", Severity.WARNING, key, message, "tell its owner")


def _not_allowed(booking: Booking, reason: Reason) -> Finding:
    if booking.state in UNDECIDED:
        remedy = "it gets no GPU unless an admin approves or books it: tell its owner"
        return _finding(booking, "booking-not-allowed", Severity.ERROR, reason.code, reason.text, remedy)
    remedy = f"it stays as it is, but only changes within the rules; to end it: gpuyard booking cancel {booking.id}"
    return _finding(booking, "booking-not-allowed", Severity.WARNING, reason.code, reason.text, remedy)


def _matters(key: str, booking: Booking, after: Rules) -> bool:
    begun = booking.state is BookingState.ACTIVE
    return {
        "no_show": booking.claimed is None or booking.empty_since is not None,
        "window": not after.must_book and not begun,
        "hold": not begun,
    }[key]


def _finding(booking: Booking, code: str, severity: Severity, rule: str, text: str, remedy: str) -> Finding:
    payload = {
        "rule": rule,
        "pool": booking.ask.pool,
        "user": booking.user,
        "project": booking.project,
        "state": booking.state.value,
        "start": booking.ask.start.isoformat(),
        "end": booking.ask.end.isoformat(),
    }
    return Finding(code, severity, f"booking {booking.id}", text, remedy, payload)
