"""How soon a bad GPU is out of use, on a lab of its own; and what following ten thousand GPUs costs.

python -m bench.health
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic, perf_counter

from tests.support.booked_sites import ShiftedClock, booked_site, open_ledger

from bench.lab import running_lab
from bench.table import Measured, finish, show, sized
from gpuyard.bookings.controllers.bookings import bookings_loop
from gpuyard.health.controllers.health import Watched, open_health
from gpuyard.health.limits import SitePlace
from gpuyard.health.planner import Circumstances, GpuObservation, plan_health
from gpuyard.health.records import GpuHealth, HealthState, Observation
from gpuyard.model.booking import Person
from gpuyard.model.gpu import provider_name
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.runtime.control_loops import Driver
from gpuyard.site.health_rules import SiteHealth
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise

LIMIT_QUARANTINE_S = 2
LIMIT_UNDER_LOAD_S = 10
LOADERS = sized(4, 2)
"""Threads that start servers and delete them again, as fast as Nova goes."""
ROUNDS = sized(8, 1)
LOADED_POOL, LOADED_FLAVOR = "v100", "gpu_tiny"
PATIENCE_S = 60.0
MANY = sized(10_000, 200)
PERIOD_S = 5.0
OPERATOR = Person("", "operator", "", "", frozenset({"admin"}))


def main() -> None:
    show(f"A look at the health of {MANY} GPUs", [Measured("planned", "ms", list(planned()), 1000 * PERIOD_S / 2)])
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder, running_lab() as (running, _):
        clouds = running.lab.clouds_file
        rows = quarantined(connect(ADMIN_CLOUD, clouds), connect(DEMO_CLOUD, clouds), Path(folder))
        show("A GPU that does not answer, from the moment at which it is told", rows)


def planned() -> list[float]:
    """Milliseconds of a plan in which some things have happened."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    places = [SitePlace(f"h{n // 8}", f"0000:{n % 8:02x}:00.0", "v100", str(n)) for n in range(MANY)]
    records = [GpuHealth(place.host, place.address, place.pool, HealthState.FINE, now, version=1) for place in places]
    observed = {place.name: GpuObservation("server" if n % 3 else "") for n, place in enumerate(places)}
    heard = {place.host: now for place in places}
    observations = [
        Observation(place.host, place.address, "reported", now, "", "", n) for n, place in enumerate(places[:100], 1)
    ]
    around = Circumstances(now + timedelta(seconds=1), observed, None, heard)
    rules, taken = SiteHealth.model_validate({}), []
    for _ in range(ROUNDS):
        began = perf_counter()
        plan_health(places, records, observations, rules, around)
        taken.append(1000 * (perf_counter() - began))
    return taken


@dataclass(frozen=True)
class Timing:
    """Seconds from what was observed, at the desk."""

    recorded: float
    """Until the store says that it is kept back: from then on no runner's server is asked for."""
    held: float
    """Until Placement has it reserved: from then on Nova gives it to nobody."""


def quarantined(operator: CloudApi, user: CloudApi, folder: Path) -> list[Measured]:
    """With both loops at work: while nothing else goes on, and while servers are started and deleted all the time."""
    projects = {"demo": {"gpus": {LOADED_POOL: 6}}}
    compiled = booked_site(folder, {"must_book": False}, projects, health={"quarantine": 100})
    clock = ShiftedClock()
    rules = compiled.site.health
    assert rules is not None
    with closing(open_ledger(folder, compiled, clock)) as ledger:
        taker = SnapshotTaker(operator, compiled.gpus, compiled.flavors)
        watched, driver = open_health(compiled, rules, operator, ledger, taker, clock), Driver()
        holding = driver.register(bookings_loop(watched.bookings, PERIOD_S))
        driver.register(watched.loop(PERIOD_S, holding))
        driver.start()
        try:
            _wait(lambda: len(watched.service.store.gpus()) > 0)
            providers = {row["name"]: row["uuid"] for row in operator.providers()}
            alone = [_once(operator, watched, providers) for _ in range(ROUNDS)]
            with load([Exercise(operator, user, compiled, f"load-{number}-") for number in range(LOADERS)]) as started:
                loaded = [_once(operator, watched, providers) for _ in range(ROUNDS)]
        finally:
            driver.stop()
    return [
        Measured("to its state in the store", "s", [timing.recorded for timing in alone], LIMIT_QUARANTINE_S),
        Measured("to reserved in Placement", "s", [timing.held for timing in alone], LIMIT_QUARANTINE_S),
        Measured("to its state, under load", "s", [timing.recorded for timing in loaded], LIMIT_UNDER_LOAD_S),
        Measured("to reserved, under load", "s", [timing.held for timing in loaded], LIMIT_UNDER_LOAD_S),
        Measured("servers started meanwhile", "", [len(started)], 1, least=True),
    ]


@contextmanager
def load(exercises: list[Exercise]) -> Iterator[list[str]]:
    """Servers with V100 come and go for as long as the context lasts. Their ids."""
    ended, started = Event(), list[str]()

    def work(exercise: Exercise) -> None:
        while not ended.is_set():
            with suppress(CloudError):
                boot = exercise.boot(LOADED_FLAVOR)
                started.append(boot.server_id)
                exercise.delete([boot.server_id])

    threads = [Thread(target=work, args=[exercise]) for exercise in exercises]
    for thread in threads:
        thread.start()
    try:
        yield started
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for exercise in exercises:
            exercise.clear()


def _once(operator: CloudApi, watched: Watched, providers: dict[str, str]) -> Timing:
    gpu = next(gpu for gpu in watched.service.store.gpus() if gpu.state is HealthState.FINE and gpu.pool == LOADED_POOL)
    path = f"/resource_providers/{providers[provider_name(gpu.host, gpu.address)]}/inventories"

    def reserved() -> bool:
        return any(row["reserved"] for row in operator.get("placement", path)["inventories"].values())

    began = monotonic()
    watched.service.observe([Observation(gpu.host, gpu.address, "no-answer", watched.service.now(), "ffffffff")])
    _wait(lambda: (gpu.host, gpu.address) in watched.service.kept_back())
    recorded = monotonic() - began
    _wait(reserved)
    held = monotonic() - began
    watched.service.release(gpu.name, "measured", OPERATOR)
    _wait(lambda: not reserved())
    return Timing(recorded, held)


def _wait(until: Callable[[], bool]) -> float:
    began = monotonic()
    while not until():
        if monotonic() - began > PATIENCE_S:
            raise TimeoutError("the lab takes too long")
        Event().wait(0.02)
    return monotonic() - began


if __name__ == "__main__":
    main()
    sys.exit(finish())
