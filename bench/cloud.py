"""What a user and an operator wait for, on a lab of its own: a server with a GPU, a snapshot, the map.

python -m bench.cloud
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

from bench.lab import running_lab
from bench.table import Measured, finish, milliseconds, show, sized
from gpuyard.openstack.api import connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site
from gpuyard_lab import portal, processes
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Boot, Exercise
from gpuyard_lab.settings import Lab

TOGETHER = ["gpu_tiny"] * 4 + ["t4.15cores90GB"] * 4 + ["k4200.4cores"] * 2
LIVE_LIMIT_S = 2
MEMORY_LIMIT_MIB = 150
ROUNDS = sized(5, 1)
ALONE = sized(10, 1)


def main() -> None:
    with running_lab() as (running, loaded):
        lab = running.lab
        try:
            measure(lab, loaded, lab.port_base + 9)
        finally:
            processes.end(lab.state, portal.PORTAL)


def measure(lab: Lab, loaded: LoadedSite, port: int) -> None:
    operator, user = connect(ADMIN_CLOUD, lab.clouds_file), connect(DEMO_CLOUD, lab.clouds_file)
    compiled = loaded.compiled
    exercise = Exercise(operator, user, compiled)
    url = portal.serve(lab, loaded, port)
    show("Server create to ACTIVE", servers(exercise))
    show(
        "A change in Nova, until the map has it", [Measured("ACTIVE to event", "s", live(exercise, url), LIVE_LIMIT_S)]
    )
    taker = SnapshotTaker(operator, compiled.gpus, compiled.flavors)
    before = operator.calls
    rows = [Measured("snapshot of 17 GPUs, first", "ms", milliseconds(lambda: taker.take(datetime.now(UTC)), 1))]
    first = operator.calls - before
    rows.append(Measured("snapshot, then", "ms", milliseconds(lambda: taker.take(datetime.now(UTC)), 20)))
    rows.append(
        Measured("site plan", "ms", milliseconds(lambda: plan_site(compiled, read_objects(operator, compiled)), 5))
    )
    show("The operator's view", rows)
    print(f"  calls to OpenStack: {first} for the first snapshot")
    pid = processes.leaders(processes.find(lab.state))[portal.PORTAL].pid
    show("Memory of 'gpuyard serve'", [Measured("peak", "MiB", [peak_mib(pid)], MEMORY_LIMIT_MIB)])


def servers(exercise: Exercise) -> list[Measured]:
    alone = [one(exercise, "k40c.2cores").seconds for _ in range(ALONE)]
    rounds = []
    each: list[float] = []
    errors = 0
    for _ in range(ROUNDS):
        began = monotonic()
        boots = exercise.boot_together(TOGETHER)
        rounds.append(monotonic() - began)
        each += [boot.seconds for boot in boots]
        errors += sum(boot.status != "ACTIVE" for boot in boots)
        exercise.delete(boot.server_id for boot in boots)
    return [
        Measured("one alone", "s", alone),
        Measured("each of ten at once", "s", each),
        Measured("all of ten at once", "s", rounds),
        Measured(f"not ACTIVE, of {ROUNDS * len(TOGETHER)}", "", [float(errors)]),
    ]


def one(exercise: Exercise, flavor: str) -> Boot:
    boot = exercise.boot(flavor)
    exercise.delete([boot.server_id])
    return boot


def live(exercise: Exercise, url: str) -> list[float]:
    """Seconds from the moment that a server is seen ACTIVE until the feed names it; it may be earlier."""
    seconds = []
    for _ in range(ROUNDS):
        with urlopen(f"{url}/events", timeout=30) as feed:  # our own portal
            boot = exercise.boot("k40c.2cores")
            began = monotonic()
            while boot.name not in feed.readline().decode():
                pass
            seconds.append(monotonic() - began)
        exercise.delete([boot.server_id])
    return seconds


def peak_mib(pid: int) -> float:
    """The most memory that a process has had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} is gone")


if __name__ == "__main__":
    main()
    sys.exit(finish())
