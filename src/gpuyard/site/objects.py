"""What a site wants to exist in OpenStack besides configuration: flavors and limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuyard.site.encoding import EncodedGpu, peer_class, pool_class
from gpuyard.site.nova import alias, leader_alias, peer_alias
from gpuyard.site.schema import Flavor, Site


def owner_mark(site: str) -> str:
    """The description of every flavor and limit that gpuyard makes: it is set in the call that creates the object, so
    that a crash between two calls cannot leave one that looks like somebody else's."""
    return f"made by gpuyard for site {site}"


@dataclass(frozen=True)
class FlavorObject:
    """A Nova flavor: wanted or seen. RAM in MiB, disks in GiB."""

    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int = 0
    public: bool = True
    extra_specs: dict[str, str] = field(default_factory=dict)
    projects: frozenset[str] = frozenset()
    """Names of the projects with access, for a private flavor."""
    description: str = ""
    pool: str | None = None
    gpus: int = 0


@dataclass(frozen=True)
class LimitObject:
    """A Keystone limit on a resource of Nova: registered (the default of every project) or a project's own."""

    resource: str
    """As Nova names it: ``servers``, ``class:VCPU``, ``class:CUSTOM_GPU_V100``."""
    value: int
    project: str | None = None
    description: str = ""
    """The owner's mark, on limits of the site's own classes. Base limits are the cloud's, whoever set them."""


def flavor_objects(site: Site, encoded: Sequence[EncodedGpu]) -> list[FlavorObject]:
    """The flavors of a site. One with ``same_group`` becomes one per set of its size: ``pair-a``, ``pair-b``."""
    return [made for name, flavor in site.flavors.items() for made in _expand(site, name, flavor, encoded)]


def _expand(site: Site, name: str, flavor: Flavor, encoded: Sequence[EncodedGpu]) -> Iterable[FlavorObject]:
    if not flavor.gpus:
        yield _flavor(site, name, flavor, None)
        return
    ((pool, count),) = flavor.gpus.items()
    if not flavor.same_group:
        yield _flavor(site, name, flavor, f"{alias(pool)}:{count}")
        return
    for letter in sets_of_size(encoded, pool, count):
        aliases = f"{leader_alias(pool, letter)}:1,{peer_alias(pool, letter)}:{count - 1}"
        yield _flavor(site, f"{name}-{letter.lower()}", flavor, aliases)


def sets_of_size(encoded: Sequence[EncodedGpu], pool: str, size: int) -> list[str]:
    """Letters of the sets of a pool that have exactly this many GPUs."""
    sizes: dict[str, dict[str, int]] = {}
    for item in encoded:
        if item.gpu.pool == pool and item.gpu.set_letter:
            hosts = sizes.setdefault(item.gpu.set_letter, {})
            hosts[item.gpu.host] = hosts.get(item.gpu.host, 0) + 1
    return sorted(letter for letter, hosts in sizes.items() if size in hosts.values())


def _flavor(site: Site, name: str, flavor: Flavor, aliases: str | None) -> FlavorObject:
    specs = {**_pool_specs(site, flavor), **flavor.properties}
    if aliases:
        specs["pci_passthrough:alias"] = aliases
    return FlavorObject(
        name=name,
        vcpus=flavor.vcpus,
        ram=flavor.ram,
        disk=flavor.disk,
        ephemeral=flavor.ephemeral,
        public=flavor.projects is None,
        extra_specs=specs,
        projects=frozenset(flavor.projects or ()),
        description=owner_mark(site.site),
        pool=next(iter(flavor.gpus), None),
        gpus=sum(flavor.gpus.values()),
    )


def _pool_specs(site: Site, flavor: Flavor) -> dict[str, str]:
    """Extra specs that the GPUs of a flavor's pool ask for; the flavor's own properties go before them."""
    pools = [site.pools[name] for name in flavor.gpus if name in site.pools]
    specs = {}
    if any(pool.hide_hypervisor for pool in pools):
        specs["hw:hide_hypervisor_id"] = "true"
    if any(pool.big_bars for pool in pools):
        specs["hw:maxphysaddr_mode"] = "passthrough"
    return specs


def limit_objects(site: Site, encoded: Sequence[EncodedGpu]) -> list[LimitObject]:
    """Registered limits that the site states, and each project's own on the pools that it may use.

    A GPU class that has no registered limit is unlimited for everybody, so every pool gets one, of 0. A pool with
    peers has a second class; peers can only be had with their leader, so the project's number bounds both.
    """
    base = {
        "servers": site.limits.servers,
        "class:VCPU": site.limits.vcpus,
        "class:MEMORY_MB": site.limits.ram,
        "class:DISK_GB": site.limits.disk,
    }
    wanted = [LimitObject(resource, value) for resource, value in base.items() if value is not None]
    mark = owner_mark(site.site)
    for pool in site.pools:
        classes = pool_classes(encoded, pool)
        wanted += [LimitObject(f"class:{name}", 0, None, mark) for name in classes]
        for project, wish in site.projects.items():
            if pool in wish.gpus:
                wanted += [LimitObject(f"class:{name}", wish.gpus[pool], project, mark) for name in classes]
    return wanted


def pool_classes(encoded: Sequence[EncodedGpu], pool: str) -> list[str]:
    """The resource classes of a pool: its own, and its peers' where it has some."""
    peers = any(item.gpu.pool == pool and item.gpu.resource_class == peer_class(pool) for item in encoded)
    return [pool_class(pool), peer_class(pool)] if peers else [pool_class(pool)]


@dataclass(frozen=True)
class SeenLimit:
    """A limit as Keystone has it."""

    id: str
    limit: LimitObject


@dataclass(frozen=True)
class SeenFlavor:
    """A flavor as Nova has it."""

    id: str
    flavor: FlavorObject


@dataclass(frozen=True)
class SeenObjects:
    """What a cloud has of the kinds of objects that a site manages, also those of others."""

    flavors: tuple[SeenFlavor, ...]
    limits: tuple[SeenLimit, ...]
    projects: dict[str, str]
    """Name -> id, of the default domain."""
