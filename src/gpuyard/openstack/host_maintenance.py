"""Nova's part of a host's maintenance: keeps new servers away, and reads which ones are there."""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.host_servers import read_coming, read_host_servers
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import ServerRow


@dataclass(frozen=True)
class MaintenanceCloud:
    """The cloud of a site. Methods raise CloudError, and BlockedError for what cannot be known or done now."""

    api: CloudApi

    def close(self, host: str) -> None:
        ComputeService(self.api, host).close_for_maintenance()

    def open(self, host: str) -> None:
        ComputeService(self.api, host).open_after_maintenance()

    def servers(self, host: str, provider: str) -> dict[str, ServerRow]:
        """Return the servers on the host, those that keep a place there, and those on their way to it, by id.
        `provider`: id of the host in Placement."""
        with Reader(self.api) as cloud:
            coming = read_coming(cloud, host, provider)  # first: what arrives meanwhile is on the host then
            return {row.id: row for row in (*coming, *read_host_servers(cloud, host).rows)}
