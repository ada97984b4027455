"""Reads which servers a host has, and which are on their way to it.

Nova keeps this in three places, and none has all of it (nova 34.0.0, compute/manager.py):
- a server is listed under its host once nova-compute there has claimed it, and under its new host as soon as a cold
  migration has copied its disks (`_resize_instance`), long before that is confirmed;
- a live migration changes the host only at its end (`_post_live_migration_update_host`), while the guest's memory is
  on the target already: until then only the migration names the target;
- a server that the scheduler has just placed has no host at all. Only Placement has its allocation there.

None says when a cell does not answer: its servers are missing. So the host's nova-compute is asked for before and
after, since a cell may come back in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.nova.server_states import WAITING, MigrationSeen, on_its_way
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import ServerRow

STARTING = frozenset({"BUILD", "REBUILD", "RESIZE", "MIGRATING"})
"""Statuses of a server that is on no host yet, or on its way to another one."""


@dataclass(frozen=True)
class HostServers:
    """All servers of one host."""

    rows: tuple[ServerRow, ...]
    """Its servers, with those that keep a place there until their migration elsewhere is confirmed."""
    migrations: tuple[MigrationSeen, ...]
    """The migrations that began there."""


def read_host_servers(cloud: Reader, host: str) -> HostServers:
    """Return all servers of a host. Raises CloudError, and SilentCellError when the cell of the host, or of one of its
    servers, does not answer."""
    cloud.require_heard(host)
    migrations = tuple(cloud.migrations(source_compute=host).values())
    rows = _listed(cloud, host)
    away = {migration.server for migration in migrations if migration.status in WAITING} - rows.keys()
    rows |= {row.id: row for row in cloud.each(cloud.server, sorted(away)).values() if row is not None}
    cloud.require_heard(host)
    return HostServers(tuple(row for row in rows.values() if not _is_elsewhere(row, migrations)), migrations)


def read_coming(cloud: Reader, host: str, provider: str) -> tuple[ServerRow, ...]:
    """Return the servers that Nova is bringing to a host and does not list there yet. `provider`: id of the host's own
    provider in Placement. Raises CloudError, and SilentCellError as `read_host_servers`."""
    cloud.require_heard(host)
    consumers = set(cloud.consumers(provider))  # before the list: what arrives in between is in one of the two
    # Migrations of which Nova does not say where they go count, too: a policy may keep hosts from us.
    moving = {migration.server for migration in cloud.migrations(host=host).values() if on_its_way(migration)}
    maybe = (consumers | moving) - _listed(cloud, host).keys()
    rows = [row for row in cloud.each(cloud.server, sorted(maybe)).values() if row is not None]
    cloud.require_heard(host)
    return tuple(row for row in rows if row.host == host or row.task is not None or row.status in STARTING)


def _listed(cloud: Reader, host: str) -> dict[str, ServerRow]:
    return {row.id: row for row in cloud.servers(host=host)}


def _is_elsewhere(row: ServerRow, migrations: tuple[MigrationSeen, ...]) -> bool:
    """Return whether a migration that waits for its confirmation is of a server that does not wait any more."""
    return row.status != "VERIFY_RESIZE" and any(
        migration.server == row.id and migration.status in WAITING and migration.target == row.host != migration.source
        for migration in migrations
    )
