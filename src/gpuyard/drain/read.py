"""Reads the facts that moves are planned from: a host's servers, capacity elsewhere, and migrations under way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.diagnosis.why.read_scheduling import placement_decides, site_aliases
from gpuyard.drain.facts import GuestServer, KeptTime, MovesFacts
from gpuyard.drain.live import why_not_live
from gpuyard.inventory.state import NOTHING, gpu_statuses
from gpuyard.model.errors import UsageError
from gpuyard.model.gpu import GpuKind, LedgerWords
from gpuyard.model.world import Snapshot
from gpuyard.nova.request import NovaFlavor, Request, request_of
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.host_servers import read_host_servers
from gpuyard.openstack.reader import Names, Reader
from gpuyard.openstack.rows import ServerRow
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.load import LoadedSite

Keepings = tuple[tuple[KeptTime, ...] | None, LedgerWords]
"""The ledger's times, None where it cannot be asked; and what it says of each GPU now."""


class MovesReader:
    """Reads the facts about one host of a cloud, again and again."""

    def __init__(
        self,
        api: CloudApi,
        loaded: LoadedSite,
        host: str,
        keepings: Callable[[], Keepings] = lambda: ((), NOTHING),
    ) -> None:
        """Raises UsageError for a host that the site does not have."""
        if host not in loaded.site.hosts:
            raise UsageError(f"the site has no host {host!r}; it has {', '.join(loaded.site.hosts)}")
        self._api, self._loaded, self._host, self._keepings = api, loaded, host, keepings
        self._capacity = CapacityReader(api, loaded)
        compiled = loaded.compiled
        self._snapshots = SnapshotTaker(api, compiled.gpus, compiled.flavors)
        self._names = Names()

    def read(self, now: datetime) -> MovesFacts:
        """Read the facts once. Raises CloudError, and BlockedError when a part of the cloud does not answer."""
        kept_times, words = self._keepings()
        with Reader(self._api) as cloud:
            host_servers = read_host_servers(cloud, self._host)
            self._names.learn(
                cloud, {row.user for row in host_servers.rows}, {row.project for row in host_servers.rows}
            )
            service = cloud.services().get(self._host)
        snapshot = self._snapshots.take(now)
        servers = tuple(self._guest(row, snapshot) for row in host_servers.rows)
        return MovesFacts(
            now=now,
            host=self._host,
            service=service,
            servers=servers,
            migrations=host_servers.migrations,
            room=self._capacity.read(now),
            statuses={s.gpu.provider_name: s for s in gpu_statuses(self._loaded.compiled.gpus, snapshot, words)},
            kept=kept_times,
            not_live={server.id: why for server in servers if (why := self._why_not_live(server))},
        )

    def _guest(self, row: ServerRow, snapshot: Snapshot) -> GuestServer:
        project, user = self._names.owners(row)
        mine = (gpu.provider_name for gpu in self._loaded.compiled.gpus if gpu.host == self._host)
        return GuestServer(
            id=row.id,
            name=row.name,
            status=row.status,
            task=row.task or "",
            project_id=row.project,
            project=project,
            user=user,
            flavor=row.flavor,
            gpus=tuple(name for name in mine if snapshot.holders.get(name) == row.id),
            asks=len(self._request(row.flavor).devices),
            from_volume=row.from_volume,
            ours=row.ours and project in self._loaded.site.own_projects,  # metadata is its owner's to write
        )

    def _request(self, flavor: NovaFlavor) -> Request:
        compiled = self._loaded.compiled
        shares = {gpu.resource_class for gpu in compiled.gpus if gpu.kind is GpuKind.VGPU}
        request = request_of(flavor, site_aliases(compiled)).with_devices(shares)
        return request if placement_decides(compiled) else request.without_devices()

    def _why_not_live(self, server: GuestServer) -> str:
        site, compiled = self._loaded.site, self._loaded.compiled
        gpus = [gpu for gpu in compiled.gpus if gpu.provider_name in server.gpus]
        unmanaged = {name for name, pool in site.pools.items() if pool.managed is False}
        inventory = self._loaded.inventories.get(self._host)
        return why_not_live(server.flavor.extra_specs, gpus, site_aliases(compiled), unmanaged, inventory)
