"""Reads from a cloud which servers have PCI devices, and which ones, to adopt it.

That takes the lists, a call for each project of another domain, and one for each server with PCI devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpuyard.diagnosis.adopt.model import CloudFacts, GpuServer
from gpuyard.model.world import Provider
from gpuyard.nova.alias_spec import ALIAS_SPEC
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Names, Reader
from gpuyard.site.objects import SeenObjects

DEVICE = re.compile(r"^(?P<host>.+)_(?P<address>[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])$")
"""The name that Nova gives to the provider of a PCI device."""


def read_facts(api: CloudApi, objects: SeenObjects) -> CloudFacts:
    """Read the facts of a cloud. Raises CloudError."""
    with Reader(api) as cloud:
        providers = cloud.later(cloud.providers)
        newest = cloud.later(cloud.newest_microversion)
        flavors = cloud.later(cloud.flavors)
        # One that was shelved has given its devices back, and is on no host.
        servers = [row for row in cloud.servers() if ALIAS_SPEC in row.flavor.extra_specs and row.host]
        names = Names({("project", identity): name for name, identity in objects.projects.items()})
        names.learn(cloud, projects={row.project for row in servers})
        devices = _devices(providers.result())
        allocations = cloud.each(cloud.allocations, [row.id for row in servers] if devices else [])
        return CloudFacts(
            servers=tuple(
                GpuServer(
                    id=row.id,
                    name=row.name,
                    project=names.of("project", row.project),
                    host=row.host or "",
                    flavor=row.flavor.name,
                    asks=row.flavor.extra_specs[ALIAS_SPEC],
                    addresses=_addresses(allocations.get(row.id, ()), devices),
                )
                for row in servers
            ),
            reported=_by_host(devices.values()),
            swap={flavor.name: flavor.swap for flavor in flavors.result() if flavor.swap},
            microversion=newest.result(),
        )


def _devices(providers: Mapping[str, Provider]) -> dict[str, tuple[str, str]]:
    """Id of the provider of a PCI device -> host, address."""
    devices = {}
    for provider in providers.values():
        match = DEVICE.match(provider.name)
        if match and provider.root_id != provider.id and providers[provider.root_id].name == match["host"]:
            devices[provider.id] = (match["host"], match["address"].lower())
    return devices


def _by_host(devices: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Host -> addresses that it reports."""
    addresses_by_host: dict[str, set[str]] = {}
    for host, address in devices:
        addresses_by_host.setdefault(host, set()).add(address)
    return {host: frozenset(addresses) for host, addresses in addresses_by_host.items()}


def _addresses(provider_ids: Iterable[str], devices: Mapping[str, tuple[str, str]]) -> tuple[str, ...] | None:
    """Of what a server holds; None when Placement knows no device of it, so that Nova alone does."""
    return tuple(sorted(devices[provider_id][1] for provider_id in provider_ids if provider_id in devices)) or None
