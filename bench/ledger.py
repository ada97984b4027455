"""The ledger with a million bookings, on SQLite and on PostgreSQL, and Blazar's search on the data that it can take.

python -m bench.ledger

Both databases keep what they have acknowledged (SQLite synchronous=FULL; PostgreSQL with fsync). Each is measured in a
process of its own.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, text
from tests.support.postgres import server

from bench import blazar
from bench.table import MISSED, Measured, finish, leave_out, milliseconds, show, sized
from gpuyard.bookings.ledger.ledger import BookingSettings, Ledger
from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store
from gpuyard.bookings.store.schema import BOOKINGS
from gpuyard.model.booking import Ask, Person, Rules

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LARGE, SMALL = sized((9_800, 200), (100, 100))
"""GPUs of the two pools."""
PER_GPU = 100
"""Bookings."""
PERIOD_HOURS = 72
"""Each GPU has a booking of 24 to 71 hours in every period, not all at the same time: a third is free at any time."""
ASKS = sized(1000, 20)
THREADS = 8
SUSTAINED_S = sized(10.0, 1.0)
LIMIT_ADMISSION_MS, LIMIT_CREATE_MS, LIMIT_MONTH_MS, LIMIT_RATE = 2, 5, 50, 200
PEER_RATIO = 1000
PEER_HOSTS, PEER_LEASES, PEER_HOURS, PEER_RUNS = sized((200, 20, (12, 120), 3), (10, 20, (12, 120), 1))

PREPARED = {
    "id": "pool || '-' || lane || '-' || number",
    "pool": "pool",
    "kind": "'booking'",
    "state": "'confirmed'",
    "starts": "starts",
    "ends": "starts + length * 3600",
    "gpus": "1",
    "user_id": "'u' || (number * 7 + lane) % 997",
    "user_name": "'user'",
    "project_id": "'p' || lane % 50",
    "project": "'project'",
    "version": "1",
    "lanes": "'' || lane",
}
"""What the bookings have in these columns, in SQL; each other column has nothing, or nothing of its type."""
LANES_AND_NUMBERS = """
    select id as lane, pool, number, :base + number * :period + (id * 5) % 72 * 3600 as starts,
        24 + (id * 7919 + number * 104729) % 48 as length
    from lanes, numbers
    """
TAKEN = """
    insert into occupancy (lane, starts, ends, pool, booking)
    select lane, starts, ends, pool, id
    from (select cast(lanes as integer) as lane, starts, ends, pool, id from bookings) as one order by lane, starts
    """


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        run("SQLite", f"sqlite:///{folder}/ledger.db")
        with server(Path(folder), durable=True) as postgres:
            run("PostgreSQL", postgres.database())
        try:
            peer(f"sqlite:///{folder}/peer.db")
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            leave_out("Blazar's search", str(error))


def run(name: str, url: str) -> None:
    """In a process of its own, so that memory is its own, too."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        MISSED.extend(process.submit(measure, name, url).result())


def measure(name: str, url: str) -> list[str]:
    """What missed its limit."""
    with closing(Store.open(url)) as store:
        fill(store)
        ledger = ledger_of(store, "large", "small")
        before = memory_mib()
        loaded = milliseconds(lambda: ledger.check(ask("large", 1), person(0)), 1)
        taken = memory_mib() - before
        chance = random.Random(11)
        asks = [random_ask(chance, "large") for _ in range(ASKS)]
        small = [random_ask(chance, "small") for _ in range(ASKS)]
        rows = [
            Measured("make the timetable, first question", "ms", loaded),
            Measured("memory of it", "MiB", [taken]),
            *spread(
                "admission, any GPU of a pool",
                each(asks, lambda n, request: ledger.check(request, person(n))),
                LIMIT_ADMISSION_MS,
            ),
            *spread(
                f"the same, pool of {SMALL}",
                each(small, lambda n, request: ledger.check(request, person(n))),
                LIMIT_ADMISSION_MS,
            ),
            *spread(
                "check + insert + commit",
                each(asks, lambda n, request: ledger.create(request, person(n))),
                LIMIT_CREATE_MS,
            ),
            *spread(
                f"the same, pool of {SMALL}",
                each(small, lambda n, request: ledger.create(request, person(n))),
                LIMIT_CREATE_MS,
            ),
            Measured(f"a month of {SMALL} GPUs", "ms", milliseconds(lambda: month(ledger), 20), LIMIT_MONTH_MS),
        ]
        made = sustained(ledger)
    rows.append(Measured(f"bookings a second, {SUSTAINED_S:.0f} s, {THREADS} threads", "/s", [made], LIMIT_RATE, True))
    show(f"{name}: {LARGE + SMALL} GPUs, {PER_GPU * (LARGE + SMALL)} bookings", rows)
    sys.stdout.flush()
    return MISSED


def fill(store: Store) -> None:
    """All bookings lie ahead, so that all are in the timetable."""
    slots = [("large", f"host-{n // 8:04d}", (f"0000:{n % 8:02x}:00.0",)) for n in range(LARGE)]
    slots += [("small", f"tiny-{n // 8:04d}", (f"0000:{n % 8:02x}:00.0",)) for n in range(SMALL)]
    store.sync_lanes(slots)
    write_bookings(store, PER_GPU)


