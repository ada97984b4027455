"""What the portal shows things from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.cloud.calls import CloudCalls
from gpuyard.cloud.people import People
from gpuyard.history.reading import History
from gpuyard.keeper.accounting import AccountingDesk
from gpuyard.keeper.bootable import BootableDesk
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.health_desk import HealthDesk
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.counts import Counts
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import HostFacts
from gpuyard.portal.settings import PortalSettings
from gpuyard.runners.board import RunnerYard
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import SiteRunners


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class RunnerSources:
    """Of a site that has runners for GitHub jobs."""

    site: SiteRunners
    store: RunnerStore
    yard: RunnerYard
    kept: Callable[[], None] = lambda: None
    """Called, from any thread, when a webhook has been kept: somebody shall look."""


@dataclass(frozen=True)
class Tallies:
    """What other parts of the process have counted since it began; zeros where nobody counts."""

    cloud: CloudCalls = field(default_factory=CloudCalls)
    told: Counts = field(default_factory=Counts)
    """Messages, as keeper/messages.py counts them."""
    reclaims: Counts = field(default_factory=Counts)
    """Steps, as keeper/cases.py counts them."""


@dataclass(frozen=True)
class Sources:
    yard: Yard
    driver: Driver
    site_name: str
    gpus: Sequence[Gpu]
    """Every GPU of the site, so that filters and metrics know all pools and hosts before the cloud was seen."""
    now: Callable[[], datetime] = utc_now
    """UTC; tests set it."""
    ledger: Ledger | None = None
    """None when the site has no bookings; then there is no login either."""
    people: People | None = None
    """Who may log in; with a ledger always there."""
    settings: PortalSettings = field(default_factory=PortalSettings)
    runners: RunnerSources | None = None
    """None when the site has none."""
    health: HealthDesk | None = None
    """None when the site does not follow it; with it there is a ledger."""
    facts: Mapping[str, HostFacts] = field(default_factory=dict)
    """Of hosts, by name, as they were recorded for the site file."""
    bootable: BootableDesk | None = None
    """Says what could be started now; None where no cloud can be asked."""
    history: History | None = None
    """Who had which GPU when; None where that is not kept. With it there is a ledger."""
    accounting: AccountingDesk | None = None
    """With a ledger whose site follows what GPUs are used for."""
    checks: Callable[[str], Sequence[Finding]] | None = None
    """What was found in the recording of a host, by name; None where there are no recordings."""
