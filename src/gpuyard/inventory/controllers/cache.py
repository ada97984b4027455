"""The latest observation of all GPUs, shared between the loop that makes it and its readers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuyard.model.gpu import GpuStatus
from gpuyard.model.world import HostService


@dataclass(frozen=True)
class InventoryView:
    """The state of every GPU at one moment."""

    generation: int
    """Rises by one with every change; the same number means the same statuses."""
    taken_at: datetime
    """UTC: when the cloud was last observed, also when nothing had changed."""
    statuses: tuple[GpuStatus, ...]
    services: Mapping[str, HostService] = field(default_factory=dict)
    """The nova-compute of each host, by its name; empty where they were not observed."""


class InventoryCache:
    """The latest view. One writer, any number of readers, who can wait for the next change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view: InventoryView | None = None

    def latest(self) -> InventoryView | None:
        """Return the latest view; None until the cloud was seen for the first time."""
        with self._changed:
            return self._view

    def publish(
        self, taken_at: datetime, statuses: Sequence[GpuStatus], services: Mapping[str, HostService] | None = None
    ) -> InventoryView:
        """Put a new view in place; readers are woken only when a status differs from the last view."""
        with self._changed:
            old, new = self._view, tuple(statuses)
            same = old is not None and old.statuses == new
            generation = old.generation + (not same) if old else 1
            self._view = InventoryView(generation, taken_at, new, services or {})
            if not same:
                self._changed.notify_all()
            return self._view

    def wait(self, generation: int, timeout: float) -> InventoryView | None:
        """Return the view once it is newer than `generation`, or the latest one after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._view is not None and self._view.generation > generation, timeout)
            return self._view
