"""Takes back what observations of a clock that was ahead wrote of a time that has not come.

Such an observation has dated by its clock what it did not know by Nova's, and nothing is written any more until that
time has come. From the last moment on that an honest observation can have seen, history is cut: nothing is known of the
time since, and the next one makes up for it by Nova's records, as after an outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import ColumnElement, Connection, and_, case, delete, false, func, or_, select, true, update

from gpuyard.bookings.records import AuditEntry
from gpuyard.bookings.store.audit import insert_audit
from gpuyard.database.times import moment, seconds
from gpuyard.usage.reckoning import DAY, day_span, local_day
from gpuyard.usage.records import Extent, TrackState
from gpuyard.usage.store.schema import DAYS, GPUS, HOURS, INTERVALS, OPEN, SEEN
from gpuyard.usage.store.store import SITE, HistoryStore, day_number, day_of
from gpuyard.usage.store.sums import take_back_days


@dataclass(frozen=True)
class Repair:
    """The intervals and sums that a repair would take back."""

    extent: Extent
    """The extent as it is before the repair."""
    cut: datetime | None
    """The moment until which history goes then. None: no observation is of a time that has come, and it begins anew."""
    gone: int
    """Intervals that begin later, and go."""
    shortened: int
    """Those that have begun by then and have ended, or been changed, by a wrong clock: they go on."""
    days: tuple[date, ...]
    """Days whose sums go."""


def plan_repair(store: HistoryStore, zone: str, now: datetime) -> Repair | None:
    """Plan a repair; None when history goes no further than `now`. `zone`: of the days. Raises StoreError."""
    extent = store.seen()
    if extent is None or extent.until <= now:
        return None
    with store.database.reading() as connection:
        last_honest = _last_honest(connection, now)
        cut = None if last_honest is None or extent.first > now else moment(last_honest)
        later, reached = _after(cut)
        gone, shortened = (
            connection.execute(select(func.count()).select_from(INTERVALS).where(which)).scalar_one()
            for which in (later, and_(reached, INTERVALS.c.ends < OPEN))
        )
        begins = local_day(cut, zone) if cut else date.min
        days = connection.execute(select(DAYS.c.day).where(DAYS.c.day >= day_number(begins)).distinct()).scalars()
        return Repair(extent, cut, gone, shortened, tuple(sorted(day for n in days if (day := day_of(n)) is not None)))


def carry_out(store: HistoryStore, zone: str, plan: Repair, entry: AuditEntry) -> bool:
    """Apply a repair in one transaction, with its entry in the audit log. False, and nothing is written, when history
    has gone on since it was planned. Raises StoreError."""
    with store.database.writing() as connection:
        if not _set_back(connection, zone, plan):
            return False
        later, reached = _after(plan.cut)
        connection.execute(delete(INTERVALS).where(later))
        if plan.cut is not None:
            of_no_gpu = INTERVALS.c.gpu.in_(select(GPUS.c.id).where(GPUS.c.address == ""))
            ends = case((of_no_gpu, seconds(plan.cut)), else_=OPEN)
            connection.execute(update(INTERVALS).where(reached).values(ends=ends, exact_end=False))
        begins = local_day(plan.cut, zone) if plan.cut else date.min
        take_back_days(connection, [day_number(day) for day in plan.days])
        start = seconds(day_span(begins, zone)[0]) if plan.cut else 0
        connection.execute(delete(HOURS).where(HOURS.c.hour >= start))
        insert_audit(connection, entry)
        return True


def _last_honest(connection: Connection, now: datetime) -> int | None:
    """From when on nothing was seen for longer than until now; where no GPU says so, since every one of them had a
    server all the time, the last change."""
    begun = INTERVALS.c.starts <= seconds(now)
    beyond = INTERVALS.c.ends.between(seconds(now) + 1, OPEN - 1)
    unseen = select(func.min(INTERVALS.c.starts)).where(begun, beyond, INTERVALS.c.state == TrackState.UNSEEN.value)
    of_gpus = INTERVALS.c.gpu.in_(select(GPUS.c.id).where(GPUS.c.address != ""))
    for question in (unseen, select(func.max(INTERVALS.c.starts)).where(begun, of_gpus)):
        start: int | None = connection.execute(question).scalar()
        if start is not None:
            return start
    return None


def _after(cut: datetime | None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Which intervals begin after it, and which reach beyond it."""
    if cut is None:
        return true(), false()
    at = seconds(cut)
    of_no_gpu = INTERVALS.c.gpu.in_(select(GPUS.c.id).where(GPUS.c.address == ""))
    later = or_(INTERVALS.c.starts > at, and_(INTERVALS.c.starts == at, of_no_gpu))
    return later, and_(INTERVALS.c.starts <= at, INTERVALS.c.ends > at)


def _set_back(connection: Connection, zone: str, plan: Repair) -> bool:
    """Return whether history is still what was planned from; it goes until the cut then. What is older than the day of
    the cut does not change: all since is asked of Nova again, since it is not known when it last answered wholly."""
    same = (SEEN.c.site == SITE, SEEN.c.until == seconds(plan.extent.until))
    if plan.cut is None:
        return connection.execute(delete(SEEN).where(*same)).rowcount == 1
    extent, today = plan.extent, local_day(plan.cut, zone)
    settled = max(extent.first, min(extent.settled, day_span(today, zone)[0]))
    rolled = extent.rolled
    if rolled is not None and rolled >= today:
        rolled = today - DAY if today > local_day(extent.first, zone) else None
    values = {
        "until": seconds(plan.cut), "settled": seconds(settled),
        "rolled": None if rolled is None else day_number(rolled),
    }  # fmt: skip
    return connection.execute(update(SEEN).where(*same).values(**values)).rowcount == 1
