"""The part of the portal for the inventory: the API of every GPU now."""

from __future__ import annotations

from fastapi import FastAPI

from gpuyard.inventory.web import api
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.web.capability import Capability


class InventoryCapability(Capability):
    tags = ("gpus", "about")

    def __init__(self, context: InventoryContext) -> None:
        self._context = context

    def install(self, app: FastAPI) -> None:
        api.install(app, self._context)
