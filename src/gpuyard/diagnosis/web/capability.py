"""The parts of the portal that diagnosis adds: which servers could start now, and why others could not."""

from __future__ import annotations

from fastapi import FastAPI

from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.diagnosis.web import flavor_pages, flavors_api
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


class DiagnosisCapability(Capability):
    """The API, and, where people log in, the page Start."""

    def __init__(
        self, context: InventoryContext, capacity: CapacityService, authenticator: Authenticator | None
    ) -> None:
        self._context, self._capacity, self._authenticator = context, capacity, authenticator

    def install(self, app: FastAPI) -> None:
        flavors_api.install(app, self._context, self._capacity, self._authenticator)
        if self._authenticator is not None:
            flavor_pages.install(app, self._context, self._capacity, self._authenticator)
