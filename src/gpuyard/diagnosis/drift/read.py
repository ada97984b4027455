"""Reads the cloud for drift and for a roll-out: objects of the site, hosts, devices, servers and who has what.

Servers are read before devices. So a GPU that changes hands in between shows as held by a stranger, which is looked at
again, and not as somebody else's. docs/how-to/watch-for-drift.md has the calls: of a cloud that is as it should be,
only hosts, projects and servers with GPUs cost some each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from gpuyard.diagnosis.drift.facts import DeviceSeen, HostSeen, Root, ServerSeen, Stranger, World
from gpuyard.model.world import HostService, Provider, Stock
from gpuyard.nova.alias_spec import takes_devices
from gpuyard.nova.device_spec import ONE_TIME_USE
from gpuyard.nova.server_states import GONE_FROM_HOST
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.reader import PAGE, Reader
from gpuyard.openstack.rows import AggregateRow, Hypervisor, ServerRow, below
from gpuyard.provisioning.read import OF_PROVIDER_CONFIGS, read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import count_class, slot_traits
from gpuyard.site.objects import SeenObjects, site_trait

MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
"""Nova's trait of the PCI devices that it keeps in Placement."""


def read_world(api: CloudApi, compiled: CompiledSite, migrations: bool = False) -> World:
    """Return the cloud as it is now; with `migrations` also those of them that nothing asks for. Raises CloudError."""
    before = api.calls
    with Reader(api) as cloud:
        world = WorldReader(cloud, compiled).read(migrations)
    return replace(world, calls=api.calls - before)


