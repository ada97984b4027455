"""A portal whose site asks servers how their GPUs are, for tests and measurements: its cloud is what the test says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.dashboard.sources import Sources
from gpuyard.health.controllers.agent_controller import AgentController
from gpuyard.health.controllers.agent_service import ENROL, AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import new_token
from gpuyard.model.gpu import Gpu
from gpuyard.model.world import HostService, Server, Snapshot
from gpuyard.openstack.errors import CloudError
from gpuyard.server.app import create_app
from gpuyard.site.health_rules import SiteHealth
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore
from tests.support.inventories import GPUS as YARD
from tests.support.inventories import LEADER_A, LONE, OTHER, PEER_A, driver, filled
from tests.support.ledgers import Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal

PORTAL = "https://gpus.example.org"
BOOT = "0123456789abcdef"
SERVERS = {"s1": (LEADER_A, PEER_A), "s2": (LONE,), "s3": (OTHER,)}
"""Server -> its GPUs. s1 is of physics, s2 of biology, s3 of a project that is not asked."""
PROJECTS = {"s1": "physics", "s2": "biology", "s3": "admin"}
RULES = {"agent": {"projects": ["physics", "p-biology"], "period": 10}, "idle": {"after": "10 min"}}


@dataclass
class Cloud:
    """Servers with their GPUs and what their metadata says. It is the AgentWords of the controller, too."""

    clock: Clock
    has: dict[str, Sequence[Gpu]] = field(default_factory=lambda: dict(SERVERS))
    words: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    """Servers whose metadata takes nothing more."""
    broken: set[str] = field(default_factory=set)
    """Servers whose metadata Nova does not write, by a fault of its own."""
    refused: list[str] = field(default_factory=list)
    """Servers for which it was asked to, each time."""
    written: list[str] = field(default_factory=list)
    services: dict[str, HostService] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        servers = {
            id: Server(
                id, f"name-{id}", self.status.get(id, "ACTIVE"), gpus[0].host if gpus else None,
                PROJECTS.get(id, "physics"), "ada", "gpu", user_id="u-ada",
                project_id="p-" + PROJECTS.get(id, "physics"), agent=self.words.get(id, ""),
            )
            for id, gpus in self.has.items()
        }  # fmt: skip
        holders = {gpu.provider_name: id for id, gpus in self.has.items() for gpu in gpus}
        return Snapshot(self.clock(), {}, frozenset(), holders, frozenset(), {}, servers, self.services)

    def put(self, server_id: str, text: str) -> bool:
        if server_id in self.broken:
            self.refused.append(server_id)
            raise CloudError("cloud test: POST compute: 500 Unexpected API Error", 500)
        if server_id in self.full:
            return False
        self.words[server_id] = text
        self.written.append(server_id)
        return True

    def remove(self, server_id: str) -> bool:
        self.written.append(server_id)
        return self.words.pop(server_id, None) is not None


@dataclass
class AgentPortal(BookingPortal):
    cloud: Cloud
    service: AgentService
    controller: AgentController
    health: HealthService

    def code(self, server: str) -> str:
        """One that is good."""
        text, digest = new_token(ENROL)
        self.service.store.add_token(HealthToken(digest, ENROL, server, self.clock()))
        return text

    def token(self, server: str) -> str:
        return self.service.enrol(server, self.code(server))

    def restarted(self) -> AgentService:
        """What another process would know."""
        service = self.service
        return AgentService(self.health, service.guests, YARD, self.cloud.snapshot, self.health.rules, self.clock)


def agent_portal(folder: Path, *, url: str = "", rules: Mapping[str, Any] = RULES, settings: PortalSettings = ROOMY,
                 gpus: Sequence[Gpu] = YARD) -> AgentPortal:  # fmt: skip
    """Its database is in the folder, or at the URL."""
    clock = Clock()
    ledger = open_ledger(url or folder, None, clock)
    health = HealthService(HealthStore(ledger.database), ledger, SiteHealth.model_validate(rules), clock)
    cloud = Cloud(clock)
    service = AgentService(health, GuestStore(ledger.database), gpus, cloud.snapshot, health.rules, clock)
    controller = AgentController(service, cloud, PORTAL, clock)
    store, who = PortalStore(ledger.database), people()
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=YARD,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=settings,
            agents=service,
        ),
        ["testserver", "127.0.0.1"],
    )
    return AgentPortal(app, ledger, store, who, clock, cloud, service, controller, health)


def report(
    *rows: list[int | None] | None, number: int = 10, cards: str = "abcdefgh", boot: str = BOOT, **more: Any
) -> bytes:
    """Of GPUs ``GPU-a``, ..., one for each row; without rows one that works."""
    readings = list(rows) or [[50, 50, 50, 50, 0, 0, 0]]
    body = {
        "v": 1, "boot": boot, "driver": "580.95.05", "seen": len(readings),
        "cards": [f"GPU-{card}" for card in cards[: len(readings)]], "samples": [[number, readings]],
    }  # fmt: skip
    return json.dumps(body | more, separators=(",", ":")).encode()


def sent(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
