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
        asked = sorted(name for name in names if name in self._classes)
        ids = self.ids(asked)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="placed") as pool:
            found = pool.map(carried(self._availability_of), asked, [ids.get(name, "") for name in asked])
            return dict(zip(asked, found, strict=True))

    def of_server(self, server_id: str) -> tuple[str, ...]:
        """Return the GPUs that are allocated to a server; none before Nova's scheduler has chosen. Raises
        CloudError."""
        found = self._api.get("placement", f"/allocations/{server_id}")["allocations"]
        if not found:
            return ()
        names = {id: name for name, id in self._ids.items()}
        if found.keys() - names.keys():
            names = {id: name for name, id in self._read().items()}
        return tuple(sorted(name for id in found if (name := names.get(id, "")) in self._classes))

    def have_trait(self, trait: str, names: Iterable[str]) -> bool:
        """Return whether all of these that Placement has have a trait. Two calls. Raises CloudError."""
        there = self._read()
        try:
            rows = self._api.providers(required=trait)
        except CloudError as error:
            if error.status == BAD_REQUEST:  # it has never heard of it
                return False
            raise
        return there.keys() & {*names} <= {row["name"] for row in rows}

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return Placement's ids of these, without those that it does not have. Raises CloudError."""
        asked = list(names)
        there = self._read() if any(name not in self._ids for name in asked) else self._ids
        return {name: there[name] for name in asked if name in there}

    def _read(self) -> Mapping[str, str]:
        self._ids = {row["name"]: row["uuid"] for row in self._api.providers()}
        return self._ids

    def _availability_of(self, name: str, provider: str) -> Availability:
        if not provider:
            return Availability.HELD
        wanted, path = self._classes[name], f"/resource_providers/{provider}"
        try:
            inventory = self._api.get("placement", f"{path}/inventories")["inventories"].get(wanted)
            if inventory is None or inventory["reserved"] >= inventory["total"]:
                return Availability.HELD
            used = self._api.get("placement", f"{path}/usages")["usages"].get(wanted, 0)
        except CloudError as error:
            if error.status == NOT_FOUND:
                return Availability.HELD
            raise
        return Availability.FREE if inventory["total"] > used else Availability.TAKEN
