"""Finds the holders of whole GPUs that Placement would not give away, and why nobody could have the others.

A GPU that is neither allocatable nor held by a server is asked for its inventories and its consumers, and `why_not`
of model/world.py judges the answer: a consumer has it, it is reserved, it is in another class, or it was freed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuyard.model.gpu import Gpu
from gpuyard.model.world import Provider, WhyNot, why_not
from gpuyard.openstack.reader import Reader


@dataclass(frozen=True)
class GpusSeen:
    """The state of some GPUs, by the names of their providers, as in `Snapshot`."""

    allocatable: frozenset[str]
    holders: Mapping[str, str]
    reserved: frozenset[str]
    unexplained: Mapping[str, str]


def see_gpus(
    cloud: Reader,
    gpus: Iterable[Gpu],
    providers: Mapping[str, Provider],
    allocatable: frozenset[str],
    held: Mapping[str, Collection[str]],
) -> GpusSeen:
    """Return the state of whole GPUs, with two questions for each one that is neither allocatable nor held by a server.

    `providers`: by name; `allocatable`: names of providers that could be allocated; `held`: server -> ids of the
    providers that it has allocations of.
    """
    names = {provider.id: provider.name for provider in providers.values() if provider.root_id != provider.id}
    holders = {
        names[provider_id]: server for server, ids in held.items() for provider_id in ids if provider_id in names
    }
    unexplained = providers.keys() - allocatable - holders.keys()
    odd = {gpu.provider_name: gpu for gpu in gpus if not gpu.blocked and gpu.provider_name in unexplained}
    verdicts = cloud.each(lambda name: _look(cloud, odd[name], providers[name].id), odd)
    by_verdict = {verdict: frozenset(n for n, (why, _) in verdicts.items() if why is verdict) for verdict in WhyNot}
    return GpusSeen(
        allocatable=allocatable | by_verdict[WhyNot.FREED],
        holders=holders | {name: verdicts[name][1] for name in by_verdict[WhyNot.CONSUMER]},
        reserved=by_verdict[WhyNot.RESERVED],
        unexplained={name: verdicts[name][1] for name in by_verdict[WhyNot.OTHER_CLASS]},
    )


def _look(cloud: Reader, gpu: Gpu, provider: str) -> tuple[WhyNot, str]:
    """Why a GPU cannot be had; and who has it, or what is odd about it."""
    stock, consumers = cloud.stock(provider), cloud.consumers(provider)
    verdict = why_not(gpu.resource_class, stock, consumers)
    if verdict is WhyNot.OTHER_CLASS:
        classes = ", ".join(sorted(stock)) or "nothing"
        return verdict, f"Placement has it as {classes}, not as {gpu.resource_class}: deploy the site's Nova options"
    return verdict, min(consumers, default="")
