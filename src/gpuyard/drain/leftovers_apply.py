"""Reads what is left behind on a host, and cleans what nobody needs, each after reading it once more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import monotonic, sleep
from typing import Any

from gpuyard.diagnosis.drift.apply import ATTEMPTS, CONFLICT, sayable
from gpuyard.drain.leftovers import Consumer, LeftoverFacts, Recount, TakeAway, find_leftovers, steps_of
from gpuyard.model.errors import BlockedError
from gpuyard.model.text import counted
from gpuyard.model.units import hold_of
from gpuyard.model.world import Provider
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.nova.server_states import MigrationSeen
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.load import LoadedSite

COUNTED_WITHIN = 300.0
"""Seconds. nova-compute counts every minute, where nobody has set update_resources_interval to more."""
POLL = 1.0


def own_holds(loaded: LoadedSite, host: str) -> frozenset[str]:
    """Return consumers that are gpuyard's own holds of shares of the host's GPUs."""
    return frozenset(hold_of(gpu.provider_name) for gpu in loaded.compiled.gpus if gpu.is_unit and gpu.host == host)


def read_leftovers(api: CloudApi, host: str, ours: Collection[str] = ()) -> LeftoverFacts:
    """Read the leftovers of a host. `ours`: consumers that keep GPUs there on purpose. Raises CloudError, and
    BlockedError when Placement has no such host, or when a cell of Nova does not answer that could say what is
    there."""
    with Reader(api) as cloud:
        tree = _tree(cloud, host)
        names = {provider.id: provider.name for provider in tree}
        service = cloud.services(host=host).get(host)
        moves = {
            **cloud.migrations(source_compute=host),
            **{id: migration for id, migration in cloud.migrations(host=host).items() if migration.target == host},
        }
        allocations: dict[str, dict[str, Mapping[str, int]]] = {}
        for id, consumers in cloud.each(cloud.consumers, names).items():
            for consumer, amounts in consumers.items():
                if consumer in ours:
                    continue
                allocations.setdefault(consumer, {})[names[id]] = amounts
        servers = cloud.each(cloud.server, sorted({*allocations, *_servers(moves, allocations)} - moves.keys()))
        cloud.require_heard(host)  # last: a list leaves out what is in a cell that does not answer
        return LeftoverFacts(
            host=host,
            service=service,
            consumers=tuple(_consumer(id, amounts, servers.get(id)) for id, amounts in sorted(allocations.items())),
            migrations=moves,
            movers={id: _consumer(id, {}, row) for id, row in servers.items() if row is not None},
        )


def clean_leftovers(
    api: CloudApi, host: str, steps: Iterable[TakeAway | Recount], patience: float = COUNTED_WITHIN
) -> list[str]:
    """Apply the steps; return what was done about each, in words. What is not left over any more is left alone.
    `patience`: seconds in which nova-compute has to count again."""
    return [f"{step.consumer}: {_attempts(api, host, step, patience)}" for step in steps]


def _attempts(api: CloudApi, host: str, step: TakeAway | Recount, patience: float) -> str:
    conflict = ""
    for _ in range(ATTEMPTS):
        still = {candidate.consumer: candidate for candidate in steps_of(find_leftovers(read_leftovers(api, host)))}
        if step.consumer not in still:
            return "left alone: it is not left over any more"
        try:
            now = still[step.consumer]
            return _take_away(api, now) if isinstance(now, TakeAway) else _recount(api, now, patience)
        except CloudError as error:
            if error.status != CONFLICT:
                raise
            conflict = str(error)
    return f"left alone: something else kept changing it, {ATTEMPTS} times: {conflict}"


def _take_away(api: CloudApi, step: TakeAway) -> str:
    with Reader(api) as cloud:
        mine = {provider.id for provider in _tree(cloud, step.host)}
    _write_without(api, step.consumer, mine)
    left = _held(api, step.consumer) & mine
    return f"has nothing of {step.host} any more" if not left else f"has something of {step.host} again"


def _recount(api: CloudApi, step: Recount, patience: float) -> str:
    """Take all of a server's devices out of its allocation, and wait until nova-compute has written back what is
    attached: each of its updates does (nova 34.0.0, compute/pci_placement_translator.py, `update_allocations`), so
    whoever is killed in between leaves nothing wrong behind but a closed host. Meanwhile Placement would give the
    devices to others, who would fail: new servers are kept away."""
    compute_service = ComputeService(api, step.host)
    open_before = compute_service.look().enabled
    with Reader(api) as cloud:
        mine = {provider.id for provider in _tree(cloud, step.host) if provider.name in step.providers}
    try:
        compute_service.close_for_maintenance()
        before = _write_without(api, step.consumer, mine)
        end = monotonic() + patience
        while len(_held(api, step.consumer) & mine) < step.has:
            if monotonic() > end:
                return _put_back(api, step, before, mine)
            sleep(POLL)
    finally:
        if open_before:
            compute_service.open_after_maintenance()
    return f"has {counted(step.has, 'device')} of {step.host}, as nova-compute there counts"


def _put_back(api: CloudApi, step: Recount, before: Mapping[str, Any], mine: Collection[str]) -> str:
    """As it was: Placement must not give away what may be in use."""
    now = api.get("placement", f"/allocations/{step.consumer}")
    missing = {id: row for id, row in before.items() if id in mine and id not in now["allocations"]}
    _write(api, step.consumer, now, {**now["allocations"], **missing})
    return (
        f"left as it was: nova-compute on {step.host} has not counted again; see that it is up, and its "
        "update_resources_interval, which may be longer than this waits"
    )


def _write_without(api: CloudApi, consumer: str, providers: Collection[str]) -> Mapping[str, Any]:
    """Returns the allocations of before, by the ids of their providers."""
    document = api.get("placement", f"/allocations/{consumer}")
    before: Mapping[str, Any] = document["allocations"]
    _write(api, consumer, document, {id: row for id, row in before.items() if id not in providers})
    return before


def _write(api: CloudApi, consumer: str, read: Mapping[str, Any], allocations: Mapping[str, Any]) -> None:
    # With the generation that was read: whoever changes it meanwhile wins, and it is looked at again.
    body = {
        "allocations": {id: {"resources": row["resources"]} for id, row in allocations.items()},
        "consumer_generation": read["consumer_generation"],
        "consumer_type": sayable(read["consumer_type"]),
        "project_id": read["project_id"],
        "user_id": read["user_id"],
    }
    api.request("PUT", "placement", f"/allocations/{consumer}", body)


def _held(api: CloudApi, consumer: str) -> set[str]:
    """Ids of the providers that it has something of."""
    return set(api.get("placement", f"/allocations/{consumer}")["allocations"])


def _tree(cloud: Reader, host: str) -> list[Provider]:
    root = next(
        (
            provider
            for provider in cloud.providers().values()
            if provider.name == host and provider.root_id == provider.id
        ),
        None,
    )
    if root is None:
        raise BlockedError(f"Placement has no host {host!r}: nothing is left there")
    return list(cloud.providers(in_tree=root.id).values())


def _servers(moves: Mapping[str, MigrationSeen], allocations: Mapping[str, Any]) -> set[str]:
    """Servers whose migrations may still mean something: not all that Nova remembers."""
    return {move.server for move in moves.values() if move.id in allocations or move.running or move.status == "done"}


def _consumer(id: str, amounts: Mapping[str, Mapping[str, int]], row: ServerRow | None) -> Consumer:
    if row is None:
        return Consumer(id, amounts)
    asks = sum(asked_devices(row.flavor.extra_specs).values())
    return Consumer(id, amounts, row.status, row.name, row.task or "", row.host, asks)
