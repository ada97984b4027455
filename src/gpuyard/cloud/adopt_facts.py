"""Reads what taking over a cloud needs besides what a site manages: which servers have PCI devices, and which ones.

====================================================  =====================================================
1                                                     all resource providers
1 per 1,000 hypervisors                               whose host is which
1 per 1,000 servers, 1 per 1,000 flavors              servers with PCI devices; swap of flavors
1                                                     the newest microversion that Nova's API speaks
1 per project of another domain than the default      its name
1 per server with PCI devices                         what it holds, if Placement knows single devices
====================================================  =====================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.site.adopt.model import CloudFacts, GpuServer
from gpuyard.site.objects import SeenObjects

ALIAS_SPEC = "pci_passthrough:alias"
DEVICE = re.compile(r"^(?P<host>.+)_(?P<address>[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])$")
"""The name that Nova gives to the provider of a PCI device."""
PAGE = 1000
PARALLEL = 4
NOT_FOUND, FORBIDDEN = 404, 403


def read_facts(api: CloudApi, seen: SeenObjects) -> CloudFacts:
    """What runs on the cloud. Raises CloudError."""
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="adopt") as pool:
        providers = pool.submit(_devices, api)
        newest = pool.submit(_newest_microversion, api)
        flavors = pool.submit(_flavors, api)
        rows = _servers(api)
        names = {identity: name for name, identity in seen.projects.items()}
        strangers = sorted({row["tenant_id"] for row in rows} - names.keys())
        names |= zip(strangers, pool.map(lambda identity: _project_name(api, identity), strangers), strict=True)
        devices = providers.result()
        held: Iterable[tuple[str, ...] | None] = [None] * len(rows)
        if devices:
            held = list(pool.map(lambda row: _held(api, row["id"], devices), rows))
        return CloudFacts(
            servers=tuple(_server(row, names, mine) for row, mine in zip(rows, held, strict=True)),
            reported=_by_host(devices.values()),
            swap={row["name"]: int(row["swap"]) for row in flavors.result() if row["swap"]},
            microversion=newest.result(),
        )


def _devices(api: CloudApi) -> dict[str, tuple[str, str]]:
    """Id of the provider of a PCI device -> host, address."""
    rows = api.providers()
    names = {row["uuid"]: row["name"] for row in rows}
    found = {}
    for row in rows:
        match = DEVICE.match(row["name"])
        if match and row["root_provider_uuid"] != row["uuid"] and names[row["root_provider_uuid"]] == match["host"]:
            found[row["uuid"]] = (match["host"], match["address"].lower())
    return found


def _by_host(devices: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Host -> addresses that it reports."""
    found: dict[str, set[str]] = {}
    for host, address in devices:
        found.setdefault(host, set()).add(address)
    return {host: frozenset(addresses) for host, addresses in found.items()}


def _flavors(api: CloudApi) -> list[dict[str, Any]]:
    return list(api.pages("compute", "/flavors/detail", "flavors", is_public="None", limit=PAGE))


def _servers(api: CloudApi) -> list[dict[str, Any]]:
    """Servers whose flavor asks for PCI devices and that are on a host: one that was shelved has given them back."""
    pages = api.pages("compute", "/servers/detail", "servers", all_tenants=1, limit=PAGE)
    return [row for row in pages if ALIAS_SPEC in row["flavor"]["extra_specs"] and row["OS-EXT-SRV-ATTR:host"]]


def _server(row: Mapping[str, Any], projects: Mapping[str, str], addresses: tuple[str, ...] | None) -> GpuServer:
    return GpuServer(
        id=row["id"],
        name=row["name"],
        project=projects[row["tenant_id"]],
        host=row["OS-EXT-SRV-ATTR:host"],
        flavor=row["flavor"]["original_name"],
        asks=row["flavor"]["extra_specs"][ALIAS_SPEC],
        addresses=addresses,
    )


def _held(api: CloudApi, server: str, devices: Mapping[str, tuple[str, str]]) -> tuple[str, ...] | None:
    """Addresses of what a server holds; None when Placement knows no device of it, so that Nova alone does."""
    allocations: Sequence[str] = list(api.get("placement", f"/allocations/{server}")["allocations"])
    return tuple(sorted(devices[provider][1] for provider in allocations if provider in devices)) or None


def _project_name(api: CloudApi, identity: str) -> str:
    try:
        return str(api.get("identity", f"/projects/{identity}")["project"]["name"])
    except CloudError as error:
        if error.status not in (NOT_FOUND, FORBIDDEN):
            raise
        return identity  # deleted, or in a domain that we may not look into


def _newest_microversion(api: CloudApi) -> str:
    try:
        return str(api.get("compute", "/")["version"]["version"])
    except (CloudError, KeyError, TypeError, ValueError):
        return ""  # a proxy may not pass it on; then the operator says which release it is
