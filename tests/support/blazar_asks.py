"""What Blazar itself posts to an external enforcement service, by its own code: writes blazar_asks.json.

    uv run --no-project --with blazar==18.0.0 python tests/support/blazar_asks.py

Its manager hands over leases as here: the dates of a wish are parsed already, and leases come from its models. GPUs are
two instances of a flavor, from 13:00 to 17:00; changed to 18:00, and ended. No service of Blazar's is needed.
Blazar is not among the project's packages: hence import-not-found.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

FLAVOR, HOST = "v100.1", {"id": "1", "hypervisor_hostname": "gpu-1", "extra": {"pool": "v100"}}
START, END, LATER = (datetime(2026, 11, 23, hour) for hour in (13, 17, 18))  # noqa: DTZ001 - as Blazar has them
CATALOGUE = [
    {
        "type": "identity",
        "name": "keystone",
        "endpoints": [
            {
                "interface": interface,
                "region": "RegionOne",
                "region_id": "RegionOne",
                "url": "https://keystone.example.org/v3",
            }
            for interface in ("public", "internal", "admin")
        ],
    }
]


def asks() -> dict[str, Any]:
    from blazar.db.sqlalchemy import models  # type: ignore[import-not-found]
    from blazar.enforcement import UsageEnforcement  # type: ignore[import-not-found]
    from blazar.enforcement.filters import ExternalServiceFilter  # type: ignore[import-not-found]
    from blazar.utils.openstack import keystone  # type: ignore[import-not-found]  # noqa: F401 - it registers options
    from oslo_config import cfg

    conf = cfg.CONF
    conf([], project="blazar")
    ExternalServiceFilter.register_opts(conf)
    conf.set_override("enabled_filters", ["ExternalServiceFilter"], "enforcement")
    conf.set_override("external_service_base_endpoint", "http://localhost/v1/", "enforcement")
    conf.set_override("external_service_token", "s3cret", "enforcement")
    conf.set_override("os_region_name", "RegionOne")
    context = SimpleNamespace(to_dict=lambda: {"service_catalog": CATALOGUE})
    wish = {"resource_type": "flavor:instance", "flavor_id": FLAVOR, "amount": 2, "affinity": None}
    values = {
        "name": "training", "user_id": "u-ada", "project_id": "p-physics", "start_date": START, "end_date": END,
        "before_end_date": None,
    }  # fmt: skip
    own = {name: value for name, value in values.items() if name != "before_end_date"}
    made = models.Lease(id="b1", trust_id="t1", status="ACTIVE", degraded=False, **own)
    part = models.Reservation(
        id="r1", lease_id="b1", resource_id="i1", resource_type="flavor:instance", status="active"
    )
    part.instance_reservation = models.InstanceReservations(id="i1", amount=2, affinity=None, flavor_id=FLAVOR)
    made.reservations = [part]
    lease = made.to_dict()
    none: dict[str, list[Any]] = {"flavor:instance": []}
    some = {"flavor:instance": [HOST]}
    posted: dict[str, Any] = {}

    def post(url: str, headers: dict[str, str], data: str) -> Any:
        posted[url.rpartition("/")[2]] = {"url": url, "headers": headers, "body": json.loads(data)}
        return SimpleNamespace(status_code=204)

    with mock.patch("requests.post", post):
        enforcement = UsageEnforcement()
        enforcement.check_create(context, dict(values), [wish], none)
        changed = {**lease, "end_date": LATER}
        enforcement.check_update(context, lease, changed, some, some, lease["reservations"], lease["reservations"])
        enforcement.on_end(context, lease, some)
    return posted


if __name__ == "__main__":
    Path(__file__).with_name("blazar_asks.json").write_text(json.dumps(asks(), indent=1, sort_keys=True) + "\n")
