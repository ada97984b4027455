"""Compiles a site and the inventories of its hosts to the complete desired state of OpenStack. Pure.

It encodes whole GPUs, then shared ones, and checks the site against both. With any problem it stops there, because
what follows relies on names that exist. Then it computes capacities, options, provider configs, flavors, limits,
aggregates and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuyard.model.gpu import Gpu
from gpuyard.model.host import Inventory
from gpuyard.site.address_space import too_small
from gpuyard.site.capacity import HostCapacity, capacities, wants_dedicated_cpus
from gpuyard.site.encoding import by_host, encode
from gpuyard.site.nova import nova_options
from gpuyard.site.objects import (
    AggregateObject,
    FlavorObject,
    ImageObject,
    LimitObject,
    aggregate_objects,
    flavor_objects,
    image_objects,
    limit_objects,
    provider_configs,
)
from gpuyard.site.options import ServiceOptions
from gpuyard.site.problems import Problem
from gpuyard.site.provider_config import ProviderConfig
from gpuyard.site.rules import site_problems
from gpuyard.site.schema import Site
from gpuyard.site.sharing import encode_shared


@dataclass(frozen=True)
class CompiledSite:
    """The complete desired state: appliers have nothing left to decide."""

    site: Site
    gpus: tuple[Gpu, ...]
    capacities: tuple[HostCapacity, ...]
    options: tuple[ServiceOptions, ...]
    provider_configs: tuple[ProviderConfig, ...]
    flavors: tuple[FlavorObject, ...]
    limits: tuple[LimitObject, ...]
    aggregates: tuple[AggregateObject, ...] = ()
    images: tuple[ImageObject, ...] = ()
    unseen: tuple[str, ...] = ()
    """Notes about flavors whose servers may not see all their GPUs."""

    @property
    def whole_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs without shares of GPUs."""
        return tuple(gpu for gpu in self.gpus if not gpu.is_unit)

    @property
    def shared_flavors(self) -> dict[str, str]:
        """Flavors whose servers get a share of a GPU, each with its pool."""
        pools = self.site.pools
        return {
            flavor.name: flavor.pool
            for flavor in self.flavors
            if flavor.pool is not None and pools[flavor.pool].is_shared
        }

    def options_of(self, service: str, host: str | None = None) -> ServiceOptions:
        """Return the options of a service; empty ones when the site has none for it."""
        for options in self.options:
            if (options.service, options.host) == (service, host):
                return options
        return ServiceOptions(service, host, ())

    def provider_config_of(self, host: str) -> ProviderConfig:
        """Return what a host's nova-compute adds to its provider; an empty config when that is nothing."""
        for config in self.provider_configs:
            if config.host == host:
                return config
        return ProviderConfig(host)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about settings that are allowed and may surprise."""
        return (*_notes(self.site, self.capacities, self.gpus), *self.unseen)


def compile_site(site: Site, inventories: Mapping[str, Inventory]) -> tuple[CompiledSite, list[Problem]]:
    """Compile a site, and return the result with all problems. With problems it must not be used: it may be empty."""
    encoded, problems = encode(site, inventories)
    shared, more = encode_shared(site, inventories)
    encoded, problems = by_host([*encoded, *shared], site.hosts), [*problems, *more]
    problems += site_problems(site, inventories, encoded)
    if problems:
        # Names that point nowhere have been reported; what follows may rely on them.
        return CompiledSite(site, (), (), (), (), (), ()), problems
    facts = {name: inventory.facts for name, inventory in inventories.items()}
    hosts = capacities(site, facts, encoded)
    compiled = CompiledSite(
        site=site,
        gpus=tuple(item.gpu for item in encoded),
        capacities=hosts,
        options=nova_options(site, encoded),
        provider_configs=tuple(provider_configs(site, encoded, hosts)),
        flavors=tuple(flavor_objects(site, encoded)),
        limits=tuple(limit_objects(site, encoded)),
        aggregates=tuple(aggregate_objects(site)),
        images=tuple(image_objects(site)),
        unseen=tuple(too_small(site, facts, encoded)),
    )
    return compiled, [*_same_names(compiled), *_too_much_reserved(hosts)]


def _same_names(compiled: CompiledSite) -> list[Problem]:
    problems = []
    for kind, names in (
        # A name is an id too, without the + that Nova does not take in ids.
        ("flavors", [flavor.name.replace("+", "_") for flavor in compiled.flavors]),
        ("aggregates", [aggregate.name for aggregate in compiled.aggregates]),
    ):
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        problems += [Problem((kind,), f"two {kind} come out as {name!r}; rename one") for name in twice]
    return problems


def _too_much_reserved(hosts: Sequence[HostCapacity]) -> list[Problem]:
    return [
        Problem(
            ("hosts", host.host, "reserve"),
            f"{host.reserve} is more than servers can have on the host ({host.total}); write less",
        )
        for host in hosts
        if not host.reserve.fits(host.total)
    ]


def _notes(site: Site, hosts: Sequence[HostCapacity], gpus: Sequence[Gpu]) -> list[str]:
    notes = [
        f"host {host.host} keeps {host.reserve} for servers with GPUs, and the largest flavors in all its slots need "
        f"{host.needed}: a free GPU may find no room; write 'reserve: largest-flavors' or more"
        for host in hosts
        if site.hosts[host.host].reserve is not None and not host.enough
    ]
    if any(host.keeps for host in hosts):
        notes += _beside_a_reserve(site)
    notes += _more_than_there_is(site, gpus)
    if site.runners is not None and site.runners.network in (None, "auto"):
        notes.append(
            f"runners: no 'network' is given; their servers are in the only one that project {site.runners.project} "
            "owns, and there are no runners when it owns none or several. Write its id, or 'none'"
        )
    foreign = [name for name, flavor in site.flavors.items() if flavor.foreign]
    if foreign and site.isolated:
        notes.append(
            f"servers of {', '.join(foreign)} cannot start on the site's hosts: those take only servers of flavors "
            "that gpuyard makes, and these are foreign"
        )
    return notes


def _more_than_there_is(site: Site, gpus: Sequence[Gpu]) -> list[str]:
    offered: dict[str, int] = {}
    for gpu in gpus:
        offered[gpu.pool] = offered.get(gpu.pool, 0) + (not gpu.blocked)
    return [
        f"project {name} may have {count} GPUs of pool {pool}, and the site offers {offered.get(pool, 0)}"
        for name, project in site.projects.items()
        for pool, count in project.gpus.items()
        if count > offered.get(pool, 0)
    ]


def _beside_a_reserve(site: Site) -> list[str]:
    """Flavors without GPUs that take what a reserve does not keep."""
    dedicated = [name for name, flavor in site.flavors.items() if not flavor.gpus and wants_dedicated_cpus(flavor)]
    near = [name for name, pool in site.pools.items() if pool.numa in ("required", "socket")]
    notes = []
    if dedicated and any(host.cpu_dedicated_set for host in site.hosts.values()):
        notes.append(f"nothing keeps dedicated CPUs for servers with GPUs from those of {', '.join(dedicated)}")
    if near:
        notes.append(
            f"a reserve is of a whole host: for pool {', '.join(near)}, whose GPUs must be near their CPUs, others may "
            "fill the NUMA node of a free GPU"
        )
    return notes
