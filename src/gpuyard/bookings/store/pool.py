"""Reads one pool within a transaction: lanes, occupancy, bookings, and the answers given to idempotency keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from gpuyard.bookings.budget_check import BookedTime
from gpuyard.bookings.store.rows import BOOKING, LANE, USED, to_booking, to_lane
from gpuyard.bookings.store.schema import BOOKINGS, KEYS, LANES, OCCUPANCY, OCCUPANCY_LOG, POOLS, TOLD
from gpuyard.database.errors import StoreError
from gpuyard.database.leader_election import take_lock
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane
from gpuyard.model.booking_life import OPEN

PORTION = 500
"""How many ids one statement names; SQLite has a limit."""
STREAM = 10_000
"""Rows that are fetched at a time when there may be a million."""


def _states(*states: BookingState) -> ColumnElement[bool]:
    return BOOKINGS.c.state.in_(sorted(state.value for state in states))


_POOL = select(POOLS).where(POOLS.c.name == bindparam("name"))
_LOCKED = _POOL.with_for_update()
_OF_POOL = select(*BOOKING).where(BOOKINGS.c.pool == bindparam("pool"))
_OF_PEOPLE = BOOKINGS.c.kind == BookingKind.BOOKING.value
_ORDER = (BOOKINGS.c.starts, BOOKINGS.c.id)
_SOME = _OF_POOL.where(BOOKINGS.c.id.in_(bindparam("ids", expanding=True)))
_MOMENT = bindparam("moment", type_=BigInteger)
_LANES = select(*LANE).where(LANES.c.pool == bindparam("pool")).order_by(LANES.c.host, LANES.c.addresses)
_WAITING = _OF_POOL.where(_states(BookingState.WAITING)).order_by(
    BOOKINGS.c.priority.desc(), BOOKINGS.c.created, BOOKINGS.c.followed
)
_BEGIN = _states(BookingState.REQUESTED, BookingState.WAITING, BookingState.OFFERED, BookingState.CONFIRMED)
_DUE = _OF_POOL.where(
    or_(
        and_(_BEGIN, BOOKINGS.c.starts <= _MOMENT),
        and_(_states(BookingState.OFFERED), BOOKINGS.c.offer_until <= _MOMENT),
        and_(_states(BookingState.ACTIVE), BOOKINGS.c.ends <= _MOMENT),
    )
).order_by(*_ORDER)
_SERIES = _OF_POOL.where(BOOKINGS.c.series == bindparam("series")).order_by(*_ORDER)
_ENDING = _OF_POOL.where(_states(BookingState.ACTIVE), BOOKINGS.c.ends <= _MOMENT, _OF_PEOPLE).order_by(
    BOOKINGS.c.ends, BOOKINGS.c.id
)
_LEASES = _OF_POOL.where(_states(BookingState.ACTIVE), BOOKINGS.c.kind == BookingKind.RUNNER.value).order_by(*_ORDER)
_LEASE = _OF_POOL.where(
    BOOKINGS.c.server == bindparam("server"),
    BOOKINGS.c.server != literal_column("''"),
    BOOKINGS.c.project_id == bindparam("project_id"),
    _states(BookingState.ACTIVE),
)
_YIELDING = _OF_POOL.where(BOOKINGS.c.yields).order_by(*_ORDER)
_OPEN_OF_USER = and_(
    BOOKINGS.c.user_id == bindparam("user_id"),
    BOOKINGS.c.pool == bindparam("pool"),
    _states(*OPEN),
    _OF_PEOPLE,
    BOOKINGS.c.id != bindparam("without"),
)
_COUNT = select(func.count()).where(_OPEN_OF_USER)
_OPEN = select(*BOOKING).where(_OPEN_OF_USER).order_by(*_ORDER)
_STEPS = (
    select(
        OCCUPANCY_LOG.c.booking,
        OCCUPANCY_LOG.c.lane,
        OCCUPANCY_LOG.c.starts,
        OCCUPANCY_LOG.c.ends,
        OCCUPANCY_LOG.c.taken,
    )
    .where(OCCUPANCY_LOG.c.pool == bindparam("pool"), OCCUPANCY_LOG.c.generation > bindparam("generation"))
    .order_by(OCCUPANCY_LOG.c.id)
)
_TAKEN = (
    select(OCCUPANCY.c.booking, OCCUPANCY.c.lane, OCCUPANCY.c.starts, OCCUPANCY.c.ends)
    .where(OCCUPANCY.c.pool == bindparam("pool"), OCCUPANCY.c.ends > _MOMENT)
    .order_by(OCCUPANCY.c.lane, OCCUPANCY.c.starts)
)
_KEY = select(KEYS.c.digest, KEYS.c.bookings).where(
    KEYS.c.user_id == bindparam("user_id"), KEYS.c.key == bindparam("key")
)


def _booked_seconds() -> Select[int]:
    """An index has every column that this needs."""
    since, until = bindparam("since", type_=BigInteger), bindparam("until", type_=BigInteger)
    first = case((BOOKINGS.c.starts > since, BOOKINGS.c.starts), else_=since)
    last = case((BOOKINGS.c.ends < until, BOOKINGS.c.ends), else_=until)
    return select(func.coalesce(func.sum(BOOKINGS.c.gpus * (last - first)), literal(0))).where(
        BOOKINGS.c.project_id == bindparam("project_id"),
        BOOKINGS.c.pool == bindparam("pool"),
        BOOKINGS.c.ends > since,
        BOOKINGS.c.starts < until,
        _states(*USED),
        _OF_PEOPLE,
        BOOKINGS.c.id != bindparam("without"),
    )


_BOOKED = _booked_seconds()
_AHEAD = select(BOOKINGS.c.starts, BOOKINGS.c.ends, BOOKINGS.c.gpus).where(
    BOOKINGS.c.project_id == bindparam("project_id"),
    BOOKINGS.c.ends > bindparam("since", type_=BigInteger),
    _states(*USED),
    _OF_PEOPLE,
    BOOKINGS.c.id != bindparam("without"),
)


class Taken(NamedTuple):
    """A lane that is taken from start to end. Plain numbers (seconds since 1970): a timetable has a million of them."""

    booking: str
    lane: int
    start: int
    end: int


class LaneChange(NamedTuple):
    """One change of what is taken, for a timetable that catches up."""

    booking: str
    lane: int
    start: int
    end: int
    taken: bool
    """True: this is taken now. False: it is not any more."""


class Remembered(NamedTuple):
    """The answer that was given to an idempotency key."""

    digest: str
    """Digest of what was asked."""
    bookings: tuple[str, ...]
    """Ids of the bookings that were made."""


class PoolReader:
    """Reads of one pool in one transaction. All of them see the same moment. From `Store.look` or `Store.change`."""

    def __init__(self, connection: Connection, pool: str, *, lock: bool = False) -> None:
        """Raises StoreError when there is no such pool. `lock`: nobody else changes it until the transaction ends."""
        self._connection = connection
        self._changes = lock
        self.pool = pool
        row = connection.execute(_LOCKED if lock else _POOL, {"name": pool}).mappings().first()
        if row is None:
            raise StoreError(f"the ledger has no pool {pool!r}; the site's slots must be told to it first")
        self.generation: int = row["generation"]
        """Rises by one with every transaction that changes what is taken, or the lanes. A timetable that was made from
        this generation is valid as long as the pool has it."""
        self.lanes_generation: int = row["lanes_generation"]
        """The generation in which lanes came, went, or got or lost a trouble for the last time. A timetable of an
        earlier generation reads `lanes()` anew."""
        self._log_floor: int = row["log_floor"]
        self._followed: int = row["followed"]

    def lanes(self) -> tuple[Lane, ...]:
        """Return all lanes of the pool, by host and address; also those that have left the site (their trouble says
        so)."""
        return tuple(to_lane(row) for row in self._connection.execute(_LANES, {"pool": self.pool}))

    def occupancy(self, after: datetime) -> Iterator[Taken]:
        """Stream everything that is taken and ends after this, by lane and start."""
        values = {"pool": self.pool, "moment": seconds(after)}
        with self._connection.execute(_TAKEN, values, execution_options={"yield_per": STREAM}) as rows:
            for part in rows.partitions():
                yield from map(Taken._make, part)

    def changes_since(self, generation: int) -> list[LaneChange] | None:
        """Return what brings a timetable of `generation` to this one, in order. None: it is too old, read `occupancy`
        anew."""
        if generation == self.generation:
            return []
        if not self._log_floor <= generation < self.generation:
            return None
        values = {"pool": self.pool, "generation": generation}
        return [LaneChange._make(row) for row in self._connection.execute(_STEPS, values)]

    def get(self, id: str) -> Booking | None:
        """Return a booking of this pool."""
        return self.get_many([id]).get(id)

    def get_many(self, ids: Sequence[str]) -> dict[str, Booking]:
        """Return those bookings of this pool that there are."""
        bookings: dict[str, Booking] = {}
        for first in range(0, len(ids), PORTION):
            some = self._bookings(_SOME, ids=list(ids[first : first + PORTION]))
            bookings |= {booking.id: booking for booking in some}
        return bookings

    def waiting(self) -> list[Booking]:
        """Return the waitlist: highest priority first, then who came first (`created`, `followed`)."""
        return self._bookings(_WAITING)

    def due(self, now: datetime) -> list[Booking]:
        """Return bookings and holds that the clock moves on: requested, waiting, offered and confirmed ones that should
        have begun, offered ones whose offer is over, active ones whose end is over. By start, then id."""
        return self._bookings(_DUE, moment=seconds(now))

    def series(self, id: str) -> list[Booking]:
        """Return all bookings of a recurring one. By start, then id."""
        return self._bookings(_SERIES, series=id)

    def ending(self, by: datetime) -> list[Booking]:
        """Return active bookings (no holds) that end by this, for reminders. By end, then id."""
        return self._bookings(_ENDING, moment=seconds(by))

    def leases(self) -> list[Booking]:
        """Return leases that are active. By start, then id."""
        return self._bookings(_LEASES)

    def lease_of(self, server: str, project_id: str) -> Booking | None:
        """Return the lease or loan that is active for a server, by its name and project."""
        return next(iter(self._bookings(_LEASE, server=server, project_id=project_id)), None)

    def yielding(self) -> list[Booking]:
        """Return leases that are active and may be ended by a booking. By start, then id."""
        return self._bookings(_YIELDING)

    def on_lanes(self, lanes: Sequence[int], after: datetime, before: datetime | None = None) -> list[Booking]:
        """Return bookings and holds that take one of these lanes at any time after, and before, these. By start, then
        id."""
        bounds = [OCCUPANCY.c.pool == self.pool, OCCUPANCY.c.ends > seconds(after)]
        if before is not None:
            bounds.append(OCCUPANCY.c.starts < seconds(before))
        ids: set[str] = set()
        for first in range(0, len(lanes), PORTION):
            lane_condition = OCCUPANCY.c.lane.in_(lanes[first : first + PORTION])
            ids.update(self._connection.execute(select(OCCUPANCY.c.booking).where(lane_condition, *bounds)).scalars())
        return sorted(self.get_many(sorted(ids)).values(), key=lambda booking: (booking.ask.start, booking.id))

    def told_at(self, booking: str, what: str) -> datetime | None:
        """Return when something was told of a booking for the first time (`PoolChange.mark_told`)."""
        query = select(TOLD.c.at).where(TOLD.c.booking == booking, TOLD.c.what == what)
        timestamp = self._connection.execute(query).scalar_one_or_none()
        return None if timestamp is None else moment(timestamp)

    def active_count(self, user_id: str, without: str = "") -> int:
        """Count the bookings of a user in this pool that have not ended: requested, waiting, offered, confirmed,
        active. Holds do not count, nor does the booking `without`."""
        values = {"user_id": user_id, "pool": self.pool, "without": without}
        return self._connection.execute(_COUNT, values).scalar_one()

    def active_of(self, user_id: str, without: str = "") -> list[Booking]:
        """Return the bookings that `active_count` counts. By start, then id."""
        return self._bookings(_OPEN, user_id=user_id, without=without)

    def booked_seconds(self, project_id: str, start: datetime, end: datetime, without: str = "") -> int:
        """Return GPU-seconds of the project's bookings of this pool within [start, end): offered, confirmed, active,
        ended and no-shows until their release. Holds do not count, nor does the booking `without`."""
        whose = {"project_id": project_id, "pool": self.pool, "without": without}
        values = {**whose, "since": seconds(start), "until": seconds(end)}
        booked: int = self._connection.execute(_BOOKED, values).scalar_one()
        return int(booked)  # PostgreSQL sums to a Decimal

    def booked_ahead(self, project_id: str, since: int, without: str = "") -> list[BookedTime]:
        """Return what the project has booked in all pools after a moment (seconds): offered, confirmed and active
        bookings, and those that ended since. Holds do not count, nor does the booking `without`. Transactions that
        change bookings of one project in different pools get to ask this one after the other."""
        if self._changes:
            take_lock(self._connection, f"project {project_id}")
        values = {"project_id": project_id, "since": since, "without": without}
        return [BookedTime._make(row) for row in self._connection.execute(_AHEAD, values)]

    def key(self, user_id: str, key: str) -> Remembered | None:
        """Return the answer that this user's idempotency key got before."""
        row = self._connection.execute(_KEY, {"user_id": user_id, "key": key}).first()
        return Remembered(row.digest, tuple(row.bookings.split())) if row else None

    def _bookings(self, query: Select[Any], **values: object) -> list[Booking]:
        return [to_booking(row) for row in self._connection.execute(query, {"pool": self.pool, **values})]
