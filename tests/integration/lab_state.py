"""Limits of a lab that modules share, put back as they were before bookings changed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuyard.openstack.api import CloudApi

KINDS = {"registered_limits": "default_limit", "limits": "resource_limit"}
"""Keystone's two lists -> what holds the number."""
OWN = ("id", "links", "domain_id")


@contextmanager
def limits_kept(operator: CloudApi) -> Iterator[None]:
    """Every limit afterwards as it is now: what was added goes, what was deleted or changed comes back."""
    before = read_limits(operator)
    try:
        yield
    finally:
        restore_limits(operator, before)


Limits = dict[tuple[str, str, str | None], dict[str, Any]]
"""List, resource and project -> Keystone's row."""


def read_limits(operator: CloudApi) -> Limits:
    return {
        (kind, row["resource_name"], row.get("project_id")): row
        for kind in KINDS
        for row in operator.get("identity", f"/{kind}")[kind]
    }


def restore_limits(operator: CloudApi, before: Limits) -> None:
    after = read_limits(operator)
    for (kind, name, project), row in after.items():
        if (kind, name, project) not in before:
            operator.request("DELETE", "identity", f"/{kind}/{row['id']}")
    for (kind, name, project), row in before.items():
        number = KINDS[kind]
        current = after.get((kind, name, project))
        if current is None:
            made = {key: value for key, value in row.items() if key not in OWN}
            operator.request("POST", "identity", f"/{kind}", {kind: [made]})
        elif (current[number], current["description"]) != (row[number], row["description"]):
            body = {kind.removesuffix("s"): {number: row[number], "description": row["description"] or ""}}
            operator.request("PATCH", "identity", f"/{kind}/{current['id']}", body)
