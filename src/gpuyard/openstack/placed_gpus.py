"""Reads who has certain GPUs in Placement now, provider by provider, for decisions that cannot wait for a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from gpuyard.logs.request_context import carried
from gpuyard.openstack.api import CloudApi, CloudError

PARALLEL = 4
NOT_FOUND = 404
BAD_REQUEST = 400


class Availability(Enum):
    """Whether Placement would give a GPU to a server now."""

    FREE = "free"
    TAKEN = "taken"
    """A server has it, and it is free again when that goes."""
    HELD = "held"
    """It is reserved, also below a server, or Placement does not have it."""


class PlacedGpus:
    """Whole GPUs, by the names of their providers. Safe to use from several threads."""

    def __init__(self, api: CloudApi, classes: Mapping[str, str]) -> None:
        """`classes`: name of a GPU's provider -> its resource class."""
        self._api = api
        self._classes = classes
        self._ids: Mapping[str, str] = {}

    def availability(self, names: Iterable[str]) -> dict[str, Availability]:
        """Return the availability of each. Two calls for each, and one more when one was never seen. Raises
        CloudError."""
        gpu_names = sorted(name for name in names if name in self._classes)
        ids = self.ids(gpu_names)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="placed") as pool:
            availabilities = pool.map(
                carried(self._availability_of), gpu_names, [ids.get(name, "") for name in gpu_names]
            )
            return dict(zip(gpu_names, availabilities, strict=True))

    def of_server(self, server_id: str) -> tuple[str, ...]:
        """Return the GPUs that are allocated to a server; none before Nova's scheduler has chosen. Raises
        CloudError."""
        allocations = self._api.get("placement", f"/allocations/{server_id}")["allocations"]
        if not allocations:
            return ()
        names = {id: name for name, id in self._ids.items()}
        if allocations.keys() - names.keys():
            names = {id: name for name, id in self._read().items()}
        return tuple(sorted(name for id in allocations if (name := names.get(id, "")) in self._classes))

    def have_trait(self, trait: str, names: Iterable[str]) -> bool:
        """Return whether all of these that Placement has have a trait. Two calls. Raises CloudError."""
        ids_by_name = self._read()
        try:
            rows = self._api.providers(required=trait)
        except CloudError as error:
            if error.status == BAD_REQUEST:  # it has never heard of it
                return False
            raise
        return ids_by_name.keys() & {*names} <= {row["name"] for row in rows}

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return Placement's ids of these, without those that it does not have. Raises CloudError."""
        gpu_names = list(names)
        ids_by_name = self._read() if any(name not in self._ids for name in gpu_names) else self._ids
        return {name: ids_by_name[name] for name in gpu_names if name in ids_by_name}

    def _read(self) -> Mapping[str, str]:
        self._ids = {row["name"]: row["uuid"] for row in self._api.providers()}
        return self._ids

    def _availability_of(self, name: str, provider: str) -> Availability:
        if not provider:
            return Availability.HELD
        resource_class, path = self._classes[name], f"/resource_providers/{provider}"
        try:
            inventory = self._api.get("placement", f"{path}/inventories")["inventories"].get(resource_class)
            if inventory is None or inventory["reserved"] >= inventory["total"]:
                return Availability.HELD
            used = self._api.get("placement", f"{path}/usages")["usages"].get(resource_class, 0)
        except CloudError as error:
            if error.status == NOT_FOUND:
                return Availability.HELD
            raise
        return Availability.FREE if inventory["total"] > used else Availability.TAKEN
