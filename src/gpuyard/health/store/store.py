"""Stores states and records of GPUs, observations, contacts of hosts, tokens and a few named values.

A record is only ever added to, and its lines are kept for five years, longer than a card is: repeat offenders are known
by it. Open observations are few: one that is open already, of the same signal by the same source, is not written again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from gpuyard.database.columns import storable
from gpuyard.database.engine import Database
from gpuyard.database.migrate import migrate
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.database.upsert import insert_new, put
from gpuyard.health.baseline import Baseline
from gpuyard.health.records import (
    GpuHealth,
    HealthEvent,
    HealthState,
    HealthToken,
    HostContact,
    Observation,
    Software,
    Trial,
)
from gpuyard.health.store.schema import EVENTS, GPUS, HOSTS, OBSERVATIONS, SCHEMA_MODULE, TOKENS, VALUES
from gpuyard.model.signals import Source

TEXT = 500
"""Characters of a cause or of evidence, at most."""
RECORD = timedelta(days=5 * 366)
"""So long a line of a record is kept: longer than a card is."""
PRUNED = 20_000
"""Lines that one transaction takes away at most."""


class HealthStore:
    """The store of health, safe to use from several threads, and from several processes on one database. Every method
    is a transaction of its own, and raises StoreError when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        """Make the tables, or bring older ones up to date. Whoever opened the database closes it. Raises StoreError."""
        migrate(database.url, SCHEMA_MODULE)
        self._database = database

    @property
    def database(self) -> Database:
        """The database, for other stores with tables in it."""
        return self._database

    # GPUs and their records

    def gpus(self, states: Collection[HealthState] = (), host: str = "") -> list[GpuHealth]:
        """Return GPUs by host and address; those in some states and of one host, or all."""
        query = select(GPUS).order_by(GPUS.c.host, GPUS.c.address)
        if host:
            query = query.where(GPUS.c.host == storable(host))
        if states:
            query = query.where(GPUS.c.state.in_(sorted(state.value for state in states)))
        return self._gpus(query)

    def gpu(self, host: str, address: str) -> GpuHealth | None:
        records = self._gpus(select(GPUS).where(GPUS.c.host == storable(host), GPUS.c.address == storable(address)))
        return records[0] if records else None

    def put(self, gpu: GpuHealth, *events: HealthEvent, settles: Collection[int] = ()) -> bool:
        """Write a GPU that was read and changed, with lines of its record, and close the observations (by id) that the
        change follows from. A `version` of 0 is a new GPU. False, and nothing is written, when somebody else has
        written it since it was read: read it again."""
        row = {**_gpu_row(gpu), "version": gpu.version + 1}
        with self._database.writing() as connection:
            if gpu.version == 0:
                written = insert_new(connection, GPUS, row)
            else:
                same = (GPUS.c.host == row["host"], GPUS.c.address == row["address"], GPUS.c.version == gpu.version)
                written = connection.execute(update(GPUS).where(*same).values(**row)).rowcount == 1
            if written:
                add_events(connection, events)
                _settle(connection, settles)
            return written

    def forget(self, gpu: GpuHealth, *events: HealthEvent) -> bool:
        """Delete a GPU that has left the site, with its observations; its record stays. False as in `put`."""
        row = _gpu_row(gpu)
        same = (GPUS.c.host == row["host"], GPUS.c.address == row["address"], GPUS.c.version == gpu.version)
        mine = (OBSERVATIONS.c.host == row["host"], OBSERVATIONS.c.address == row["address"])
        with self._database.writing() as connection:
            gone = connection.execute(delete(GPUS).where(*same)).rowcount == 1
            if gone:
                connection.execute(delete(OBSERVATIONS).where(*mine))
                add_events(connection, events)
            return gone

    def note(self, *events: HealthEvent, settles: Collection[int] = ()) -> None:
        """Add lines to records without a change of state, and close observations by id."""
        with self._database.writing() as connection:
            add_events(connection, events)
            _settle(connection, settles)

    def events(
        self, host: str = "", address: str = "", card: str = "", limit: int = 100, before: int | None = None,
        since: datetime | None = None,
    ) -> list[HealthEvent]:  # fmt: skip
        """Return lines of the records of a host, a GPU or a card, or of all, the newest first. `before`: only those
        with a smaller id. `since`: not older."""
        query = select(EVENTS)
        for column, value in ((EVENTS.c.host, host), (EVENTS.c.address, address), (EVENTS.c.card, card)):
            query = query.where(column == storable(value)) if value else query
        query = query if before is None else query.where(EVENTS.c.id < before)
        query = query if since is None else query.where(EVENTS.c.at >= seconds(since))
        with self._database.reading() as connection:
            return [_event(row) for row in connection.execute(query.order_by(EVENTS.c.id.desc()).limit(limit))]

    def became(self, state: HealthState, since: datetime) -> dict[tuple[str, str], int]:
        """Return how often GPUs came to a state since then: (host, address) -> count; those that did."""
        came = (EVENTS.c.after == state.value, EVENTS.c.before != state.value, EVENTS.c.at >= seconds(since))
        query = select(EVENTS.c.host, EVENTS.c.address, func.count()).where(*came)
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(EVENTS.c.host, EVENTS.c.address)).all()
        return {(host, address): count for host, address, count in rows}

    # Observations

    def observe(self, observations: Sequence[Observation]) -> bool:
        """Write observations, and return whether any of them was not open already. Durable when this returns."""
        rows = [
            {
                "host": storable(observation.host),
                "address": storable(observation.address),
                "code": storable(observation.code),
                "seen": seconds(observation.seen),
                "evidence": storable(observation.evidence)[:TEXT],
                "by": storable(observation.by)[:TEXT],
            }
            for observation in observations
        ]
        if not rows:
            return False
        with self._database.writing() as connection:
            return insert_new(connection, OBSERVATIONS, *rows)

    def open_observations(self, limit: int = 100_000) -> list[Observation]:
        """Return open observations, the oldest first. Those that wait for the end of a GPU's server stay open: several
        for each GPU of a large site, when its hosts get another firmware and QEMU."""
        with self._database.reading() as connection:
            rows = connection.execute(select(OBSERVATIONS).order_by(OBSERVATIONS.c.id).limit(limit)).all()
        return [
            Observation(row.host, row.address, row.code, moment(row.seen), row.evidence, row.by, row.id) for row in rows
        ]

    def settle(self, ids: Collection[int]) -> None:
        """Close observations, by id."""
        if ids:
            with self._database.writing() as connection:
                _settle(connection, ids)

    # Hosts

    def hear(self, word: HostContact) -> None:
        """Write the last contact of a host."""
        row = {"host": storable(word.host), "heard": seconds(word.heard), "look": storable(word.look)}
        with self._database.writing() as connection:
            put(connection, HOSTS, row)

    def host(self, host: str) -> HostContact | None:
        """Return the last contact of a host, with its report; None when there was none."""
        with self._database.reading() as connection:
            row = connection.execute(select(HOSTS).where(HOSTS.c.host == storable(host))).first()
        return None if row is None else HostContact(row.host, moment(row.heard), row.look)

    def heard(self) -> dict[str, datetime]:
        """Return when each host was last heard; those that were."""
        with self._database.reading() as connection:
            rows = connection.execute(select(HOSTS.c.host, HOSTS.c.heard)).all()
        return {row.host: moment(row.heard) for row in rows}

    # Tokens

    def add_token(self, token: HealthToken) -> None:
        """Write a token. Raises ConflictError when its digest is known."""
        row = {
            "digest": token.digest,
            "purpose": storable(token.purpose),
            "subject": storable(token.subject),
            "created": seconds(token.created),
            "expires": maybe_seconds(token.expires),
            "spent": maybe_seconds(token.spent),
        }
        with self._database.writing() as connection:
            connection.execute(insert(TOKENS), row)

    def token(self, digest: str) -> HealthToken | None:
        """Return a token by its digest, also one that has expired or is spent: the caller checks that."""
        with self._database.reading() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.digest == storable(digest))).first()
        return None if row is None else _token(row)

    def tokens(self, purpose: str, subject: str = "") -> list[HealthToken]:
        query = select(TOKENS).where(TOKENS.c.purpose == storable(purpose))
        query = query.where(TOKENS.c.subject == storable(subject)) if subject else query
        with self._database.reading() as connection:
            return [_token(row) for row in connection.execute(query.order_by(TOKENS.c.subject, TOKENS.c.created))]

    def spend(self, digest: str, now: datetime) -> bool:
        """Use up a token that is good for once: True for one of all who try, and never after it has expired."""
        good = (TOKENS.c.digest == storable(digest), TOKENS.c.spent.is_(None))
        alive = TOKENS.c.expires.is_(None) | (TOKENS.c.expires > seconds(now))
        with self._database.writing() as connection:
            spent = connection.execute(update(TOKENS).where(*good, alive).values(spent=seconds(now)))
            return spent.rowcount == 1

    def end_tokens(self, purpose: str, subject: str) -> int:
        """Delete the tokens of a host or a server, and return how many there were."""
        mine = (TOKENS.c.purpose == storable(purpose), TOKENS.c.subject == storable(subject))
        with self._database.writing() as connection:
            return connection.execute(delete(TOKENS).where(*mine)).rowcount

    def prune(self, now: datetime) -> None:
        """Delete tokens that have expired, and lines of records that are older than RECORD."""
        with self._database.writing() as connection:
            connection.execute(delete(TOKENS).where(TOKENS.c.expires <= seconds(now)))
            # Those that were written first are the oldest: not all lines are read to find that none is old enough.
            first = select(EVENTS.c.id, EVENTS.c.at).order_by(EVENTS.c.id).limit(PRUNED).subquery()
            old = select(first.c.id).where(first.c.at < seconds(now - RECORD))
            connection.execute(delete(EVENTS).where(EVENTS.c.id.in_(old)))

    # Small things

    def value(self, key: str) -> str:
        """Return a named value; empty when there is none."""
        with self._database.reading() as connection:
            return connection.scalar(select(VALUES.c.value).where(VALUES.c.key == storable(key))) or ""

    def set_value(self, key: str, value: str) -> None:
        """Write a named value; an empty one deletes it."""
        with self._database.writing() as connection:
            if value:
                put(connection, VALUES, {"key": storable(key), "value": storable(value)})
            else:
                connection.execute(delete(VALUES).where(VALUES.c.key == storable(key)))

    def _gpus(self, query: Select[Any]) -> list[GpuHealth]:
        with self._database.reading() as connection:
            return [_gpu(row) for row in connection.execute(query)]


