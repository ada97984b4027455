"""What the inventory adds to the portal: every GPU now, as the API has it."""

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
