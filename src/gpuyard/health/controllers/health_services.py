"""The services of health that a site's portal shows: GPUs always, the others where the site has them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.controllers.scrubs import ScrubService


@dataclass(frozen=True)
class HealthServices:
    """The services of health of one site. They share its store."""

    gpus: HealthService
    """Takes observations of GPUs, and operators' requests."""
    maintenance: MaintenanceService | None = None
    """Plans maintenances of hosts."""
    scrubs: ScrubService | None = None
    """Gives scrub orders to hosts."""
    acceptance: AcceptanceService | None = None
    """Takes requests to accept GPUs by a server; None: the site has no project for that."""
