"""Writes one pool within a transaction: bookings with their lanes, events, audit entries, and remembered answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gpuyard.bookings.records import AuditEntry, Event
from gpuyard.bookings.store.audit import insert_audit
from gpuyard.bookings.store.outbox import insert_event
from gpuyard.bookings.store.pool import PORTION, PoolReader
from gpuyard.bookings.store.rows import booking_row
from gpuyard.bookings.store.schema import BOOKINGS, KEYS, OCCUPANCY, OCCUPANCY_LOG, POOLS, TOLD
from gpuyard.database.errors import ConflictError, OverlapError
from gpuyard.database.times import seconds
from gpuyard.database.upsert import insert_new
from gpuyard.model.booking import Booking
from gpuyard.model.booking_life import TAKES_LANES

LOG_KEPT = 4096
"""Generations that a timetable may be behind; one that is older is made anew."""
LOG_PRUNED_EVERY = 256

_INSERT = insert(BOOKINGS)
_UPDATE = update(BOOKINGS).where(
    BOOKINGS.c.id == bindparam("id_"),
    BOOKINGS.c.pool == bindparam("pool_"),
    BOOKINGS.c.version == bindparam("version_"),
)
_VACATE = delete(OCCUPANCY).where(OCCUPANCY.c.lane == bindparam("lane_"), OCCUPANCY.c.starts == bindparam("starts_"))
_TAKE = insert(OCCUPANCY)
_LOG = insert(OCCUPANCY_LOG)
_SET_POOL = (
    update(POOLS)
    .where(POOLS.c.name == bindparam("name_"))
    .values(generation=bindparam("next"), log_floor=bindparam("floor"), followed=bindparam("last"))
)
_PRUNE = delete(OCCUPANCY_LOG).where(
    OCCUPANCY_LOG.c.pool == bindparam("pool_"), OCCUPANCY_LOG.c.generation <= bindparam("floor")
)


class _Lane(NamedTuple):
    """A row of the occupancy."""

    booking: str
    lane: int
    starts: int
    ends: int


class PoolChange(PoolReader):
    """One transaction that has the pool to itself. From `Store.change`: all is written at its end, or nothing."""

    def __init__(self, connection: Connection, pool: str) -> None:
        super().__init__(connection, pool, lock=True)
        self._before = self.generation

    def write(self, *bookings: Booking) -> tuple[Booking, ...]:
        """Store bookings, and take and give back lanes as they say: in the states offered, confirmed and active a
        booking takes its `lanes` for [ask.start, ask.end), in others none. (One that has ended keeps `lanes` and its
        times as what it used: write it with the end that it really had.)

        Version 1 is new; a higher one replaces the version before it, else ConflictError. All of them give their lanes
        back before any takes one, so bookings may change places. Raises OverlapError when a lane is taken by somebody
        else. Returns them as stored: new ones get `followed`.
        """
        before = (self.generation, self._followed)
        stored = self._numbered(bookings)
        for booking in stored:
            if booking.ask.pool != self.pool:
                raise ValueError(f"booking {booking.id} is of pool {booking.ask.pool}, not {self.pool}")
        had = self._taken_by([booking.id for booking in stored if booking.version > 1])
        takes = {row for booking in stored for row in _lanes_of(booking)}
        self._put(stored)
        self._occupy(sorted(had - takes), sorted(takes - had))
        if (self.generation, self._followed) != before:
            following = {"next": self.generation, "floor": self._log_floor, "last": self._followed}
            self._connection.execute(_SET_POOL, {"name_": self.pool, **following})
        return stored

    def event(self, event: Event) -> None:
        """Write an event for every channel that there is (`Outbox.take_undelivered`)."""
        insert_event(self._connection, event)

    def audit(self, entry: AuditEntry) -> None:
        insert_audit(self._connection, entry)

    def mark_told(self, booking: str, what: str, at: datetime) -> bool:
        """Remember that something was told of a booking. True the first time for a booking and a subject; later
        False."""
        return insert_new(self._connection, TOLD, {"booking": booking, "what": what, "at": seconds(at)})

    def remember_key(self, user_id: str, key: str, digest: str, bookings: tuple[str, ...], at: datetime) -> None:
        """Remember what `key` gives from now on. Raises ConflictError when it is there already."""
        values = {"user_id": user_id, "key": key, "digest": digest, "bookings": " ".join(bookings), "at": seconds(at)}
        self._connection.execute(insert(KEYS), values)

    def _numbered(self, bookings: Sequence[Booking]) -> tuple[Booking, ...]:
        """New bookings with their place in the order of those that came."""
        stored = []
        for booking in bookings:
            if booking.version == 1 and not booking.followed:
                self._followed += 1
                booking = replace(booking, followed=self._followed)
            stored.append(booking)
        return tuple(stored)

    def _taken_by(self, ids: Sequence[str]) -> set[_Lane]:
        rows: set[_Lane] = set()
        columns = (OCCUPANCY.c.booking, OCCUPANCY.c.lane, OCCUPANCY.c.starts, OCCUPANCY.c.ends)
        for first in range(0, len(ids), PORTION):
            query = select(*columns).where(OCCUPANCY.c.booking.in_(ids[first : first + PORTION]))
            rows.update(map(_Lane._make, self._connection.execute(query)))
        return rows

    def _put(self, bookings: Sequence[Booking]) -> None:
        new = [booking_row(booking) for booking in bookings if booking.version == 1]
        if new:
            self._connection.execute(_INSERT, new)
        for booking in bookings:
            if booking.version > 1:
                row = booking_row(booking)
                keys = {"id_": row.pop("id"), "pool_": row.pop("pool"), "version_": booking.version - 1}
                if self._connection.execute(_UPDATE, {**row, **keys}).rowcount != 1:
                    raise ConflictError(f"booking {booking.id} has been changed by somebody else; read it again")

    def _occupy(self, gone: Sequence[_Lane], come: Sequence[_Lane]) -> None:
        if not gone and not come:
            return
        self._bump()
        if gone:
            self._connection.execute(_VACATE, [{"lane_": row.lane, "starts_": row.starts} for row in gone])
        if come:
            self._connection.execute(_TAKE, [{**row._asdict(), "pool": self.pool} for row in come])
        log: list[dict[str, Any]] = [{**row._asdict(), "taken": False} for row in gone]
        log += [{**row._asdict(), "taken": True} for row in come]
        for line in log:
            line |= {"pool": self.pool, "generation": self.generation}
        self._connection.execute(_LOG, log)

    def _bump(self) -> None:
        """Once in a transaction."""
        if self.generation != self._before:
            return
        self.generation += 1
        if self.generation % LOG_PRUNED_EVERY == 0:
            self._log_floor = max(self._log_floor, self.generation - LOG_KEPT)
            self._connection.execute(_PRUNE, {"pool_": self.pool, "floor": self._log_floor})


def _lanes_of(booking: Booking) -> list[_Lane]:
    if booking.state not in TAKES_LANES:
        return []
    if len(set(booking.lanes)) < len(booking.lanes):
        raise OverlapError(f"booking {booking.id} would have the same GPU twice; nothing was changed")
    start, end = seconds(booking.ask.start), seconds(booking.ask.end)
    return [_Lane(booking.id, lane, start, end) for lane in booking.lanes]
