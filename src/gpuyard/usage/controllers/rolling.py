"""Sums up days that are over, and forgets intervals that are old.

Each day is one transaction: a process that is killed, or comes second, has written all of a day or nothing. An interval
is forgotten only when its days have their sums.
"""

from __future__ import annotations

import logging
from datetime import datetime

from gpuyard.usage.reckoning import DAY, Tariffs, day_span, due_day, local_day, reckon
from gpuyard.usage.store import HistoryStore, SumStore

LOG = logging.getLogger(__name__)


def sum_up(store: HistoryStore, zone: str, tariffs: Tariffs, most: int) -> int:
    """Write the sums of days that have none yet, `most` of them; return how many were written. Raises StoreError."""
    sums = SumStore(store.database)
    for written in range(most):
        extent = store.seen()
        day = due_day(extent, zone) if extent else None
        if extent is None or day is None:
            return written
        start, end = day_span(day, zone)
        reckoned = reckon(store.intervals(start, end), start, end, tariffs)
        if not sums.put_day(extent.rolled, day, reckoned.slices, reckoned.hours):
            return written
        LOG.info("history: the sums of %s are written", day)
    return most


def forget(store: HistoryStore, zone: str, before: datetime) -> int:
    """Delete intervals that ended before a moment, and no later than the last day that has its sums; return how many.
    Raises StoreError."""
    extent = store.seen()
    if extent is None:
        return 0
    summed = day_span(extent.rolled + DAY if extent.rolled else local_day(extent.first, zone), zone)[0]
    gone = 0
    while some := store.forget(min(before, summed)):
        gone += some
    return gone
