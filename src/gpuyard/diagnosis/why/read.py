"""Reads the facts for ``gpuyard gpu why``: sets for all hosts at once, then details of a few of them.

Placement is asked which providers have what the flavor asks, one call a question for any number of hosts and GPUs. Only
hosts that fail on GPUs or on room, and a few of them at most, are then read in detail by read_closer.py: what they have
and who holds it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from gpuyard.diagnosis.why.explain import explain
from gpuyard.diagnosis.why.facts import ComputeNode, Device, Explanation, HostAggregate, NeedKey, RequestFacts
from gpuyard.diagnosis.why.read_closer import CloserReader
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
from gpuyard.model.errors import UsageError
from gpuyard.model.gpu import Gpu, LedgerWords
from gpuyard.model.world import Provider
from gpuyard.nova.request import PINNED, SHARED, NovaFlavor, Request, request_of
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.reader import BAD_REQUEST, Reader
from gpuyard.openstack.silent_cells import list_hypervisors
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import count_class, slot_traits
from gpuyard.site.load import LoadedSite
from gpuyard.site.nova import alias


def why(
    api: CloudApi,
    loaded: LoadedSite,
    flavor: str,
    project: str | None = None,
    zone: str | None = None,
    words: LedgerWords | None = None,
) -> Explanation:
    """Explain why a server of a flavor (name or id) would not start now, or where it would. `words`: the ledger's
    reasons for keeping GPUs; None where they are not known.

    Raises UsageError for a flavor or a project that does not exist, CloudError when the cloud does not answer.
    """
    before = api.calls
    with Reader(api) as cloud:
        reader = FactsReader(cloud, loaded)
        facts, request = reader.read(flavor, project, zone)
        facts = reader.closer(facts, words).look(facts, request, explain(facts, request).hosts)
    return explain(replace(facts, calls=api.calls - before), request)


class FactsReader:
    """Reads the first round of facts, which is of all hosts at once."""

    def __init__(self, cloud: Reader, loaded: LoadedSite) -> None:
        self._cloud = cloud
        self._loaded = loaded
        self._aliases = site_aliases(loaded.compiled)
        self._providers: dict[str, Provider] = {}
        self._allocatable: frozenset[str] = frozenset()
        self._gpus: list[Gpu] = []

    def read(self, name: str, project: str | None, zone: str | None) -> tuple[RequestFacts, Request]:
        """Return the facts that hold of all hosts at once, and the request."""
        run, cloud = self._cloud.later, self._cloud
        asker = run(asker_named, cloud, project) if project is not None else None
        services = run(cloud.services)
        hypervisors = run(lambda: list_hypervisors(cloud, services.result()))
        aggregates = run(cloud.aggregates)
        providers = run(cloud.providers)
        sharing = run(cloud.able, required=SHARES)
        flavor = self._flavor(name)
        self._refuse_shares(flavor.name)
        request = request_of(flavor, self._aliases)
        if not placement_decides(self._loaded.compiled):
            request = request.without_devices()
        limits = run(limits_of, cloud, self._loaded.compiled, asker.result(), request.counted(True)) if asker else None
        by_id = providers.result()
        self._providers = {provider.name: provider for provider in by_id.values()}
        able = {(name, amount): run(cloud.able, resources=f"{name}:{amount}") for name, amount in _amounts(request)}
        requested_classes = {need.resource_class for need in request.devices}
        pools = {gpu.pool for gpu in self._loaded.compiled.whole_gpus if gpu.resource_class in requested_classes}
        self._gpus = [gpu for gpu in self._loaded.compiled.whole_gpus if gpu.pool in pools]
        need_keys: set[NeedKey] = {(need.resource_class, need.traits) for need in request.devices}
        plain: set[NeedKey] = {(name, frozenset()) for name in requested_classes}
        plain |= {(gpu.resource_class, frozenset()) for gpu in self._gpus if not gpu.blocked}
        devices = {key: run(cloud.able, **_query(key)) for key in need_keys | plain}
        traits = {trait: run(cloud.able, required=trait) for trait in request.all_traits | request.forbidden}
        candidates = [run(self._candidates, query) for query in request.queries()]
        able_devices = {
            key: frozenset(by_id[provider_id].name for provider_id in _ids(later) if provider_id in by_id)
            for key, later in devices.items()
        }
        self._allocatable = frozenset().union(*able_devices.values())
        shares = _ids(sharing)
        hosts = tuple(compute_nodes(self._loaded, hypervisors.result(), services.result(), by_id.values(), shares))
        facts = RequestFacts(
            flavor=flavor,
            hosts=hosts,
            devices=tuple(self._devices({key: able_devices[key] for key in need_keys}, requested_classes, hosts)),
            able={key: _ids(later) for key, later in able.items()},
            sharing=shares,
            able_devices=able_devices,
            with_trait={trait: _ids(later) for trait, later in traits.items()},
            unknown_classes=_unknown({k[0]: able[k] for k in able} | {k[0]: devices[k] for k in plain}),
            unknown_traits=_unknown(traits),
            aggregates=tuple(HostAggregate(row.name, row.hosts, row.metadata) for row in aggregates.result()),
            asker=limits.result() if limits else None,
            zone=zone,
            pools=pools_of_classes(self._loaded.compiled),
            pool_sizes=Counter((gpu.host, gpu.pool) for gpu in self._loaded.compiled.whole_gpus),
            counting=frozenset(map(count_class, self._loaded.site.pools)),
            site_limits=_site_limits(self._loaded.compiled, limits.result().name) if limits else {},
            bookable=self._loaded.site.booking is not None,
            gpu_hosts=_gpu_hosts(self._loaded.compiled, request),
            **scheduling(self._loaded.compiled),
        )
        return _with_candidates(facts, [later.result() for later in candidates]), request

    def closer(self, facts: RequestFacts, words: LedgerWords | None) -> CloserReader:
        """Return the reader of the second round, after the first."""
        asker = (facts.asker.id, facts.asker.name) if facts.asker else None
        return CloserReader(self._cloud, self._aliases, self._gpus, self._providers, self._allocatable, asker, words)

    def _refuse_shares(self, flavor: str) -> None:
        pool = self._loaded.compiled.shared_flavors.get(flavor)
        if pool is not None:
            raise UsageError(
                f"flavor {flavor} takes a share of a GPU, and why there is none is only known of whole ones; see "
                f"'gpuyard gpu list --pool {pool}' for those that are free, and Nova's own fault of the server"
            )

    def _flavor(self, name: str) -> NovaFlavor:
        rows = self._cloud.flavors()
        matches = [row for row in rows if row.name == name] or [row for row in rows if row.id == name]
        if not matches:
            sets = _sets_of(self._loaded.compiled, name)
            if sets:
                raise UsageError(
                    f"flavor {name} takes whole IOMMU groups (same_group): it comes out as {', '.join(sets)}; "
                    "ask for one of them"
                )
            close = difflib.get_close_matches(name, [row.name for row in rows], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see 'openstack flavor list --all'"
            raise UsageError(f"cloud {self._cloud.api.name} has no flavor {name!r}; {hint}")
        flavor = matches[0]
        return flavor if flavor.public else replace(flavor, projects=self._cloud.access(flavor.id))

    def _candidates(self, query: Mapping[str, str]) -> tuple[frozenset[str], str]:
        """Ids of the root providers that Placement would give the whole request to, or what it says instead."""
        try:
            answer = self._cloud.api.get("placement", "/allocation_candidates", **query)
        except CloudError as error:
            return frozenset(), "" if error.status == BAD_REQUEST else str(error)  # unknown words are a cause already
        summaries = answer["provider_summaries"]
        used = {provider for row in answer["allocation_requests"] for provider in row["allocations"]}
        return frozenset(summaries[provider]["root_provider_uuid"] for provider in used), ""

    def _devices(
        self, able: Mapping[NeedKey, frozenset[str]], requested_classes: set[str], hosts: Sequence[ComputeNode]
    ) -> Iterable[Device]:
        """The site's GPUs of the classes that are asked, and providers that would do and that it does not know."""
        free = frozenset[str]().union(*able.values()) if able else frozenset()
        mine = {gpu.provider_name for gpu in self._loaded.compiled.whole_gpus}
        for gpu in self._gpus:
            if gpu.resource_class in requested_classes:
                meant = any(name == gpu.resource_class and traits <= _traits(gpu) for name, traits in able)
                yield self._device(gpu, gpu.provider_name in (free if meant else self._allocatable))
        host_of = {host.provider: host.name for host in hosts}
        foreign: dict[str, NeedKey] = {}
        for (name, traits), providers in able.items():
            for provider in providers - mine:
                foreign[provider] = (name, traits | foreign.get(provider, ("", frozenset()))[1])
        for provider, (name, traits) in sorted(foreign.items()):
            host = host_of.get(self._providers[provider].root_id) if provider in self._providers else None
            if host is not None:
                yield Device(provider, host, provider.removeprefix(f"{host}_"), name, traits, "foreign")

    def _device(self, gpu: Gpu, free: bool) -> Device:
        state, reason = ("free", "") if free else ("taken", "cannot be had")
        if gpu.blocked:
            state, reason = "blocked", gpu.blocked
        elif gpu.provider_name not in self._providers:
            state, reason = "lost", "is not in Placement: is the site's device_spec deployed?"
        return Device(
            provider=gpu.provider_name,
            host=gpu.host,
            address=gpu.address,
            resource_class=gpu.resource_class,
            traits=_traits(gpu),
            state=state,
            reason=reason,
            device_type=self._loaded.inventories[gpu.host].function(gpu.address).device_type.value,
        )


