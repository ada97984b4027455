"""Reads what a look for drift and a roll-out go by.

====================================================  =====================================================
as many as ``gpuyard site plan`` takes                what cloud/objects.py reads, but for what hosts report
1 per 1,000 servers, 1 per 1,000 hypervisors          all servers; which hypervisor is whose
3                                                     resource providers, those of PCI devices, nova-compute services
2 per resource class of GPUs, 1 per set of the site   which devices can be had, and are what the site says
1 per pool, 1 for the site's trait                    which hosts have them, also those that the site does not know
1, and 1 per aggregate of the site                    whom Placement has in it
2                                                     images that ask for the site's trait, when the site has one
1 per project with a limit on GPUs or with GPUs       what it uses
2 per host of the site                                what it has, and who has how much of it
1 per server with GPUs                                which GPUs it holds
====================================================  =====================================================

Only what these do not explain costs more: 2 per device that is neither to be had nor held by one server as it should
be; 2 per consumer that is none of the servers, and then 1 per 1,000 migrations that Nova remembers; 1 per provider
that was left behind. Of a cloud that is as it should be, only its servers with GPUs cost a call each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.cloud.objects import OF_PROVIDER_CONFIGS, read_objects
from gpuyard.model.world import HostService, Provider
from gpuyard.site.compile import CompiledSite
from gpuyard.site.drift.facts import (
    ALIAS_SPEC,
    GONE_FROM_HOST,
    DeviceSeen,
    HostSeen,
    MigrationSeen,
    Root,
    ServerSeen,
    Stock,
    Stranger,
    World,
)
from gpuyard.site.encoding import count_class, set_trait
from gpuyard.site.objects import SeenObjects, site_trait

Something = TypeVar("Something")

PARALLEL = 4
PAGE = 1000
BAD_REQUEST, NOT_FOUND = 400, 404
MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
"""Nova's trait of the PCI devices that it keeps in Placement."""
TAKES_DEVICE = re.compile(r"^resources[\w-]*:CUSTOM_(GPU|PCI)_")


def read_world(api: CloudApi, compiled: CompiledSite, migrations: bool = False) -> World:
    """The cloud as it is now; with `migrations` also those of them that nothing asks for. Raises CloudError."""
    before = api.calls
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="world") as threads:
        world = WorldReader(api, compiled, threads).read(migrations)
    return replace(world, calls=api.calls - before)


