"""How long a year's report takes on a site of 8,000 GPUs, whose days and months have their sums, and what follows from
the intervals of today.

python -m bench.usage [URL of an empty database]
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from time import perf_counter

from bench.table import Measured, finish, milliseconds, show, sized
from gpuyard.database.engine import Database
from gpuyard.usage.accounts import Prices
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.usage import UsageQuery, usage
from gpuyard.usage.reckoning import day_span
from gpuyard.usage.records import Slice
from gpuyard.usage.store import HistoryStore, SumStore

LIMIT_MS = 1000
HOSTS, GPUS_EACH, PROJECTS, USERS = sized(1000, 10), 8, 60, 5
FIRST, END = date(2026, 1, 1), date(2027, 1, 1)
A_DAY = timedelta(days=1)
ZONE = "Europe/Rome"
STAYS = 5
"""Days for which a host has the same people."""
REPORTS = {
    "a year by project": UsageQuery(FIRST, END),
    "a year by project and month": UsageQuery(FIRST, END, ("project", "month")),
    "a year by project, user and pool": UsageQuery(FIRST, END, ("project", "user", "pool")),
    "a year of one project by user": UsageQuery(FIRST, END, ("user",), {"project": "project-7"}),
    "a month by day": UsageQuery(date(2026, 5, 1), date(2026, 6, 1), ("day",)),
    "a month by host": UsageQuery(date(2026, 5, 1), date(2026, 6, 1), ("host",)),
}
PRICES = Prices(lambda pool, tariff: Decimal("1.20") if tariff == "standard" else Decimal("0.60"))


def main(url: str = "") -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        database = Database(url or f"sqlite:///{Path(folder) / 'usage.db'}")
        store, began = HistoryStore(database), perf_counter()
        rows = fill(store)
        print(f"{database.name}: {rows} sums of days in {perf_counter() - began:.0f} s")
        history = History(store, ZONE)
        measured = []
        for name, query in REPORTS.items():
            lines = len(usage(history, query, PRICES).lines)
            values = milliseconds(lambda query=query: usage(history, query, PRICES), 5)  # type: ignore[misc]
            measured.append(Measured(f"{name} ({lines} lines)", "ms", values, LIMIT_MS))
        show(f"Reports of {HOSTS * GPUS_EACH} GPUs", measured)
        database.close()


def fill(store: HistoryStore) -> int:
    """A year of sums. Returns how many of days."""
    begins, ends = day_span(FIRST, ZONE)[0], day_span(END, ZONE)[0]
    assert store.write(None, begins, begins, {}, [])
    assert store.write(begins, ends, ends, {}, [])
    sums, last, rows = SumStore(store.database), None, 0
    day = FIRST
    while day < END:
        of_day = day_sums(day)
        assert sums.put_day(last, day, of_day, [])
        rows += len(of_day)
        last, day = day, day + A_DAY
    return rows


def day_sums(day: date) -> Counter[Slice]:
    """Two tenants of each host, idle GPUs and some that are held, in two tariffs: all GPU time of the day."""
    span = day_span(day, ZONE)
    whole = int((span[1] - span[0]).total_seconds()) * GPUS_EACH
    seconds_by_slice: Counter[Slice] = Counter()
    for host in range(HOSTS):
        chance = random.Random(host * 1000 + (day - FIRST).days // STAYS)
        place = {"pool": f"pool-{host % 6}", "host": f"gpu-{host:04}"}
        left = whole
        for kind in ("booking", chance.choice(["", "runner"])):
            project, amount = chance.randrange(PROJECTS), chance.randrange(left // 2)
            who = f"user-{project}-{chance.randrange(USERS)}"
            whose = {"project_id": f"p{project}", "project": f"project-{project}", "user_id": who, "user": who}
            for tariff in ("", "night"):
                seconds_by_slice[Slice(tariff, **place, **whose, state="claimed", kind=kind)] += amount // 2
            left -= amount // 2 * 2
        seconds_by_slice[Slice("", **place, state="held")] += left // 10
        seconds_by_slice[Slice("", **place, state="free")] += left - left // 10
    assert sum(seconds_by_slice.values()) == whole * HOSTS
    return seconds_by_slice


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit(finish())
