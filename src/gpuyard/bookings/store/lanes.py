"""Keeps the lanes: the slots of the site, and what is wrong with each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from gpuyard.bookings.store.rows import LANE, to_lane
from gpuyard.bookings.store.schema import LANES, POOLS
from gpuyard.database.engine import Database
from gpuyard.database.times import maybe_seconds, seconds
from gpuyard.database.upsert import insert_new
from gpuyard.model.booking import FOREVER, Lane

Wanted = Sequence[tuple[str, str, tuple[str, ...]]]
"""Slots: pool, host, addresses with the leader's first."""
AnyRow = Row[Any]


class Lanes:
    """The part of `Store` that keeps lanes and their troubles."""

    _database: Database

    def sync_lanes(self, site_slots: Wanted) -> None:
        """Make the lanes those of the site's slots: (pool, host, addresses). A slot that was there (the same pool, host
        and first address) keeps its lane's number; one that is not named any more stays, with a trouble that says so,
        for its bookings' sake. Raises ValueError when one is named twice."""
        slots = {(pool, host, addresses[0]): " ".join(addresses) for pool, host, addresses in site_slots}
        if len(slots) != len(site_slots):
            raise ValueError("a slot is named twice")
        pools = sorted({pool for pool, _, _ in site_slots})
        with self._database.reading() as connection:
            known_pools = set(connection.execute(select(POOLS.c.name)).scalars())
            if known_pools.issuperset(pools) and not any(_steps(_rows(connection), slots)):
                return
        with self._database.writing() as connection:
            new = [
                dict.fromkeys(("generation", "lanes_generation", "log_floor", "followed"), 0) | {"name": name}
                for name in pools
            ]
            insert_new(connection, POOLS, *new)
            _lock(connection)
            come, change = _steps(_rows(connection), slots)
            if come:
                connection.execute(insert(LANES), come)
            for row in change:
                connection.execute(update(LANES).where(LANES.c.id == row["id"]).values(**row))
            _bump(connection, {row["pool"] for row in (*come, *change)})

    def set_troubles(self, troubles: Mapping[int, str], for_good: Collection[int] = ()) -> set[int]:
        """Write down what is wrong with lanes (id -> why), with some `for_good`; one that is not named is well. Returns
        ids of those that changed."""
        return self._change_lanes(
            lambda row: {"trouble": troubles.get(row.id, ""), "back": _back(row, troubles, for_good)}
        )

    def set_back(self, lanes: Collection[int], back: datetime | None) -> set[int]:
        """Write down when lanes in trouble are expected to be well again. Returns ids of those that changed."""
        return self._change_lanes(lambda row: {"back": maybe_seconds(back)} if row.id in lanes and row.trouble else {})

    def _change_lanes(self, values_of: Callable[[AnyRow], Mapping[str, Any]]) -> set[int]:
        """Of lanes that have not left the site."""

        def changes(connection: Connection) -> list[tuple[AnyRow, Mapping[str, Any]]]:
            rows = [(row, values_of(row)) for row in _rows(connection) if not row.gone]
            return [(row, new) for row, new in rows if any(row._mapping[key] != new[key] for key in new)]

        with self._database.reading() as connection:
            if not changes(connection):
                return set()
        with self._database.writing() as connection:
            _lock(connection)
            changed = changes(connection)
            for row, new in changed:
                connection.execute(update(LANES).where(LANES.c.id == row.id).values(**new))
            _bump(connection, {row.pool for row, _ in changed})
        return {row.id for row, _ in changed}

    def lanes(self, pool: str = "") -> tuple[Lane, ...]:
        """Return lanes by pool, host and address; also those that have left the site."""
        query = select(*LANE).order_by(LANES.c.pool, LANES.c.host, LANES.c.addresses)
        if pool:
            query = query.where(LANES.c.pool == pool)
        with self._database.reading() as connection:
            return tuple(to_lane(row) for row in connection.execute(query))

    def pools(self) -> tuple[str, ...]:
        """Return names of all pools that ever had a lane."""
        with self._database.reading() as connection:
            return tuple(connection.execute(select(POOLS.c.name).order_by(POOLS.c.name)).scalars())


def _rows(connection: Connection) -> Sequence[AnyRow]:
    return connection.execute(select(LANES)).all()


def _lock(connection: Connection) -> None:
    """All pools, always in the same order, so that no two wait for each other."""
    connection.execute(select(POOLS.c.name).order_by(POOLS.c.name).with_for_update()).all()


def _bump(connection: Connection, pools: set[str]) -> None:
    following = POOLS.c.generation + 1
    values = {POOLS.c.generation: following, POOLS.c.lanes_generation: following}
    connection.execute(update(POOLS).where(POOLS.c.name.in_(sorted(pools))).values(values))


def _steps(
    rows: Sequence[AnyRow], slots: Mapping[tuple[str, str, str], str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to insert, and to change."""
    rows_by_slot = {(row.pool, row.host, row.leader): row for row in rows}
    come = [
        {
            "pool": pool,
            "host": host,
            "leader": leader,
            "addresses": addresses,
            "trouble": "",
            "gone": False,
            "back": None,
        }
        for (pool, host, leader), addresses in slots.items()
        if (pool, host, leader) not in rows_by_slot
    ]
    change = []
    for name, row in rows_by_slot.items():
        addresses, gone = slots.get(name, row.addresses), name not in slots
        if (row.addresses, row.gone) != (addresses, gone):
            change.append({"id": row.id, "pool": row.pool, "addresses": addresses, "gone": gone})
    return come, change


def _back(row: AnyRow, troubles: Mapping[int, str], for_good: Collection[int]) -> int | None:
    """What an operator has said stays as long as anything is wrong."""
    if row.id in for_good:
        return seconds(FOREVER)
    back: int | None = row.back
    return back if troubles.get(row.id) and back != seconds(FOREVER) else None