class WorldReader:
    """One look at a cloud."""

    def __init__(self, api: CloudApi, compiled: CompiledSite, threads: ThreadPoolExecutor) -> None:
        self._api = api
        self._compiled = compiled
        self._threads = threads
        staged = compiled.site.pci_in_placement != "off"
        self._offered = {gpu.provider_name: gpu for gpu in compiled.gpus if staged and not gpu.blocked}
        self._providers: dict[str, Provider] = {}
        """By id."""

    def read(self, migrations: bool) -> World:
        # The servers first: what they hold is then read later than they are, and a GPU that changes hands in between
        # shows as held by a stranger, who is looked at again, and not as somebody else's.
        rows = list(self._api.pages("compute", "/servers/detail", "servers", all_tenants=1, limit=PAGE))
        servers = {row["id"]: server_seen(row) for row in rows if "flavor" in row}
        run = self._threads.submit
        objects = run(read_objects, self._api, self._compiled, look_at_hosts=False)
        services = run(self._services)
        hypervisors = run(self._pages, "compute", "/os-hypervisors/detail", "hypervisors")
        version = run(self._newest_microversion)
        members = run(self._get, "compute", "/os-aggregates", "aggregates")
        images = run(self._images)
        self._providers = {
            row["uuid"]: Provider(row["uuid"], row["name"], row["root_provider_uuid"]) for row in self._api.providers()
        }
        devices = self._devices(servers)
        trait = site_trait(self._compiled.site.site)
        with_trait = self._with(required=trait)
        hosts = self._hosts(services.result(), with_trait)
        unknown = self._unknown_hosts(devices, trait, with_trait)
        seen = objects.result()
        world = World(
            objects=replace(seen, reported=self._reported(hosts, trait), in_use=self._in_use(hosts)),
            hosts=hosts,
            devices=devices,
            servers=servers,
            services=services.result(),
            unknown_hosts=unknown,
            leftovers=self._leftovers({row["id"] for row in hypervisors.result()}, unknown),
            mirrored=self._mirrored(members.result()),
            images=images.result(),
            usages=self._usages(seen, servers.values()),
            silent_cells=len(servers) < len(rows),
            microversion=version.result(),
        )
        return self._with_strangers(world, migrations)

    # Small questions.

    def _get(self, service: str, path: str, key: str, **query: object) -> list[dict[str, Any]]:
        return list(self._api.get(service, path, **query)[key])

    def _pages(self, service: str, path: str, key: str) -> list[dict[str, Any]]:
        return list(self._api.pages(service, path, key, limit=PAGE))

    def _with(self, **query: object) -> frozenset[str]:
        """Ids of the providers that a question means; none when Placement does not know a word of it."""
        try:
            rows = self._get("placement", "/resource_providers", "resource_providers", **query)
        except CloudError as error:
            if error.status == BAD_REQUEST:
                return frozenset()
            raise
        return frozenset(row["uuid"] for row in rows)

    def _services(self) -> dict[str, HostService]:
        rows = self._get("compute", "/os-services", "services", binary="nova-compute")
        return {
            row["host"]: HostService(
                row["host"], row["state"] == "up", row["status"] == "enabled", row.get("disabled_reason") or ""
            )
            for row in rows
        }

    def _newest_microversion(self) -> str:
        try:
            return str(self._api.get("compute", "/")["version"]["version"])
        except (CloudError, KeyError, TypeError, ValueError):
            return ""  # a proxy may not pass it on

    def _images(self) -> dict[str, str]:
        """Images that ask for the site's trait; Glance lists those that it hides only by themselves."""
        if not self._compiled.site.isolated:
            return {}
        wanted = {f"trait:{site_trait(self._compiled.site.site)}": "required", "limit": PAGE}
        rows = [
            row
            for hidden in ("false", "true")
            for row in self._get("image", "/images", "images", os_hidden=hidden, **wanted)
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
                stock=self._stock(provider) if provider else {},
                consumers=self._consumers(provider) if provider else {},
                site_trait=provider in with_trait,
            )

        return {host.name: host for host in self._threads.map(look, self._compiled.site.hosts)}

    def _roots(self) -> Iterable[Provider]:
        return (provider for provider in self._providers.values() if provider.root_id == provider.id)

    def _stock(self, provider: str) -> dict[str, Stock]:
        return unless_gone(lambda: stock_of(self._api, provider), {})

    def _consumers(self, provider: str) -> dict[str, dict[str, int]]:
        return unless_gone(lambda: consumers_of(self._api, provider), {})

    def _reported(self, hosts: Mapping[str, HostSeen], trait: str) -> dict[str, frozenset[str]]:
        """Class or trait of the site's provider.yaml -> its hosts that have it."""
        found: dict[str, set[str]] = {}
        for host in hosts.values():
            for name in (*host.stock, *([trait] if host.site_trait else [])):
                found.setdefault(name, set()).add(host.name)
        return {name: frozenset(members) for name, members in found.items()}

    def _in_use(self, hosts: Mapping[str, HostSeen]) -> dict[str, frozenset[str]]:
        """Host of the site -> classes of a provider.yaml that servers there consume and the site no longer has."""
        found = {}
        for host in hosts.values():
            wanted = self._compiled.provider_config_of(host.name).inventories
            used = {name for amounts in host.consumers.values() for name in amounts}
            if stray := frozenset(n for n in used if OF_PROVIDER_CONFIGS.match(n) and n not in wanted):
                found[host.name] = stray
        return found

    def _unknown_hosts(
        self, devices: Mapping[str, DeviceSeen], trait: str, with_trait: frozenset[str]
    ) -> dict[str, frozenset[str]]:
        """Roots that are no hosts of the site, with what they have of it."""
        found: dict[str, set[str]] = {}
        counts = [count_class(pool) for pool in self._compiled.site.pools]
        able = self._threads.map(lambda name: self._with(resources=f"{name}:1"), counts)
        for name, providers in [(trait, with_trait), *zip(counts, able, strict=True)]:
            for provider in providers & self._providers.keys():
                found.setdefault(self._root_name(provider), set()).add(name)
        for device in devices.values():
            found.setdefault(device.host, set()).update(device.classes & self._classes)
        return {name: frozenset(what) for name, what in found.items() if what and name not in self._compiled.site.hosts}

    def _root_name(self, provider: str) -> str:
        root = self._providers[provider].root_id
        return self._providers[root].name if root in self._providers else ""

    def _leftovers(self, known: set[str], unknown: Mapping[str, frozenset[str]]) -> tuple[Root, ...]:
        """Roots that Nova knows no hypervisor of, and that have to do with the site."""
        left = [
            root
            for root in self._roots()
            if root.id not in known and (root.name in self._compiled.site.hosts or root.name in unknown)
        ]
        return tuple(self._leftover(root) for root in left)

    def _leftover(self, root: Provider) -> Root:
        tree = self._get("placement", "/resource_providers", "resource_providers", in_tree=root.id)
        used = any(self._threads.map(lambda row: bool(self._consumers(row["uuid"])), tree))
        return Root(root.id, root.name, tuple(children_of(tree, root.id)), used)

    def _mirrored(self, aggregates: Sequence[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
        """Aggregate of the site -> names of the providers that Placement has in it."""
        wanted = {one.name for one in self._compiled.aggregates}
        mine = [row for row in aggregates if row["name"] in wanted]
        members = self._threads.map(lambda row: self._with(member_of=row["uuid"]), mine)
        return {
            row["name"]: frozenset(self._providers[one].name for one in ids if one in self._providers)
            for row, ids in zip(mine, members, strict=True)
        }

    # Devices.

    @property
    def _classes(self) -> frozenset[str]:
        return frozenset(gpu.resource_class for gpu in self._offered.values())

    def _devices(self, servers: Mapping[str, ServerSeen]) -> dict[str, DeviceSeen]:
        """Every PCI device in Placement; those that are not as they should be, looked at closer."""
        run = self._threads.submit
        managed = run(self._with, required=MANAGED)
        able = {name: run(self._with, resources=f"{name}:1") for name in self._classes}
        twice = [run(self._with, resources=f"{name}:2") for name in self._classes]
        letters = {gpu.set_letter for gpu in self._offered.values() if gpu.set_letter}
        traits = {set_trait(letter): run(self._with, required=set_trait(letter)) for letter in letters}
        held = self._held_by_servers(servers.values())
        free = {name: later.result() for name, later in able.items()}
        too_many = frozenset().union(*(later.result() for later in twice))
        devices = []
        for provider in sorted(managed.result() & self._providers.keys()):
            classes = {name for name, ids in free.items() if provider in ids}
            holders = held.get(provider, {})
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
                )
            )
        odd = [d.host in self._compiled.site.hosts and (d.id in too_many or self._odd(d)) for d in devices]
        closer = self._threads.map(self._look_closer, (d for d, one in zip(devices, odd, strict=True) if one))
        return {device.name: device for device in (*devices, *closer)}

    def _odd(self, device: DeviceSeen) -> bool:
        """Whether a device of one of the site's hosts is not simply free or held, as what the site says it is."""
        gpu = self._offered.get(device.name)
        simple = device.free != bool(device.holders) and len(device.holders) < 2
        return gpu is None or device.classes != {gpu.resource_class} or not simple

    def _look_closer(self, device: DeviceSeen) -> DeviceSeen:
        stock = self._stock(device.id)
        consumers = self._consumers(device.id)
        return replace(
            device,
            classes=frozenset(stock),
            stock=stock,
            holders={consumer: sum(amounts.values()) for consumer, amounts in consumers.items()},
        )

    def _held_by_servers(self, servers: Iterable[ServerSeen]) -> dict[str, dict[str, dict[str, int]]]:
        """Provider -> consumer -> class -> amount, of the servers whose flavors ask for devices."""
        asking = [server for server in servers if asks_devices(server) and server.status != GONE_FROM_HOST]

        def ask(server: ServerSeen) -> dict[str, Any]:
            return dict(self._api.get("placement", f"/allocations/{server.id}")["allocations"])

        held: dict[str, dict[str, dict[str, int]]] = {}
        for server, allocations in zip(asking, self._threads.map(ask, asking), strict=True):
            for provider, row in allocations.items():
                held.setdefault(provider, {})[server.id] = row["resources"]
        return held

    # Who uses what.

    def _usages(self, objects: SeenObjects, servers: Iterable[ServerSeen]) -> dict[str, dict[str, int]]:
        if not self._compiled.site.gpu_quotas:
            return {}
        names = {identity: name for name, identity in objects.projects.items()}
        wanted = {limit.project for limit in self._compiled.limits if limit.project in objects.projects}
        ids = {objects.projects[name] for name in wanted if name}
        ids |= {server.project for server in servers if ALIAS_SPEC in server.specs}

        def ask(project: str) -> dict[str, int]:
            rows = self._api.get("placement", "/usages", project_id=project, consumer_type="all")["usages"]
            return {name: int(value) for name, value in rows.get("all", {}).items() if name != "consumer_count"}

        ordered = sorted(ids)
        found = zip(ordered, self._threads.map(ask, ordered), strict=True)
        return {names.get(identity, identity): usage for identity, usage in found}

    def _with_strangers(self, world: World, migrations: bool) -> World:
        consumers = {name for host in world.hosts.values() for name in host.consumers}
        consumers |= {name for device in world.devices.values() for name in device.holders}
        unknown = sorted(consumers - world.servers.keys())
        strangers = {one.id: one for one in self._threads.map(self._stranger, unknown) if one is not None}
        known = read_migrations(self._api) if strangers or migrations else {}
        return replace(world, strangers=strangers, migrations=known)

    def _stranger(self, consumer: str) -> Stranger | None:
        return read_stranger(self._api, consumer)


