"""The roll-out of PCI devices in Placement, walked on the real services with servers that were there before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.diagnosis.rollout import Rollout, Stage, StageState, plan_rollout, world_site
from gpuyard.model.errors import BlockedError
from gpuyard.model.finding import Severity
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import EXAMPLE_SITE, plan_of_site
from tests.integration.conftest import RunningLab, start_lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

RECORDINGS = EXAMPLE_SITE.parent / "recordings"


@dataclass
class Walk:
    """A lab of its own that goes from stage to stage."""

    folder: Path
    running: RunningLab | None = None

    def bring_up(self, stage: Stage) -> None:
        """The same lab with the site at a stage, everything deployed."""
        document: dict[str, Any] = {
            "site": "walk",
            "pci_in_placement": stage.value,
            "hosts": {
                "gpu-server": {"recording": str(RECORDINGS / "epyc-v100.json")},
                "hyper18": {"recording": str(RECORDINGS / "hyper18.json")},
            },
            "pools": {"v100": {"models": ["10de:1db4"]}, "k40c": {"models": ["10de:1024"]}},
            "flavors": {
                "one": {"vcpus": 1, "ram": "1 GiB", "disk": "1 GiB", "gpus": {"v100": 1}},
                "more": {"vcpus": 2, "ram": "2 GiB", "disk": "1 GiB", "gpus": {"v100": 1}},
                "small": {"vcpus": 1, "ram": "1 GiB", "disk": "1 GiB", "gpus": {"k40c": 1}},
            },
            "projects": {"demo": {"gpus": {"v100": 6, "k40c": 1}}},
            "limits": {"servers": 100},
        }
        if stage is Stage.ON:
            pair = {"vcpus": 1, "ram": "1 GiB", "disk": "1 GiB", "gpus": {"v100": 2}, "same_group": True}
            document["flavors"]["pair"] = pair
        self.site_file.write_text(json.dumps(document))
        plan = plan_of_site(self.site_file)
        self.running = start_lab(self.folder / "lab", plan)
        observed = read_objects(self.operator, self.loaded.compiled)
        SiteApplier(self.operator, observed).apply(plan_site(self.loaded.compiled, observed), lambda step: None)

    @property
    def site_file(self) -> Path:
        return self.folder / "site.yaml"

    @property
    def loaded(self) -> LoadedSite:
        return load_site(self.site_file)

    @property
    def clouds(self) -> Path:
        assert self.running is not None
        return self.running.status.clouds_file

    @property
    def operator(self) -> CloudApi:
        return connect(ADMIN_CLOUD, self.clouds)

    @property
    def exercise(self) -> Exercise:
        return Exercise(self.operator, connect(DEMO_CLOUD, self.clouds), self.loaded.compiled)

    def rollout(self, to: Stage = Stage.ON) -> Rollout:
        loaded = self.loaded
        world = read_world(self.operator, world_site(loaded.site, loaded.inventories), migrations=True)
        return plan_rollout(loaded.site, loaded.inventories, world, to)

    def states(self) -> list[StageState]:
        return [stage.state for stage in self.rollout().stages]

    def failed(self) -> set[str]:
        return {c.code for stage in self.rollout().stages for c in stage.conditions if c.severity is Severity.ERROR}

    def drift(self) -> list[str]:
        loaded = self.loaded
        findings = find_drift(loaded.compiled, loaded.inventories, read_world(self.operator, loaded.compiled))
        return [f"{item.code}: {item.object}: {item.reason}" for item in findings]

    def held(self, server: str) -> list[str]:
        """Names of the GPU providers that a server has in Placement."""
        ids = self.operator.get("placement", f"/allocations/{server}")["allocations"]
        rows = self.operator.get("placement", "/resource_providers")["resource_providers"]
        return [row["name"] for row in rows if row["uuid"] in ids and row["parent_provider_uuid"]]

    def command(self, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.setenv("OS_CLIENT_CONFIG_FILE", str(self.clouds))
            args = ["site", "rollout", "--os-cloud", ADMIN_CLOUD, "--site", str(self.site_file), *more]
            result = CliRunner().invoke(app, args)
        if isinstance(result.exception, BlockedError):
            return result.exception.exit_code, result.output + str(result.exception)
        assert result.exception is None, result.exception
        return result.exit_code, result.output


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    subject = Walk(tmp_path)
    yield subject
    if subject.running is not None:
        control.down(subject.running.settings)


def test_from_a_cloud_that_knows_no_devices_to_one_that_keeps_groups_together(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk.bring_up(Stage.OFF)
    exercise = walk.exercise
    servers = [exercise.boot(name) for name in ("one", "one", "small")]
    assert {boot.status for boot in servers} == {"ACTIVE"}
    assert [walk.held(boot.server_id) for boot in servers] == [[], [], []]
    assert {host.host: host.stage for host in walk.rollout().hosts} == {"gpu-server": "off", "hyper18": "off"}
    assert walk.states() == [StageState.NEXT, StageState.LATER]
    assert walk.drift() == []
    code, text = walk.command(monkeypatch)
    assert (code, "stage report: next" in text) == (0, True), text

    resized = servers[0].server_id
    walk.operator.request("POST", "compute", f"/servers/{resized}/action", {"resize": {"flavorRef": "more"}})
    exercise.wait_for_status(resized, "VERIFY_RESIZE")
    assert walk.failed() == {"migrations", "servers-at-rest"}
    code, text = walk.command(monkeypatch)
    assert (code, f"resize of server {resized} (finished)" in text) == (3, True), text
    walk.operator.request("POST", "compute", f"/servers/{resized}/action", {"confirmResize": None})
    exercise.wait_for_status(resized, "ACTIVE")
    assert walk.states() == [StageState.NEXT, StageState.LATER]

    walk.bring_up(Stage.REPORT)
    healed = {boot.server_id: walk.held(boot.server_id) for boot in servers}
    assert all(len(names) == 1 for names in healed.values()), "Nova gave them their allocations"
    assert walk.states() == [StageState.DONE, StageState.NEXT]
    assert walk.drift() == []
    assert [stage.state for stage in walk.rollout(Stage.REPORT).stages] == [StageState.DONE]

    operator = walk.operator
    before = operator.get("placement", f"/allocations/{resized}")
    body = {key: before[key] for key in ("project_id", "user_id", "consumer_generation")}
    root = next(row for row, amounts in before["allocations"].items() if "VCPU" in amounts["resources"])
    body |= {"consumer_type": "INSTANCE", "allocations": {root: before["allocations"][root]}}
    operator.request("PUT", "placement", f"/allocations/{resized}", body)
    assert walk.failed() == {"servers-healed"}
    drift = walk.drift()
    assert len(drift) == 1
    assert drift[0].startswith("server-without-gpu: server gpuyard-exercise-")
    code, text = walk.command(monkeypatch, "-f", "json")
    rows = json.loads(text[: text.rindex("]") + 1])
    assert code == 3
    assert [row["code"] for row in rows if row["severity"] == "error"] == ["servers-healed"]
    assert walk.command(monkeypatch, "--to", "report")[0] == 0

    walk.bring_up(Stage.REPORT)
    walk.bring_up(Stage.ON)
    assert walk.held(resized) == healed[resized], "nova-compute healed it again when it started"
    assert walk.states() == [StageState.DONE, StageState.DONE]
    assert {host.host: host.stage for host in walk.rollout().hosts} == {"gpu-server": "on", "hyper18": "report/on"}
    assert walk.drift() == []
    code, text = walk.command(monkeypatch)
    assert (code, text.count(": done")) == (0, 2)

    # What came with the last stage works beside servers from before the first.
    boots = [walk.exercise.boot("one") for _ in range(2)]
    assert {boot.status for boot in boots} == {"ACTIVE"}
    assert walk.drift() == []
    walk.exercise.clear()
    assert walk.exercise.boot("pair-a").status == "ACTIVE"
