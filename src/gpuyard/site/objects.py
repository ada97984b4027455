"""Generates the flavors, limits, aggregates, image properties and provider configs that a site wants in OpenStack.

A flavor with ``same_group`` becomes one per set of its size, and flavors of runners get variants for the kinds of
slots that a pool mixes. Every GPU class gets a registered limit of 0, because without one it is unlimited for
everybody; with bookings, projects' limits on GPUs follow the bookings and are not made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from gpuyard.model.gpu import GpuRole
from gpuyard.nova.alias_spec import ALIAS_SPEC
from gpuyard.nova.release import RELEASES
from gpuyard.site.capacity import HostCapacity, size_of
from gpuyard.site.encoding import LONE_TRAIT, EncodedGpu, count_class, peer_class, pool_class, set_trait, slot_trait
from gpuyard.site.nova import alias, leader_alias, limited_classes, lone_alias, peer_alias
from gpuyard.site.provider_config import ProviderConfig
from gpuyard.site.runner_rules import SiteRunners
from gpuyard.site.schema import Flavor, Limits, Site


def owner_mark(site: str) -> str:
    """Return the description of every flavor and limit that gpuyard makes: it is set in the call that creates the
    object, so that a crash between two calls cannot leave one that looks like somebody else's."""
    return f"made by gpuyard for site {site}"


def bookings_mark(site: str) -> str:
    """Return the description of limits on GPUs that follow bookings: the enforcement of bookings sets them, and plans
    leave them alone."""
    return f"{owner_mark(site)}: bookings"


def site_trait(site: str) -> str:
    """Return the trait of the hosts that take only servers of the site's flavors: ``CUSTOM_SITE_LAB``."""
    return "CUSTOM_SITE_" + site.upper().replace("-", "_")


def site_aggregate(site: str) -> str:
    """Return the name of the aggregate that isolates the site's hosts."""
    return f"gpuyard-{site}"


MOST_VARIANTS = 64
"""Most variants of one flavor, for the kinds of slots that its servers may land in."""
AGGREGATE_KEY = "gpuyard_aggregate"
"""Metadata key of an aggregate, which flavors that run on it ask for."""
OWNER_KEY = "gpuyard_site"
"""Metadata key of an aggregate of ours; its value is the name of the site."""


@dataclass(frozen=True)
class FlavorObject:
    """A Nova flavor, desired or observed. RAM in MiB, disks in GiB."""

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
    set_letter: str | None = None
    """Letter of the IOMMU groups that it takes as a whole, for a flavor with ``same_group``."""
    foreign: bool = False
    """Whether it must be as it says here, but is not ours to make or change."""
    variant_of: str = ""
    """The site's flavor that it is a variant of, for runners alone and for slots of certain kinds; empty: none."""
    slot_traits: tuple[str, ...] = ()
    """Traits of those slots for a variant, one for each GPU, sorted."""


@dataclass(frozen=True)
class LimitObject:
    """A Keystone limit on a resource of Nova: registered (the default of every project) or a project's own."""

    resource: str
    """The resource as Nova names it: ``servers``, ``class:VCPU``, ``class:CUSTOM_GPU_V100``."""
    value: int
    project: str | None = None
    description: str = ""
    """The owner's mark, on limits of the site's own classes and on those of projects. Defaults for servers, CPU and the
    like are the cloud's, whoever set them."""

    @property
    def kind(self) -> str:
        return "registered limit" if self.project is None else "project limit"

    @property
    def name(self) -> str:
        return self.resource if self.project is None else f"{self.project} {self.resource}"


@dataclass(frozen=True)
class AggregateObject:
    """A host aggregate of Nova, desired or observed."""

    name: str
    hosts: frozenset[str] = frozenset()
    availability_zone: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    """Its metadata without the availability zone, which Nova keeps there too."""


@dataclass(frozen=True)
class ImageObject:
    """Properties of an image in Glance, desired or observed."""

    name: str
    properties: dict[str, str] = field(default_factory=dict)


def flavor_objects(site: Site, encoded: Sequence[EncodedGpu]) -> list[FlavorObject]:
    """Return the flavors of a site. One with ``same_group`` becomes one per set of its size: ``pair-a``, ``pair-b``."""
    sets, runners = set_sizes(encoded), runner_flavors(site)
    made = [(name, variant) for name, flavor in site.flavors.items() for variant in _expand(site, name, flavor, sets)]
    flavors = [_also_for(site.runners, flavor) if name in runners else flavor for name, flavor in made]
    return [*flavors, *(variant for name in runners for variant in _for_slots(site, name, site.flavors[name], encoded))]


