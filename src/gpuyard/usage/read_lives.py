"""Reads what Nova remembers of servers: those that have changed, deleted ones too, and the actions on them.

One call for all that have changed since a moment, one for the actions of each of them that has GPUs, and one more for
each time that it was shelved, or two: only that tells whether it gave its GPUs back then. One more for each time that
it was moved: the time of an action is that of its last part, which may only have begun, and an action that failed on
one host may have been done on another. And one for the migrations of a server that was resized several times, which
have ids of flavors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

from gpuyard.model.moments import iso_text
from gpuyard.nova.alias_spec import asked_classes, asked_devices
from gpuyard.nova.server_states import MigrationSeen
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Names, Reader
from gpuyard.openstack.rows import ActionRow, ServerRow
from gpuyard.openstack.snapshot import SHELVED
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import pool_class
from gpuyard.site.nova import alias
from gpuyard.usage.lives import MOVES, OFFLOAD, RESIZE, SHELVE, UNSHELVE, Deed, ServerLife, whole

SETTLED = timedelta(seconds=30)
"""A server that Nova has not changed for so long is read once: its times are whole seconds, and it writes a server
before the action that was done with it."""

SHELVING, OFFLOADING = "compute_shelve_instance", "compute_shelve_offload_instance"
UNSHELVING = "compute_unshelve_instance"
WAITS = "VERIFY_RESIZE"
"""Parts of actions: that a server is shelved, gives its resources back, and gets others."""
MOVED = frozenset({
    "compute_finish_resize", "compute_finish_snapshot_based_resize_at_dest", "compute_finish_revert_resize",
    "compute_finish_revert_snapshot_based_resize_at_source", "compute_post_live_migration_at_destination",
    "compute_rebuild_instance",
})  # fmt: skip
"""The parts of actions in MOVES with which a server is on its other GPUs, by the names of the methods that nova-compute
wraps as events (nova 34.0.0, compute/manager.py, `wrap_instance_event`)."""
GIVES_BACK = frozenset({"compute_revert_resize", "compute_revert_snapshot_based_resize_at_dest"})
"""Parts of a revert, after which the GPUs of the new flavor are anybody's."""
Parts = Callable[[str], Mapping[str, datetime | None]]
"""Returns the parts of a request on one server, as `Reader.parts` has them."""


class LifeReader:
    """Reads servers of one cloud for one site, and remembers what cannot have changed since."""

    def __init__(self, api: CloudApi, pools: Mapping[str, str]) -> None:
        """`pools`: pool by alias, as `pools_by_alias` makes it."""
        self._api, self._pools = api, pools
        self._names = Names()
        self._known: dict[str, tuple[object, tuple[Deed, ...]]] = {}

    def read(
        self, since: datetime, now: datetime, also: Collection[str] = (), by_id: Collection[str] = ()
    ) -> dict[str, ServerLife]:
        """Return by id servers that have changed since then and have GPUs of the site's pools by their flavor, or are
        among `also`; and those of `by_id`, changed or not, one call each. Raises CloudError, and SilentCellError when
        the cell of one of `by_id` does not answer."""
        with Reader(self._api) as cloud:
            changed = cloud.servers(**{"changes-since": iso_text(since)})
            servers_by_id = {server.id: server for server in changed if server.id in also or self._gpus(server)[1]}
            fetched = cloud.each(cloud.server, set(by_id) - servers_by_id.keys())
            servers_by_id |= {id: row for id, row in fetched.items() if row is not None}
            self._names.learn(
                cloud,
                {server.user for server in servers_by_id.values()},
                {server.project for server in servers_by_id.values()},
            )
            deeds = cloud.each(lambda id: self._deeds(cloud, servers_by_id[id], now), servers_by_id)
        self._known = {id: cached for id, cached in self._known.items() if id in servers_by_id}
        return {id: self._life(server, deeds[id]) for id, server in servers_by_id.items()}

    def _life(self, server: ServerRow, deeds: tuple[Deed, ...]) -> ServerLife:
        pool, gpus = self._gpus(server)
        return ServerLife(server.named(*self._names.owners(server)), pool, gpus, deeds, server.terminated)

    def _gpus(self, server: ServerRow) -> tuple[str, int]:
        """The pool of its flavor's GPUs, and how many: none where they are of no pool of the site."""
        specs = server.flavor.extra_specs
        named = {**asked_classes(specs), **asked_devices(specs)}
        counts = {name: count for name, count in named.items() if name in self._pools}
        return (self._pools[next(iter(counts))], sum(counts.values())) if counts else ("", 0)

    def _deeds(self, cloud: Reader, server: ServerRow, now: datetime) -> tuple[Deed, ...]:
        stamp = (server.updated, server.status, server.task, server.terminated)
        cached = self._known.get(server.id)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        deeds = tuple(_deeds(cloud, server, cloud.actions(server.id), now))
        changed = server.changed
        if changed is not None and server.task is None and now - changed > SETTLED:
            self._known[server.id] = stamp, deeds
        return deeds


