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
            wanted = {one.id: one for one in changed if one.id in also or self._gpus(one)[1]}
            asked = cloud.each(cloud.server, set(by_id) - wanted.keys())
            wanted |= {id: row for id, row in asked.items() if row is not None}
            self._names.learn(cloud, {one.user for one in wanted.values()}, {one.project for one in wanted.values()})
            deeds = cloud.each(lambda id: self._deeds(cloud, wanted[id], now), wanted)
        self._known = {id: known for id, known in self._known.items() if id in wanted}
        return {id: self._life(one, deeds[id]) for id, one in wanted.items()}

    def _life(self, one: ServerRow, deeds: tuple[Deed, ...]) -> ServerLife:
        pool, gpus = self._gpus(one)
        return ServerLife(one.named(*self._names.owners(one)), pool, gpus, deeds, one.terminated)

    def _gpus(self, one: ServerRow) -> tuple[str, int]:
        """The pool of its flavor's GPUs, and how many: none where they are of no pool of the site."""
        specs = one.flavor.extra_specs
        named = {**asked_classes(specs), **asked_devices(specs)}
        asked = {name: count for name, count in named.items() if name in self._pools}
        return (self._pools[next(iter(asked))], sum(asked.values())) if asked else ("", 0)

    def _deeds(self, cloud: Reader, server: ServerRow, now: datetime) -> tuple[Deed, ...]:
        stamp = (server.updated, server.status, server.task, server.terminated)
        known = self._known.get(server.id)
        if known is not None and known[0] == stamp:
            return known[1]
        deeds = tuple(_deeds(cloud, server, cloud.actions(server.id), now))
        changed = server.changed
        if changed is not None and server.task is None and now - changed > SETTLED:
            self._known[server.id] = stamp, deeds
        return deeds


def _deeds(cloud: Reader, server: ServerRow, actions: Iterable[ActionRow], now: datetime) -> Iterable[Deed]:
    parts = cache(lambda request: cloud.parts(server.id, request))
    ordered = sorted(actions, key=lambda one: one.started)
    resizes = sum(one.action == RESIZE for one in ordered)
    flavors = _flavors(cloud.migrations_if_allowed(instance_uuid=server.id), ordered) if resizes > 1 else {}
    last_move = next((one for one in reversed(ordered) if one.action in MOVES), None)
    for place, one in enumerate(ordered):
        if one.action in MOVES:
            deed = _move(one, parts(one.request), flavors.get(one.request))
            over = one is not last_move or (one.failed and server.settled) or _is_at_rest(server, now)
            failed = over and deed.finished is None
            yield replace(deed, failed=failed, offloaded=None if failed else deed.offloaded)
            continue
        offloaded = _offloaded(parts, server, one, ordered[place + 1 :]) if one.action == SHELVE else None
        under_way = one.action == UNSHELVE and _gets_others(server, parts(one.request))
        yield Deed(one.action, one.started, None if under_way else one.finished, one.failed, offloaded)


def _move(one: ActionRow, parts: Mapping[str, datetime | None], flavors: tuple[int, int] | None) -> Deed:
    """Done when its last part is, whatever failed before: then it was tried on another host."""
    done = next((time for name, time in parts.items() if name in MOVED and time is not None), None)
    gave_back = next((time for name, time in parts.items() if name in GIVES_BACK and time is not None), None)
    return Deed(one.action, one.started, done, offloaded=gave_back, flavors=flavors)


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
    found = {}
    for place, one in enumerate(moving):
        until = moving[place + 1].started if place + 1 < len(moving) else None
        mine = [
            migration.flavors
            for migration in (migrations or {}).values()
            if migration.created is not None
            and whole(one.started) <= migration.created
            and (until is None or migration.created < until)
        ]
        if one.action == RESIZE and len(mine) == 1 and mine[0] is not None:
            found[one.request] = mine[0]
    return found


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
    for one in later:
        if one.action in (SHELVE, OFFLOAD):
            return False  # it still had them
        if one.action == UNSHELVE and UNSHELVING in parts(one.request):
            return True
    return server.status == SHELVED or (server.terminated is not None and server.host is None)


def pools_by_alias(compiled: CompiledSite) -> dict[str, str]:
    """Return pool by every alias that a flavor can ask for its GPUs with, or by the class of its vGPUs."""
    pools = compiled.site.pools
    found = {alias(compiled.site, name) if pool.counted_by_alias else pool_class(name): name
             for name, pool in pools.items()}  # fmt: skip
    for flavor in compiled.flavors:
        if flavor.pool is not None:
            found |= dict.fromkeys(asked_devices(flavor.extra_specs), flavor.pool)
    return found
