"""The lab of a measurement, with the example site applied: one of its own, or that of the folder that GPUYARD_BENCH_LAB
names. That one stays, and has its site's limits again at the end; a part leaves nothing else behind in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.conftest import RunningLab
from tests.support.ports import free_port_base
from tests.support.sites import plain_site

from gpuyard.openstack.api import connect
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.objects import bookings_mark
from gpuyard_lab import control, portal
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.settings import Lab, LabSettings, remembered


@contextmanager
def running_lab() -> Iterator[tuple[RunningLab, LoadedSite]]:
    named_folder = os.environ.get("GPUYARD_BENCH_LAB")
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        state = Path(named_folder or folder) / ("" if named_folder else "lab")
        previous = remembered(state)
        settings = LabSettings(state, port_base=previous.port_base if previous else free_port_base(), site=plain_site())
        try:
            running, loaded = RunningLab(settings, control.up(settings)), load_site(plain_site())
            portal.apply_site(running.lab, loaded)
            yield running, loaded
            if named_folder:
                put_back(running.lab, loaded)
        finally:
            if not named_folder:
                control.down(settings)


def put_back(lab: Lab, loaded: LoadedSite) -> None:
    """Keepers of bookings have taken away the limits of a site without bookings, and set others."""
    operator = connect(ADMIN_CLOUD, lab.clouds_file)
    for row in operator.get("identity", "/limits")["limits"]:
        if row["description"] == bookings_mark(loaded.site.site):
            operator.request("DELETE", "identity", f"/limits/{row['id']}")
    portal.apply_site(lab, loaded)
