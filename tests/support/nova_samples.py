"""What Nova answers of a cell that does not: the samples that its own functional tests hold its API against, with the
ids, hosts and times of a test (nova 34.0.0, tests/functional/api_sample_tests/api_samples)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuyard.model.world import HostService
from gpuyard.openstack.rows import service_of


def sample(name: str) -> Any:
    """A sample's document, whose placeholders stay as they are."""
    nova = find_spec("nova")
    assert nova is not None
    assert nova.origin is not None
    samples = Path(nova.origin).parent / "tests/functional/api_sample_tests/api_samples"
    return json.loads((samples / f"{name}.json.tpl").read_text().replace("%(isotime)s", "2026-11-23T09:00:00Z"))


def silent_service_row(host: str) -> dict[str, Any]:
    """A row of GET /os-services."""
    (row, _) = sample("os-services/v2.69/services-list-get-resp")["services"]
    return {**row, "host": host}


def silent_service(host: str) -> HostService:
    """As it is read."""
    return service_of(silent_service_row(host))


def silent_server(id: str, version: str = "2.71") -> dict[str, Any]:
    """What GET /servers/ID says, since microversion 2.69 or 2.71."""
    names = {"2.69": "servers/v2.69/server-get-resp", "2.71": "servers/v2.71/server-get-down-cell-resp"}
    row: dict[str, Any] = sample(names[version])["server"]
    return {**row, "id": id}


def silent_server_listed(id: str) -> dict[str, Any]:
    """A row of GET /servers/detail without pages and filters."""
    (row,) = sample("servers/v2.69/servers-details-resp")["servers"]
    return {**row, "id": id}
