"""Looks at a made-up cloud, by a process that is killed again and again; the cloud goes on.

python -m tests.support.killed_looks URL SEED KILLS

What the cloud does follows from the seed alone. Each process takes up what the last one left: it looks, writes, sums up
days and forgets what is old, as the loop of history does, until somebody kills it with SIGKILL; the last one comes to
the end. The processes are forks of this one, so that a kill costs no start of Python.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import closing, suppress
from datetime import timedelta

from gpuyard.database.engine import Database
from gpuyard.usage.controllers.rolling import forget, sum_up
from gpuyard.usage.reckoning import one_tariff
from gpuyard.usage.recorder import plan_look
from gpuyard.usage.store import HistoryStore
from tests.support.history_world import SimCloud, at

END = 5 * 86_400
GPUS = 4
KEEP = timedelta(days=2)
ZONE = "UTC"


def lives(cloud: SimCloud, chance: random.Random) -> None:
    """What happens at the second that it is."""
    servers = list(cloud.servers.values())
    what = chance.choice(["create", "create", "delete", "offload", "unshelve", "rescue"])
    if what == "create":
        cloud.create(chance.randint(1, 2), chance.randint(0, 20))
    elif servers:
        server = chance.choice(servers[-6:])
        takes = () if what in ("delete", "rescue") else (chance.randint(0, 20),)
        getattr(cloud, what)(server, *takes)


def seconds(chance: random.Random) -> list[int]:
    """Of looks: mostly some seconds apart; now and then nobody can look for hours."""
    times = [0]
    while times[-1] < END:
        times.append(times[-1] + (chance.randint(3600, 20_000) if chance.random() < 0.05 else chance.randint(5, 900)))
    return times


def cloud_of(seed: int) -> tuple[SimCloud, random.Random, list[int]]:
    """As it was before the first look, with its chances and the times of looks."""
    return SimCloud(GPUS), random.Random(seed), seconds(random.Random(seed + 1))


def look(url: str, seed: int) -> None:
    """From where history ends to the end of all looks."""
    cloud, chance, times = cloud_of(seed)
    with closing(Database(url)) as database:
        store = HistoryStore(database)
        for second in times:
            cloud.run(second)
            extent = store.seen()
            if extent is None or extent.until < at(second):
                observed = cloud.seen(extent, store, at(second), cloud.tracks())
                plan = plan_look(store.open(), extent, observed)
                assert plan is not None
                store.write(extent.until if extent else None, at(second), plan.settled, plan.ends, plan.adds)
                sum_up(store, ZONE, one_tariff, 7)
                forget(store, ZONE, at(second) - KEEP)
            lives(cloud, chance)


def truth(seed: int) -> tuple[SimCloud, int]:
    """The cloud after the last look, and the second of that."""
    cloud, chance, times = cloud_of(seed)
    for second in times:
        cloud.run(second)
        lives(cloud, chance)
    return cloud, times[-1]


def main(url: str, seed: int, kills: int) -> None:
    chance, killed = random.Random(), 0
    HistoryStore(Database(url)).database.close()
    while True:
        child = os.fork()
        if child == 0:
            look(url, seed)
            os._exit(0)
        if killed < kills:
            time.sleep(chance.uniform(0.02, 0.25))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(killed)
            sys.exit(os.waitstatus_to_exitcode(status))
        killed += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
