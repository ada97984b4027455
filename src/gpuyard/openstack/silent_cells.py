"""Lists hypervisors and checks cells while a cell of Nova does not answer.

Nova asks all cells for their services at once and marks those of a cell that is silent. For hypervisors it asks one
cell after another, and the first that fails ends the list for all hosts (nova 34.0.0, compute/api.py,
`HostAPI.service_get_all` and `compute_node_get_all`). So while any service is silent that list is not asked for, and
hypervisors are made of services and of root providers in Placement, which knows no cells.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.model.world import HostService
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import Hypervisor, service_of


def list_hypervisors(cloud: Reader, services: Mapping[str, HostService]) -> list[Hypervisor]:
    """Return all hypervisors. While a cell is silent: those of `services` with a root provider, without a type, and
    `busy`, since nobody can say that they are not. Raises CloudError."""
    if not any(service.silent for service in services.values()):
        return cloud.hypervisors()
    roots = {provider.name: provider.id for provider in cloud.providers().values() if provider.id == provider.root_id}
    return [
        Hypervisor(roots[host], host, service.up, service.enabled, service.disabled_reason, type="", busy=True)
        for host, service in services.items()
        if host in roots
    ]


def all_cells_answer(api: CloudApi) -> bool:
    """Return whether no cell with a nova-compute is silent. Raises CloudError."""
    rows = api.get("compute", "/os-services", binary="nova-compute")["services"]
    return not any(service_of(row).silent for row in rows)
