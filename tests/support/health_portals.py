"""A portal of a site that follows the health of its GPUs, with something to show, for tests and looks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.controllers.capacity import AsksCapacity, CapacityService
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.health.controllers.agent_service import ENROL, AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.controllers.scrubs import ScrubService
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState, HealthToken, HostContact
from gpuyard.health.samples import report_of
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.store.tries import TryStore
from gpuyard.health.tokens import new_token
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.model.host import HostFacts
from gpuyard.model.signals import Source
from gpuyard.model.world import Server, Snapshot
from gpuyard.runners.overview import RunnerOverviewCache
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.server.app import create_app
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.runner_rules import SiteRunners
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.store import HistoryStore
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore
from tests.support.clouds import NoCloud
from tests.support.inventories import NASTY, driver
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, SITE, Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal

MINUTE = timedelta(minutes=1)
MODELS = {"v100": ("Tesla V100 PCIe 16GB", "10de:1db4"), "t4": ("Tesla T4", "10de:1eb8")}


@dataclass
class HealthPortal(BookingPortal):
    services: HealthServices
    inventory: InventoryCache
    agents: AgentService | None
    """Where servers are asked what their GPUs do; it sees ADA's."""

    @property
    def service(self) -> HealthService:
        return self.services.gpus


def site_gpus() -> tuple[Gpu, ...]:
    """Those of the ledgers of tests: two pairs and two lone V100, two T4."""
    gpus = []
    for pool, slots in SITE.items():
        model, ids = MODELS[pool]
        for group, (host, addresses) in enumerate(slots):
            for index, address in enumerate(addresses):
                role = GpuRole.LONE if len(addresses) == 1 else GpuRole.PEER if index else GpuRole.LEADER
                letter = None if role is GpuRole.LONE else "AB"[group]
                gpus.append(Gpu(host, address, pool, model, ids, role, f"CUSTOM_GPU_{pool.upper()}", group, letter))
    return tuple(gpus)


def health_portal(
    folder: Path,
    settings: PortalSettings = ROOMY,
    rules: SiteHealth | None = None,
    runners: SiteRunners | None = None,
    capacity: AsksCapacity | None = None,
    facts: Mapping[str, HostFacts] | None = None,
    checks: Callable[[str], Sequence[Finding]] | None = None,
    *,
    scrubs: bool = True,
    acceptance: bool = False,
) -> HealthPortal:
    """Its database is in the folder. ADA has a server on gpu-1/0000:a3:00.0; nothing is known of any GPU. `capacity`:
    what could be started is asked there."""
    clock, gpus = Clock(), site_gpus()
    ledger = open_ledger(folder, None, clock)
    store, who, inventory = PortalStore(ledger.database), people(), InventoryCache()
    service = HealthService(HealthStore(ledger.database), ledger, rules or SiteHealth.model_validate({}), clock)
    services = HealthServices(
        service,
        MaintenanceService(service, ledger, gpus, lambda: None, NoCloud()),
        ScrubService(service, ledger, gpus, {"v100"}) if scrubs else None,
        AcceptanceService(service.store, TryStore(ledger.database), ledger, clock) if acceptance else None,
    )
    inventory.publish(clock(), [status_of(gpu) for gpu in gpus])
    agents = None
    if service.rules.agent is not None:
        agents = AgentService(
            service, GuestStore(ledger.database), gpus, lambda: snapshot_of(gpus), service.rules, clock
        )
    app = create_app(
        Sources(
            inventory=inventory,
            driver=driver(),
            site_name="test-site",
            gpus=gpus,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=settings,
            health=services,
            history=History(HistoryStore(ledger.database), "UTC"),
            agents=agents,
            facts=facts or {},
            checks=checks,
            runners=RunnerSources(runners, RunnerStore(ledger.database), RunnerOverviewCache()) if runners else None,
            bootable=CapacityService(capacity, clock, ledger) if capacity else None,
        ),
        ["testserver", "127.0.0.1"],
    )
    return HealthPortal(app, ledger, store, who, clock, services, inventory, agents)


ADAS = "0000:a3:00.0"
SERVER = "5e2a0000-ada"


def status_of(gpu: Gpu) -> GpuStatus:
    if gpu.address == ADAS:
        claim = Claim(SERVER, "training", "ACTIVE", ADA.project, ADA.user, NOON, ADA.project_id, ADA.user_id)
        return GpuStatus(gpu, GpuState.CLAIMED, "", claim)
    return GpuStatus(gpu, GpuState.FREE)