def write_bookings(store: Store, per_gpu: int) -> None:
    base = int(NOW.timestamp()) + 3600
    with store._database.writing() as connection:
        connection.execute(text("create temporary table numbers (number integer)"))
        connection.execute(text("insert into numbers values (:n)"), [{"n": number} for number in range(per_gpu)])
        if connection.dialect.name == "postgresql":  # filling takes longer than anything that the ledger may do
            connection.execute(text("set local statement_timeout = 0"))
        columns = {column.name: PREPARED.get(column.name, nothing(column)) for column in BOOKINGS.columns}
        made = f"insert into bookings ({', '.join(columns)}) select {', '.join(columns.values())}"
        connection.execute(
            text(f"{made} from ({LANES_AND_NUMBERS}) as one"), {"base": base, "period": PERIOD_HOURS * 3600}
        )
        connection.execute(text(TAKEN))
        connection.execute(text("update pools set generation = generation + 1"))
        connection.execute(text("drop table numbers"))
    with store._database.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("set local statement_timeout = 0"))
        connection.execute(text("analyze"))


def nothing(column: Column[Any]) -> str:
    """As an expression of SQL."""
    if column.nullable:
        return "null"
    return {str: "''", bool: "false", int: "0"}[column.type.python_type]


def ledger_of(store: Store, *pools: str) -> Ledger:
    rules = Rules(most_active=10**6, ahead=timedelta(days=4000), longest=timedelta(days=400))
    return Ledger(store, BookingSettings(pools, lambda pool, project: rules, "UTC"), lambda: NOW, lambda: uuid4().hex)


def person(number: int) -> Person:
    return Person(f"new{number}", f"new-{number}", f"q{number % 20}", "project", frozenset({"member"}))


def ask(pool: str, hours: float, length: float = 4) -> Ask:
    start = NOW + timedelta(hours=hours)
    return Ask(pool, start, start + timedelta(hours=length))


def random_ask(chance: random.Random, pool: str) -> Ask:
    """One GPU for some hours, at any time of the next weeks."""
    return ask(pool, chance.randrange(1, PER_GPU * PERIOD_HOURS), chance.randrange(1, 13))


def month(ledger: Ledger) -> None:
    """What a calendar shows."""
    start = NOW + timedelta(days=10)
    ledger.lanes("small")
    ledger.find(Query(pool="small", start=start, end=start + timedelta(days=31)), limit=10**6)


@dataclass(frozen=True)
class Times:
    """Milliseconds of each call: by the clock on the wall, and of this thread's work."""

    wall: list[float]
    work: list[float]


def each(asks: list[Ask], call: Callable[[int, Ask], object]) -> Times:
    times = Times([], [])
    gc.collect()
    for number, request in enumerate(asks):
        began, worked = perf_counter(), thread_time()
        call(number, request)
        times.wall.append((perf_counter() - began) * 1000)
        times.work.append((thread_time() - worked) * 1000)
    return times


def spread(name: str, times: Times, limit: float) -> Iterator[Measured]:
    """The limit is for the 99th percentile. That of the work alone is shown because it does not depend on what else the
    machine does."""
    yield Measured(name, "ms", times.wall)
    yield Measured(f"{name}, p99", "ms", [p99(times.wall)], limit)
    yield Measured(f"{name}, p99 of its work", "ms", [p99(times.work)], limit)


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def sustained(ledger: Ledger) -> float:
    """Bookings a second that several threads of one process make in both pools."""
    until = perf_counter() + SUSTAINED_S
    made = [0] * THREADS

    def work(place: int) -> None:
        chance = random.Random(100 + place)
        while perf_counter() < until:
            ledger.create(random_ask(chance, "large" if place % 2 else "small"), person(place))
            made[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(made) / SUSTAINED_S


def memory_mib() -> float:
    """What the process has of the machine's memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peer(url: str) -> None:
    """The same question to Blazar and to the ledger: which of 200 hosts has its GPU free in a window? For 12 hours some
    have; for 120 none has, and the ledger also looks for what would be possible."""
    theirs = blazar.query_seconds(PEER_HOSTS, PEER_LEASES, PEER_HOURS, PEER_RUNS)
    rows = []
    with closing(Store.open(url)) as store:
        store.sync_lanes([("large", f"host-{n:03d}", ("0000:01:00.0",)) for n in range(PEER_HOSTS)])
        write_bookings(store, PEER_LEASES)
        ledger = ledger_of(store, "large")
        ledger.check(ask("large", 1), person(0))
        for hours in PEER_HOURS:
            asks = [ask("large", 247 + 24 * (n % 20), hours) for n in range(200)]
            ours = each(asks, lambda n, request: ledger.check(request, person(n)))
            rows.append(Measured(f"Blazar, {hours} hours", "ms", [1000 * seconds for seconds in theirs[hours]]))
            rows.append(Measured(f"gpuyard, {hours} hours", "ms", ours.wall))
            ratio = 1000 * median(theirs[hours]) / median(ours.wall)
            rows.append(Measured(f"so Blazar takes longer, {hours} hours", "times", [ratio], PEER_RATIO, True))
    show(f"Is a GPU free? {PEER_HOSTS} hosts, {PEER_LEASES} bookings each, SQLite", rows)


if __name__ == "__main__":
    main()
    sys.exit(finish())