def _settle(connection: Connection, ids: Collection[int]) -> None:
    for id in ids:
        connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.id == id))


def add_events(connection: Connection, events: Sequence[HealthEvent]) -> None:
    """Add lines to records, within a transaction."""
    rows = [
        {
            "host": storable(event.host),
            "address": storable(event.address),
            "card": storable(event.card),
            "at": seconds(event.time),
            "before": event.before.value,
            "after": event.after.value,
            "cause": storable(event.cause)[:TEXT],
            "signal": storable(event.signal),
            "evidence": storable(event.evidence)[:TEXT],
            "by": storable(event.by),
            "source": event.source.value if event.source else "",
        }
        for event in events
    ]
    if rows:
        connection.execute(insert(EVENTS), rows)


def _event(row: Row[Any]) -> HealthEvent:
    return HealthEvent(
        row.host, row.address, row.card, moment(row.at), HealthState(row.before), HealthState(row.after), row.cause,
        row.signal, row.evidence, row.by, Source(row.source) if row.source else None, row.id,
    )  # fmt: skip


def _gpu_row(gpu: GpuHealth) -> dict[str, Any]:
    return {
        "host": storable(gpu.host),
        "address": storable(gpu.address),
        "pool": storable(gpu.pool),
        "state": gpu.state.value,
        "since": seconds(gpu.since),
        "cause": storable(gpu.cause)[:TEXT],
        "signal": storable(gpu.signal),
        "by": storable(gpu.by),
        "card": storable(gpu.card),
        "until": maybe_seconds(gpu.until),
        "relapses": gpu.relapses,
        "asked": gpu.asked,
        "order": storable(gpu.order),
        "generation": gpu.generation,
        "accepted": maybe_seconds(gpu.accepted),
        "software": storable(json.dumps(asdict(gpu.software), ensure_ascii=False)),
        "keeper": storable(gpu.keeper),
        "shown": json.dumps(dict(gpu.shown), sort_keys=True),
        "baseline": storable(_baseline_text(gpu.baseline)),
        "trial": storable(_trial_text(gpu.trial)),
    }


