"""The map with its history of changes, so that a page that shows an older one gets only what differs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.presenter import Marks, gpu_boxes, pool_cards, present
from gpuyard.model.gpu import Gpu
from gpuyard.web.assets import render

WHOLE, PARTS = "map", "parts"
"""Events: the map, and those of its parts that changed. live.js swaps both in."""


@dataclass(frozen=True)
class LiveMap:
    """The map in one version, with the version since which each of its GPUs is as it is."""

    version: int = 0
    """Rises with every change; 0: nothing has been seen yet."""
    shape: int = 0
    """The version since which it has these GPUs, in this order."""
    view: InventoryView | None = None
    marks: Marks | None = None
    changed: tuple[int, ...] = ()
    """The version of the last change of each GPU of the view, in its order; 0 of one that is as it was when the shape
    was new."""

    def after(self, view: InventoryView, marks: Marks | None) -> LiveMap:
        """Return the map in the next version; the same one when nothing differs."""
        version, old = self.version + 1, self.view
        if old is None or (marks is None) != (self.marks is None) or not _same_gpus(old, view):
            return LiveMap(version, version, view, marks, (0,) * len(view.statuses))
        before = zip(old.statuses, self.changed, strict=True)
        changed = tuple(
            version if was != now or _mark(self.marks, was.gpu) != _mark(marks, now.gpu) else since
            for (was, since), now in zip(before, view.statuses, strict=True)
        )
        if changed == self.changed:
            return self if view == old else replace(self, view=view)
        return LiveMap(version, self.shape, view, marks, changed)

    def since(self, version: int, now: datetime) -> tuple[str, str]:
        """Return the event for a page that shows the map of another version: its kind, and HTML. `now` is what
        durations are counted to."""
        if self.view is None:
            raise ValueError("nothing has been seen yet")
        if version < self.shape:
            return WHOLE, render("map.html", page=present(self.view, now, self.marks))
        statuses = self.view.statuses
        changed = [status for status, since in zip(statuses, self.changed, strict=True) if since > version]
        hosts, pools = {status.gpu.host for status in changed}, {status.gpu.pool for status in changed}
        page = present(
            replace(self.view, statuses=tuple(status for status in statuses if status.gpu.host in hosts)),
            now,
            self.marks,
        )
        return PARTS, render(
            "map_parts.html",
            generation=self.view.generation,
            pools=pool_cards([status for status in statuses if status.gpu.pool in pools]),
            hosts=page.hosts,
            gpus=gpu_boxes(changed, now, self.marks),
        )


def _same_gpus(old: InventoryView, new: InventoryView) -> bool:
    return [status.gpu for status in old.statuses] == [status.gpu for status in new.statuses]


def _mark(marks: Marks | None, gpu: Gpu) -> str:
    return (marks or {}).get((gpu.host, gpu.address), "")