def _for_slots(site: Site, name: str, flavor: Flavor, encoded: Sequence[EncodedGpu]) -> Iterable[FlavorObject]:
    """Variants of a flavor for runners, in pools with several kinds of slots: one for each choice of kinds that a host
    has. Nova takes any of the pool otherwise, the leader of a group as well as a lone one."""
    if site.runners is None or flavor.foreign or flavor.same_group or not flavor.gpus:
        return
    ((pool, count),) = flavor.gpus.items()
    for lone, letters in islice(_slot_choices(pool, count, encoded), MOST_VARIANTS):
        endings = [*(["lone"] if lone else []), *(f"set-{letter.lower()}" for letter in letters)]
        alias_specs = [f"{lone_alias(site, pool)}:{lone}"] if lone else []
        alias_specs += [f"{leader_alias(site, pool, letter)}:1" for letter in letters]
        made = _flavor(site, "-".join([name, *endings]), flavor, ",".join(alias_specs))
        traits = tuple(sorted([LONE_TRAIT] * lone + [set_trait(letter) for letter in letters]))
        whose = frozenset({site.runners.project})
        yield replace(made, public=False, projects=whose, variant_of=name, slot_traits=traits)


def _slot_choices(pool: str, count: int, encoded: Iterable[EncodedGpu]) -> list[tuple[int, tuple[str, ...]]]:
    """How many lone GPUs of a host, and which of its groups, a server with so many GPUs may have; those with most lone
    ones first. None in a pool with slots of one kind."""
    mine = [item.gpu for item in encoded if item.gpu.pool == pool and item.offered]
    leaders = [gpu for gpu in mine if gpu.role is not GpuRole.PEER]
    if len({slot_trait(gpu) for gpu in leaders}) < 2:
        return []
    choices = set()
    for host in {gpu.host for gpu in leaders}:
        host_gpus = [gpu for gpu in leaders if gpu.host == host]
        letters = sorted(gpu.set_letter for gpu in host_gpus if gpu.set_letter)
        lone = len(host_gpus) - len(letters)
        for groups in range(max(0, count - lone), min(count, len(letters)) + 1):
            choices |= {(count - groups, chosen) for chosen in combinations(letters, groups)}
    return sorted(choices, key=lambda choice: (-choice[0], choice[1]))


def _also_for(runners: SiteRunners | None, flavor: FlavorObject) -> FlavorObject:
    """Who does not see a private one cannot start a server with it."""
    if runners is None or flavor.public or flavor.foreign:
        return flavor
    return replace(flavor, projects=flavor.projects | {runners.project})


def _expand(site: Site, name: str, flavor: Flavor, sets: SetSizes) -> Iterable[FlavorObject]:
    if not flavor.gpus:
        yield _flavor(site, name, flavor, None)
        return
    ((pool, count),) = flavor.gpus.items()
    if pool not in site.pools:
        return
    if not flavor.same_group:
        yield _flavor(site, name, flavor, f"{alias(site, pool)}:{count}" if site.pools[pool].counted_by_alias else None)
        return
    for letter in sets_of_size(sets, pool, count):
        aliases = f"{leader_alias(site, pool, letter)}:1,{peer_alias(site, pool, letter)}:{count - 1}"
        yield replace(_flavor(site, f"{name}-{letter.lower()}", flavor, aliases), set_letter=letter)


SetSizes = Mapping[tuple[str, str], frozenset[int]]
"""Pool and letter -> the sizes that the set has on the hosts; the encoding gives each letter one size."""


def set_sizes(encoded: Iterable[EncodedGpu]) -> SetSizes:
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for item in encoded:
        if item.gpu.set_letter:
            hosts = counts.setdefault((item.gpu.pool, item.gpu.set_letter), {})
            hosts[item.gpu.host] = hosts.get(item.gpu.host, 0) + 1
    return {key: frozenset(hosts.values()) for key, hosts in counts.items()}


def sets_of_size(sets: SetSizes, pool: str, size: int) -> list[str]:
    """Return the letters of the sets of a pool that have exactly this many GPUs."""
    return sorted(letter for (set_pool, letter), sizes in sets.items() if set_pool == pool and size in sizes)


def _flavor(site: Site, name: str, flavor: Flavor, aliases: str | None) -> FlavorObject:
    specs = dict(flavor.properties) if flavor.foreign else {**_site_specs(site, flavor), **flavor.properties}
    if aliases:
        specs[ALIAS_SPEC] = aliases
    projects = _allowed(site, flavor)
    return FlavorObject(
        name=name,
        vcpus=flavor.vcpus,
        ram=flavor.ram,
        disk=flavor.disk,
        ephemeral=flavor.ephemeral,
        public=projects is None,
        extra_specs=specs,
        projects=frozenset(projects or ()),
        description="" if flavor.foreign else owner_mark(site.site),
        pool=next(iter(flavor.gpus), None),
        gpus=sum(flavor.gpus.values()),
        foreign=flavor.foreign,
    )


