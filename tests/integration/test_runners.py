"""Jobs of a stand-in GitHub on servers of the real Nova, kept by `gpuyard serve`, played by guests that know only their
user data: by scale set and by webhook, from the push to the deleted server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.openstack.api import CloudApi
from gpuyard.runners.records import Cause, JobState, RunnerState
from gpuyard_lab.github.records import COMPLETED
from tests.integration.conftest import RunningLab
from tests.integration.runner_harness import SET, RunnerHarness, YardSite, open_yard
from tests.integration.test_serve import ready
from tests.support.runner_projects import runners_cloud

pytestmark = pytest.mark.lab


@pytest.fixture
def inventory(
    lab: RunningLab, operator: CloudApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunnerHarness]:
    clouds = runners_cloud(lab.status.clouds_file, operator, tmp_path)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    with open_yard(lab, operator, tmp_path, clouds, f"sqlite:///{tmp_path / 'yard.db'}", YardSite()) as made:
        yield made


def test_jobs_by_scale_set_and_by_webhook_run_on_servers_that_are_deleted(inventory: RunnerHarness) -> None:
    process = inventory.serve()
    inventory.until(lambda: ready(inventory.port) and inventory.github.standin.forge.sets)
    assert process.poll() is None
    by_set, by_hook, other = inventory.push(SET, "cirun-gpu", "ubuntu-latest")
    mine = [by_set, by_hook]
    inventory.until(lambda: all(inventory.job(id).status == COMPLETED for id in mine))
    inventory.until(lambda: not inventory.left_over())
    assert [inventory.job(id).conclusion for id in mine] == ["success", "success"]
    assert inventory.job(other).status != COMPLETED
    with inventory.opened() as (runners, _):
        gone = runners.runners(over=True)
        assert {runner.state for runner in gone} == {RunnerState.GONE}
        assert {runner.cause for runner in gone} == {Cause.FINISHED}
        assert {runner.name for runner in gone} == {inventory.job(id).tries[0].runner for id in mine}
        assert all("Running job" in runners.log(runner.name) for runner in gone)
        assert {latest_job.state for latest_job in runners.latest_jobs()} == {JobState.COMPLETED}
