"""Checks a site beyond what the schema can express: names that point nowhere, and flavors that no host can run.

A flavor is checked against hosts only when its pools and aggregates exist, and against one host of each kind: a
thousand hosts that are alike cost no more than one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuyard.host.pci_ids import PciIds
from gpuyard.model.gpu import GpuRole
from gpuyard.model.host import HostFacts, Inventory
from gpuyard.nova.alias import schema_problems
from gpuyard.nova.alias_spec import ALIAS_SPEC
from gpuyard.nova.device_spec import ANY, DeviceSpecError, matchers_of
from gpuyard.nova.release import RELEASES
from gpuyard.site.accounting_problems import accounting_problems
from gpuyard.site.capacity import aggregates_of, may_run_on, parse_cpu_set
from gpuyard.site.encoding import EncodedGpu
from gpuyard.site.gateway_problems import gateway_problems
from gpuyard.site.health_problems import health_problems
from gpuyard.site.image_problems import image_problems
from gpuyard.site.nova import alias
from gpuyard.site.objects import set_sizes
from gpuyard.site.problems import Place, Problem
from gpuyard.site.runner_problems import runner_problems
from gpuyard.site.schema import Flavor, Limits, Site

SET_ALIAS = re.compile(r"-(set|peer)-\d*[a-z]+$")
OWNED = re.compile(
    r"^(resources:CUSTOM_(GPU_\w+|NOGPU_\w+)|trait:CUSTOM_SITE_\w+|aggregate_instance_extra_specs:gpuyard_\w+)$"
)


def site_problems(site: Site, inventories: Mapping[str, Inventory], encoded: Sequence[EncodedGpu]) -> list[Problem]:
    """Return every problem of a site; `encoded` are the GPUs of all hosts."""
    problems = [*_unknown_names(site), *_cpus(site, inventories), *_pools(site), *_stages(site)]
    room = _Room(encoded)
    facts = _one_of_each_kind(site, {host: inventory.facts for host, inventory in inventories.items()}, room)
    aggregates = aggregates_of(site)
    for name, flavor in site.flavors.items():
        if flavor.gpus.keys() <= site.pools.keys() and set(flavor.aggregates) <= site.aggregates.keys():
            hosts = {
                host: host_facts
                for host, host_facts in facts.items()
                if may_run_on(flavor, aggregates.get(host, frozenset()))
            }
            problems += _unrunnable(site, name, flavor, hosts, room)
    return [
        *problems,
        *_owned_properties(site),
        *_uncounted(site),
        *_refused_to_all(site),
        *_zones(site),
        *_other_devices(site),
        *_booking(site),
        *health_problems(site, {f"{item.gpu.host}/{item.gpu.address}" for item in encoded}),
        *_history(site),
        *accounting_problems(site),
        *runner_problems(site),
        *gateway_problems(site),
        *image_problems(site, PciIds.of_this_machine()),
    ]


def _booking(site: Site) -> Iterable[Problem]:
    """Bookings are limits for a time, and holds of GPUs that Placement knows."""
    if site.booking is None:
        states = [("pools", name) for name, pool in site.pools.items() if pool.booking]
        states += [("projects", name) for name, project in site.projects.items() if project.booking]
        for kind, name in states:
            text = "rules of bookings, and the site has none; add 'booking: {}' to the site file"
            yield Problem((kind, name, "booking"), text)
        return
    if not site.gpu_quotas:
        yield Problem(("booking",), "bookings need limits on GPUs; take 'gpu_quotas: false' out of the site file")
    if site.pci_in_placement != "on":
        yield Problem(
            ("booking",),
            f"bookings need GPUs that Nova's scheduler finds in Placement, and the site has 'pci_in_placement: "
            f"{site.pci_in_placement}'; 'gpuyard site rollout' says what it takes to change that",
        )


def _history(site: Site) -> Iterable[Problem]:
    if site.history is not None and site.booking is None:
        yield Problem(("history",), "history is kept where GPUs can be booked; add 'booking: {}'")


def _uncounted(site: Site) -> Iterable[Problem]:
    """What limits of an old release would refuse to everybody."""
    reserved = next((name for name, host in site.hosts.items() if host.reserve is not None), None)
    if reserved is not None and site.gpu_quotas and not RELEASES[site.release].limits_named:
        reason = (
            f"Nova of {site.release} refuses what has no limit in Keystone, and flavors consume classes of a reserve "
            "that have none; leave it out, or write 'gpu_quotas: false'"
        )
        yield Problem(("hosts", reserved, "reserve"), reason)


def _refused_to_all(site: Site) -> Iterable[Problem]:
    """No limit, in an old release whose Nova counts up to -1."""
    if not site.gpu_quotas or RELEASES[site.release].limits_named:
        return
    stated: list[tuple[Place, Limits]] = [(("limits",), site.limits)]
    stated += [(("projects", name), project) for name, project in site.projects.items()]
    for place, limits in stated:
        for name in Limits.model_fields:
            if getattr(limits, name) == -1:
                reason = (
                    f"Nova of {site.release} takes -1 for a limit that is reached, and refuses every server; write a "
                    "number that nobody reaches"
                )
                yield Problem((*place, name), reason)


def _unknown_names(site: Site) -> Iterable[Problem]:
    for name, pool in site.pools.items():
        yield from _unknown(("pools", name, "hosts"), pool.hosts or (), "host", site.hosts)
        yield from _misspelled(site, ("pools", name, "projects"), pool.projects or ())
    for name, aggregate in site.aggregates.items():
        yield from _unknown(("aggregates", name, "hosts"), aggregate.hosts, "host", site.hosts)
    for name, flavor in site.flavors.items():
        yield from _unknown_pools(site, ("flavors", name, "gpus"), flavor.gpus)
        yield from _unknown(("flavors", name, "aggregates"), flavor.aggregates, "aggregate", site.aggregates)
        yield from _misspelled(site, ("flavors", name, "projects"), flavor.projects or ())
    for name, project in site.projects.items():
        yield from _unknown_pools(site, ("projects", name, "gpus"), project.gpus)


def _unknown(place: Place, names: Iterable[str], kind: str, known_names: Collection[str]) -> Iterable[Problem]:
    for index, name in enumerate(names):
        if name not in known_names:
            have = ", ".join(known_names) or "none"
            yield Problem((*place, index), f"unknown {kind} {name!r}; the site has {have}")


def _unknown_pools(site: Site, place: Place, names: Iterable[str]) -> Iterable[Problem]:
    for name in names:
        if name not in site.pools:
            yield Problem((*place, name), f"unknown pool {name!r}; the site has {', '.join(site.pools)}")


def _misspelled(site: Site, place: Place, names: Iterable[str]) -> Iterable[Problem]:
    """Projects need not be in the site file, but one that is nearly the name of one that is, is a slip."""
    for index, name in enumerate(names):
        close = difflib.get_close_matches(name, site.projects, n=1)
        if close and name not in site.projects:
            yield Problem((*place, index), f"unknown project {name!r}; did you mean {close[0]!r}?")


def _cpus(site: Site, inventories: Mapping[str, Inventory]) -> Iterable[Problem]:
    for name, host in site.hosts.items():
        place = ("hosts", name)
        sets = {}
        for key, text in (("cpu_shared_set", host.cpu_shared_set), ("cpu_dedicated_set", host.cpu_dedicated_set)):
            if text is None:
                continue
            try:
                sets[key] = parse_cpu_set(text)
            except ValueError as error:
                yield Problem((*place, key), str(error))
                continue
            beyond = sorted(cpu for cpu in sets[key] if cpu >= inventories[name].facts.cpus)
            if beyond:
                message = f"the host has the CPUs 0-{inventories[name].facts.cpus - 1}, and {beyond[0]} is beyond them"
                yield Problem((*place, key), message)
        if len(sets) == 2 and (both := sets["cpu_shared_set"] & sets["cpu_dedicated_set"]):
            yield Problem((*place, "cpu_dedicated_set"), f"CPU {min(both)} is in cpu_shared_set too; leave it in one")
        facts = inventories[name].facts
        for key, own, has in (("vcpus", host.overhead.vcpus, facts.cpus), ("ram", host.overhead.ram, facts.memory_mib)):
            if own >= has > 0:
                yield Problem((*place, "overhead", key), f"the host has {has} in all; write less")
        if sets and host.overhead.vcpus:
            message = "Nova refuses reserved CPUs beside CPU sets; leave the host's own CPUs out of the sets instead"
            yield Problem((*place, "overhead", "vcpus"), message)


def _pools(site: Site) -> Iterable[Problem]:
    aliases: dict[str, str] = {}
    for name, pool in site.pools.items():
        alias_name = alias(site, name)
        owner = aliases.get(alias_name) or aliases.get(SET_ALIAS.sub("", alias_name))
        if owner is not None:
            message = f"alias {alias_name!r} is one of those of pool {owner!r}; give one of them another 'alias'"
            yield Problem(("pools", name), message)
        aliases[alias_name] = name
        for key, wished in (("managed", pool.managed is not None), ("live_migratable", pool.live_migratable)):
            if wished and not RELEASES[site.release].managed:
                message = f"Nova knows {key} from 2025.1 on, and the site's release is {site.release}"
                yield Problem(("pools", name, key), message)
        if pool.one_time_use:
            if not RELEASES[site.release].one_time_use:
                message = f"Nova knows one_time_use from 2025.2 on, and the site's release is {site.release}"
                yield Problem(("pools", name, "one_time_use"), message)
            elif site.pci_in_placement == "off":
                message = "needs 'pci_in_placement: report' or 'on': Nova does not start without"
                yield Problem(("pools", name, "one_time_use"), message)


def _owned_properties(site: Site) -> Iterable[Problem]:
    """Properties that follow from the rest of the site: a flavor that sets one itself would escape quota or reserve."""
    for name, flavor in site.flavors.items():
        for key in flavor.properties if not flavor.foreign else ():
            if key == ALIAS_SPEC:
                yield Problem(("flavors", name, "properties", key), "is made from 'gpus'; write that instead")
            elif OWNED.match(key):
                yield Problem(("flavors", name, "properties", key), "is gpuyard's to set; leave it out")


def _other_devices(site: Site) -> Iterable[Problem]:
    """Entries for devices that are no GPUs: Nova takes one that names no device for all devices."""
    for index, alias_ in enumerate(site.extra_aliases):
        place = ("extra_aliases", index)
        yield from (Problem(place, f"{reason}; {fix}") for reason, fix in schema_problems(alias_))
        if alias_.get("name") in {alias(site, pool) for pool in site.pools}:
            yield Problem(place, f"{alias_['name']!r} is the alias of a pool; give it another name")
    for host, wish in site.hosts.items():
        for index, spec in enumerate(wish.extra_device_specs):
            entry = ("hosts", host, "extra_device_specs", index)
            try:
                vendor, product, address = matchers_of(spec)
            except DeviceSpecError as error:
                yield Problem(entry, f"nova-compute would not start: {error}; mend it")
                continue
            if address is not None and address.everything and ANY in (vendor, product):
                yield Problem(entry, "would match every device of the host; name it by 'address' or by both ids")


def _zones(site: Site) -> Iterable[Problem]:
    """Nova lets a host be in one availability zone only."""
    zones: dict[str, str] = {}
    for name, aggregate in site.aggregates.items():
        for index, host in enumerate(aggregate.hosts if aggregate.availability_zone else ()):
            earlier = zones.setdefault(host, name)
            if site.aggregates[earlier].availability_zone != aggregate.availability_zone:
                message = f"{host} is in another availability zone already, by aggregate {earlier!r}; Nova allows one"
                yield Problem(("aggregates", name, "hosts", index), message)


def _stages(site: Site) -> Iterable[Problem]:
    """What needs PCI devices in Placement, or quotas of GPUs."""
    if site.pci_in_placement != "on":
        for name, flavor in site.flavors.items():
            if flavor.same_group:
                message = "needs 'pci_in_placement: on': nothing else keeps the GPUs of a group together"
                yield Problem(("flavors", name, "same_group"), message)
        owners: dict[str, str] = {}
        for name, pool in site.pools.items():
            for model in pool.models:
                if model in owners:
                    message = (
                        f"{model} is in pool {owners[model]!r} too; without 'pci_in_placement: on' Nova tells GPUs by "
                        "model only"
                    )
                    yield Problem(("pools", name, "models"), message)
                owners[model] = name
    if not site.gpu_quotas:
        for name, project in site.projects.items():
            if project.gpus:
                yield Problem(
                    ("projects", name, "gpus"), "has no effect with 'gpu_quotas: false'; leave one of them out"
                )


def _one_of_each_kind(site: Site, facts: Mapping[str, HostFacts], room: _Room) -> dict[str, HostFacts]:
    """Hosts that differ in what flavors could need: of a thousand that are alike, the first."""
    kinds: dict[object, str] = {}
    aggregates = aggregates_of(site)
    for host, host_facts in facts.items():
        size = (host_facts.cpus, host_facts.memory_mib - site.hosts[host].overhead.ram, host_facts.disk_gib)
        kinds.setdefault((size, aggregates.get(host), *(room.kind(pool, host) for pool in site.pools)), host)
    return {host: facts[host] for host in kinds.values()}


class _Room:
    """How many GPUs one server can get, by pool and host."""

    def __init__(self, encoded: Sequence[EncodedGpu]) -> None:
        self.sets = set_sizes(item for item in encoded if item.offered)
        self._alone: dict[tuple[str, str], int] = {}
        self._groups: dict[tuple[str, str], dict[str, int]] = {}
        for item in encoded:
            if not item.offered:
                continue
            key = (item.gpu.pool, item.gpu.host)
            if item.gpu.role is not GpuRole.PEER:
                self._alone[key] = self._alone.get(key, 0) + 1
            if item.gpu.set_letter:
                groups = self._groups.setdefault(key, {})
                groups[item.gpu.set_letter] = groups.get(item.gpu.set_letter, 0) + 1

    def kind(self, pool: str, host: str) -> tuple[int, tuple[int, ...]]:
        """What two hosts must have in common to be alike."""
        groups = self._groups.get((pool, host), {})
        return self._alone.get((pool, host), 0), tuple(sorted(groups.values()))

    def most(self, pool: str, host: str, set_size: int | None) -> int:
        """Any leaders and lone GPUs, or the GPUs of a set of one size."""
        if set_size is None:
            return self._alone.get((pool, host), 0)
        return set_size if set_size in self._groups.get((pool, host), {}).values() else 0

    def sizes(self, pool: str) -> list[int]:
        return sorted({size for (set_pool, _), sizes in self.sets.items() if set_pool == pool for size in sizes})


def _unrunnable(
    site: Site, name: str, flavor: Flavor, hosts: Mapping[str, HostFacts], room: _Room
) -> Iterable[Problem]:
    """A flavor that no host can run even when it is empty, with what the largest host would allow."""
    if flavor.foreign and not flavor.gpus:
        return  # may well run on hosts that the site does not know
    place = ("flavors", name)
    if not hosts:
        return  # its aggregates name hosts that do not exist, which has been said
    for pool, count in flavor.gpus.items():
        most = {host: room.most(pool, host, count if flavor.same_group else None) for host in hosts}
        hosts = {host: host_facts for host, host_facts in hosts.items() if most[host] >= count}
        if not hosts:
            yield Problem((*place, "gpus", pool), _too_many_gpus(site, pool, count, flavor, most, room))
            return
    yield from _too_large(site, place, flavor, hosts)


def _too_large(site: Site, place: Place, flavor: Flavor, hosts: Mapping[str, HostFacts]) -> Iterable[Problem]:
    memory = {host: host_facts.memory_mib - site.hosts[host].overhead.ram for host, host_facts in hosts.items()}
    needs = (
        ("vcpus", flavor.vcpus, "", max(host.cpus for host in hosts.values())),
        ("ram", flavor.ram, " MiB", max(memory.values())),
        ("disk", flavor.disk + flavor.ephemeral, " GiB", max(host.disk_gib for host in hosts.values())),
    )
    short = False
    for key, needed, unit, most in needs:
        if needed > most:
            short = True
            message = f"{needed}{unit} is more than any host that could run it has; write {most}{unit} or less"
            if key == "disk":
                message += ", or say with 'disk' of the hosts what servers have there (another disk, Ceph)"
            yield Problem((*place, key), message)
    fits = (
        flavor.vcpus <= host_facts.cpus
        and flavor.ram <= memory[host]
        and flavor.disk + flavor.ephemeral <= host_facts.disk_gib
        for host, host_facts in hosts.items()
    )
    if not short and not any(fits):
        yield Problem(place, "no single host has its vCPUs, RAM and disk together; write less of one of them")


def _too_many_gpus(site: Site, pool: str, count: int, flavor: Flavor, most: Mapping[str, int], room: _Room) -> str:
    where = "no host of its aggregates" if flavor.aggregates else "no host"
    if flavor.same_group and not site.pools[pool].is_shared:
        sizes = room.sizes(pool)
        have = f"groups of {', '.join(map(str, sizes))}" if sizes else "no IOMMU group with more than one usable GPU"
        return f"{where} has an IOMMU group of {count} GPUs of pool {pool!r}; its hosts have {have}"
    best = max(most, key=lambda host: most[host], default=None)
    if best is None or not most[best]:
        if site.pools[pool].is_shared:
            return f"{where} has a share of pool {pool!r}; see 'shared' in 'gpuyard host check --from RECORDING'"
        return f"{where} has a usable GPU of pool {pool!r}; see 'gpuyard host scan --from RECORDING'"
    if site.pools[pool].is_shared:
        return (
            f"{where} can give {count} shares of pool {pool!r} to one server: the most is {most[best]} (on {best}); "
            f"write {most[best]} or fewer"
        )
    return (
        f"{where} can give {count} GPUs of pool {pool!r} to one server: the most is {most[best]} (on {best}, "
        f"one from each IOMMU group); write {most[best]} or fewer, or 'same_group: true' for the GPUs of a shared group"
    )
