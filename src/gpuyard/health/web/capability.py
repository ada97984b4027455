"""The parts of the portal that health adds: states of GPUs, reports of hosts and guests, and the use of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.web import (
    acceptance_api,
    agents_api,
    health_api,
    health_intake,
    health_pages,
    maintenance_api,
    scrub_intake,
    uses_api,
)
from gpuyard.health.web.agent_intake import AgentIntake
from gpuyard.health.web.agent_metrics import AgentCollector
from gpuyard.health.web.health_api import FaultReports
from gpuyard.health.web.health_metrics import HealthCollector
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.openstack.people import People
from gpuyard.web.capability import Capability
from gpuyard.web.outcomes import Outcomes


class HealthCapability(Capability):
    """The routes, pages and metrics of a site that follows the health of its GPUs; it has bookings."""

    tags = ("health",)

    def __init__(
        self,
        context: InventoryContext,
        services: HealthServices,
        ledger: Ledger,
        people: People,
        rows: BookingRows,
        of_guests: Sequence[Outcomes],
    ) -> None:
        """`of_guests`: outcomes of guests' reports, for the metrics."""
        self._context, self._services, self._ledger, self._people, self._rows = context, services, ledger, people, rows
        self.reader = HealthReader(context, services, ledger)
        self.faults = FaultReports(self.reader, services.gpus)
        self._outcomes = [*of_guests]

    def install(self, app: FastAPI) -> None:
        context, services, service = self._context, self._services, self._services.gpus
        health_api.install(app, self.reader, service, self.faults, self._people, self._rows)
        acceptance_api.install(app, services.acceptance)
        health_pages.install(app, context, self.reader, services.maintenance)
        if services.maintenance is not None:
            maintenance_api.install(app, services.maintenance)
        hosts = HostReportIntake(service, {gpu.host for gpu in context.gpus})
        self._outcomes.append(health_intake.install(app, context, hosts, service.store, self._ledger))
        if services.scrubs is not None:
            self._outcomes.append(scrub_intake.install(app, context, services.scrubs, service.store))

    def collectors(self) -> Iterable[Collector]:
        yield HealthCollector(self._services, self._context.settings.anonymous_details, self._outcomes)


class GuestsCapability(Capability):
    """The reports of guests about their GPUs, of a site that has bookings. Where none reports, /v1/uses says so."""

    def __init__(self, context: InventoryContext, ledger: Ledger, agents: AgentService | None) -> None:
        self._context, self._ledger, self._agents = context, ledger, agents
        self._intake = AgentIntake(agents, context.settings.trusted_gateways) if agents is not None else None

    @property
    def outcomes(self) -> Sequence[Outcomes]:
        """The outcomes of guests' reports."""
        return self._intake.outcomes if self._intake is not None else ()

    @property
    def first_fast_paths(self) -> Mapping[str, ASGIApp]:
        return self._intake.fast_paths if self._intake is not None else {}

    def install(self, app: FastAPI) -> None:
        uses_api.install(app, self._ledger, self._agents)
        if self._agents is not None and self._intake is not None:
            agents_api.install(app, self._agents, self._intake)

    def collectors(self) -> Iterable[Collector]:
        if self._agents is not None:
            yield AgentCollector(self._agents, self._context.gpus, self._context.settings.anonymous_details)
