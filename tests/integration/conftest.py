"""A running lab for tests that need the real OpenStack.

GPUYARD_TEST_LAB_STATE names the folder of a lab to use, and to leave running, instead of a new one per session
(of each worker, where there are several).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from gpuyard.openstack.api import CloudApi, connect
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import LabPlan
from gpuyard_lab.settings import Lab, LabSettings, remembered
from gpuyard_lab.status import LabStatus
from tests.support.ports import free_port_base
from tests.support.sites import plain_site

with warnings.catch_warnings():  # its own dependencies warn when they are imported
    warnings.simplefilter("ignore")
    import openstack
    from openstack.config import OpenStackConfig
    from openstack.warnings import OpenStackDeprecationWarning, RemovedInSDK50Warning, RemovedInSDK60Warning

# The SDK warns about its own calls of its own functions; that is not for us to mend.
SDK_WARNINGS = (OpenStackDeprecationWarning, RemovedInSDK50Warning, RemovedInSDK60Warning)
REUSE_VARIABLE = "GPUYARD_TEST_LAB_STATE"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have these tests run although the SDK warns."""
    for category in SDK_WARNINGS:
        item.add_marker(pytest.mark.filterwarnings(f"ignore::{category.__module__}.{category.__qualname__}"))


@dataclass(frozen=True)
class RunningLab:
    """A lab that is up, and connections to it."""

    settings: LabSettings
    status: LabStatus

    @property
    def lab(self) -> Lab:
        lab = remembered(self.settings.state)
        assert lab is not None
        return lab

    def connect(self, cloud: str) -> openstack.connection.Connection:
        """A new connection to one of the lab's clouds."""
        config = OpenStackConfig(config_files=[str(self.status.clouds_file)], load_envvars=False)
        with warnings.catch_warnings():
            for category in SDK_WARNINGS:
                warnings.simplefilter("ignore", category)
            return openstack.connection.Connection(config=config.get_one(cloud))

    @cached_property
    def admin(self) -> openstack.connection.Connection:
        return self.connect(ADMIN_CLOUD)

    @cached_property
    def demo(self) -> openstack.connection.Connection:
        return self.connect(DEMO_CLOUD)


def start_lab(
    state: Path,
    plan: LabPlan | None = None,
    site: Path | None = None,
    release: str | None = None,
    release_cache: Path | None = None,
) -> RunningLab:
    """Bring up a lab in a folder, on ports that are free."""
    existing = remembered(state)
    port_base = existing.port_base if existing else free_port_base()
    settings = LabSettings(state, port_base=port_base, site=site, release=release, release_cache=release_cache)
    return RunningLab(settings, control.up(settings, plan))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """The lab of the example site, one for all tests of a worker: leave nothing behind in it.

    OS_CLIENT_CONFIG_FILE points to its clouds.yaml, for code that connects by itself.
    """
    reused = os.environ.get(REUSE_VARIABLE)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    state = Path(reused).resolve() / worker if reused else tmp_path_factory.mktemp("lab")
    running = start_lab(state, site=plain_site())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OS_CLIENT_CONFIG_FILE", str(running.status.clouds_file))
        yield running
    if not reused:
        control.down(running.settings)


@pytest.fixture
def admin(lab: RunningLab) -> openstack.connection.Connection:
    """The lab's administrator."""
    return lab.admin


@pytest.fixture
def demo(lab: RunningLab) -> openstack.connection.Connection:
    """A user of the lab like any other."""
    return lab.demo


@pytest.fixture(scope="session")
def example() -> CompiledSite:
    """The example site, compiled."""
    return load_site(plain_site()).compiled


@pytest.fixture(scope="session")
def operator(lab: RunningLab) -> CloudApi:
    """gpuyard's own door to the lab, as its administrator."""
    return connect(ADMIN_CLOUD)


@pytest.fixture(scope="session")
def user(lab: RunningLab) -> CloudApi:
    """The same as the demo user."""
    return connect(DEMO_CLOUD)


@pytest.fixture(scope="session")
def applied(operator: CloudApi, example: CompiledSite) -> None:
    """The example site's flavors and limits are in the lab."""
    observed = read_objects(operator, example)
    SiteApplier(operator, observed).apply(plan_site(example, observed), lambda step: None)


@pytest.fixture
def exercise(operator: CloudApi, user: CloudApi, example: CompiledSite, applied: None) -> Iterator[Exercise]:
    """Boots and deletes servers as the demo user; whatever a test leaves is deleted."""
    subject = Exercise(operator, user, example)
    subject.clear()
    yield subject
    subject.clear()
