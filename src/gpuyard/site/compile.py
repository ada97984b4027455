"""The compiler: a site and the inventories of its hosts in, everything that OpenStack must be told out. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.model.gpu import Gpu
from gpuyard.model.host import Inventory
from gpuyard.site.encoding import EncodedGpu, encode
from gpuyard.site.nova import nova_options
from gpuyard.site.objects import FlavorObject, LimitObject, flavor_objects, limit_objects, sets_of_size
from gpuyard.site.options import ServiceOptions
from gpuyard.site.problems import Problem
from gpuyard.site.schema import Flavor, Site

RESERVED_HOST_MEMORY_MIB = 512  # Nova's default reserved_host_memory_mb


@dataclass(frozen=True)
class CompiledSite:
    """Wanted state, complete: nothing is left to decide for whoever carries it out."""

    site: Site
    gpus: tuple[Gpu, ...]
    options: tuple[ServiceOptions, ...]
    flavors: tuple[FlavorObject, ...]
    limits: tuple[LimitObject, ...]

    def options_of(self, service: str, host: str | None = None) -> ServiceOptions:
        """The options of a service; empty ones when the site has none for it."""
        for found in self.options:
            if (found.service, found.host) == (service, host):
                return found
        return ServiceOptions(service, host, ())


def compile_site(site: Site, inventories: Mapping[str, Inventory]) -> tuple[CompiledSite, list[Problem]]:
    """Compile; with problems, the result is what would come out without the offending parts, and must not be used."""
    encoded, problems = encode(site, inventories)
    problems += _unknown_names(site)
    for name, flavor in site.flavors.items():
        problems += _unrunnable(site, name, flavor, inventories, encoded)
    compiled = CompiledSite(
        site=site,
        gpus=tuple(item.gpu for item in encoded),
        options=nova_options(site, encoded),
        flavors=tuple(flavor_objects(site, encoded)),
        limits=tuple(limit_objects(site, encoded)),
    )
    return compiled, [*problems, *_same_names(compiled.flavors)]


def _unknown_names(site: Site) -> Iterable[Problem]:
    for name, pool in site.pools.items():
        for index, host in enumerate(pool.hosts or ()):
            if host not in site.hosts:
                known = ", ".join(site.hosts)
                yield Problem(("pools", name, "hosts", index), f"unknown host {host!r}; the site has {known}")
    for name, flavor in site.flavors.items():
        for pool_name in flavor.gpus:
            if pool_name not in site.pools:
                yield Problem(("flavors", name, "gpus", pool_name), _no_such_pool(site, pool_name))
    for name, flavor in site.flavors.items():
        for index, project_name in enumerate(flavor.projects or ()):
            close = difflib.get_close_matches(project_name, site.projects, n=1)
            if close and project_name not in site.projects:
                message = f"unknown project {project_name!r}; did you mean {close[0]!r}?"
                yield Problem(("flavors", name, "projects", index), message)
    for name, project in site.projects.items():
        for pool_name in project.gpus:
            if pool_name not in site.pools:
                yield Problem(("projects", name, "gpus", pool_name), _no_such_pool(site, pool_name))


def _no_such_pool(site: Site, name: str) -> str:
    return f"unknown pool {name!r}; the site has {', '.join(site.pools)}"


def _unrunnable(
    site: Site, name: str, flavor: Flavor, inventories: Mapping[str, Inventory], encoded: Sequence[EncodedGpu]
) -> Iterable[Problem]:
    """A flavor that no host can run even when it is empty, with what the largest host would allow."""
    place = ("flavors", name)
    hosts = {host: inventory.facts for host, inventory in inventories.items()}
    for pool, count in flavor.gpus.items():
        if pool not in site.pools:
            return
        room = {host: _most_gpus(encoded, pool, host, count if flavor.same_group else None) for host in hosts}
        hosts = {host: facts for host, facts in hosts.items() if room[host] >= count}
        if not hosts:
            yield Problem((*place, "gpus", pool), _too_many_gpus(pool, count, flavor.same_group, room, encoded))
            return
    needs = (
        ("vcpus", flavor.vcpus, "", max(facts.cpus for facts in hosts.values())),
        ("ram", flavor.ram, " MiB", max(facts.memory_mib for facts in hosts.values()) - RESERVED_HOST_MEMORY_MIB),
        ("disk", flavor.disk + flavor.ephemeral, " GiB", max(facts.disk_gib for facts in hosts.values())),
    )
    short = False
    for key, wanted, unit, most in needs:
        if wanted > most:
            short = True
            message = f"{wanted}{unit} is more than any host that could run it has; write {most}{unit} or less"
            yield Problem((*place, key), message)
    if not short and not any(_fits(flavor, facts) for facts in hosts.values()):
        yield Problem(place, "no single host has its vCPUs, RAM and disk together; write less of one of them")


def _fits(flavor: Flavor, facts: object) -> bool:
    cpus, memory, disk = (getattr(facts, key) for key in ("cpus", "memory_mib", "disk_gib"))
    enough_disk: bool = flavor.disk + flavor.ephemeral <= disk
    return flavor.vcpus <= cpus and flavor.ram <= memory - RESERVED_HOST_MEMORY_MIB and enough_disk


def _most_gpus(encoded: Sequence[EncodedGpu], pool: str, host: str, set_size: int | None) -> int:
    """The most GPUs that one server can get of a pool on a host: any leaders, or the GPUs of a set of one size."""
    offered = [item.gpu for item in encoded if item.offered and (item.gpu.pool, item.gpu.host) == (pool, host)]
    if set_size is None:
        return sum(gpu.role.value != "peer" for gpu in offered)
    sizes = [sum(g.set_letter == letter for g in offered) for letter in {g.set_letter for g in offered if g.set_letter}]
    return max((size for size in sizes if size == set_size), default=0)


def _too_many_gpus(
    pool: str, count: int, same_group: bool, room: Mapping[str, int], encoded: Sequence[EncodedGpu]
) -> str:
    if same_group:
        sizes = sorted({size for size in range(2, 65) if sets_of_size(encoded, pool, size)})
        have = f"groups of {', '.join(map(str, sizes))}" if sizes else "no IOMMU group with more than one usable GPU"
        return f"no host has an IOMMU group of {count} GPUs of pool {pool!r}; its hosts have {have}"
    best = max(room, key=lambda host: room[host], default=None)
    most = room[best] if best is not None else 0
    if not most:
        return f"no host has a usable GPU of pool {pool!r}; see 'gpuyard host scan --from RECORDING'"
    return (
        f"no host can give {count} GPUs of pool {pool!r} to one server: the most is {most} (on {best}, "
        f"one from each IOMMU group); write {most} or fewer, or 'same_group: true' for the GPUs of a shared group"
    )


def _same_names(flavors: Sequence[FlavorObject]) -> Iterable[Problem]:
    seen: set[str] = set()
    for flavor in flavors:
        if flavor.name in seen:
            yield Problem(("flavors",), f"two flavors come out as {flavor.name!r}; rename one")
        seen.add(flavor.name)
