"""Reads the free resources of all hosts for all flavors, in a number of calls that does not grow with hosts or GPUs.

Placement has no list of what providers have left, but its answer about candidates has: asked who could give 1 MiB of
RAM, it names each host once, with all of its tree: what every provider has of every class, how much of it is used, and
its traits. That is one call for a whole cloud. What a class allows one server at most is not in it; a host is asked for
that when it is new or its capacity has changed. docs/adr/0036 says more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice, HostResources
from gpuyard.diagnosis.why.facts import Asker, ComputeNode, HostAggregate, HostStock
from gpuyard.diagnosis.why.read_scheduling import (
    SHARES,
    asker_named,
    compute_nodes,
    limits_of,
    placement_decides,
    pools_of_classes,
    scheduling,
    site_aliases,
)
from gpuyard.model.world import Provider, Stock
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.silent_cells import list_hypervisors
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import count_class
from gpuyard.site.load import LoadedSite

ONE = "MEMORY_MB:1"
"""A resource that every server takes some of, from its host itself: so there is one candidate a host."""


@dataclass(frozen=True)
class _Summary:
    """A provider as an answer about candidates has it."""

    root: str
    capacity: Mapping[str, int]
    used: Mapping[str, int]
    traits: frozenset[str]


class CapacityReader:
    """Reads one cloud for one site, and remembers inventories of hosts. One read at a time."""

    def __init__(self, api: CloudApi, loaded: LoadedSite) -> None:
        self._api, self._loaded = api, loaded
        self._stocks: dict[str, tuple[Mapping[str, int], Mapping[str, Stock]]] = {}
        """Id of a root provider -> the capacities that it had, and what it said then."""
        self._lock = threading.Lock()

    def read(self, now: datetime) -> CloudResources:
        """Read the facts of the cloud now. Raises CloudError."""
        with self._lock, Reader(self._api) as cloud:
            before = self._api.calls
            compiled = self._loaded.compiled
            summaries = cloud.later(_summaries, cloud, ONE)
            roomy = cloud.later(cloud.able, resources=ONE)
            services = cloud.later(cloud.services)
            hypervisors = cloud.later(lambda: list_hypervisors(cloud, services.result()))
            aggregates = cloud.later(cloud.aggregates)
            shared = cloud.later(cloud.able, required=SHARES)
            flavors = cloud.flavors()
            private = cloud.each(cloud.access, (flavor.id for flavor in flavors if not flavor.public))
            providers = cloud.providers()
            sharing = shared.result() or frozenset()
            all_summaries = self._complete(cloud, summaries.result(), (roomy.result() or frozenset()) - sharing)
            nodes = list(compute_nodes(
                self._loaded, hypervisors.result(), services.result(), providers.values(), sharing
            ))  # fmt: skip
            stocks = self._stock(
                cloud, {node.provider: all_summaries[node.provider] for node in nodes if node.provider in all_summaries}
            )
            return CloudResources(
                taken_at=now,
                flavors=tuple(
                    sorted(
                        (
                            replace(flavor, projects=private[flavor.id]) if flavor.id in private else flavor
                            for flavor in flavors
                        ),
                        key=lambda flavor: flavor.name,
                    )
                ),
                hosts=tuple(_hosts(nodes, all_summaries, stocks, providers)),
                gpus=compiled.gpus,
                reported=frozenset(name for summary in all_summaries.values() for name in summary.capacity),
                aliases=site_aliases(compiled),
                placed=placement_decides(compiled),
                sharing=_shared(cloud, sharing),
                aggregates=tuple(HostAggregate(row.name, row.hosts, row.metadata) for row in aggregates.result()),
                pools=pools_of_classes(compiled),
                counting=frozenset(map(count_class, compiled.site.pools)),
                site_limits=_site_limits(compiled),
                bookable=compiled.site.booking is not None,
                calls=self._api.calls - before,
                **scheduling(compiled),
            )

    def asker(self, project: str, resources: Iterable[str]) -> Asker:
        """Return a project, by name or id, with its limits on some resources. Raises CloudError, UsageError."""
        with Reader(self._api) as cloud:
            return limits_of(cloud, self._loaded.compiled, asker_named(cloud, project), resources)

    def limits(self, asker: Asker, resources: Iterable[str]) -> Asker:
        """Return a project whose id is known, with its limits on some resources. Raises CloudError."""
        with Reader(self._api) as cloud:
            return limits_of(cloud, self._loaded.compiled, asker, resources)

    def _complete(
        self, cloud: Reader, summaries: Mapping[str, _Summary], root_ids: frozenset[str]
    ) -> dict[str, _Summary]:
        """With the hosts that a bound of Placement's (max_allocation_candidates) has cut off, each asked for."""
        more = cloud.each(lambda root: _summaries(cloud, ONE, in_tree=root), sorted(root_ids - summaries.keys()))
        return {**summaries, **{id: summary for part in more.values() for id, summary in part.items()}}

    def _stock(self, cloud: Reader, summaries: Mapping[str, _Summary]) -> dict[str, Mapping[str, Stock]]:
        """What root providers have; those are asked that are new, or have another capacity than before."""
        changed = [id for id, summary in summaries.items() if self._stocks.get(id, ({},))[0] != summary.capacity]
        for id, stock in cloud.each(cloud.stock, changed).items():
            self._stocks[id] = summaries[id].capacity, stock
        self._stocks = {id: self._stocks[id] for id in summaries}
        return {id: stock for id, (_, stock) in self._stocks.items()}


