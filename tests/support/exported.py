"""Portals of one site with all that there is, what Prometheus has of them, and what the shipped rules say of that."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from gpuyard.dashboard.sources import Sources
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.runners.overview import RunnerOverviewCache
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.runtime.control_loops import Driver
from gpuyard.server.app import create_app
from gpuyard.server.tallies import Tallies
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.schema import Site
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.store import HistoryStore
from gpuyard.web.store import PortalStore
from tests.support.accounting import accounting_site
from tests.support.agent_portals import RULES as ASKS_SERVERS
from tests.support.clouds import NoCloud
from tests.support.health_portals import HealthPortal, site_gpus, snapshot_of, status_of
from tests.support.ledgers import NOON, Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY
from tests.support.prometheus import RULES, groups, promtool, rules
from tests.support.runner_portals import site_runners

BUDGET = {"art": {"budget": {"gpu_hours": 6}}}
LONG = 240
"""Minutes after which values are looked at every ten minutes."""
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
Shown = dict[str, float]


@dataclass
class SitePortal(HealthPortal):
    loops: Driver
    tallies: Tallies
    accounting: AccountingService
    runners: RunnerStore
    board: RunnerOverviewCache
    site: Site


def site_portal(folder: Path, inventory: InventoryCache | None = None) -> SitePortal:
    """One of a site with bookings, health, agents, runners and a budget; its database is in the folder. It has no
    loops, and nothing has happened. `inventory`: what another one sees of the same cloud."""
    clock, gpus, who = Clock(), site_gpus(), people()
    ledger = open_ledger(folder, None, clock)
    database = ledger.database
    store, runners, board = PortalStore(database), RunnerStore(database), RunnerOverviewCache()
    service = HealthService(HealthStore(database), ledger, SiteHealth.model_validate(ASKS_SERVERS), clock)
    services = HealthServices(service, MaintenanceService(service, ledger, gpus, lambda: None, NoCloud()))
    if inventory is None:
        inventory = InventoryCache()
        inventory.publish(clock(), [status_of(gpu) for gpu in gpus])
    agents = AgentService(service, GuestStore(database), gpus, lambda: snapshot_of(gpus), service.rules, clock)
    site = accounting_site({"warn_at": [80]}, booking={"timezone": "UTC", "dry_run": False}, projects=BUDGET)
    accounting = AccountingService(site, ledger, History(HistoryStore(database), "UTC"), clock)
    loops, tallies = Driver(), Tallies()
    app = create_app(
        Sources(
            inventory=inventory,
            driver=loops,
            site_name="test-site",
            gpus=gpus,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=replace(ROOMY, anonymous_details=True),
            health=services,
            history=accounting.history,
            accounting=accounting,
            agents=agents,
            runners=RunnerSources(site_runners(folder), runners, board),
        ),
        ["testserver"],
        tallies=tallies,
    )
    return SitePortal(
        app, ledger, store, who, clock, services, inventory, agents, loops, tallies, accounting, runners, board, site
    )


@dataclass
class Scraped:
    """A site's portals on one database, and what Prometheus has of them."""

    portals: Mapping[str, SitePortal]
    """By instance."""
    scrapes: dict[str, dict[int, Shown]] = field(default_factory=dict)
    """Instance -> minute since NOON -> value of each series."""

    @property
    def one(self) -> SitePortal:
        return next(iter(self.portals.values()))

    @property
    def last(self) -> int:
        """Minute of the last scrape; 10 when nothing answered."""
        return max((minute for shown in self.scrapes.values() for minute in shown), default=10)

    def at(self, minute: int) -> None:
        """It is so late, and all portals are read."""
        for instance, portal in self.portals.items():
            portal.clock.now = NOON + timedelta(minutes=minute)
            text = TestClient(portal.app).get("/metrics").text
            self.scrapes.setdefault(instance, {})[minute] = _shown(text, instance)

    def until(self, minute: int, step: int = 5) -> None:
        """Nothing but time goes on."""
        now = self.last if self.scrapes else -step
        for each in range(now + step, minute + 1, step):
            self.at(each)

    def each(self, minutes: int, act: Callable[[], object], step: int = 5) -> None:
        """Time goes on, and `act` happens before each scrape."""
        for minute in range(0, minutes + 1, step):
            for portal in self.portals.values():
                portal.clock.now = NOON + timedelta(minutes=minute)
            act()
            self.at(minute)

    def series(self, names: Collection[str], step: int) -> list[dict[str, str]]:
        """Those of these names in promtool's notation: each value until the next scrape."""
        rows: list[dict[str, str]] = []
        for scrapes in self.scrapes.values():
            matching = sorted(
                {sample for shown in scrapes.values() for sample in shown if sample.partition("{")[0] in names}
            )
            for series in matching:
                values, now = [], math.nan
                for minute in range(max(scrapes) + 1):
                    if minute in scrapes:
                        now = scrapes[minute].get(series, math.nan)
                    if minute % step == 0:
                        values.append("_" if math.isnan(now) else f"{now:.17g}")
                rows.append({"series": series, "values": " ".join(values)})
        return rows


def _shown(text: str, instance: str) -> Shown:
    """An exposition as Prometheus stores it."""
    shown: Shown = {}
    for line in text.splitlines():
        if match := SAMPLE.fullmatch(line):
            name, labels, value = match[1], match[2] or "", float(match[3])
            # promtool begins at the first second of 1970
            origin = NOON.timestamp() if name.endswith("_timestamp_seconds") and value else 0
            shown[f'{name}{{{labels}{"," if labels else ""}job="site",instance="{instance}"}}'] = value - origin
    return shown


def asked_for(query: str) -> set[str]:
    """Names of the series that a query needs, also by way of what is recorded; the others would take most of
    the time."""
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    names = set(re.findall(r"\b(?:gpuyard|gha|github|DCGM)[\w:]*", query))
    return names | {more for name in names & recorded.keys() for more in asked_for(recorded[name])}


def fires(folder: Path, site: Scraped, alert: str) -> bool:
    """Whether an alert does at the last scrape."""
    (query,) = (rule["expr"] for rule in rules() if rule.get("alert") == alert)
    check = {"eval_time": f"{site.last}m", "alertname": alert, "exp_alerts": []}
    complaint = _complaint(folder, site, query, {"alert_rule_test": [check]})
    assert not complaint or f"alertname: {alert}" in complaint, f"it could not be tried: {complaint}"
    return bool(complaint)


def holds(folder: Path, site: Scraped, query: str) -> bool:
    """Whether a query without labels, as ``sum(a) > bool 1``, is 1 at the last scrape and not 0."""
    sample = {"labels": "{}", "value": 1}
    check = {"expr": query, "eval_time": f"{site.last}m", "exp_samples": [sample]}
    complaint = _complaint(folder, site, query, {"promql_expr_test": [check]})
    assert not complaint or "got:" in complaint, f"it could not be tried: {complaint}"
    return not complaint


def _complaint(folder: Path, site: Scraped, query: str, checks: dict[str, Any]) -> str:
    """What promtool finds wrong; empty: nothing."""
    file, step = folder / "tests.yaml", 10 if site.last > LONG else 1
    order = [group["name"] for group in groups()]
    tests = [{"interval": f"{step}m", "input_series": site.series(asked_for(query), step), **checks}]
    content = {"rule_files": [str(RULES)], "evaluation_interval": f"{step}m", "group_eval_order": order, "tests": tests}
    file.write_text(json.dumps(content))
    try:
        promtool("test", "rules", str(file))
    except subprocess.CalledProcessError as error:
        return str(error.stdout + error.stderr)
    return ""
