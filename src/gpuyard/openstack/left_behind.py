"""Finds GPUs that Placement counts for a server that does not have them.

After an evacuation Nova leaves the allocation on the dead host under the server's own id, until nova-compute there
starts again (nova 34.0.0, compute/manager.py, `_destroy_evacuated_instances`). And where it claims another GPU for a
server that it migrates, resizes or evacuates than Placement has allocated (compute/resource_tracker.py, `_move_claim`),
it adds the claimed one to the allocation (compute/pci_placement_translator.py, `update_allocations`) and leaves the
other in it for good. Taken literally, Placement says both times that the server has twice the GPUs of its flavor.

A server has the GPUs that the providers of its own host say, as many as its flavor asks for, once Nova is done
moving it. The rest is nobody's: not used by the server, and not free either, since Placement does not give it away.
No API tells which GPUs of its own host the server has; the first by name are taken for them.

This is decided only when Nova is done: `task_state` is cleared before an evacuated server gets its new host, and
only then its migration ends (`finish_evacuation`). So the migrations are asked first, and then the server once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Provider
from gpuyard.nova.alias_spec import asked_classes, asked_devices, summed
from gpuyard.nova.server_states import MOVING
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.objects import FlavorObject

CONFIRMABLE = "finished"
"""Status of a migration that waits to be confirmed."""
Stamp = tuple[str, str, str | None]


@dataclass
class MovedServers:
    """Servers that Nova is known to be done moving, so that they need not be asked about in each snapshot."""

    known: Mapping[str, Stamp]
    left: Mapping[str, tuple[str, str | None]]
    """GPUs that were left behind at the last look, each with the server and the host that the server had then."""

    def __init__(self) -> None:
        self.known, self.left = {}, {}

    def read(self, cloud: Reader, rows: Collection[ServerRow]) -> frozenset[str]:
        """Return the ids of those of `rows` that are where Nova says, and not on their way anywhere. Two calls for each
        that is new or has changed."""
        changed = {row.id: row for row in rows if self.known.get(row.id) != _stamp(row)}
        arrived = cloud.each(lambda id: _has_arrived(cloud, changed[id]), changed)
        self.known = {row.id: _stamp(row) for row in rows if arrived.get(row.id, True)}
        return frozenset(self.known)


def split_left_behind(
    cloud: Reader,
    moved: MovedServers,
    providers: Mapping[str, Provider],
    servers: Mapping[str, ServerRow],
    holders: Mapping[str, str],
    pools: PoolsAsked,
) -> tuple[dict[str, str], dict[str, str]]:
    """Split the holders of GPUs, by the names of their providers: those that have them, and those that left them
    behind. `providers`: by name."""
    roots = {provider.id: provider.name for provider in providers.values() if provider.id == provider.root_id}
    resting = {
        name: row
        for name, id in holders.items()
        if (row := servers.get(id)) is not None and row.host is not None and _stays(row)
    }
    on_host = {name: row for name, row in resting.items() if roots.get(providers[name].root_id, row.host) == row.host}
    elsewhere = {name: row for name, row in resting.items() if name not in on_host and row.settled}
    doubtful = elsewhere | pools.beyond(on_host)
    arrived = moved.read(cloud, {row.id: row for row in doubtful.values()}.values())
    left = {name: row.id for name, row in doubtful.items() if row.id in arrived}
    # While Nova does something to the server, what was left behind before that is still not the server's.
    left |= {
        name: id
        for name, id in holders.items()
        if name not in resting and (row := servers.get(id)) is not None and moved.left.get(name) == (id, row.host)
    }
    moved.left = {name: (id, servers[id].host) for name, id in left.items()}
    return {name: id for name, id in holders.items() if name not in left}, left


class PoolsAsked:
    """The number of GPUs of each pool that a server's flavor asks for."""

    def __init__(self, gpus: Iterable[Gpu], flavors: Iterable[FlavorObject]) -> None:
        whole = [gpu for gpu in gpus if not gpu.is_unit]
        self._pool_of = {gpu.provider_name: gpu.pool for gpu in whole}
        self._classes = frozenset(gpu.resource_class for gpu in whole)
        self._pool_of_alias = {
            alias: flavor.pool for flavor in flavors if flavor.pool for alias in asked_devices(flavor.extra_specs)
        }

    def beyond(self, holders: Mapping[str, ServerRow]) -> dict[str, ServerRow]:
        """Return those of `holders`, which has whole GPUs by the names of their providers, that are more than the
        server's flavor asks for. None of a server whose flavor asks by anything but aliases of the site."""
        names_by_pool: dict[tuple[str, str], list[str]] = {}
        for name, row in sorted(holders.items()):
            if name in self._pool_of:
                names_by_pool.setdefault((row.id, self._pool_of[name]), []).append(name)
        excess: dict[str, ServerRow] = {}
        for (_, pool), names in names_by_pool.items():
            row = holders[names[0]]
            requested = self._asked(row)
            if requested is not None:
                excess |= dict.fromkeys(names[requested.get(pool, 0) :], row)
        return excess

    def _asked(self, row: ServerRow) -> dict[str, int] | None:
        """By pool."""
        specs = row.flavor.extra_specs
        aliases = asked_devices(specs)
        if (
            not aliases
            or not aliases.keys() <= self._pool_of_alias.keys()
            or asked_classes(specs).keys() & self._classes
        ):
            return None
        return summed((self._pool_of_alias[alias], count) for alias, count in aliases.items())


def _has_arrived(cloud: Reader, listed: ServerRow) -> bool:
    """Return whether no migration of the server is going on, and it is where it was listed. Not known, and so False,
    where we may not ask for migrations."""
    migrations = cloud.migrations_if_allowed(instance_uuid=listed.id)
    if migrations is None or any(
        migration.running and migration.status != CONFIRMABLE for migration in migrations.values()
    ):
        return False
    now = cloud.seen_server(listed.id)
    if now is None or now.host != listed.host:
        return False
    return now.settled if listed.settled else _stays(now)


def _stays(row: ServerRow) -> bool:
    """Return whether Nova is not moving it: what else it does with a server changes no allocation. One that only waits
    to be confirmed is on its new host, and what it had before is its migration's."""
    return row.status not in MOVING or (row.status == "VERIFY_RESIZE" and row.task is None)


def _stamp(row: ServerRow) -> Stamp:
    return row.updated, row.status, row.host