def read_stranger(api: CloudApi, consumer: str) -> Stranger | None:
    """A consumer that is none of the listed servers; None when it has nothing any more."""
    row = api.get("placement", f"/allocations/{consumer}")
    if not row["allocations"]:
        return None
    return Stranger(
        id=consumer,
        exists=server_exists(api, consumer),
        type=row.get("consumer_type") or "unknown",
        generation=row.get("consumer_generation"),
        amounts={provider: item["resources"] for provider, item in row["allocations"].items()},
    )


def server_exists(api: CloudApi, identity: str) -> bool:
    """Whether Nova knows a server of that id, also one that it has deleted softly."""
    try:
        api.get("compute", f"/servers/{identity}")
    except CloudError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


def read_migrations(api: CloudApi) -> dict[str, MigrationSeen]:
    """All migrations that Nova remembers, by id. It lists no single one, and none by a set of statuses."""
    found: dict[str, MigrationSeen] = {}
    marker: dict[str, str] = {}
    while True:
        answer = api.get("compute", "/os-migrations", limit=PAGE, **marker)
        rows = answer["migrations"]
        found |= {row["uuid"]: _migration(row) for row in rows}
        if not rows or not answer.get("migrations_links"):
            return found
        marker = {"marker": rows[-1]["uuid"]}  # its pages go by uuid, those of everything else by id


