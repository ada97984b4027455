"""What the portal shows things from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.cloud.people import People
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.gpu import Gpu
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
