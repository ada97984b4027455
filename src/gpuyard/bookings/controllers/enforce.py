"""Applies enforcement: limits in Keystone and holds in Placement, and reads what its planning needs.

It decides nothing. All limits are one call, the names of projects another; each GPU that may be held or released next
costs one call, and each unit of a shared card up to three. A hold is written only if its provider still has the
generation that the plan was made from; else OvertakenError says that a new plan is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuyard.bookings.enforcement import Call, PlaceHold, ReleaseHold, SeenProvider, SetLimit
from gpuyard.logs.request_context import carried
from gpuyard.model.gpu import is_unit
from gpuyard.model.units import hold_of
from gpuyard.model.world import DOMAIN
from gpuyard.nova.device_spec import ONE_TIME_USE
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.people import shown
from gpuyard.openstack.reader import compute_service, region_of

PARALLEL = 4
HOLD = "GPUYARD_HOLD"
"""Consumer type in Placement of a consumer that holds a unit."""
NOT_FOUND = 404
CONFLICT = 409


class OvertakenError(CloudError):
    """Something is no longer as it was when the step was planned; the next plan is made from what it is now."""


class Enforcer:
    """Sets limits on GPU classes and places holds on GPUs, in one cloud. It decides nothing."""

    def __init__(self, api: CloudApi, mark: str) -> None:
        """`mark`: the description of every limit that is set."""
        self._api = api
        self._mark = mark
        self._limit_ids: dict[tuple[str, str], str] = {}
        self._where: tuple[str, str | None] | None = None

    def projects(self) -> dict[str, str]:
        """Return name -> id of the projects of the default domain, which the projects of a site file are in."""
        rows = self._api.get("identity", "/projects", domain_id=DOMAIN)["projects"]
        return {shown(row["name"], {"id": DOMAIN}): row["id"] for row in rows}

    def limits(self, resources: Iterable[str]) -> dict[tuple[str, str], int]:
        """Return (project's id, resource) -> limit: all that projects have of their own."""
        service, region = self._catalogue()
        rows = self._api.get("identity", "/limits", service_id=service)["limits"]
        names = set(resources)
        mine = [
            row for row in rows if row["resource_name"] in names and row["region_id"] == region and row["project_id"]
        ]
        self._limit_ids = {(row["project_id"], row["resource_name"]): row["id"] for row in mine}
        return {(row["project_id"], row["resource_name"]): row["resource_limit"] for row in mine}

    def registered(self) -> frozenset[str]:
        """Return resources that have a default for every project; without one Keystone takes no project's limit."""
        service, region = self._catalogue()
        rows = self._api.get("identity", "/registered_limits", service_id=service)["registered_limits"]
        return frozenset(row["resource_name"] for row in rows if row["region_id"] == region)

    def marked(self) -> list[str]:
        """Return ids of limits that carry our mark."""
        service, _ = self._catalogue()
        rows = self._api.get("identity", "/limits", service_id=service)["limits"]
        return [row["id"] for row in rows if row.get("description") == self._mark]

    def carry_out(self, step: Call, provider: tuple[str, str] = ("", "")) -> None:
        """Apply one step. `provider`: id and resource class of the one that a step holds or releases. Raises
        OvertakenError when it is no longer as it was when the step was planned."""
        match step:
            case SetLimit():
                self._set_limit(step.project, step.resource, step.value)
            case PlaceHold() if is_unit(step.provider):
                self._take(step.provider, *provider)
            case ReleaseHold() if is_unit(step.provider):
                self._let_go(step.provider)
            case PlaceHold():
                self._reserve(*provider, True, step.generation)
            case ReleaseHold():
                self._reserve(*provider, False, step.generation)

    def _set_limit(self, project: str, resource: str, value: int) -> None:
        """A limit of 0 is none: the registered one, which is 0, holds then. (Keystone takes an update to 0, answers
        200 and keeps the old number.)"""
        limit_id = self._limit_ids.get((project, resource))
        try:
            if value == 0:
                if limit_id is not None:
                    self._api.request("DELETE", "identity", f"/limits/{limit_id}")
            elif limit_id is not None:
                body = {"limit": {"resource_limit": value, "description": self._mark}}
                self._api.request("PATCH", "identity", f"/limits/{limit_id}", body)
            else:
                self._api.request("POST", "identity", "/limits", {"limits": [self._row(project, resource, value)]})
        except CloudError as error:
            if error.status == CONFLICT or (error.status == NOT_FOUND and limit_id is not None):
                raise OvertakenError(str(error), error.status) from None
            raise

    def _row(self, project: str, resource: str, value: int) -> dict[str, Any]:
        service, region = self._catalogue()
        row = {
            "service_id": service,
            "resource_name": resource,
            "project_id": project,
            "resource_limit": value,
            "description": self._mark,
        }
        return {**row, "region_id": region} if region else row

    def _catalogue(self) -> tuple[str, str | None]:
        """Nova's service and region, which limits are kept under."""
        if self._where is None:
            service = compute_service(self._api)
            self._where = service, region_of(self._api, service)
        return self._where

    def look(self, providers: Mapping[str, tuple[str, str]]) -> dict[str, SeenProvider]:
        """Read how providers are: takes name -> (id, resource class), and returns name -> what is reserved. Providers
        that are gone are left out, and units that cannot be held now, because all of their device are taken."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="look") as pool:
            observed = pool.map(carried(self._seen), providers, providers.values())
            return {name: provider for name, provider in zip(providers, observed, strict=True) if provider is not None}

    def is_given_on_as_it_is(self, provider: str) -> bool:
        """Return whether nobody has the device of a provider (its id), and Nova does not reserve it when somebody gets
        it."""
        try:
            path = f"/resource_providers/{provider}"
            if self._api.get("placement", f"{path}/allocations")["allocations"]:
                return False
            return ONE_TIME_USE not in self._api.get("placement", f"{path}/traits")["traits"]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return False
            raise

    def _seen(self, name: str, which: tuple[str, str]) -> SeenProvider | None:
        provider, resource_class = which
        if is_unit(name):
            return self._seen_unit(name, provider, resource_class)
        try:
            answer = self._inventories(provider)
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        inventory = answer["inventories"].get(resource_class)
        if inventory is None:
            return None
        return SeenProvider(inventory["reserved"] >= inventory["total"], answer["resource_provider_generation"])

    def _seen_unit(self, name: str, provider: str, resource_class: str) -> SeenProvider | None:
        """A unit is held by a consumer of its own (docs/adr/0047), so there is no generation that matters."""
        if self._api.get("placement", f"/allocations/{hold_of(name)}")["allocations"]:
            return SeenProvider(True, 0)
        try:
            inventory = self._inventories(provider)["inventories"].get(resource_class)
            used = self._api.get("placement", f"/resource_providers/{provider}/usages")["usages"].get(resource_class, 0)
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        left = inventory is not None and inventory["total"] - inventory["reserved"] > used
        return SeenProvider(False, 0) if left else None

    def _take(self, name: str, provider: str, resource_class: str) -> None:
        """Hold a unit: its consumer takes one of its device. Raises OvertakenError when none is left."""
        body = {
            "allocations": {provider: {"resources": {resource_class: 1}}},
            "consumer_generation": None,
            "consumer_type": HOLD,
            "project_id": self._api.project,
            "user_id": self._api.user,
        }
        try:
            self._api.request("PUT", "placement", f"/allocations/{hold_of(name)}", body)
        except CloudError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                raise OvertakenError(str(error), error.status) from None
            raise

    def _let_go(self, name: str) -> None:
        try:
            self._api.request("DELETE", "placement", f"/allocations/{hold_of(name)}")
        except CloudError as error:
            if error.status != NOT_FOUND:  # somebody else has let it go
                raise

    def _inventories(self, provider: str) -> dict[str, Any]:
        return self._api.get("placement", f"/resource_providers/{provider}/inventories")

    def _reserve(self, provider: str, resource_class: str, reserved: bool, generation: int) -> None:
        """Hold a GPU or release it, if its provider is still in this generation. Raises OvertakenError when not."""
        answer = self._inventories(provider)
        inventory = answer["inventories"].get(resource_class)
        if inventory is None or answer["resource_provider_generation"] != generation:
            raise OvertakenError(f"cloud {self._api.name}: provider {provider} has changed meanwhile", CONFLICT)
        body = {
            **inventory,
            "reserved": inventory["total"] if reserved else 0,
            "resource_provider_generation": generation,
        }
        path = f"/resource_providers/{provider}/inventories/{resource_class}"
        try:
            self._api.request("PUT", "placement", path, body)
        except CloudError as error:
            if error.status == CONFLICT:
                raise OvertakenError(str(error), error.status) from None
            raise