def runner_flavors(site: Site) -> tuple[str, ...]:
    """Return the names of flavors that runners for GitHub jobs may have.

    They are those of scale sets, and those that `.cirun.yml` may name, which are all where the site names none.
    Those without GPUs are among them where the site has `cpu_runners`; private ones only where the site names them
    or their projects include the runners' own.
    """
    if site.runners is None:
        return ()
    named = {
        *site.runners.allowed.flavors,
        *(name for scale_set in site.runners.sets.values() for name in scale_set.flavors),
    }
    every = not site.runners.allowed.flavors and any(enrolment.cirun for enrolment in site.runners.enrolments)
    project = site.runners.project

    def seen(flavor: Flavor) -> bool:
        projects = _allowed(site, flavor)
        return projects is None or project in projects

    able = {name: flavor for name, flavor in site.flavors.items() if flavor.gpus or site.runners.cpu_runners}
    return tuple(name for name, flavor in able.items() if name in named or (every and seen(flavor)))


def _allowed(site: Site, flavor: Flavor) -> list[str] | None:
    """The projects that a flavor is private to by the site file; None when everybody sees it."""
    if flavor.projects is None and not flavor.foreign and set(flavor.gpus) & set(site.pools):
        return site.pools[next(iter(flavor.gpus))].projects
    return flavor.projects


def _site_specs(site: Site, flavor: Flavor) -> dict[str, str]:
    """Extra specs that follow from the rest of the site; the flavor's own properties go before them."""
    specs = {}
    for name, count in flavor.gpus.items():
        pool = site.pools[name]
        if pool.hide_hypervisor:
            specs["hw:hide_hypervisor_id"] = "true"
        if pool.big_bars:
            specs["hw:maxphysaddr_mode"] = "passthrough"
        if not pool.counted_by_alias and count > 1:
            specs |= _several_vgpus(pool_class(name), count)
        elif not pool.counted_by_alias:
            specs[f"resources:{pool_class(name)}"] = str(count)
        elif site.gpu_quotas:
            specs[f"resources:{count_class(name)}"] = str(count)
    if not flavor.gpus and keeps_reserves(site):
        specs |= {f"resources:{name}": str(amount) for name, amount in size_of(flavor).classes.items() if amount}
    if site.isolated:
        specs[f"trait:{site_trait(site.site)}"] = "required"
    if flavor.aggregates:
        names = flavor.aggregates
        requirement = names[0] if len(names) == 1 else " ".join(f"<or> {name}" for name in names)
        specs[f"aggregate_instance_extra_specs:{AGGREGATE_KEY}"] = requirement
    return specs


def _several_vgpus(resource_class: str, count: int) -> dict[str, str]:
    """A group of resources for each vGPU, of different providers.

    NVIDIA's driver gives a server one vGPU of a device, and Nova's libvirt driver takes each provider's share by itself
    (nova 33: doc/source/admin/virtual-gpu.rst, "Ask for more than one vGPU per instance by the flavor"). isolate is
    about numbered groups alone, and these are all that the flavor has: CPUs, memory and disk are in none.
    """
    groups = {f"resources{number}:{resource_class}": "1" for number in range(1, count + 1)}
    return groups | {"group_policy": "isolate"}


def keeps_reserves(site: Site) -> bool:
    """Return whether any host has a reserve for servers with GPUs. Then all of them count what other servers take."""
    return any(host.reserve is not None for host in site.hosts.values())


def limit_objects(site: Site, encoded: Sequence[EncodedGpu]) -> list[LimitObject]:
    """Return the registered limits that the site states, and each project's own. The runners' project is free of them:
    gpuyard itself decides how many servers it has.

    A GPU class that has no registered limit is unlimited for everybody, so each gets one, of 0.
    """
    limits = [LimitObject(name, value) for name, value in _base_limits(site.limits)]
    mark = owner_mark(site.site)
    for project, wish in site.projects.items():
        limits += [LimitObject(name, value, project, mark) for name, value in _base_limits(wish)]
    if site.runners is not None:
        free = RELEASES[site.release].no_limit
        limits += [LimitObject(name, free, site.runners.project, mark) for name, _ in _base_limits(site.limits)]
    if not site.gpu_quotas:
        return limits
    by_pool: dict[str, list[EncodedGpu]] = {pool: [] for pool in site.pools}
    for item in encoded:
        by_pool[item.gpu.pool].append(item)
    for pool, members in by_pool.items():
        classes = limited_classes(site, pool, members)
        limits += [LimitObject(f"class:{name}", 0, None, mark) for name in classes]
        if site.booking is not None:
            continue  # what a project may use then is what it has booked: bookings/controllers/bookings.py
        for project, wish in site.projects.items():
            if pool in wish.gpus:
                limits += [LimitObject(f"class:{name}", wish.gpus[pool], project, mark) for name in classes]
    return limits


