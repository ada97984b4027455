"""A cloud of 1,000 hosts with 8,000 GPUs and 4,000 servers: a look at it, and what others would ask for the same.

python -m bench.scale
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter, sleep
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.ports import free_port_base

from bench.cloud import peak_mib
from bench.large_cloud import PROJECTS, USERS, large_cloud
from bench.site import GPUS, HOSTS, write_site
from bench.table import Measured, finish, show, sized
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.load import load_site

SERVERS = sized(4000, 80)
LOOK_LIMIT_S, CALLS_LIMIT, MEMORY_LIMIT_MIB = 3, 30, 400
LOOKS = sized(4, 2)
SAMPLE = sized(200, 20)
"""Providers that are asked one by one, of all that there are."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiled = load_site(write_site(Path(folder))).compiled
        with large_cloud(compiled.gpus, SERVERS, Path(folder)) as clouds:
            api = connect("large", clouds)
            taker = SnapshotTaker(api, compiled.gpus, compiled.flavors)
            now = datetime(2026, 11, 22, tzinfo=UTC)
            looks = [look(api, taker, now + timedelta(seconds=10 * number)) for number in range(8)]
            others = one_by_one(api)
            memory = served(Path(folder) / "site.yaml", clouds)
    first, later = looks[0], looks[1:]
    named = SERVERS + PROJECTS + USERS
    show(
        f"A look at {HOSTS} hosts with {GPUS} GPUs each and {SERVERS} servers",
        [
            Measured("the first", "s", [first[0]]),
            Measured("its calls, but for one each server, user and project", "", [first[1] - named], CALLS_LIMIT),
            Measured("then", "s", [seconds for seconds, _ in later], LOOK_LIMIT_S),
            Measured("calls then", "", [float(calls) for _, calls in later], CALLS_LIMIT),
        ],
    )
    rows = [Measured(f"after {LOOKS} looks, peak", "MiB", [memory], MEMORY_LIMIT_MIB)]
    show("Memory of 'gpuyard serve' with the map of it", rows)
    providers = HOSTS * (GPUS + 1)
    show(
        "The same as openstack-exporter asks it: inventories and usages of each provider",
        [
            Measured("calls", "", [1.0 + 2 * providers]),
            Measured(f"by {SAMPLE} of {providers} providers", "s", [others * providers / SAMPLE]),
        ],
    )


def look(api: CloudApi, taker: SnapshotTaker, now: datetime) -> tuple[float, int]:
    """Seconds and calls."""
    before, began = api.calls, perf_counter()
    snapshot = taker.take(now)
    seconds = perf_counter() - began
    assert len(snapshot.holders) == SERVERS
    assert not snapshot.unexplained
    return seconds, api.calls - before


def served(site: Path, clouds: Path) -> float:
    """MiB of a process that serves the map, without bookings."""
    port = free_port_base()
    command = [sys.executable, "-m", "gpuyard.cli.main", "serve", "--site", str(site), "--os-cloud", "large"]
    environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds)}
    process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=subprocess.DEVNULL)
    try:
        while runs(f"http://127.0.0.1:{port}/metrics") < LOOKS:
            sleep(1)
        return peak_mib(process.pid)
    finally:
        process.terminate()
        process.wait()


def runs(url: str) -> float:
    """Looks so far; 0 before it listens."""
    try:
        with urlopen(url) as answer:  # our own portal
            lines = answer.read().decode().splitlines()
    except URLError:
        return 0
    return next(float(line.split()[1]) for line in lines if line.startswith('gpuyard_loop_runs_total{loop="sync"}'))


def one_by_one(api: CloudApi) -> float:
    """Seconds."""
    rows = api.get("placement", "/resource_providers")["resource_providers"]
    began = perf_counter()
    for row in rows[:SAMPLE]:
        for what in ("inventories", "usages"):
            api.get("placement", f"/resource_providers/{row['uuid']}/{what}")
    return perf_counter() - began


if __name__ == "__main__":
    main()
    sys.exit(finish())