class WorldReader:
    """Reads one cloud once."""

    def __init__(self, cloud: Reader, compiled: CompiledSite) -> None:
        self._cloud = cloud
        self._compiled = compiled
        staged = compiled.site.pci_in_placement != "off"
        self._offered = {gpu.provider_name: gpu for gpu in compiled.whole_gpus if staged and not gpu.blocked}
        self._shared = {gpu.provider for gpu in compiled.gpus if gpu.is_unit}
        self._providers: dict[str, Provider] = {}
        """By id."""

    def read(self, migrations: bool) -> World:
        # The servers first: what they hold is then read later than they are, and a GPU that changes hands in between
        # shows as held by a stranger, who is looked at again, and not as somebody else's.
        cloud = self._cloud
        rows = cloud.servers()
        servers = {row.id: server_seen(row) for row in rows}
        objects = cloud.later(read_objects, cloud.api, self._compiled, look_at_hosts=False)
        services = cloud.later(cloud.services)
        hypervisors = cloud.later(cloud.hypervisors)
        version = cloud.later(cloud.newest_microversion)
        members = cloud.later(cloud.aggregates)
        images = cloud.later(self._images)
        self._providers = cloud.providers()
        devices = self._devices(servers)
        trait = site_trait(self._compiled.site.site)
        with_trait = self._with(required=trait)
        hosts = self._hosts(services.result(), with_trait)
        unknown = self._unknown_hosts(devices, trait, with_trait)
        observed = objects.result()
        silent = any(service.silent for service in services.result().values())
        known_ids = known_hypervisors(hypervisors, silent)
        world = World(
            objects=replace(observed, reported=self._reported(hosts, trait), in_use=self._in_use(hosts)),
            hosts=hosts,
            devices=devices,
            shares=self._shares(),
            servers=servers,
            services=services.result(),
            unknown_hosts=unknown,
            leftovers=self._leftovers(known_ids, unknown) if known_ids is not None else (),
            mirrored=self._mirrored(members.result()),
            images=images.result(),
            usages=self._usages(observed, servers.values()),
            silent_cells=silent,
            microversion=version.result(),
        )
        return self._with_strangers(world, migrations)

    def _with(self, **query: object) -> frozenset[str]:
        return self._cloud.able(**query) or frozenset()

    def _images(self) -> dict[str, str]:
        """Images that ask for the site's trait; Glance lists those that it hides only by themselves."""
        if not self._compiled.site.isolated:
            return {}
        query = {f"trait:{site_trait(self._compiled.site.site)}": "required", "limit": PAGE}
        rows = [
            row
            for hidden in ("false", "true")
            for row in self._cloud.members("image", "/images", "images", os_hidden=hidden, **query)
        ]
        return {row["id"]: row["name"] or "" for row in rows}

    # Hosts.

    def _hosts(self, services: Mapping[str, HostService], with_trait: frozenset[str]) -> dict[str, HostSeen]:
        roots = {provider.name: provider.id for provider in self._roots()}

        def look(name: str) -> HostSeen:
            provider = roots.get(name)
            return HostSeen(
                name=name,
                provider=provider,
                service=services.get(name),
                stock=self._cloud.stock(provider) if provider else {},
                consumers=self._cloud.consumers(provider) if provider else {},
                site_trait=provider in with_trait,
            )

        return self._cloud.each(look, self._compiled.site.hosts)

    def _roots(self) -> Iterable[Provider]:
        return (provider for provider in self._providers.values() if provider.root_id == provider.id)

    def _reported(self, hosts: Mapping[str, HostSeen], trait: str) -> dict[str, frozenset[str]]:
        """Class or trait of the site's provider.yaml -> its hosts that have it."""
        members_by_name: dict[str, set[str]] = {}
        for host in hosts.values():
            for name in (*host.stock, *([trait] if host.site_trait else [])):
                members_by_name.setdefault(name, set()).add(host.name)
        return {name: frozenset(members) for name, members in members_by_name.items()}

    def _in_use(self, hosts: Mapping[str, HostSeen]) -> dict[str, frozenset[str]]:
        """Host of the site -> classes of a provider.yaml that servers there consume and the site no longer has."""
        strays_by_host = {}
        for host in hosts.values():
            inventories = self._compiled.provider_config_of(host.name).inventories
            used = {name for amounts in host.consumers.values() for name in amounts}
            if stray := frozenset(n for n in used if OF_PROVIDER_CONFIGS.match(n) and n not in inventories):
                strays_by_host[host.name] = stray
        return strays_by_host

    def _unknown_hosts(
        self, devices: Mapping[str, DeviceSeen], trait: str, with_trait: frozenset[str]
    ) -> dict[str, frozenset[str]]:
        """Roots that are no hosts of the site, with what they have of it."""
        names_by_root: dict[str, set[str]] = {}
        counts = [count_class(pool) for pool in self._compiled.site.pools]
        able = self._cloud.each(lambda name: self._with(resources=f"{name}:1"), counts)
        for name, providers in [(trait, with_trait), *able.items()]:
            for provider in providers & self._providers.keys():
                names_by_root.setdefault(self._root_name(provider), set()).add(name)
        for device in devices.values():
            names_by_root.setdefault(device.host, set()).update(device.classes & self._classes)
        return {
            name: frozenset(what)
            for name, what in names_by_root.items()
            if what and name not in self._compiled.site.hosts
        }

    def _root_name(self, provider: str) -> str:
        root = self._providers[provider].root_id
        return self._providers[root].name if root in self._providers else ""

    def _leftovers(self, known_ids: set[str], unknown: Mapping[str, frozenset[str]]) -> tuple[Root, ...]:
        """Roots that Nova knows no hypervisor of, and that have to do with the site."""
        left = [
            root
            for root in self._roots()
            if root.id not in known_ids and (root.name in self._compiled.site.hosts or root.name in unknown)
        ]
        return tuple(self._leftover(root) for root in left)

    def _leftover(self, root: Provider) -> Root:
        tree = self._cloud.tree(root.id)
        used = any(self._cloud.each(self._cloud.consumers, (provider.id for provider in tree)).values())
        return Root(root.id, root.name, tuple((provider.id, provider.name) for provider in below(tree, root.id)), used)

    def _mirrored(self, aggregates: Sequence[AggregateRow]) -> dict[str, frozenset[str]]:
        """Aggregate of the site -> names of the providers that Placement has in it."""
        aggregate_names = {aggregate.name for aggregate in self._compiled.aggregates}
        mine = {row.name: row.uuid for row in aggregates if row.name in aggregate_names}
        members = self._cloud.each(lambda name: self._with(member_of=mine[name]), mine)
        return {
            name: frozenset(self._providers[provider_id].name for provider_id in ids if provider_id in self._providers)
            for name, ids in members.items()
        }

    # Devices.

    def _shares(self) -> dict[str, dict[str, Stock]]:
        ids_by_name = {
            provider.name: provider.id for provider in self._providers.values() if provider.name in self._shared
        }
        return self._cloud.each(lambda name: self._cloud.stock(ids_by_name[name]), sorted(ids_by_name))

    @property
    def _classes(self) -> frozenset[str]:
        return frozenset(gpu.resource_class for gpu in self._offered.values())

    @property
    def _uses_once(self) -> bool:
        return any(pool.one_time_use for pool in self._compiled.site.pools.values())

    def _devices(self, servers: Mapping[str, ServerSeen]) -> dict[str, DeviceSeen]:
        """Every PCI device in Placement that is not shared; those that are not as they should be, looked at closer."""
        run = self._cloud.later
        managed = run(self._with, required=MANAGED)
        able = {name: run(self._with, resources=f"{name}:1") for name in self._classes}
        twice = [run(self._with, resources=f"{name}:2") for name in self._classes]
        kinds = {trait for gpu in self._offered.values() for trait in slot_traits(gpu)}
        traits = {trait: run(self._with, required=trait) for trait in kinds}
        once = run(self._with, required=ONE_TIME_USE) if self._uses_once else None
        holders_by_provider = self._held_by_servers(servers.values())
        free = {name: later.result() for name, later in able.items()}
        too_many = frozenset().union(*(later.result() for later in twice))
        devices = []
        for provider in sorted(managed.result() & self._providers.keys()):
            if self._providers[provider].name in self._shared:
                continue  # is one of `_shares`; who has what of it, gpuyard gpu list says
            classes = {name for name, ids in free.items() if provider in ids}
            holders = holders_by_provider.get(provider, {})
            classes |= {name for amounts in holders.values() for name in amounts}
            devices.append(
                DeviceSeen(
                    name=self._providers[provider].name,
                    id=provider,
                    host=self._root_name(provider),
                    classes=frozenset(classes),
                    traits=frozenset(name for name, later in traits.items() if provider in later.result()),
                    holders={consumer: sum(amounts.values()) for consumer, amounts in holders.items()},
                    free=any(provider in ids for ids in free.values()),
                    one_time_use=once is not None and provider in once.result(),
                )
            )
        odd = [d.host in self._compiled.site.hosts and (d.id in too_many or self._odd(d)) for d in devices]
        by_name = {device.name: device for device in devices}
        closer = [device.name for device, is_odd in zip(devices, odd, strict=True) if is_odd]
        return by_name | self._cloud.each(lambda name: self._look_closer(by_name[name]), closer)

    def _odd(self, device: DeviceSeen) -> bool:
        """Return whether a device of one of the site's hosts is not simply free or held, as what the site says it
        is."""
        gpu = self._offered.get(device.name)
        simple = device.free != bool(device.holders) and len(device.holders) < 2
        return gpu is None or device.classes != {gpu.resource_class} or not simple

    def _look_closer(self, device: DeviceSeen) -> DeviceSeen:
        stock = self._cloud.stock(device.id)
        consumers = self._cloud.consumers(device.id)
        return replace(
            device,
            classes=frozenset(stock),
            stock=stock,
            holders={consumer: sum(amounts.values()) for consumer, amounts in consumers.items()},
        )

    def _held_by_servers(self, servers: Iterable[ServerSeen]) -> dict[str, dict[str, dict[str, int]]]:
        """Provider -> consumer -> class -> amount, of the servers whose flavors ask for devices."""
        asking = [server.id for server in servers if asks_devices(server) and server.status != GONE_FROM_HOST]
        holders_by_provider: dict[str, dict[str, dict[str, int]]] = {}
        for server, allocations in self._cloud.each(self._cloud.allocations, asking).items():
            for provider, amounts in allocations.items():
                holders_by_provider.setdefault(provider, {})[server] = amounts
        return holders_by_provider

    # Who uses what.

    def _usages(self, objects: SeenObjects, servers: Iterable[ServerSeen]) -> dict[str, dict[str, int]]:
        if not self._compiled.site.gpu_quotas:
            return {}
        names = {identity: name for name, identity in objects.projects.items()}
        project_names = {limit.project for limit in self._compiled.limits if limit.project in objects.projects}
        ids = {objects.projects[name] for name in project_names if name}
        ids |= {server.project for server in servers if asks_devices(server)}
        usages = self._cloud.each(self._cloud.project_usages, sorted(ids))
        return {names.get(identity, identity): usage for identity, usage in usages.items()}

    def _with_strangers(self, world: World, migrations: bool) -> World:
        consumers = {name for host in world.hosts.values() for name in host.consumers}
        consumers |= {name for device in world.devices.values() for name in device.holders}
        looked_up = self._cloud.each(self._stranger, sorted(consumers - world.servers.keys()))
        strangers = {name: stranger for name, stranger in looked_up.items() if stranger is not None}
        migrations_by_id = self._cloud.migrations() if strangers or migrations else {}
        return replace(world, strangers=strangers, migrations=migrations_by_id)

    def _stranger(self, consumer: str) -> Stranger | None:
        """A consumer that is none of the listed servers; None when it has nothing any more."""
        row = self._cloud.api.get("placement", f"/allocations/{consumer}")
        if not row["allocations"]:
            return None
        return Stranger(
            id=consumer,
            exists=self._cloud.has_server(consumer),
            type=row.get("consumer_type") or "unknown",
            generation=row.get("consumer_generation"),
            amounts={provider: item["resources"] for provider, item in row["allocations"].items()},
        )


def known_hypervisors(hypervisors: Future[list[Hypervisor]], silent: bool) -> set[str] | None:
    """Return ids of all hypervisors. None where a cell does not answer: then Nova lists none at all, but fails (nova
    34.0.0, compute/api.py, `compute_node_get_all`)."""
    try:
        return {row.id for row in hypervisors.result()}
    except CloudError:
        if not silent:
            raise
        return None


def server_seen(row: ServerRow) -> ServerSeen:
    return ServerSeen(
        row.id, row.name, row.status, row.task, row.host, row.project, row.flavor.name, row.flavor.extra_specs,
        row.fault,
    )  # fmt: skip


def asks_devices(server: ServerSeen) -> bool:
    """Return whether a server's flavor takes devices of Placement, by an alias or by naming a class."""
    return takes_devices(server.specs)