def _site_limits(compiled: CompiledSite, project: str) -> dict[str, int]:
    """Resource -> the limit that the site file gives a project: its own, or the one of every project."""
    registered = {limit.resource: limit.value for limit in compiled.limits if limit.project is None}
    return registered | {limit.resource: limit.value for limit in compiled.limits if limit.project == project}


def _gpu_hosts(compiled: CompiledSite, request: Request) -> frozenset[str] | None:
    """The hosts with GPUs that Placement is not asked for; None when there are none to ask, or of no pool."""
    pools = {alias(compiled.site, pool): pool for pool in compiled.site.pools}
    requested_pools = [pools.get(need.alias) for need in request.unplaced]
    if not requested_pools or None in requested_pools:
        return None
    hosts = [{gpu.host for gpu in compiled.gpus if gpu.pool == pool} for pool in requested_pools]
    return frozenset(set.intersection(*hosts))


def _sets_of(compiled: CompiledSite, name: str) -> list[str]:
    """The flavors that one with ``same_group`` comes out as; none of another."""
    flavor = compiled.site.flavors.get(name)
    if flavor is None or not flavor.same_group:
        return []
    return [made.name for made in compiled.flavors if made.name.rpartition("-")[0] == name]


def _amounts(request: Request) -> set[tuple[str, int]]:
    """Every class and amount to ask for; with pinned CPUs also what Nova falls back to."""
    pairs = {item for part in (request.amounts, *(group.amounts for group in request.groups)) for item in part.items()}
    return pairs | {(SHARED, amount) for name, amount in pairs if name == PINNED}


def _query(key: NeedKey) -> dict[str, object]:
    name, traits = key
    query: dict[str, object] = {"resources": f"{name}:1"}
    return {**query, "required": ",".join(sorted(traits))} if traits else query


def _traits(gpu: Gpu) -> frozenset[str]:
    return slot_traits(gpu)


def _ids(later: Future[frozenset[str] | None]) -> frozenset[str]:
    return later.result() or frozenset()


def _unknown(futures: Mapping[str, Future[frozenset[str] | None]]) -> frozenset[str]:
    return frozenset(name for name, later in futures.items() if later.result() is None)


def _with_candidates(facts: RequestFacts, answers: Sequence[tuple[frozenset[str], str]]) -> RequestFacts:
    candidates = frozenset[str]().union(*(roots for roots, _ in answers))
    errors = "; ".join(dict.fromkeys(error for _, error in answers if error))
    return replace(facts, candidates=candidates, candidates_error="" if candidates else errors)
