"""Labs of other releases: Keystone, Placement, Glance, Neutron and Nova of that release take what is compiled for it,
and do what it is for: all GPUs are used and no group is split, and a booking lets its owner in and nobody else.

They install each release from PyPI, into GPUYARD_TEST_CACHE where it is set, and take some minutes each: only with
GPUYARD_TEST_RELEASES=1 (`make test-releases`), or with the names of some, as in GPUYARD_TEST_RELEASES=2025.1,2026.1.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from gpuyard.model.booking import BookingState
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise, choose, prove
from gpuyard_lab.releases.catalogue import LAB_RELEASES
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import RunningLab, start_lab
from tests.integration.test_enforcement import MUST, start
from tests.integration.test_releases import CACHE_VARIABLE
from tests.support.sites import plain_site

VARIABLE = "GPUYARD_TEST_RELEASES"
WANTED = os.environ.get(VARIABLE, "")
NAMES = [name for name in LAB_RELEASES if name in WANTED.split(",") or WANTED == "1"]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(not NAMES, reason=f"installs and starts whole releases; {VARIABLE}=1 runs it"),
]


@dataclass(frozen=True)
class ReleaseLab:
    """A lab of one release, to which the example site is applied."""

    name: str
    running: RunningLab
    operator: CloudApi
    compiled: CompiledSite

    def apply(self) -> int:
        """Apply the site; how many steps that took."""
        observed = read_objects(self.operator, self.compiled)
        plan = plan_site(self.compiled, observed)
        assert not plan.refusals, plan.refused
        SiteApplier(self.operator, observed).apply(plan, lambda step: None)
        return len(plan.steps)


@pytest.fixture(scope="module", params=NAMES or ["none"])
def lab_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseLab]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    cache_folder = os.environ.get(CACHE_VARIABLE)
    cache = Path(cache_folder) / "labs" if cache_folder else folder / "releases"
    site = plain_site(name)
    running = start_lab(folder / "lab", site=site, release=name, release_cache=cache)
    operator = connect(ADMIN_CLOUD, running.status.clouds_file)  # which says who may read limits
    made = ReleaseLab(name, running, operator, load_site(site).compiled)
    assert made.apply() > 0
    yield made
    control.down(running.settings)


def test_all_gpus_are_used_and_no_group_is_split(lab_of: ReleaseLab) -> None:
    assert lab_of.apply() == 0, "what was applied is as it should be"
    assert versions_in(lab_of.running.lab.python) == LAB_RELEASES[lab_of.name].services
    exercise = Exercise(lab_of.operator, CloudApi(lab_of.running.connect(DEMO_CLOUD)), lab_of.compiled)
    subject = choose(lab_of.compiled)
    rows = list(prove(exercise, subject))
    assert {row.status for row in rows} == {"ACTIVE"}
    assert len(rows) == subject.slots * 2


def test_a_booking_lets_its_owner_in_and_nobody_else_and_ends(lab_of: ReleaseLab, tmp_path: Path) -> None:
    booked: BookedLab = open_booked_lab(lab_of.running, lab_of.operator, tmp_path, MUST, {}, release=lab_of.name)
    try:
        booked.controller.run()
        assert booked.refused("ada"), "nothing is booked"
        booking = booked.book("ada")
        start(booked, booking)
        boot = booked.boot("ada")
        assert boot.status == "ACTIVE", boot.fault
        assert booked.refused("bob")
        assert booked.refused("ada"), "one was booked"
        booked.controller.run()
        holding = booked.now(booking)
        (claim,) = [status for status in booked.statuses() if status.claim]
        assert f"{claim.gpu.host}/{claim.gpu.address}" == booked.lanes()[holding.lanes[0]].name
        booked.clock.until(booking.ask.end)
        booked.controller.run()
        assert booked.now(booking).state is BookingState.ENDED
        assert booked.refused("ada")
    finally:
        booked.clear()


def versions_in(python: Path) -> dict[str, str]:
    """What a Python has of the services."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [str(python), "-c", code, *next(iter(LAB_RELEASES.values())).services]
    versions: dict[str, str] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert versions != {name: version(name) for name in versions}
    return versions
