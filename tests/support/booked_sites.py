"""The lab's example site with bookings, and a ledger for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from ruamel.yaml import YAML

from gpuyard.bookings.controllers.site_ledger import book_of, site_lanes
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.store import Store
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard_lab.plan import EXAMPLE_SITE


class ShiftedClock:
    """The time of day, and as much later as a test has gone forward."""

    def __init__(self) -> None:
        self.shift = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.shift

    def forward(self, **time: float) -> None:
        self.shift += timedelta(**time)

    def until(self, moment: datetime) -> None:
        """Go forward to a moment; never back."""
        self.shift += max(timedelta(0), moment - self())


def booked_site(
    folder: Path, booking: Mapping[str, Any], projects: Mapping[str, Any] | None = None, **more: Any
) -> CompiledSite:
    """The example site with these rules. `projects` in place of its own; `more`: further keys of the site file."""
    document = YAML(typ="safe").load(EXAMPLE_SITE) | more
    document["booking"] = dict(booking)
    if projects is not None:
        document["projects"] = dict(projects)
    copy_recordings(folder)
    path = folder / "site.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML too
    return load_site(path).compiled


def copy_recordings(folder: Path) -> None:
    """What the example site's file refers to."""
    shutil.copytree(EXAMPLE_SITE.parent / "recordings", folder / "recordings", dirs_exist_ok=True)


def open_ledger(folder: Path, compiled: CompiledSite, clock: ShiftedClock, database: str = "") -> Ledger:
    """On an SQLite database in a folder, the same again for the same folder; or on the one that is named."""
    store = Store.open(database or f"sqlite:///{folder / 'ledger.db'}")
    store.sync_lanes(site_lanes(compiled.gpus))
    return Ledger(store, book_of(compiled), clock, lambda: uuid4().hex[:8])
