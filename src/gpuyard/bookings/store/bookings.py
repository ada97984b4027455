"""Lists and counts bookings, for people, calendars and metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select

from gpuyard.bookings.records import Granted, LiveBookings, Occupied, Query
from gpuyard.bookings.store.rows import BOOKING, USED, lane_ids, to_booking
from gpuyard.bookings.store.schema import AUDIT, BOOKINGS
from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.errors import UsageError

GRANTS = ("booking.offered", "booking.approve", "booking.accept", "booking.confirmed")
"""Actions in the audit log by which a booking got its GPUs later than it was made."""
MOST_GRANTED = 500_000


class Bookings:
    """The part of `Store` that lists and counts bookings."""

    _database: Database

    def get(self, id: str) -> Booking | None:
        with self._database.reading() as connection:
            row = connection.execute(select(*BOOKING).where(BOOKINGS.c.id == id)).first()
        return to_booking(row) if row else None

    def find(self, query: Query, limit: int = 1000, marker: str = "") -> list[Booking]:
        """Return bookings in order of start, then id; `marker` is the id of the last one of the page before. Raises
        UsageError when there is no booking `marker`."""
        with self._database.reading() as connection:
            conditions = _conditions(query)
            if marker:
                last = connection.execute(select(BOOKINGS.c.starts).where(BOOKINGS.c.id == marker)).scalar()
                if last is None:
                    raise UsageError(f"there is no booking {marker!r} to go on after; begin at the first page again")
                after = and_(BOOKINGS.c.starts == last, BOOKINGS.c.id > marker)
                conditions.append(and_(BOOKINGS.c.starts >= last, or_(BOOKINGS.c.starts > last, after)))
            statement = select(*BOOKING).where(*conditions).order_by(*_order(query)).limit(limit)
            return [to_booking(row) for row in connection.execute(statement)]

    def live(self, pools: Sequence[str], states: Collection[BookingState]) -> list[LiveBookings]:
        """Count bookings in these states, by pool, kind and state."""
        columns = (BOOKINGS.c.pool, BOOKINGS.c.kind, BOOKINGS.c.state)
        query = (
            select(*columns, func.count(), func.sum(BOOKINGS.c.gpus), func.min(BOOKINGS.c.created))
            .where(BOOKINGS.c.pool.in_(pools), BOOKINGS.c.state.in_(_values(states)))
            .group_by(*columns)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            LiveBookings(pool, BookingKind(kind), BookingState(state), many, int(gpus), moment(oldest))
            for pool, kind, state, many, gpus, oldest in rows
        ]

    def granted(self, since: datetime) -> list[Granted]:
        """Return bookings that got their GPUs since then, and were not cancelled before they began; in no order. When
        those that had to wait got them is in the audit log."""
        later = (
            select(func.min(AUDIT.c.at))
            .where(AUDIT.c.target == BOOKINGS.c.id, AUDIT.c.action.in_(GRANTS))
            .scalar_subquery()
        )
        query = select(BOOKINGS.c.pool, BOOKINGS.c.created, later.label("later")).where(
            BOOKINGS.c.kind == BookingKind.BOOKING.value,
            BOOKINGS.c.state.in_(_values(USED)),
            BOOKINGS.c.ends > seconds(since),  # none gets its GPUs when it is over
        )
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(MOST_GRANTED)).all()
        grants = (Granted(row.pool, moment(row.created), moment(row.later or row.created)) for row in rows)
        return [grant for grant in grants if grant.granted >= since]

    def occupied(self, pool: str, start: datetime, end: datetime) -> list[Occupied]:
        """Return every lane that is, or in the past was, taken within [start, end); by lane and start."""
        since, until = seconds(start), seconds(end)
        query = select(BOOKINGS.c.id, BOOKINGS.c.starts, BOOKINGS.c.ends, BOOKINGS.c.lanes).where(
            BOOKINGS.c.pool == pool,
            BOOKINGS.c.ends > since,
            BOOKINGS.c.starts < until,
            BOOKINGS.c.ends > BOOKINGS.c.starts,
            BOOKINGS.c.state.in_(_values(USED)),
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        taken = sorted((lane, first, last, id) for id, first, last, lanes in rows for lane in lane_ids(lanes))
        return [Occupied(id, lane, moment(first), moment(last)) for lane, first, last, id in taken]


def _order(query: Query) -> tuple[ColumnElement[Any], ...]:
    """A part of a pool's calendar is found in an index, then sorted; SQLite would read all pools in the order of time.
    The sum keeps it from that."""
    if query.pool and query.start is not None:
        return (BOOKINGS.c.starts + 0, BOOKINGS.c.id)
    return (BOOKINGS.c.starts, BOOKINGS.c.id)


def _conditions(query: Query) -> list[ColumnElement[bool]]:
    equal: dict[str, str] = {
        "pool": query.pool,
        "project_id": query.project_id,
        "user_id": query.user_id,
        "series": query.series,
    }
    conditions: list[ColumnElement[bool]] = [BOOKINGS.c[name] == value for name, value in equal.items() if value]
    if query.id:
        conditions.append(BOOKINGS.c.id.startswith(query.id, autoescape=True))
    if query.kinds:
        conditions.append(BOOKINGS.c.kind.in_(_values(query.kinds)))
    if query.states:
        conditions.append(BOOKINGS.c.state.in_(_values(query.states)))
    if query.start is not None:
        conditions.append(BOOKINGS.c.ends > seconds(query.start))
    if query.end is not None:
        conditions.append(BOOKINGS.c.starts < seconds(query.end))
    return conditions


def _values(members: Any) -> Sequence[str]:
    return sorted(member.value for member in members)