def _deeds(cloud: Reader, server: ServerRow, actions: Iterable[ActionRow], now: datetime) -> Iterable[Deed]:
    parts = cache(lambda request: cloud.parts(server.id, request))
    ordered = sorted(actions, key=lambda action: action.started)
    resizes = sum(action.action == RESIZE for action in ordered)
    flavors = _flavors(cloud.migrations_if_allowed(instance_uuid=server.id), ordered) if resizes > 1 else {}
    last_move = next((action for action in reversed(ordered) if action.action in MOVES), None)
    for place, action in enumerate(ordered):
        if action.action in MOVES:
            deed = _move(action, parts(action.request), flavors.get(action.request))
            over = action is not last_move or (action.failed and server.settled) or _is_at_rest(server, now)
            failed = over and deed.finished is None
            yield replace(deed, failed=failed, offloaded=None if failed else deed.offloaded)
            continue
        offloaded = _offloaded(parts, server, action, ordered[place + 1 :]) if action.action == SHELVE else None
        under_way = action.action == UNSHELVE and _gets_others(server, parts(action.request))
        yield Deed(action.action, action.started, None if under_way else action.finished, action.failed, offloaded)


def _move(action: ActionRow, parts: Mapping[str, datetime | None], flavors: tuple[int, int] | None) -> Deed:
    """Done when its last part is, whatever failed before: then it was tried on another host."""
    done = next((time for name, time in parts.items() if name in MOVED and time is not None), None)
    gave_back = next((time for name, time in parts.items() if name in GIVES_BACK and time is not None), None)
    return Deed(action.action, action.started, done, offloaded=gave_back, flavors=flavors)


def _is_at_rest(server: ServerRow, now: datetime) -> bool:
    """Return whether Nova has left a server alone for so long that a move which has not ended never will."""
    changed = server.changed
    quiet = server.terminated is not None or server.settled or server.status == WAITS
    return quiet and changed is not None and now - changed > SETTLED


def _flavors(
    migrations: Mapping[str, MigrationSeen] | None, actions: Sequence[ActionRow]
) -> dict[str, tuple[int, int]]:
    """Request of a resize -> the ids of the flavors before and after it: those of the migration that came of it, which
    is the only one that was made between it and the next action that moves the server."""
    moving = [action for action in actions if action.action in MOVES]
    flavors_by_request = {}
    for place, action in enumerate(moving):
        until = moving[place + 1].started if place + 1 < len(moving) else None
        mine = [
            migration.flavors
            for migration in (migrations or {}).values()
            if migration.created is not None
            and whole(action.started) <= migration.created
            and (until is None or migration.created < until)
        ]
        if action.action == RESIZE and len(mine) == 1 and mine[0] is not None:
            flavors_by_request[action.request] = mine[0]
    return flavors_by_request


def _gets_others(server: ServerRow, parts: Mapping[str, datetime | None]) -> bool:
    """Return whether a server that is unshelved has not got its resources yet."""
    return parts[UNSHELVING] is None if UNSHELVING in parts else server.status == SHELVED


def _offloaded(parts: Parts, server: ServerRow, shelve: ActionRow, later: Iterable[ActionRow]) -> datetime | None:
    """When a server that was shelved gave its resources back because of that. Where Nova does it after a time it is a
    part of the action; where it does so at once only what came of it tells."""
    own = parts(shelve.request)
    if (ended := own.get(OFFLOADING)) is not None:
        return ended
    under_way = SHELVING in own and own[SHELVING] is None
    return None if shelve.failed or under_way or not _gave_back(parts, server, later) else shelve.finished


def _gave_back(parts: Parts, server: ServerRow, later: Iterable[ActionRow]) -> bool:
    """By what was done with a shelved server then, and what became of it."""
    for action in later:
        if action.action in (SHELVE, OFFLOAD):
            return False  # it still had them
        if action.action == UNSHELVE and UNSHELVING in parts(action.request):
            return True
    return server.status == SHELVED or (server.terminated is not None and server.host is None)


def pools_by_alias(compiled: CompiledSite) -> dict[str, str]:
    """Return pool by every alias that a flavor can ask for its GPUs with, or by the class of its vGPUs."""
    pools = compiled.site.pools
    names = {alias(compiled.site, name) if pool.counted_by_alias else pool_class(name): name
             for name, pool in pools.items()}  # fmt: skip
    for flavor in compiled.flavors:
        if flavor.pool is not None:
            names |= dict.fromkeys(asked_devices(flavor.extra_specs), flavor.pool)
    return names
