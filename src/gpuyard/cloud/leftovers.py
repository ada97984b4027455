"""Reads what is left behind on a host, and takes away what nobody needs, each after another look."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuyard.advice.drift.facts import MigrationSeen
from gpuyard.advice.moves.leftovers import Consumer, LeftoverFacts, TakeAway, find_leftovers, steps_of
from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.cloud.drift_fixes import ATTEMPTS, CONFLICT, sayable
from gpuyard.cloud.observe.reader import Reader
from gpuyard.cloud.observe.rows import ServerRow
from gpuyard.model.errors import BlockedError
from gpuyard.model.units import hold_of
from gpuyard.model.world import Provider
from gpuyard.site.load import LoadedSite


def own_holds(loaded: LoadedSite, host: str) -> frozenset[str]:
    """Consumers that are gpuyard's own holds of shares of the host's GPUs."""
    return frozenset(hold_of(gpu.provider_name) for gpu in loaded.compiled.gpus if gpu.is_unit and gpu.host == host)


def read_leftovers(api: CloudApi, host: str, ours: Collection[str] = ()) -> LeftoverFacts:
    """One look. `ours`: consumers that keep GPUs there on purpose. Raises CloudError, and BlockedError when Placement
    has no such host."""
    with Reader(api) as cloud:
        tree = _tree(cloud, host)
        names = {one.id: one.name for one in tree}
        service = cloud.services().get(host)
        moves = {
            **cloud.migrations(source_compute=host),
            **{id: one for id, one in cloud.migrations(host=host).items() if one.target == host},
        }
        held: dict[str, dict[str, Mapping[str, int]]] = {}
        for id, consumers in cloud.each(cloud.consumers, names).items():
            for consumer, amounts in consumers.items():
                if consumer in ours:
                    continue
                held.setdefault(consumer, {})[names[id]] = amounts
        servers = cloud.each(cloud.server, sorted({*held, *_servers(moves, held)} - moves.keys()))
        return LeftoverFacts(
            host=host,
            service=service,
            consumers=tuple(_consumer(id, amounts, servers.get(id)) for id, amounts in sorted(held.items())),
            migrations=moves,
            movers={id: _consumer(id, {}, row) for id, row in servers.items() if row is not None},
        )


def clean_leftovers(api: CloudApi, host: str, wanted: Iterable[TakeAway]) -> list[str]:
    """What was done about each, in words. What is not left over any more is left alone."""
    return [f"{step.consumer}: {_attempts(api, host, step)}" for step in wanted]


def _attempts(api: CloudApi, host: str, step: TakeAway) -> str:
    said = ""
    for _ in range(ATTEMPTS):
        still = {one.consumer: one for one in steps_of(find_leftovers(read_leftovers(api, host)))}
        if step.consumer not in still:
            return "left alone: it is not left over any more"
        try:
            return _take_away(api, still[step.consumer])
        except CloudError as error:
            if error.status != CONFLICT:
                raise
            said = str(error)
    return f"left alone: something else kept changing it, {ATTEMPTS} times: {said}"


def _take_away(api: CloudApi, step: TakeAway) -> str:
    with Reader(api) as cloud:
        mine = {one.id for one in _tree(cloud, step.host)}
    path = f"/allocations/{step.consumer}"
    found = api.get("placement", path)
    rest = {id: {"resources": row["resources"]} for id, row in found["allocations"].items() if id not in mine}
    # With the generation that was read: whoever changes it meanwhile wins, and it is looked at again.
    body = {
        "allocations": rest,
        "consumer_generation": found["consumer_generation"],
        "consumer_type": sayable(found["consumer_type"]),
        "project_id": found["project_id"],
        "user_id": found["user_id"],
    }
    api.request("PUT", "placement", path, body)
    left = api.get("placement", path)["allocations"].keys() & mine
    return f"has nothing of {step.host} any more" if not left else f"has something of {step.host} again"


def _tree(cloud: Reader, host: str) -> list[Provider]:
    root = next((one for one in cloud.providers().values() if one.name == host and one.root_id == one.id), None)
    if root is None:
        raise BlockedError(f"Placement has no host {host!r}: nothing is left there")
    return list(cloud.providers(in_tree=root.id).values())


def _servers(moves: Mapping[str, MigrationSeen], held: Mapping[str, Any]) -> set[str]:
    """Servers whose migrations may still mean something: not all that Nova remembers."""
    return {one.server for one in moves.values() if one.id in held or one.running or one.status == "done"}


def _consumer(id: str, amounts: Mapping[str, Mapping[str, int]], row: ServerRow | None) -> Consumer:
    if row is None:
        return Consumer(id, amounts)
    return Consumer(id, amounts, row.status, row.name, row.task or "", row.host)