def snapshot_of(gpus: Sequence[Gpu]) -> Snapshot:
    """A cloud with nothing in it but ADA's server."""
    (own,) = (gpu for gpu in gpus if gpu.address == ADAS)
    server = Server(SERVER, "training", "ACTIVE", own.host, ADA.project, ADA.user, "gpu", user_id=ADA.user_id,
                    project_id=ADA.project_id)  # fmt: skip
    return Snapshot(NOON, {}, frozenset(), {own.provider_name: SERVER}, frozenset(), {}, {SERVER: server})


def says(portal: HealthPortal, use: int, minutes: int, temperature: int = 41) -> None:
    """The agent of ADA's server, for the last so many minutes."""
    agents, now = portal.agents, portal.clock.now
    assert agents is not None
    if SERVER not in agents.servers():
        text, digest = new_token(ENROL)
        agents.store.add_token(HealthToken(digest, ENROL, SERVER, now))
        agents.enrol(SERVER, text)
    for minute in range(minutes, -1, -1):
        portal.clock.now = now - minute * MINUTE
        number = int((portal.clock.now - NOON + DAY).total_seconds() * 10)
        body = {"v": 1, "boot": "0123456789abcdef", "driver": "580.95.05", "seen": 1, "cards": ["GPU-a"],
                "samples": [[number, [[use, 12, temperature, 50, 0, 0, 0]]]]}  # fmt: skip
        agents.take(agents.judge(SERVER, report_of(json.dumps(body).encode())))


def fine(portal: HealthPortal, gpus: Sequence[Gpu] | None = None) -> None:
    """Every GPU is fine, and every host was heard a moment ago."""
    store = portal.service.store
    for gpu in site_gpus() if gpus is None else gpus:
        store.put(GpuHealth(gpu.host, gpu.address, gpu.pool, HealthState.FINE, NOON - 30 * DAY))
    for host in ("gpu-1", "gpu-2", "gpu-3"):
        store.hear(HostContact(host, portal.clock() - timedelta(seconds=20)))


def turn(
    portal: HealthPortal, gpu: str, state: HealthState, ago: timedelta, cause: str, *, signal: str = "",
    evidence: str = "", by: str = "", source: Source | None = None, card: str = "", **changes: object,
) -> None:  # fmt: skip
    """A GPU in another state since so long, with the line of its record; whether or not life has a way there."""
    old, time = portal.service.gpu(gpu), NOON - ago
    event = HealthEvent(
        old.host, old.address, card or old.card, time, old.state, state, cause, signal, evidence, by, source
    )  # fmt: skip
    new = replace(
        old, state=state, since=time, cause=cause, signal=signal, by=by, card=card or old.card, **changes  # type: ignore[arg-type]
    )  # fmt: skip
    assert portal.service.store.put(new, event)


def fill(portal: HealthPortal) -> None:
    """Much at once: a card that fell off twice, one in repair, a suspect, a silent host, hostile words."""
    fine(portal)
    a, b, c, d = "gpu-1/0000:27:00.0", "gpu-1/0000:c3:00.0", f"gpu-1/{ADAS}", "gpu-2/0000:18:00.0"
    lost = {"signal": "no-answer", "source": Source.HOST, "evidence": "config space reads ffffffff"}
    turn(portal, a, HealthState.QUARANTINED, 20 * DAY, "its config space reads 0xff", card="1323022081234", **lost)  # type: ignore[arg-type]
    turn(portal, a, HealthState.IN_REPAIR, 19 * DAY, "reseated, host restarted", by="root", source=Source.PERSON)
    turn(portal, a, HealthState.FINE, 18 * DAY, "it was reseated, and ran a night", by="root", source=Source.PERSON)
    turn(portal, a, HealthState.IN_USE, 17 * DAY, "server training has it")
    turn(portal, a, HealthState.QUARANTINED, 9 * HOUR, "its config space reads 0xff", **lost)  # type: ignore[arg-type]
    turn(
        portal, b, HealthState.QUARANTINED, 3 * DAY, "a fatal or non-fatal AER error more", signal="aer-fatal",
        source=Source.HOST, evidence="fatal 1, was 0", card="1323022085555",
    )  # fmt: skip
    turn(portal, b, HealthState.IN_REPAIR, 2 * DAY, "asked the vendor for another one", by="root", keeper="root")
    turn(portal, c, HealthState.SUSPECT, 4 * MINUTE, NASTY, signal="reported", by=BOB.user, source=Source.PERSON,
         evidence=NASTY, until=NOON + 6 * MINUTE, relapses=2)  # fmt: skip
    turn(portal, d, HealthState.QUARANTINED, 2 * MINUTE, "its reset failed", signal="scrub-failed", source=Source.SCRUB)
    turn(portal, "gpu-3/0000:18:00.0", HealthState.IN_USE, HOUR, "server x has it", asked=True)
    portal.service.store.hear(HostContact("gpu-3", NOON - 3 * HOUR))
