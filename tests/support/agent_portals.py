"""A portal whose site asks servers how their GPUs are, for tests and measurements: its cloud is what the test says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import new_token
from gpuyard.keeper.agent_desk import ENROL, AgentDesk
from gpuyard.keeper.agents import AgentKeeper
from gpuyard.keeper.health_desk import HealthDesk
from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Server, Snapshot
from gpuyard.portal.app import create_app
from gpuyard.portal.settings import PortalSettings
from gpuyard.portal.store import PortalStore
from gpuyard.site.health_rules import SiteHealth
from tests.support.ledgers import Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal
from tests.support.yards import GPUS as YARD
from tests.support.yards import LEADER_A, LONE, OTHER, PEER_A, driver, filled

PORTAL = "https://gpus.example.org"
BOOT = "0123456789abcdef"
SERVERS = {"s1": (LEADER_A, PEER_A), "s2": (LONE,), "s3": (OTHER,)}
"""Server -> its GPUs. s1 is of physics, s2 of biology, s3 of a project that is not asked."""
PROJECTS = {"s1": "physics", "s2": "biology", "s3": "admin"}
RULES = {"agent": {"projects": ["physics", "p-biology"], "period": 10}, "idle": {"after": "10 min"}}


@dataclass
class Cloud:
    """Servers with their GPUs and what their metadata says. It is the AgentWords of the keeper, too."""

    clock: Clock
    has: dict[str, Sequence[Gpu]] = field(default_factory=lambda: dict(SERVERS))
    words: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    """Servers whose metadata takes nothing more."""
    written: list[str] = field(default_factory=list)

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
        return Snapshot(self.clock(), {}, frozenset(), holders, frozenset(), {}, servers)

    def put(self, server_id: str, text: str) -> bool:
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
    desk: AgentDesk
    keeper: AgentKeeper
    health: HealthDesk

    def code(self, server: str) -> str:
        """One that is good."""
        text, digest = new_token(ENROL)
        self.desk.store.add_token(HealthToken(digest, ENROL, server, self.clock()))
        return text

    def token(self, server: str) -> str:
        return self.desk.enrol(server, self.code(server))

    def restarted(self) -> AgentDesk:
        """What another process would know."""
        desk = self.desk
        return AgentDesk(self.health, desk.guests, YARD, self.cloud.snapshot, self.health.rules, self.clock)


def agent_portal(folder: Path, *, url: str = "", rules: Mapping[str, Any] = RULES, settings: PortalSettings = ROOMY,
                 gpus: Sequence[Gpu] = YARD) -> AgentPortal:  # fmt: skip
    """Its database is in the folder, or at the URL."""
    clock = Clock()
    ledger = open_ledger(url or folder, None, clock)
    health = HealthDesk(HealthStore(ledger.database), ledger, SiteHealth.model_validate(rules), clock)
    cloud = Cloud(clock)
    desk = AgentDesk(health, GuestStore(ledger.database), gpus, cloud.snapshot, health.rules, clock)
    keeper = AgentKeeper(desk, cloud, PORTAL, clock)
    store, who = PortalStore(ledger.database), people()
    app = create_app(
        filled(), driver(), "test-site", YARD, ["testserver", "127.0.0.1"], clock,
        ledger=ledger, store=store, people=who, settings=settings, agents=desk,
    )  # fmt: skip
    return AgentPortal(app, ledger, store, who, clock, cloud, desk, keeper, health)


def report(
    *rows: list[int | None] | None, number: int = 10, cards: str = "abcdefgh", boot: str = BOOT, **more: Any
) -> bytes:
    """Of GPUs ``GPU-a``, ..., one for each row; without rows one that works."""
    found = list(rows) or [[50, 50, 50, 50, 0, 0, 0]]
    told = {
        "v": 1, "boot": boot, "driver": "580.95.05", "seen": len(found),
        "cards": [f"GPU-{card}" for card in cards[: len(found)]], "samples": [[number, found]],
    }  # fmt: skip
    return json.dumps(told | more, separators=(",", ":")).encode()


def sent(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
