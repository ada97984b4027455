"""Formats moments as text in UTC: for programs, and for people to the minute or to the second.

Reasons of bookings name the day of the week too: `bookings.policy.spell`.
"""

from __future__ import annotations

from datetime import datetime, timezone

ISO = "%Y-%m-%dT%H:%M:%SZ"
"""Format of APIs, in whole seconds; also for ``strptime``."""


def iso_text(moment: datetime) -> str:
    """Format as ``2026-11-26T14:00:00Z``; a naive moment is taken for local time, as by ``astimezone``."""
    return moment.astimezone(timezone.utc).strftime(ISO)


def minute_text(moment: datetime) -> str:
    """Format as ``2026-11-26 14:00 UTC``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def second_text(moment: datetime) -> str:
    """Format as ``2026-11-26 14:00:30 UTC``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
