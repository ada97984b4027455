"""Runs in a Python that has Blazar: how long its flavor plugin takes to find free hosts, as JSON on standard output.

Called by bench/blazar.py with a JSON object: hosts, leases (per host), hours (lengths of the windows), runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any
from uuid import uuid4

from blazar.db import api as db  # type: ignore[import-not-found]
from blazar.db.sqlalchemy import api as tables  # type: ignore[import-not-found]
from blazar.plugins.flavor.flavor_plugin import FlavorPlugin  # type: ignore[import-not-found]
from oslo_config import cfg

START = datetime(2030, 1, 1)  # noqa: DTZ001  as Blazar stores it
PERIOD_HOURS = 72
GPU = "CUSTOM_GPU"
FLAVOR = {
    "vcpus": 1,
    "ram": 1024,
    "disk": 10,
    "OS-FLV-EXT-DATA:ephemeral": 0,
    "extra_specs": {f"resources:{GPU}": "1"},
}
REQUEST = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10, GPU: 1}
HAS = {"VCPU": 64, "MEMORY_MB": 512 * 1024, "DISK_GB": 4096, GPU: 1}


def main(request: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        cfg.CONF.set_override("connection", f"sqlite:///{file.name}", group="database")
        cfg.CONF.set_override("sqlite_synchronous", False, group="database")  # the leases are written faster
        tables.setup_db()
        for number in range(request["hosts"]):
            host = make_host(number)
            for lease in range(request["leases"]):
                first = lease * PERIOD_HOURS + (number * 5) % PERIOD_HOURS  # as bench/ledger.py has them
                make_lease(host, first, first + 24 + (number * 7919 + lease * 104729) % 48)
        plugin = FlavorPlugin()
        seconds_by_window = {str(hours): measure(plugin, hours, request["runs"]) for hours in request["hours"]}
    print(json.dumps(seconds_by_window))


def make_host(number: int) -> str:
    """Its id."""
    values = {
        "id": str(uuid4()), "vcpus": 64, "cpu_info": "", "hypervisor_type": "QEMU", "hypervisor_version": 1,
        "hypervisor_hostname": f"gpu-{number}", "service_name": f"gpu-{number}", "memory_mb": HAS["MEMORY_MB"],
        "local_gb": HAS["DISK_GB"], "status": "up", "availability_zone": "", "trust_id": str(uuid4()),
    }  # fmt: skip
    db.host_create(values)
    for name, total in HAS.items():
        row = {"computehost_id": values["id"], "resource_class": name, "total": total, "reserved": 0, "min_unit": 1}
        db.host_resource_inventory_create({**row, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0})
    return str(values["id"])


def make_lease(host: str, first: int, last: int) -> None:
    """From and to so many hours after the start."""
    lease, start, end = str(uuid4()), START + timedelta(hours=first), START + timedelta(hours=last)
    reservation = {"id": str(uuid4()), "lease_id": lease, "resource_id": host, "resource_type": "flavor:instance"}
    events = [{"event_type": "start_lease", "time": start}, {"event_type": "end_lease", "time": end}]
    db.lease_create(
        {
            "id": lease, "name": lease, "start_date": start, "end_date": end, "trust_id": str(uuid4()),
            "reservations": [reservation], "events": [{"id": str(uuid4()), **event} for event in events],
        }
    )  # fmt: skip
    db.instance_reservation_create(
        {
            "reservation_id": reservation["id"], "vcpus": 1, "memory_mb": 1024, "disk_gb": 10, "amount": 1,
            "resource_properties": json.dumps(FLAVOR),
        }
    )  # fmt: skip
    db.host_allocation_create({"compute_host_id": host, "reservation_id": reservation["id"]})


def measure(plugin: Any, hours: int, runs: int) -> list[float]:
    """Seconds of each run. The windows lie among the leases, each elsewhere."""
    seconds = []
    for run in range(runs):
        start = START + timedelta(days=10 + run, hours=7)
        began = perf_counter()
        plugin._query_available_hosts(start, start + timedelta(hours=hours), REQUEST, {})
        seconds.append(perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
