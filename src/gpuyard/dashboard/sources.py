"""The services behind a site's portal: one of each capability, or None where the site does not have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.model.finding import Finding
from gpuyard.model.host import HostFacts
from gpuyard.openstack.people import People
from gpuyard.openstack.personal import PersonalClouds
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.site.objects import FlavorObject
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.web.store import PortalStore


@dataclass(frozen=True, kw_only=True)
class Sources(InventoryContext):
    ledger: Ledger | None = None
    """None when the site has no bookings; then there is no login either, and all endpoints read only. With it all but
    the addresses that web/access.py names need a person whom `people` knows."""
    people: People | None = None
    """People who may log in; with a ledger always there."""
    sessions: PortalStore | None = None
    """Sessions of people who are logged in; with a ledger always there."""
    flavors: Sequence[FlavorObject] = ()
    """Flavors of servers on booked GPUs."""
    clouds: PersonalClouds | None = None
    """The cloud in people's own names; None where pages start no servers."""
    runners: RunnerSources | None = None
    """None when the site has none."""
    health: HealthServices | None = None
    """None when the site does not follow it; with it there is a ledger."""
    agents: AgentService | None = None
    """Reports of guests; None where they are not asked. With it there is a ledger."""
    facts: Mapping[str, HostFacts] = field(default_factory=dict)
    """Facts of hosts, by name, as they were recorded for the site file."""
    bootable: CapacityService | None = None
    """Says what could be started now; None where no cloud can be asked."""
    history: History | None = None
    """History of GPUs; None where that is not kept. With it there is a ledger."""
    accounting: AccountingService | None = None
    """Accounts of use and budgets; None where the site keeps none. With it there is a ledger."""
    checks: Callable[[str], Sequence[Finding]] | None = None
    """Findings in the recording of a host, by name; None where there are no recordings."""