def _migration(row: Mapping[str, Any]) -> MigrationSeen:
    return MigrationSeen(
        row["uuid"], row["instance_uuid"], row["status"], row["migration_type"], row["source_compute"],
        row["dest_compute"],
    )  # fmt: skip


def stock_of(api: CloudApi, provider: str) -> dict[str, Stock]:
    """What a provider has, by class."""
    rows = api.get("placement", f"/resource_providers/{provider}/inventories")["inventories"]
    return {
        name: Stock(row["total"], row["reserved"], row["allocation_ratio"], row["max_unit"])
        for name, row in rows.items()
    }


def consumers_of(api: CloudApi, provider: str) -> dict[str, dict[str, int]]:
    """Consumer -> class -> amount that it has of a provider."""
    rows = api.get("placement", f"/resource_providers/{provider}/allocations")["allocations"]
    return {consumer: row["resources"] for consumer, row in rows.items()}


def unless_gone(read: Callable[[], Something], nothing: Something) -> Something:
    """What is read of a provider; nothing when it was deleted since the list was read."""
    try:
        return read()
    except CloudError as error:
        if error.status != NOT_FOUND:
            raise
        return nothing


def children_of(tree: Sequence[Mapping[str, Any]], root: str) -> list[tuple[str, str]]:
    """Ids and names of what is below a root, parents before their children."""
    below: list[tuple[str, str]] = []
    parents = [root]
    while parents:
        rows = [row for row in tree if row["parent_provider_uuid"] in parents]
        below += [(row["uuid"], row["name"]) for row in rows]
        parents = [row["uuid"] for row in rows]
    return below


def server_seen(row: Mapping[str, Any]) -> ServerSeen:
    """A server as Nova lists it."""
    return ServerSeen(
        id=row["id"],
        name=row["name"],
        status=row["status"],
        task=row["OS-EXT-STS:task_state"],
        host=row["OS-EXT-SRV-ATTR:host"],
        project=row["tenant_id"],
        flavor=row["flavor"]["original_name"],
        specs=row["flavor"].get("extra_specs", {}),
        fault=row.get("fault", {}).get("message", ""),
    )


def asks_devices(server: ServerSeen) -> bool:
    """Whether a server's flavor takes devices of Placement, by an alias or by naming a class."""
    return ALIAS_SPEC in server.specs or any(TAKES_DEVICE.match(key) for key in server.specs)
