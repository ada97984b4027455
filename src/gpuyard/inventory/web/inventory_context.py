"""The context of pages and endpoints that show GPUs as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import Gpu
from gpuyard.runtime.control_loops import Driver
from gpuyard.web.portal_context import PortalContext


@dataclass(frozen=True, kw_only=True)
class InventoryContext(PortalContext):
    """The portal with the latest observation of its GPUs."""

    inventory: InventoryCache
    driver: Driver
    """Runs the loops, and says how each went."""
    gpus: Sequence[Gpu]
    """Every GPU of the site, so that filters and metrics know all pools and hosts before the cloud was seen."""
