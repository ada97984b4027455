"""Finds the mail addresses of servers' owners: in Keystone, or else in what they have booked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query

FRESH = timedelta(minutes=10)
"""Keystone is asked again for an address that was asked for longer ago."""


class Addresses:
    """Mail addresses of users; what Keystone said is kept for FRESH."""

    def __init__(self, ask: Callable[[str], str], ledger: Ledger, now: Callable[[], datetime]) -> None:
        """`ask`: Keystone, by the id of a user; empty when it has none."""
        self._ask, self._ledger, self._now = ask, ledger, now
        self._known: dict[str, tuple[datetime, str]] = {}
        """User -> when Keystone was asked, and what it said."""

    def of(self, user_id: str, pool: str) -> str:
        """Return a user's address; empty when neither Keystone nor a booking of theirs in the pool has one. Raises
        CloudError."""
        now = self._now()
        asked_at, email = self._known.get(user_id, (now - FRESH, ""))
        if now - asked_at >= FRESH:
            email = self._ask(user_id)
            self._known[user_id] = (now, email)
        bookings = () if email else self._ledger.find(Query(pool=pool, user_id=user_id))
        return email or next((booking.email for booking in reversed(bookings) if booking.email), "")