def _gpu(row: Row[Any]) -> GpuHealth:
    return GpuHealth(
        host=row.host,
        address=row.address,
        pool=row.pool,
        state=HealthState(row.state),
        since=moment(row.since),
        cause=row.cause,
        signal=row.signal,
        by=row.by,
        card=row.card,
        until=maybe_moment(row.until),
        relapses=row.relapses,
        asked=row.asked,
        order=row.order,
        generation=row.generation,
        accepted=maybe_moment(row.accepted),
        software=Software(**json.loads(row.software)),
        keeper=row.keeper,
        shown=json.loads(row.shown),
        baseline=_baseline(row.baseline),
        trial=_trial(row.trial),
        version=row.version,
    )


def _trial_text(trial: Trial | None) -> str:
    if trial is None:
        return ""
    times = {
        "since": seconds(trial.since),
        "until": seconds(trial.until),
        "suspicions": list(map(seconds, trial.suspicions)),
    }
    return json.dumps({"state": trial.state.value, "signal": trial.signal, "cause": trial.cause[:TEXT], **times})


def _trial(text: str) -> Trial | None:
    if not text:
        return None
    stored = json.loads(text)
    suspicions = tuple(map(moment, stored["suspicions"]))
    state, since, until = HealthState(stored["state"]), moment(stored["since"]), moment(stored["until"])
    return Trial(state, stored["signal"], stored["cause"], since, until, suspicions)


def _baseline_text(baseline: Baseline | None) -> str:
    if baseline is None:
        return ""
    stored = {
        "taken": seconds(baseline.taken), "by": baseline.by, "card": baseline.card, "facts": dict(baseline.facts)
    }  # fmt: skip
    return json.dumps(stored, ensure_ascii=False, sort_keys=True)


def _baseline(text: str) -> Baseline | None:
    if not text:
        return None
    stored = json.loads(text)
    return Baseline(moment(stored["taken"]), stored["by"], stored["card"], stored["facts"])


def _token(row: Row[Any]) -> HealthToken:
    return HealthToken(
        row.digest, row.purpose, row.subject, moment(row.created), maybe_moment(row.expires), maybe_moment(row.spent)
    )