def _summaries(cloud: Reader, resources: str, **query: object) -> dict[str, _Summary]:
    answer = cloud.api.get("placement", "/allocation_candidates", resources=resources, **query)
    return {id: _summary(row) for id, row in answer["provider_summaries"].items()}


def _summary(row: Mapping[str, Any]) -> _Summary:
    return _Summary(
        row["root_provider_uuid"],
        {name: amount["capacity"] for name, amount in row["resources"].items()},
        {name: amount["used"] for name, amount in row["resources"].items()},
        frozenset(row["traits"]),
    )


def _hosts(
    nodes: Sequence[ComputeNode],
    summaries: Mapping[str, _Summary],
    stocks: Mapping[str, Mapping[str, Stock]],
    providers: Mapping[str, Provider],
) -> Iterable[HostResources]:
    below: dict[str, list[FreeDevice]] = {}
    for id, summary in summaries.items():
        left = {
            name: amount - summary.used[name]
            for name, amount in summary.capacity.items()
            if amount > summary.used[name]
        }
        if id != summary.root and left and id in providers:
            below.setdefault(summary.root, []).append(FreeDevice(providers[id].name, left, summary.traits))
    for node in nodes:
        mine = summaries.get(node.provider)
        if mine is None:
            yield HostResources(node)
            continue
        rooms = {name: _room(mine, name, stocks[node.provider].get(name)) for name in mine.capacity}
        yield HostResources(replace(node, rooms=rooms), mine.traits, tuple(below.get(node.provider, ())))


def _room(summary: _Summary, name: str, stock: Stock | None) -> HostStock:
    """In the numbers of its inventory, as long as they make the capacity that Placement reckons with."""
    capacity, used = summary.capacity[name], summary.used[name]
    host_stock = HostStock(**vars(stock), used=used) if stock is not None else None
    return host_stock if host_stock is not None and host_stock.capacity == capacity else HostStock(capacity, used=used)


def _shared(cloud: Reader, sharing: frozenset[str]) -> dict[str, dict[str, int]]:
    """What is left of what providers share with hosts: two calls for each."""

    def left(id: str) -> dict[str, int]:
        used = cloud.usages(id)
        return {name: HostStock(**vars(has), used=used.get(name, 0)).free for name, has in cloud.stock(id).items()}

    return cloud.each(left, sorted(sharing))


def _site_limits(compiled: CompiledSite) -> dict[str, dict[str, int]]:
    registered = {limit.resource: limit.value for limit in compiled.limits if limit.project is None}
    limits_by_project = {"": registered}
    for limit in compiled.limits:
        if limit.project is not None:
            limits_by_project.setdefault(limit.project, dict(registered))[limit.resource] = limit.value
    return limits_by_project
