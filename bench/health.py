"""How soon a bad GPU is out of use, on a lab of its own; and what following ten thousand GPUs costs.

python -m bench.health
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic, perf_counter

from tests.support.booked_sites import ShiftedClock, booked_site, open_ledger
from tests.support.ports import free_port_base
from tests.support.sites import plain_site

from bench.table import Measured, show
from gpuyard.cloud.api import CloudApi, connect
from gpuyard.cloud.observe.snapshot import SnapshotTaker
from gpuyard.health.planner import Circumstances, GpuSight, SitePlace, plan_health
from gpuyard.health.records import GpuHealth, HealthState, Observation
from gpuyard.keeper.bookings import bookings_loop
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.health import Watched, open_health
from gpuyard.lab import control, portal
from gpuyard.lab.clients import ADMIN_CLOUD
from gpuyard.lab.settings import LabSettings, remembered
from gpuyard.model.booking import Person
from gpuyard.model.gpu import provider_name
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.load import load_site

LIMIT_QUARANTINE_S = 2
ROUNDS = 5
PATIENCE_S = 60.0
MANY = 10_000
PERIOD_S = 5.0
OPERATOR = Person("", "operator", "", "", frozenset({"admin"}))


def main() -> None:
    show(f"A look at the health of {MANY} GPUs", [Measured("planned", "ms", list(planned()), 1000 * PERIOD_S / 2)])
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        settings = LabSettings(Path(folder) / "lab", port_base=free_port_base(), site=plain_site())
        try:
            control.up(settings)
            lab = remembered(settings.state)
            assert lab is not None
            portal.apply_site(lab, load_site(plain_site()))
            seconds = quarantined(connect(ADMIN_CLOUD, lab.clouds_file), Path(folder))
            row = Measured("observed to reserved in Placement", "s", seconds, LIMIT_QUARANTINE_S)
            show("A GPU that does not answer", [row])
        finally:
            control.down(settings)


def planned() -> list[float]:
    """Milliseconds of a plan in which some things have happened."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    places = [SitePlace(f"h{n // 8}", f"0000:{n % 8:02x}:00.0", "v100", str(n)) for n in range(MANY)]
    records = [GpuHealth(one.host, one.address, one.pool, HealthState.FINE, now, version=1) for one in places]
    sights = {one.name: GpuSight("server" if n % 3 else "") for n, one in enumerate(places)}
    heard = {one.host: now for one in places}
    seen = [Observation(one.host, one.address, "reported", now, "", "", n) for n, one in enumerate(places[:100], 1)]
    around = Circumstances(now + timedelta(seconds=1), sights, None, heard)
    rules, taken = SiteHealth.model_validate({}), []
    for _ in range(ROUNDS):
        began = perf_counter()
        plan_health(places, records, seen, rules, around)
        taken.append(1000 * (perf_counter() - began))
    return taken


def quarantined(operator: CloudApi, folder: Path) -> list[float]:
    """Seconds from what was observed, at the desk, until Placement has the GPU reserved; with both loops at work."""
    compiled, clock = booked_site(folder, {}, health={}), ShiftedClock()
    rules = compiled.site.health
    assert rules is not None
    with closing(open_ledger(folder, compiled, clock)) as ledger:
        taker = SnapshotTaker(operator, compiled.gpus, compiled.flavors)
        watched, driver = open_health(compiled, rules, operator, ledger, taker, clock), Driver()
        holding = driver.register(bookings_loop(watched.bookings, PERIOD_S))
        driver.register(watched.loop(PERIOD_S, holding))
        driver.start()
        try:
            _wait(lambda: len(watched.desk.store.gpus()) > 0)
            providers = {row["name"]: row["uuid"] for row in operator.providers()}
            return [_once(operator, watched, providers) for _ in range(ROUNDS)]
        finally:
            driver.stop()


def _once(operator: CloudApi, watched: Watched, providers: dict[str, str]) -> float:
    gpu = next(one for one in watched.desk.store.gpus() if one.state is HealthState.FINE)
    path = f"/resource_providers/{providers[provider_name(gpu.host, gpu.address)]}/inventories"

    def reserved() -> bool:
        return any(row["reserved"] for row in operator.get("placement", path)["inventories"].values())

    watched.desk.observe([Observation(gpu.host, gpu.address, "no-answer", watched.desk.now(), "ffffffff")])
    seconds = _wait(reserved)
    watched.desk.release(gpu.name, "measured", OPERATOR)
    _wait(lambda: not reserved())
    return seconds


def _wait(until: Callable[[], bool]) -> float:
    began = monotonic()
    while not until():
        if monotonic() - began > PATIENCE_S:
            raise TimeoutError("the lab takes too long")
        Event().wait(0.02)
    return monotonic() - began


if __name__ == "__main__":
    main()
