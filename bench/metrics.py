"""What a scrape by Prometheus costs on a site of 1,000 hosts with 8 GPUs each: with totals alone, and with every GPU by
name and an agent in each of 8,000 servers.

python -m bench.metrics
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from fastapi.testclient import TestClient
from tests.support.inventories import driver
from tests.support.portals import ROOMY, booking_portal

from bench.table import Measured, finish, show, sized
from gpuyard.dashboard.sources import Sources
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.samples import report_of
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.model.world import Snapshot
from gpuyard.server.app import create_app
from gpuyard.site.health_rules import SiteHealth

HOSTS, RUNS = sized((1000, 7), (10, 1))
LIMIT_MS, LIMIT_TOTALS_MS = 1500.0, 400.0
"""Prometheus waits 10 s; meanwhile pages share the processor with it."""


def main() -> None:
    gpus = [
        Gpu(f"gpu-{host:04}", f"0000:{at:02x}:00.0", f"pool{host % 8}", "GPU", "10de:1db4", GpuRole.LONE, "C", at)
        for host in range(HOSTS) for at in range(8)
    ]  # fmt: skip
    states, inventory = list(GpuState), InventoryCache()
    inventory.publish(datetime.now(UTC), [GpuStatus(gpu, states[at % len(states)]) for at, gpu in enumerate(gpus)])
    with TemporaryDirectory() as folder:
        portal = booking_portal(Path(folder))
        rules = SiteHealth.model_validate({"agent": {"projects": ["p"]}})
        health = HealthService(HealthStore(portal.ledger.database), portal.ledger, rules, lambda: datetime.now(UTC))
        agents = heard(health, gpus)
        rows: list[Measured] = []
        for details, name, limit in ((False, "totals", LIMIT_TOTALS_MS), (True, "every GPU", LIMIT_MS)):
            settings = replace(ROOMY, anonymous_details=details)
            app = create_app(
                Sources(
                    inventory=inventory,
                    driver=driver(),
                    site_name="site",
                    gpus=gpus,
                    ledger=portal.ledger,
                    sessions=portal.store,
                    people=portal.people,
                    settings=settings,
                    health=HealthServices(health),
                    agents=agents,
                ),
                ["testserver"],
            )
            times, size, lines = scrapes(TestClient(app))
            rows += [
                Measured(f"{name}: processor for a scrape", "ms", times, limit),
                Measured(f"{name}: lines", "", [lines]),
            ]
            rows.append(Measured(f"{name}: size", "kB", [size / 1024]))
        portal.ledger.close()
    show(f"Metrics of {len(gpus)} GPUs", rows)


def heard(health: HealthService, gpus: list[Gpu]) -> AgentService:
    """Each GPU has a server whose agent has said how it is."""
    now = datetime.now(UTC)
    for gpu in gpus:
        health.store.put(GpuHealth(gpu.host, gpu.address, gpu.pool, HealthState.FINE, now))
    holders = {gpu.provider_name: f"s{at}" for at, gpu in enumerate(gpus)}
    snapshot = Snapshot(now, {}, frozenset(), holders, frozenset(), {}, {})
    agents = AgentService(health, GuestStore(health.store.database), gpus, lambda: snapshot, health.rules, health.now)
    for at in range(len(gpus)):
        document = {"v": 1, "boot": "0" * 16, "driver": "1", "seen": 1, "cards": [f"GPU-{at}"]}
        report = report_of(json.dumps(document | {"samples": [[1, [[50, 50, 50, 50, 0, 0, 0]]]]}).encode())
        agents.take(agents.judge(f"s{at}", report))
    return agents


def scrapes(client: TestClient) -> tuple[list[float], int, int]:
    """Milliseconds of a processor that each takes, bytes, lines."""
    times = []
    for _ in range(RUNS + 1):
        began = process_time()
        answer = client.get("/metrics", headers={"Accept-Encoding": "identity"})
        times.append((process_time() - began) * 1000)
    return times[1:], len(answer.content), answer.text.count("\n")


if __name__ == "__main__":
    main()
    sys.exit(finish())