def gpu_resources(site: Site, limits: Iterable[LimitObject]) -> dict[str, tuple[str, ...]]:
    """Return pool -> the resources that its GPUs are counted by, as Keystone names them: those of the registered
    limits."""
    registered = {limit.resource for limit in limits if limit.project is None}
    classes = {pool: (count_class(pool), pool_class(pool), peer_class(pool)) for pool in site.pools}
    return {
        pool: tuple(f"class:{name}" for name in names if f"class:{name}" in registered)
        for pool, names in classes.items()
    }


def _base_limits(limits: Limits) -> Iterable[tuple[str, int]]:
    base = {
        "servers": limits.servers,
        "class:VCPU": limits.vcpus,
        "class:MEMORY_MB": limits.ram,
        "class:DISK_GB": limits.disk,
    }
    return ((resource, value) for resource, value in base.items() if value is not None)


def aggregate_objects(site: Site) -> list[AggregateObject]:
    """Return the aggregates that the site names, and the one that isolates its hosts."""
    mine = {OWNER_KEY: site.site}
    aggregates = [
        AggregateObject(
            name,
            frozenset(aggregate.hosts),
            aggregate.availability_zone,
            {AGGREGATE_KEY: name, **aggregate.properties, **mine},
        )
        for name, aggregate in site.aggregates.items()
    ]
    if site.isolated:
        metadata = {f"trait:{site_trait(site.site)}": "required", **mine}
        aggregates.append(AggregateObject(site_aggregate(site.site), frozenset(site.hosts), None, metadata))
    return aggregates


def image_objects(site: Site) -> list[ImageObject]:
    """Return the properties of images that others have made; gpuyard's own get theirs when they are uploaded."""
    return [ImageObject(name, image.wanted_properties) for name, image in site.images.items() if image.build is None]


def provider_configs(site: Site, encoded: Sequence[EncodedGpu], hosts: Sequence[HostCapacity]) -> list[ProviderConfig]:
    """Return what each host's nova-compute adds to its provider: counters of GPUs, what servers without GPUs can have,
    and the site's trait."""
    counts: dict[str, dict[str, int]] = {host.host: {} for host in hosts}
    for item in encoded:
        if item.offered and site.gpu_quotas and site.pools[item.gpu.pool].counted_by_alias:
            mine, name = counts[item.gpu.host], count_class(item.gpu.pool)
            mine[name] = mine.get(name, 0) + 1
    configs = []
    for host in hosts:
        inventories = counts[host.host]
        if keeps_reserves(site):
            inventories |= host.inventories
        wish = site.hosts[host.host]
        traits = (*([site_trait(site.site)] if site.isolated else []), *wish.traits)
        configs.append(ProviderConfig(host.host, {**inventories, **wish.inventories}, traits))
    return [config for config in configs if not config.empty]


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
class SeenAggregate:
    """An aggregate as Nova has it."""

    id: str
    aggregate: AggregateObject


@dataclass(frozen=True)
class SeenImage:
    """An image as Glance has it, with those of its properties that the site file could name."""

    id: str
    image: ImageObject


@dataclass(frozen=True)
class SeenObjects:
    """The objects that a cloud has of the kinds that a site manages, also those of others."""

    flavors: tuple[SeenFlavor, ...]
    limits: tuple[SeenLimit, ...]
    projects: dict[str, str]
    """Name -> id, of the default domain."""
    aggregates: tuple[SeenAggregate, ...] = ()
    images: tuple[SeenImage, ...] = ()
    hosts: frozenset[str] = frozenset()
    """Hosts that have a nova-compute service."""
    up: frozenset[str] = frozenset()
    """Hosts whose nova-compute is up."""
    busy: frozenset[str] = frozenset()
    """Hosts that have servers."""
    in_use: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Host -> classes that servers there consume and the site no longer has for it."""
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Host -> class -> total of its provider's inventory, where that is known."""
    reported: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Resource class or trait of a provider.yaml -> hosts whose provider in Placement has it."""
