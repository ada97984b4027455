"""Stores states of agents, places of cards, and use by the hour, each for 35 days."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.times import moment, seconds
from gpuyard.database.upsert import upsert
from gpuyard.health.cards import CardSeen
from gpuyard.health.guests import AgentState
from gpuyard.health.store.schema import CARDS, GUESTS, HOURS

KEPT = timedelta(days=35)
"""Hours, and servers and cards of which nothing was heard for so long."""


@dataclass(frozen=True)
class Hour:
    """The use of a card in a server in one hour, or in a part of it."""

    server: str
    card: str
    start: datetime
    samples: int
    """Those in which its use was known."""
    use: int
    """Sum of the percents of the samples; so are the next two, of W the latter."""
    memory: int
    power: int
    hottest: int
    """Degrees C."""

    def plus(self, other: Hour) -> Hour:
        return Hour(
            self.server, self.card, self.start, self.samples + other.samples, self.use + other.use,
            self.memory + other.memory, self.power + other.power, max(self.hottest, other.hottest),
        )  # fmt: skip


class GuestStore:
    """The store of agents, cards and hours. Its tables are those of HealthStore, which makes them. Every method is a
    transaction of its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def guests(self) -> dict[str, tuple[AgentState, datetime]]:
        """Return by server the state of its agent, and when it was last heard."""
        with self._database.reading() as connection:
            rows = connection.execute(select(GUESTS)).all()
        return {row.server: (_state(json.loads(row.state)), moment(row.heard)) for row in rows}

    def cards(self) -> dict[str, CardSeen]:
        with self._database.reading() as connection:
            rows = connection.execute(select(CARDS)).all()
        places = {row.card: frozenset((host, address) for host, address in json.loads(row.places)) for row in rows}
        return {row.card: CardSeen(row.card, places[row.card], moment(row.seen), row.server) for row in rows}

    def hours(self, servers: Iterable[str], since: datetime) -> list[Hour]:
        """Return the hours of these servers since then, the oldest first."""
        server_ids = [storable(server) for server in servers]
        query = select(HOURS).where(HOURS.c.server.in_(server_ids), HOURS.c.hour >= seconds(since))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(HOURS.c.hour, HOURS.c.server, HOURS.c.card)).all()
        return [_hour(row) for row in rows]

    def keep(
        self,
        guests: Mapping[str, tuple[AgentState, datetime]],
        cards: Iterable[CardSeen] = (),
        hours: Sequence[Hour] = (),
    ) -> None:
        """Write states of guests, cards (those without a place are deleted), and hours, which are added to what is
        there of the same."""
        states = [
            {"server": storable(server), "heard": seconds(heard), "state": json.dumps(_told(state))}
            for server, (state, heard) in guests.items()
        ]
        sightings = list(cards)
        with self._database.writing() as connection:
            name = connection.dialect.name
            if states:
                connection.execute(upsert(name, GUESTS, list(states[0])), states)
            card_rows = [_card_row(sighting) for sighting in sightings if sighting.places]
            if card_rows:
                connection.execute(upsert(name, CARDS, list(card_rows[0])), card_rows)
            for sighting in sightings:
                if not sighting.places:
                    connection.execute(delete(CARDS).where(CARDS.c.card == storable(sighting.card)))
            if hours:
                starts = {seconds(hour.start) for hour in hours}
                existing = connection.execute(select(HOURS).where(HOURS.c.hour.in_(starts))).all()
                before = {(row.server, row.card, row.hour): _hour(row) for row in existing}
                sums = [
                    before[key].plus(hour) if (key := (hour.server, hour.card, seconds(hour.start))) in before else hour
                    for hour in hours
                ]
                rows = [_hour_row(hour) for hour in sums]
                connection.execute(upsert(name, HOURS, list(rows[0])), rows)

    def prune(self, now: datetime) -> None:
        with self._database.writing() as connection:
            connection.execute(delete(HOURS).where(HOURS.c.hour < seconds(now - KEPT)))
            connection.execute(delete(CARDS).where(CARDS.c.seen < seconds(now - KEPT)))
            connection.execute(delete(GUESTS).where(GUESTS.c.heard < seconds(now - KEPT)))


def _told(state: AgentState) -> dict[str, Any]:
    return {
        "boot": state.boot, "number": state.number, "xid": state.xid, "ecc": list(state.ecc),
        "alarms": sorted(state.alarms), "earlier": list(state.earlier),
    }  # fmt: skip


def _state(data: Mapping[str, Any]) -> AgentState:
    return AgentState(
        data["boot"], data["number"], data["xid"], tuple((card, count) for card, count in data["ecc"]),
        frozenset((code, gpu) for code, gpu in data["alarms"]), tuple(data["earlier"]),
    )  # fmt: skip


def _card_row(sighting: CardSeen) -> dict[str, Any]:
    places = json.dumps(sorted(sighting.places))
    return {
        "card": storable(sighting.card),
        "places": places,
        "seen": seconds(sighting.seen),
        "server": storable(sighting.server),
    }


def _hour(row: Any) -> Hour:
    return Hour(row.server, row.card, moment(row.hour), row.samples, row.use, row.memory, row.power, row.hottest)


def _hour_row(hour: Hour) -> dict[str, Any]:
    return {
        "server": storable(hour.server), "card": storable(hour.card), "hour": seconds(hour.start),
        "samples": hour.samples, "use": hour.use, "memory": hour.memory, "power": hour.power, "hottest": hour.hottest,
    }  # fmt: skip
