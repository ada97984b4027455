"""The outbox: events that wait to be delivered, by channel.

An event is written with the change that it tells of. In the same transaction every channel gets a row that says that it
has still to deliver it, so nothing depends on the order in which transactions end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from gpuyard.bookings.records import Event
from gpuyard.bookings.store.schema import CHANNELS, DELIVERIES, EVENTS
from gpuyard.database.engine import Database
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new

CLAIM = 60
"""Seconds for which an event that was given to one process is not given to another."""

_INSERT = insert(EVENTS).returning(EVENTS.c.id)
_WAIT = insert(DELIVERIES).from_select(
    ["event", "channel", "attempts", "next_try"],
    select(bindparam("id", type_=BigInteger), CHANNELS.c.name, literal(0), literal(0)),
)


@dataclass(frozen=True)
class Delivery:
    """An event that a channel has still to deliver."""

    event: Event
    attempts: int
    """How often it was tried and failed."""


def insert_event(connection: Connection, event: Event) -> None:
    """Write an event, to be delivered by every channel that there is."""
    row = {
        "kind": event.kind,
        "at": seconds(event.at),
        "booking": event.booking,
        "user_id": event.user_id,
        "email": event.email,
        "details": json.dumps(dict(event.details), sort_keys=True, ensure_ascii=False),
    }
    id = connection.execute(_INSERT, row).scalar_one()
    connection.execute(_WAIT, {"id": id})


def _behind(channel: str, now: datetime) -> ColumnElement[bool]:
    """Return whether an earlier event of the same booking still waits to be told, and not now: it is being told by
    somebody, or was tried in vain."""
    earlier, waiting = EVENTS.alias("earlier"), DELIVERIES.alias("waiting")
    return (
        select(waiting.c.event)
        .join(earlier, earlier.c.id == waiting.c.event)
        .where(
            waiting.c.channel == channel,
            waiting.c.next_try > seconds(now),
            earlier.c.booking == EVENTS.c.booking,
            earlier.c.id < EVENTS.c.id,
            EVENTS.c.booking != "",
        )
        .correlate(EVENTS)
        .exists()
    )


class Outbox:
    """The part of `Store` that keeps events, each delivered at least once per channel (``mail``, ``webhook
    https://...``). A channel gets what happens after it was first asked for."""

    _database: Database

    def take_undelivered(self, channel: str, now: datetime, limit: int = 100) -> list[Delivery]:
        """Return events that the channel has still to deliver and that may be tried now, in order. Nobody else gets
        them for the next minute, nor a later one of the same booking before they are delivered."""
        waits = (DELIVERIES.c.channel == channel, DELIVERIES.c.next_try <= seconds(now))
        with self._database.reading() as connection:
            channel_row = connection.execute(select(CHANNELS).where(CHANNELS.c.name == channel)).first()
            if channel_row and not connection.execute(select(DELIVERIES.c.event).where(*waits).limit(1)).first():
                return []
        with self._database.writing() as connection:
            insert_new(connection, CHANNELS, {"name": channel})
            query = (
                select(*EVENTS.columns, DELIVERIES.c.attempts)
                .join(DELIVERIES, DELIVERIES.c.event == EVENTS.c.id)
                .where(*waits, ~_behind(channel, now))
                .order_by(EVENTS.c.id)
                .limit(limit)
                .with_for_update(of=DELIVERIES, skip_locked=True)
            )
            rows = connection.execute(query).all()
            mine = DELIVERIES.c.event.in_([row.id for row in rows])
            connection.execute(
                update(DELIVERIES).where(DELIVERIES.c.channel == channel, mine).values(next_try=seconds(now) + CLAIM)
            )
        return [
            Delivery(
                Event(row.kind, moment(row.at), row.booking, row.user_id, row.email, json.loads(row.details), row.id),
                row.attempts,
            )
            for row in rows
        ]

    def waiting(self) -> dict[str, tuple[int, datetime | None]]:
        """Return by channel how many events it has still to deliver, and when the first of them happened."""
        query = (
            select(CHANNELS.c.name, func.count(EVENTS.c.id), func.min(EVENTS.c.at))
            .outerjoin(DELIVERIES, and_(DELIVERIES.c.channel == CHANNELS.c.name, DELIVERIES.c.next_try.is_not(None)))
            .outerjoin(EVENTS, EVENTS.c.id == DELIVERIES.c.event)
            .group_by(CHANNELS.c.name)
        )
        with self._database.reading() as connection:
            return {name: (many, maybe_moment(first)) for name, many, first in connection.execute(query)}

    def mark_delivered(self, channel: str, id: int, at: datetime) -> None:
        """Record that an event has been delivered."""
        self._set_delivery(channel, id, next_try=None, delivered=seconds(at))

    def put_off(self, channel: str, id: int, retry_at: datetime | None) -> None:
        """Record that an event could not be delivered; it is tried again at `retry_at`. None: never again."""
        self._set_delivery(channel, id, next_try=maybe_seconds(retry_at), attempts=DELIVERIES.c.attempts + 1)

    def keep_channels(self, names: Sequence[str]) -> None:
        """Forget all other channels, and what they have still to deliver."""
        with self._database.writing() as connection:
            connection.execute(delete(CHANNELS).where(CHANNELS.c.name.not_in(names)))
            connection.execute(delete(DELIVERIES).where(DELIVERIES.c.channel.not_in(names)))

    def _set_delivery(self, channel: str, id: int, **values: object) -> None:
        with self._database.writing() as connection:
            conditions = (DELIVERIES.c.channel == channel, DELIVERIES.c.event == id)
            connection.execute(update(DELIVERIES).where(*conditions).values(**values))
